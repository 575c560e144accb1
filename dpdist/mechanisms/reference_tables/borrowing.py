"""Small-area borrowing: mixes a cell's own shape with the shape of similar cells, by size and similarity.

A mean of a few dozen heavy-tailed records depends more on its largest record than on its cell. So every cell is a mixture
of its own records and of the pooled shape of similar cells. The pooled shape is moved to the cell's own mean weight. Its
outcome scale is solved from the cell's own clipped statistics, which no record changes much. These scales are shrunk to
each other, as far as sampling moved them. The two shapes differ in the mean beyond the clip. There the cell's own records
err by sampling, and the pooled shape errs by how unlike the cell is. Each gets the weight of its precision. Everything is
computed from the reference alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.estimation.small_area import composite, shrunk
from dpdist.mechanisms.reference_tables.cell_shape import condensed
from dpdist.mechanisms.reference_tables.clipping import Cell

POOLED_POINTS = 2_000
"""Largest number of points of a pooled shape. A mixed cell has this many, or as many as its records if they are more."""
HIGH = 0.95
"""Quantile of the shape at which a cell's own statistics are clipped."""
ALONE = 0.98
"""Weight of a cell's own records above which nothing is borrowed."""


def complete(cells: Sequence[Cell], codes: Codes | None = None) -> list[Cell]:
    """Cells mixed with the shape of similar cells; `codes` (cell, column) determine which cells are similar."""
    group = np.zeros(len(cells), dtype=np.int64) if codes is None else alike(cells, codes)
    completed = list(cells)
    for number in np.unique(group):
        like = [k for k in np.flatnonzero(group == number).tolist() if cells[k].scaled]
        if len(like) > 1:
            members = [cells[k] for k in like]
            borrowed = _borrowed(members)
            shares, unlike = _composite(members, borrowed)
            for place, k in enumerate(like):
                completed[k] = mixed(cells[k], borrowed[place], float(shares[place]), float(unlike[place]))
    return completed


def mixed(cell: Cell, other: Cell, share: float, unlike: float) -> Cell:
    """A cell with `share` own records and, for the rest, another's points.

    The log mean of these points errs by `unlike`.
    """
    if share >= ALONE:
        return cell
    size = len(cell.weight)
    points = min(max(round(size / max(share, 1e-6)), 1), max(POOLED_POINTS, size))
    kept = round(share * points)
    pairs = [pair for pair in (_points(cell, kept), _points(other, points - kept)) if len(pair[0])]
    weight, outcome = (np.concatenate(column) for column in zip(*pairs, strict=True))
    weight = weight * (cell.mean_weight / weight.mean())
    return replace(cell, weight=weight, outcome=outcome, borrowed=1.0 - share, unlike=unlike)


def _points(cell: Cell, number: int) -> tuple[Floats, Floats]:
    """`number` points of a cell's law: its records, repeated as often as needed or condensed to fewer."""
    if number <= 0:
        return np.empty(0), np.empty(0)
    if number >= len(cell.weight):
        taken = np.sort(np.arange(number) % len(cell.weight))
        return cell.weight[taken], cell.outcome[taken]
    return condensed(cell.weight, cell.outcome, number)


def _borrowed(cells: Sequence[Cell]) -> list[Cell]:
    """The pooled shape for every cell, at the cell's own mean weight and clipped statistics."""
    weight = np.concatenate([cell.weight / cell.mean_weight for cell in cells])
    outcome = np.concatenate([cell.outcome / cell.mean for cell in cells])
    weight, outcome = condensed(weight, outcome, POOLED_POINTS)
    weight, outcome = weight / weight.mean(), outcome / np.average(outcome, weights=weight)
    pooled = [cell.with_borrowed(weight, outcome) for cell in cells]
    return [cell.under(0.0, g) for cell, g in zip(pooled, _moves(pooled, cells), strict=True)]


def _composite(cells: Sequence[Cell], borrowed: Sequence[Cell]) -> tuple[Floats, Floats]:
    """Weight of every cell's own records, and deviation of the pooled shape's log mean from the cell's, (cell,) each.

    Cells are compared by the log of own over borrowed mean (`small_area.composite`).
    """
    apart = np.array([np.log(cell.mean / other.mean) for cell, other in zip(cells, borrowed, strict=True)])
    sampling = np.array([_tail(other) / cell.records for cell, other in zip(cells, borrowed, strict=True)])
    found = composite(apart, sampling)
    return found.own, found.unlike


def _tail(cell: Cell) -> float:
    """Variance, by record, of the part of the log mean that the clipped statistics do not determine."""
    direct = cell.direct_influence()[:, 1] / cell.mean
    clipped = cell.slopes(_limits(cell)).influence[:, 1] * cell.mean_rate / cell.mean
    return float((direct - clipped).var())


def _limits(cell: Cell) -> tuple[float, float, float]:
    """Centre, weight cap and half-width at HIGH quantiles."""
    half_width = float(np.quantile(np.abs(cell.outcome - cell.mean), HIGH))
    return cell.mean, float(np.quantile(cell.weight, HIGH)), max(half_width, 1e-9 * (cell.top - cell.low))


def _moves(pooled: Sequence[Cell], cells: Sequence[Cell]) -> Floats:
    """Log scales of the outcome's shape in every cell, (cell,)."""
    solved, sampling, level = [], [], []
    for cell, held in zip(pooled, cells, strict=True):
        limits = _limits(cell)
        solved.append(cell.solve(*held.statistics(0.0, 0.0, limits), limits)[1])
        sampling.append(cell.slopes(limits).influence[:, 1].var() / held.records)
        level.append(np.log(cell.mean))
    values, origin = np.array(solved), np.array(level)
    if len(values) < 3:
        return values
    return np.asarray(shrunk(values + origin, np.zeros(len(values)), np.array(sampling)).values - origin)


def alike(cells: Sequence[Cell], codes: Codes) -> Ints:
    """Groups cells by the column whose levels best explain the shares of low outcomes, at most half of the mean.

    A column that has a level for every cell gives no groups.
    """
    records = np.array([cell.records for cell in cells], dtype=np.float64)
    share = np.array([np.mean(cell.outcome <= cell.mean / 2.0) for cell in cells])
    best, group = np.inf, np.zeros(len(cells), dtype=np.int64)
    for column in codes.T:
        if len(np.unique(column)) == len(cells):
            continue
        held = np.bincount(column, weights=records)
        mean = np.bincount(column, weights=records * share) / np.maximum(held, 1.0)
        spread = float((records * (share - mean[column]) ** 2).sum()) / max(1.0, len(cells) - len(np.unique(column)))
        if spread < best:
            best, group = spread, column.astype(np.int64)
    return group
