"""Cells whose reference is small borrow the shape of others: one shape, at scales that clipped statistics tell.

A mean of a few dozen heavy-tailed records says more of its largest record than of its cell. So a small cell takes the
pooled shape of its like at its own mean weight and at an outcome's scale solved from its own clipped statistics, which no
record moves far; these scales are shrunk to each other as far as sampling moved them. All is made of the reference alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.mechanisms.reference_tables.clipping import Cell, condensed
from dpdist.mechanisms.reference_tables.clipping_inversion import shrunk

FEW = 1000
"""Reference records below which a cell borrows."""
LENT = 2_000
HIGH = 0.95
"""Quantile of the shape at which a small cell's own statistics are clipped."""


def complete(cells: Sequence[Cell], codes: Codes | None = None) -> list[Cell]:
    """Cells of which those with FEW records borrow; `codes` (cell, column) tell which are alike."""
    group = np.zeros(len(cells), dtype=np.int64) if codes is None else alike(cells, codes)
    found = list(cells)
    for number in np.unique(group):
        own = [int(k) for k in np.flatnonzero(group == number)]
        small = [k for k in own if cells[k].records < FEW and cells[k].scaled]
        lending = [cells[k] for k in own if cells[k].scaled]
        if small and len(lending) > 1:
            weight, outcome = _shape(lending)
            lent = [cells[k].lent(weight, outcome) for k in small]
            moves = _moves(lent, [cells[k] for k in small])
            for k, cell, g in zip(small, lent, moves, strict=True):
                found[k] = cell.under(0.0, g)
    return found


def _shape(cells: Sequence[Cell]) -> tuple[Floats, Floats]:
    """Weights and outcomes relative to their cells' means, of mean 1."""
    weight = np.concatenate([cell.weight / cell.mean_weight for cell in cells])
    outcome = np.concatenate([cell.outcome / cell.mean for cell in cells])
    weight, outcome = condensed(weight, outcome, LENT)
    return weight / weight.mean(), outcome / np.average(outcome, weights=weight)


def _moves(lent: Sequence[Cell], own: Sequence[Cell]) -> Floats:
    """Log scales of the outcome's shape in every small cell, (cell,)."""
    found, sampling, level = [], [], []
    for cell, held in zip(lent, own, strict=True):
        reach = float(np.quantile(np.abs(cell.outcome - cell.mean), HIGH))
        limits = (cell.mean, float(np.quantile(cell.weight, HIGH)), max(reach, 1e-9 * (cell.top - cell.low)))
        found.append(cell.solve(*held.statistics(0.0, 0.0, limits), limits)[1])
        sampling.append(cell.slopes(limits).influence[:, 1].var() / held.records)
        level.append(np.log(cell.mean))
    values, origin = np.array(found), np.array(level)
    if len(values) < 3:
        return values
    return np.asarray(shrunk(values + origin, np.zeros(len(values)), np.array(sampling)).values - origin)


def alike(cells: Sequence[Cell], codes: Codes) -> Ints:
    """Groups by the one column within whose levels the cells are the most alike: in zeros, weighted by records.

    A column that tells every cell apart makes no groups."""
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
