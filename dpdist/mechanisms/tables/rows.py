"""Linear functions ("rows") of base cells' residual sums z: cells of measured tables, and published cells.

Measured rows are matrices by coordinate. Published rows are operations, for most base cells are in many published cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.workload import AddedCells

Rows = list[scipy.sparse.csr_array]
"""Rows that are linear in z, by coordinate: (row, cell) each."""


def rows_of(
    cell: Ints, mean: Floats, prediction: Prediction, hidden: Floats | None = None, unequal: Floats | None = None
) -> Rows:
    """Rows of a table, of which `cell` is the cell of every base cell.

    `hidden` (cell, 1 + outcome) is the part of the count that each sum lacks beyond limits, and `unequal` (base cell, 1 +
    outcome) what sums show of base cells (`TableLimits`).
    """
    base = np.arange(len(cell))
    adding = scipy.sparse.csr_array((np.ones(len(base)), (cell, base)), shape=(mean.shape[0], len(base)))
    rows = rows_about(adding, mean, prediction, hidden)
    if unequal is None:
        return rows
    coordinate = np.repeat(np.arange(unequal.shape[1]), len(mean))
    shown = [row.data * unequal[row.indices, np.repeat(coordinate, np.diff(row.indptr))] for row in rows]
    return [
        scipy.sparse.csr_array((data, row.indices, row.indptr), row.shape) for data, row in zip(shown, rows, strict=True)
    ]


def rows_about(
    adding: scipy.sparse.csr_array, mean: Floats, prediction: Prediction | Floats, hidden: Floats | None = None
) -> Rows:
    """Sums of r of the rows of `adding` (row, cell), then for each outcome sums of ρ about a row's mean (row, outcome).

    `prediction`, or its means, are those of the cells. `hidden` is as in `rows_of`.
    """
    means = prediction.means if isinstance(prediction, Prediction) else prediction
    none, coordinates = scipy.sparse.csr_array(adding.shape), 1 + mean.shape[1]
    blocks = [[adding if j == 0 else none for j in range(coordinates)]]
    for k in range(1, coordinates):
        predicted = adding @ scipy.sparse.diags_array(means[:, k])
        leaning = predicted - scipy.sparse.diags_array(mean[:, k - 1]) @ adding
        blocks.append([leaning if j == 0 else (adding if j == k else none) for j in range(coordinates)])
    rows = [scipy.sparse.vstack([block[j] for block in blocks]).tocsr() for j in range(coordinates)]
    if hidden is None or not hidden.any():
        return rows
    lacking = scipy.sparse.vstack([scipy.sparse.diags_array(part) @ adding for part in hidden.T])
    return [(rows[0] - lacking).tocsr(), *rows[1:]]


@dataclass(frozen=True, eq=False)
class FigureRows:
    """Rows of tables' published cells that are linear in z, as operations: a matrix of many figures would be large.

    A table's rows are sums of r of its cells, then for each outcome sums of ρ about the cells' means (cell, outcome).
    `predicted` (base cell, 1 + outcome) are means of the prediction. `size` is the number of cells of z.
    """

    tables: tuple[tuple[AddedCells, Floats], ...]
    predicted: Floats
    size: int

    def __len__(self) -> int:
        return sum(map(self._rows, self.tables))

    def _rows(self, table: tuple[AddedCells, Floats]) -> int:
        return len(table[0]) * int(self.predicted.shape[1])

    @cached_property
    def matrix(self) -> Rows:
        """Rows of z, (row, cell) by coordinate."""
        prediction = self.predicted
        rows = stacked([rows_about(cells.matrix, mean, prediction) for cells, mean in self.tables])
        return placed_in(rows, 0, self.size)

    @cached_property
    def coordinate(self) -> Ints:
        """0 of sums of r, and the number of its outcome of a sum of ρ, (row,)."""
        numbers = np.arange(self.predicted.shape[1])
        return np.concatenate([np.repeat(numbers, len(cells)) for cells, _ in self.tables])

    def of(self, z: Floats) -> Iterator[Floats]:
        """Rows of z (cell, 1 + outcome, draw), (row, draw), by table."""
        z = z[: len(self.predicted)]
        leaning = [z[:, 0]] + [self.predicted[:, k, None] * z[:, 0] + z[:, k] for k in range(1, z.shape[1])]
        for cells, mean in self.tables:
            weight, *outcomes = (cells @ part for part in leaning)
            yield np.concatenate([weight, *(part - mean[:, k, None] * weight for k, part in enumerate(outcomes))])

    def back(self, weight: Floats, signs: NDArray[np.int8]) -> list[Floats]:
        """The transposed rows times `weight` (row,) times `signs` (row, side), (cell, side) by coordinate."""
        number, cells, sides = self.predicted.shape[1], len(self.predicted), signs.shape[1]
        onto, start = np.zeros((number, self.size, sides)), 0
        for table in self.tables:
            added, mean = table
            rows = slice(start, start := start + self._rows(table))
            values = (weight[rows, None] * signs[rows]).reshape(number, -1, sides)
            for k in range(1, number):
                of_outcome = added.back(values[k])
                onto[k, :cells] += of_outcome
                onto[0, :cells] += self.predicted[:, k, None] * of_outcome
                values[0] -= mean[:, k - 1, None] * values[k]
            onto[0, :cells] += added.back(values[0])
        return list(onto)

    def lone_variances(self, covariance: Callable[[int, int], Floats]) -> Floats:
        """Variances of rows if base cells' z are independent, (row,), from covariances of two coordinates, (cell,)."""
        number = self.predicted.shape[1]
        parts, of_weight = list[Floats](), covariance(0, 0)
        quadratic = [(of_weight, covariance(0, k), covariance(k, k)) for k in range(1, number)]
        for added, mean in self.tables:
            weight = added @ of_weight
            parts.append(weight)
            for k, (_, both, of_outcome) in enumerate(quadratic, start=1):
                m, about = self.predicted[:, k], mean[:, k - 1]
                constant, linear = added @ (m**2 * of_weight + 2.0 * m * both + of_outcome), added @ (m * of_weight + both)
                parts.append(np.maximum(constant - 2.0 * about * linear + about**2 * weight, 0.0))
        return np.concatenate(parts)


def stacked(parts: Sequence[Rows]) -> Rows:
    return [scipy.sparse.vstack([part[j] for part in parts]).tocsr() for j in range(len(parts[0]))]


def equal_rows(rows: Rows, other: Rows) -> bool:
    """Whether rows are the same."""
    pairs = [(a, b) for a, b in zip(rows, other, strict=True)]
    return all(a.shape == b.shape and a.nnz == b.nnz and abs(a - b).nnz == 0 for a, b in pairs)


def placed_in(rows: Rows, first: int, cells: int) -> Rows:
    """Rows over cells that begin at `first` among so many."""
    placed = list[scipy.sparse.csr_array]()
    for row in rows:
        form = (row.shape[0], cells)
        placed.append(scipy.sparse.csr_array((row.data, row.indices + first, row.indptr), shape=form))
    return placed


def row_values(rows: Rows, z: Floats) -> Floats:
    """Rows of z (cell, 1 + outcome, draw): (row, draw)."""
    return np.asarray(sum(row @ z[:, j] for j, row in enumerate(rows)))
