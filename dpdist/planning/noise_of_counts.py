"""For plans in `cli`: the noise of counts, and cells that it outweighs, from public sizes and noise scale.

The noise of counts is exact: a count over k noisy sums has the noise of k sums. Its ratio to direct standard errors
depends on the variation of weights, which no bound shows. `quality.predicted` predicts this ratio from public records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dpdist.core.cautions import Caution
from dpdist.core.records import counted_and_named
from dpdist.estimation.estimators import NORMAL_90
from dpdist.models.protocol import NoisedFigures
from dpdist.planning.plan import Plan


class TableNoise(NamedTuple):
    """The noise of a table's counts: smallest and largest standard deviation, where the largest is, and hidden cells.

    A hidden count may be 0 or not, whatever its noisy figure, even if all its weights are at their bound.
    """

    table: str
    smallest: float
    largest: float
    where: tuple[str, ...]
    cells: int
    hidden: list[tuple[str, ...]]


def noise_of_counts(plan: Plan) -> list[TableNoise]:
    """The noise of every table's counts; empty if it does not follow from public facts, or sizes are secret."""
    job, crosstab, model = plan.job, plan.crosstab, plan.model
    if not isinstance(model, NoisedFigures) or job.sizes_secret or not job.strict or model.noise_of_count is None:
        return []
    deviation, most = model.noise_of_count
    base, noises = crosstab.group(job.cell_columns)[0], []
    for table in job.tables:
        if not any(statistic.name == "count" for statistic in table.statistics):
            continue
        cells = table.cells(crosstab)
        records, inside = cells.membership @ crosstab.count.astype(float), cells.membership.tocoo()
        met = np.unique(np.column_stack([inside.row, base[inside.col]])[crosstab.count[inside.col] > 0], axis=0)
        added = np.ones(len(cells)) if job.mechanism.whole_tables else np.bincount(met[:, 0], minlength=len(cells))
        noise, filled = deviation * np.sqrt(added), np.flatnonzero(records > 0)
        if len(filled):
            largest = filled[np.argmax(noise[filled])]
            hidden = [cells.labels[k] for k in filled if most * records[k] < NORMAL_90 * noise[k]]
            ends = float(noise[filled].min()), float(noise[largest])
            noises.append(TableNoise(table.name, *ends, cells.labels[largest], len(filled), hidden))
    return noises


def in_words(plan: Plan) -> Iterator[str]:
    """Yields lines of a plan: the noise of counts, and the counts that it hides."""
    for noise in noise_of_counts(plan):
        yield (
            f"{noise.table}, count: noise has a standard deviation of {noise.smallest:,.0f} to {noise.largest:,.0f} "
            f"({', '.join(noise.where)}), in the unit of the weight"
        )
    yield from map(str, hidden(plan))


def hidden(plan: Plan) -> Iterator[Caution]:
    """Yields cautions on tables with counts that noise certainly hides."""
    for noise in noise_of_counts(plan):
        if noise.hidden:
            yield Caution.of(
                "hidden_counts",
                table=noise.table,
                hidden=f"{len(noise.hidden):,}",
                cells=f"{noise.cells:,}",
                names=counted_and_named(noise.hidden),
            )
