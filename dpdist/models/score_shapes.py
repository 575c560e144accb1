"""Distributions of a reference's weights and outcomes by cell, part and class of weights (METHODS §5b).

A cell of LEAST records has its own. A smaller one has a mixture of its own records and those of cells like it, by size and
likeness (`small_area`). Both are compared by the mean normal score of the cell's records under the others' distribution: a
few records of a heavy tail say little of a mean. Where weights have few values, every class of weights has outcomes of its
own: so the reference's pairs of weight and outcome are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.models.marginal import Marginal
from dpdist.models.score_cells import Cells
from dpdist.models.small_area import composite
from dpdist.records import Codes, Floats, Ints

LEAST = 100
"""Reference records below which a cell's distributions are mixed with others'."""
CLASS = 50
"""Reference records of a class of weights, at least."""
FEW_VALUES = 10
"""Records by value, in the mean, from which weights are atoms and not points of a density."""


class Shapes(NamedTuple):
    """Position of every cell's distribution; weight of its own records in it; records that would tell as much."""

    position: Ints
    own: Floats
    effective: Floats

    @classmethod
    def empty(cls, cells: int) -> Shapes:
        return cls(np.zeros(cells, dtype=np.int64), np.ones(cells), np.zeros(cells))


def of_outcomes(values: Floats) -> Marginal:
    return Marginal.of(values, continuous=False)


def discrete(values: Floats) -> bool:
    return FEW_VALUES * len(np.unique(values)) <= len(values)


def shapes(cells: Cells, cell: Codes, values: Floats, weights: bool, found: list[Marginal]) -> Shapes:
    """Distributions of all cells, added to `found`; `values` (record,) of weights, or else of outcomes."""
    size = np.bincount(cell, minlength=len(cells))
    position, own, effective = np.arange(len(cells)) + len(found), np.ones(len(cells)), size.astype(np.float64)
    small = np.flatnonzero(size < LEAST)
    like = _wider(cells, size, small)
    for columns in np.unique(like[like > 0]).tolist():
        group = cells.wider(columns)
        for number in np.unique(group[small[like == columns]]).tolist():
            mixed = np.intersect1d(small[like == columns], np.flatnonzero(group == number))
            inside = group[cell] == number
            own[mixed], effective[mixed] = _by_likeness(cell[inside], values[inside], mixed)
    for k in range(len(cells)):
        mine, others = values[cell == k], np.empty(0)
        if k in small and like[small == k] > 0:
            group = cells.wider(int(like[small == k][0]))
            others = values[(group[cell] == group[k]) & (cell != k)]
        continuous = weights and not discrete(np.concatenate([mine, others]))
        found.append(Marginal.mixed(mine, others, float(own[k]), continuous))
    return Shapes(position, own, effective)


def _wider(cells: Cells, size: Ints, small: Ints) -> Ints:
    """How many predictors small cells leave out, (small cell,): the fewest under which others have LEAST records, or all.
    None where no other cell has a record."""
    left_out = np.zeros(len(small), dtype=np.int64)
    for columns in range(1, cells.depth + 1):
        group = cells.wider(columns)
        others = np.bincount(group, weights=size)[group[small]] - size[small]
        left_out[(left_out == 0) & ((others >= LEAST) | ((columns == cells.depth) & (others > 0)))] = columns
    return left_out


def _by_likeness(cell: Codes, values: Floats, wanted: Ints) -> tuple[Floats, Floats]:
    """Weights of own records and effective numbers of records of the `wanted` cells of a group, from its records.

    A cell and the others differ by their mean scores under the group's distribution, in deviations within cells."""
    present, number = np.unique(np.concatenate([wanted, cell]), return_inverse=True)
    number = number[len(wanted) :]
    z = of_outcomes(values).scores(values, np.full(len(values), 0.5))
    size, total = np.bincount(number, minlength=len(present)).astype(np.float64), np.bincount(number, z, len(present))
    mean = total / np.maximum(size, 1.0)
    within = float(((z - mean[number]) ** 2).sum()) / max(1.0, len(z) - len(np.unique(number)))
    with np.errstate(divide="ignore"):
        sampling = within * (1.0 / size + 1.0 / (len(z) - size))
    found = composite(mean - (z.sum() - total) / np.maximum(len(z) - size, 1.0), sampling)
    records = np.minimum(within / np.maximum(found.error, within / len(z)), len(z)) if within > 0 else size
    own = np.searchsorted(present, wanted)
    return found.own[own], np.asarray(records)[own]


def by_class(position: Ints, cell: Codes, weight: Floats, outcome: Floats, found: list[Marginal]) -> tuple[Ints, Floats]:
    """Positions (cell, class) and edges (cell, class − 1) of classes of weights that have a distribution of outcomes each:
    in place of the cell's, or added to `found`. A cell with fewer classes than others repeats its last one."""
    edges = [_edges(weight[cell == k]) for k in range(len(position))]
    most = max(len(each) for each in edges)
    padded = np.array([[*each, *(each[-1:] or [0.0]) * (most - len(each))] for each in edges]).reshape(len(position), most)
    positions = np.repeat(position[:, None], most + 1, axis=1)
    for k in (k for k, each in enumerate(edges) if each):
        inside = cell == k
        number = (weight[inside][:, None] >= np.array(edges[k])).sum(axis=1)
        for each in range(len(edges[k]) + 1):
            if each:
                positions[k, each:] = len(found)
                found.append(of_outcomes(outcome[inside][number == each]))
            else:
                found[position[k]] = of_outcomes(outcome[inside][number == 0])
    return positions, padded


def _edges(weight: Floats) -> list[float]:
    """Between classes of CLASS records or more, midway between neighbouring weights; none where weights are no atoms."""
    distinct, count = np.unique(weight, return_counts=True)
    edges, held, left = [], 0, len(weight)
    for k in range(len(distinct) - 1 if len(weight) and discrete(weight) else 0):
        held, left = held + int(count[k]), left - int(count[k])
        if held >= CLASS and left >= CLASS:
            edges.append(float((distinct[k] + distinct[k + 1]) / 2.0))
            held = 0
    return edges
