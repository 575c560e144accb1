"""For plans in `cli`: the noise of counts, and cells that it outweighs, from public sizes and noise scale.

The noise of counts is exact: a count over k noisy sums has the noise of k sums. Its ratio to direct standard errors
depends on the variation of weights, which no bound shows. `quality.predicted` predicts this ratio from public records.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import floor
from typing import NamedTuple

import numpy as np

from dpdist.core.cautions import Caution
from dpdist.core.table_cells import counted_and_named, cross
from dpdist.estimation.estimators import NORMAL_90
from dpdist.models.on_reference import CollapsesSmall
from dpdist.models.outputs import NoiseOfCounts
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
    job, frame, model = plan.job, plan.frame, plan.model
    if not isinstance(model, NoiseOfCounts) or job.sizes_secret or not job.strict or model.noise_of_count is None:
        return []
    deviation, most = model.noise_of_count
    base, noises = frame.group(job.cell_columns)[0], []
    for table in job.tables:
        if not any(statistic.name == "count" for statistic in table.statistics):
            continue
        cells = cross(frame, table.by, table.margins, table.universe)
        records, inside = cells.membership @ frame.count.astype(float), cells.membership.tocoo()
        met = np.unique(np.column_stack([inside.row, base[inside.col]])[frame.count[inside.col] > 0], axis=0)
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


def warned(plan: Plan) -> Iterator[Caution]:
    """Yields cautions on tables: counts that noise certainly hides, and cells that it makes like their group."""
    yield from hidden(plan)
    yield from like_their_group(plan)


def like_their_group(plan: Plan) -> Iterator[Caution]:
    """Yields a caution on every table with cells whose figures will mostly be their group's.

    These have most of their records in base cells that noise outweighs, or whose weights it hides. Nothing but public sizes
    is used. Where a reference is known, such cells have its figures, and share with others only the change since.
    """
    job, frame, model = plan.job, plan.frame, plan.model
    if job.has_reference or job.sizes_secret or job.noisy_frame or not isinstance(model, CollapsesSmall):
        return
    most, base = model.most_outweighed, frame.group(job.cell_columns)[0]
    small = np.bincount(base, weights=frame.count)[base] <= most
    for table in job.tables if small.any() else ():
        if job.survey.weight is None and all(statistic.name == "count" for statistic in table.statistics):
            continue  # counts of records are public
        cells = cross(frame, table.by, table.margins, table.universe)
        of_group = cells.membership @ (frame.count * (2.0 * small - 1.0)) > 0.0
        if of_group.any():
            names = counted_and_named([cells.labels[k] for k in np.flatnonzero(of_group)])
            yield Caution.of("like_their_group", table=table.name, names=names, most=f"{floor(most):,}")


def hidden(plan: Plan) -> Iterator[Caution]:
    for noise in noise_of_counts(plan):
        if noise.hidden:
            yield Caution.of(
                "hidden_counts",
                table=noise.table,
                hidden=f"{len(noise.hidden):,}",
                cells=f"{noise.cells:,}",
                names=counted_and_named(noise.hidden),
            )
