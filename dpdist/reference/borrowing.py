"""For `reference.collapsing`: mixes a cell's reference records with those of similar cells (METHODS §7b).

The borrowed shape has all records of the group, relative to their cells' means. It is scaled to the cell's mean weight
and clipped statistics, on which no single record has a large effect. Own records and borrowed shape are weighted by
their precision beyond the clipping limits. Everything is computed from the reference alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.estimation.small_area import composite, shrunk
from dpdist.reference.clipping import FLAT, Cell, condensed

POOLED_POINTS = 2_000
"""Largest number of points of a borrowed shape and of a mixed cell.

A mixed cell with more records may have one point for each record.
"""
HIGH = 0.95
"""Level of the quantiles that clip a cell's own statistics."""
ALONE = 0.98
"""A cell whose own records have at least this weight borrows nothing."""


def complete(cells: Sequence[Cell], codes: Codes | None = None) -> list[Cell]:
    """The cells, each mixed with the shape of similar cells; `codes` (cell, column) are the cells' levels.

    Cells with the same levels count as similar; without levels, all cells are similar. Cells with shifted outcomes are
    left as they are.
    """
    group = np.zeros(len(cells), dtype=np.int64) if codes is None else alike(cells, codes)
    cells = _with_similar(cells, group)
    completed = list(cells)
    for number in np.unique(group):
        scaled = [k for k in np.flatnonzero(group == number).tolist() if cells[k].scaled]
        if len(scaled) > 1:
            members = [cells[k] for k in scaled]
            borrowed = _borrowed(members)
            shares, unlike = _composite(members, borrowed)
            for place, k in enumerate(scaled):
                completed[k] = mixed(cells[k], borrowed[place], float(shares[place]), float(unlike[place]))
    return completed


def _with_similar(cells: Sequence[Cell], group: Ints) -> list[Cell]:
    """The cells with the relative points of their group, or of all cells where a cell is alone in its group.

    Cells with multiplied and with shifted outcomes have separate groups.
    """
    shaped, scaled = list(cells), np.array([cell.scaled for cell in cells])
    for kind in (False, True):
        every = np.flatnonzero(scaled == kind)
        for number in np.unique(group[every]) if len(every) > 1 else ():
            rows = every[group[every] == number]
            shape = _relative([cells[k] for k in (rows if len(rows) > 1 else every).tolist()], kind)
            for k in rows.tolist():
                shaped[k] = replace(cells[k], similar=shape)
    return shaped


def _relative(cells: Sequence[Cell], scaled: bool) -> tuple[Floats, Floats]:
    """The cells' records relative to means that are shrunk towards each other; outcomes only where they are `scaled`.

    Relative to its own mean, no record of m is above m. So the means of small cells would hide a tail.
    """
    records = np.array([cell.records for cell in cells])
    means = np.log([[max(cell.mean_weight, FLAT), cell.mean if scaled else 1.0] for cell in cells])
    levels = means
    for _ in range(2):
        weight = np.concatenate([cell.weight / level for cell, level in zip(cells, np.exp(levels[:, 0]), strict=True)])
        outcome = np.concatenate([cell.outcome / level for cell, level in zip(cells, np.exp(levels[:, 1]), strict=True)])
        shape = Cell(weight, outcome, 0.0, np.inf, scaled, len(weight))
        variance = (shape.direct_influence() / [1.0, shape.mean if scaled else 1.0]).var(axis=0)
        levels = np.column_stack(
            [
                shrunk(column, np.zeros(len(cells)), one / records).values
                for column, one in zip(means.T, variance, strict=True)
            ]
        )
    weight, outcome = condensed(weight / shape.mean_weight, outcome / (shape.mean if scaled else 1.0), POOLED_POINTS)
    return weight, outcome


def mixed(cell: Cell, other: Cell, share: float, unlike: float) -> Cell:
    """Mixes a share `share` of the cell's own points with points of `other`.

    `unlike` is the standard deviation of the other points' log mean about this cell's log mean.
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
    """`number` points of a cell: its records, repeated as often as needed or condensed to fewer points."""
    if number <= 0:
        return np.empty(0), np.empty(0)
    if number >= len(cell.weight):
        taken = np.sort(np.arange(number) % len(cell.weight))
        return cell.weight[taken], cell.outcome[taken]
    return condensed(cell.weight, cell.outcome, number)


def _borrowed(cells: Sequence[Cell]) -> list[Cell]:
    """The borrowed shape for every cell: the points of all cells, at the cell's own mean weight and clipped statistics."""
    weight = np.concatenate([cell.weight / cell.mean_weight for cell in cells])
    outcome = np.concatenate([cell.outcome / cell.mean for cell in cells])
    weight, outcome = condensed(weight, outcome, POOLED_POINTS)
    weight, outcome = weight / weight.mean(), outcome / np.average(outcome, weights=weight)
    pooled = [cell.with_borrowed(weight, outcome) for cell in cells]
    return [cell.under(0.0, g) for cell, g in zip(pooled, _moves(pooled, cells), strict=True)]


def _composite(cells: Sequence[Cell], borrowed: Sequence[Cell]) -> tuple[Floats, Floats]:
    """Weights of cells' own records, and standard deviations of borrowed log means about the cells' log means, (cell,)."""
    differences = np.array([np.log(cell.mean / other.mean) for cell, other in zip(cells, borrowed, strict=True)])
    sampling = np.array([_tail(other) / cell.records for cell, other in zip(cells, borrowed, strict=True)])
    mixture = composite(differences, sampling)
    return mixture.kept, mixture.unlike


def _tail(cell: Cell) -> float:
    """Variance of a record's influence on a log mean outcome, for the part that clipped statistics do not determine."""
    direct = cell.direct_influence()[:, 1] / cell.mean
    clipped = cell.slopes(_limits(cell)).influence[:, 1] * cell.mean_rate / cell.mean
    return float((direct - clipped).var())


def _limits(cell: Cell) -> tuple[float, float, float]:
    """Centre, weight cap and half width of clipping; the last two are quantiles of the level HIGH."""
    half_width = float(np.quantile(np.abs(cell.outcome - cell.mean), HIGH))
    return cell.mean, float(np.quantile(cell.weight, HIGH)), max(half_width, 1e-9 * (cell.top - cell.low))


def _moves(pooled: Sequence[Cell], cells: Sequence[Cell]) -> Floats:
    """The log scale of the borrowed shape's outcomes for every cell, (cell,), from the cell's clipped statistics.

    With three cells or more, the scales are shrunk towards each other.
    """
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
    """The group of every cell, (cell,): its level of one column, so that cells of a group have similar outcomes.

    It is the column whose levels best explain the shares of outcomes below half of a cell's mean. A column with a
    different level in every cell is not used.
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
