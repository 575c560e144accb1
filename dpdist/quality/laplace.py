"""Computes tables with Laplace noise as in the slides [T]: a comparator that guarantees nothing (METHODS §7).

Noise is Laplace(Δ/ε), where the sensitivities Δ are computed on the file itself (`privacy.local_sensitivity`). With
`laplace`, every cell and statistic has the whole ε, as in the slides. With `laplace_composed`, ε is divided by the number
of figures that one record enters. `laplace_consistent` also makes counts and totals add up, by least squares and at no
cost. Its means are totals over counts, where the table has both.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.direct import Totals
from dpdist.estimation.least_squares import consistent_table
from dpdist.job import Comparator, StatisticName
from dpdist.privacy.local_sensitivity import sensitivities


def noised(
    estimates: Mapping[StatisticName, Floats],
    sums: Totals,
    cells: Cells,
    epsilon: float,
    how: Comparator,
    key: Key,
    table: str,
    figures: int,
) -> dict[StatisticName, Floats]:
    """Returns direct estimates with Laplace noise; `estimates` holds counts, means and totals, (cell,) each.

    `figures` is the number of figures in the whole release that one record enters.
    """
    share = 1.0 if how == "laplace" else float(figures)
    scale = sensitivities(sums.sums.a, sums.weight, sums.product, cells)
    rng = key.generator(f"compare {'laplace_composed' if how == 'laplace_consistent' else how}", table)
    noisy = {
        name: values + rng.laplace(0.0, share * scale[name] / epsilon, len(values)) if scale[name] > 0 else values
        for name, values in estimates.items()
    }
    return consistent_table(noisy, cells) if how == "laplace_consistent" else noisy
