"""For plans: projects the processor time and memory of a package's run from public sizes.

The constants are those of one machine, measured by `python tests/benchmarks/package_costs.py`, which prints new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dpdist.packages.large import projected_bytes
from dpdist.packages.levels import MOST_TERMS, Terms
from dpdist.packages.posterior import MOST_SUMS
from dpdist.packages.strategy import Strategy
from dpdist.packages.workload import Workload


class Amounts(NamedTuple):
    """What a run handles, whole numbers that seconds or bytes are proportional to.

    - `run`: 1.
    - `records`: records of the file and of the reference.
    - `figures`: published counts and means.
    - `dense`: m² (m + figures), with m the measured sums, over the strategies that are tried with dense matrices.
    - `terms`: T³, with T the shared terms of the prior, where these are dense.
    - `sparse`: base cells times measured tables times levels, over the strategies tried by conjugate gradients.
    - `entries`: entries of dense matrices that are held: the largest m (m + figures), and T².
    """

    run: float
    records: float
    figures: float
    dense: float
    terms: float
    sparse: float
    entries: float

    @classmethod
    def of(cls, workload: Workload, records: int, strategies: Sequence[Strategy]) -> Amounts:
        """The amounts of a run that tries these strategies on so many records."""
        levels = 1 + workload.outcomes
        cells = (workload.published_cells(table) for table in workload.tables)
        figures, terms = float(levels * sum(cells)), float(Terms.of(workload).matrix.shape[1])
        rows = [sum(one.matrix.shape[0] for one in strategy.aggregations(workload)) for strategy in strategies]
        sums = [float(levels * number) for number in rows]
        dense = [m for m in sums if m <= MOST_SUMS and terms <= MOST_TERMS]
        held = max((m * (m + figures) for m in dense), default=0.0)
        return cls(
            1.0,
            float(records),
            figures,
            sum(m**2 * (m + figures) for m in dense),
            terms**3 if terms <= MOST_TERMS else 0.0,
            float(len(workload) * (1 + len(workload.measured)) * levels * (len(sums) - len(dense))),
            held + (terms**2 if terms <= MOST_TERMS else 0.0),
        )


SECONDS = Amounts(2.5, 7.5e-6, 4.3e-3, 1.0e-9, 1.1e-8, 1.5e-4, 0.0)
"""Processor seconds by amount. That of `sparse` is from one run, of 353,384 base cells in 100 tables."""
BYTES = Amounts(2.9e8, 140.0, 0.0, 0.0, 0.0, 0.0, 29.0)
"""Bytes by amount; a package without dense matrices has those of `projected_bytes`, too."""
FIGURE_BYTES, MANY_FIGURES, FIGURE_OF_MANY_BYTES = 50_000.0, 100_000.0, 6_300.0
"""Bytes by figure of a run at least, up to so many figures, and by further figure.

Peaks were 498, 966 and 2,084 MiB with 2,649, 7,581 and 19,720 cells of counts and means, and 12.2 GB with 1,008,117.
"""


def processor_seconds(amounts: Amounts) -> float:
    """Projected processor seconds of a run, over all its processes."""
    return sum(amount * constant for amount, constant in zip(amounts, SECONDS, strict=True))


def peak_bytes(amounts: Amounts, workload: Workload) -> int:
    """Projected bytes of the largest process of a run."""
    dense = sum(amount * constant for amount, constant in zip(amounts, BYTES, strict=True))
    many = min(amounts.figures, MANY_FIGURES)
    published = FIGURE_BYTES * many + FIGURE_OF_MANY_BYTES * (amounts.figures - many)
    return int(
        max(
            dense + (projected_bytes(workload) if amounts.sparse else 0),
            amounts.records * BYTES.records + published + BYTES.run,
        )
    )
