"""Linear functions ("rows") of base cells' residual sums z: cells of measured tables, and published cells.

Measured rows are matrices by coordinate; those of many sums have entries that are computed at every product, for every base
cell is in every table. Published rows are operations, for most base cells are in many published cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Codes, Floats, Ints, Singles
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.workload import AddedCells

ENTRIES = 2**17
"""Number of entries of `RowsOfTables` that are computed together."""


@dataclass(frozen=True, eq=False)
class TableEntries:
    """Matrix of a table (row, base cell) with one entry in every column, in row `cell` (base cell,).

    An entry is 1, or `base` (base cell,); less that of its row in `less`, times that of its row in `factor`, (row,) each,
    and times `shown` (base cell,), of those that are given.
    """

    cell: Codes
    rows: int
    base: Floats | None = None
    less: Floats | None = None
    factor: Floats | None = None
    shown: Singles | None = None

    def entries(self, of: slice | Ints = slice(None)) -> Floats:
        """Entries of these base cells, in their order."""
        if self.base is None:
            return np.ones(len(self.cell[of])) if self.shown is None else self.shown[of].astype(np.float64)
        cell, entries = self.cell[of], self.base[of]
        for parts, operation in ((self.less, np.subtract), (self.factor, np.multiply)):
            entries = entries if parts is None else operation(entries, parts.take(cell))
        return entries if self.shown is None else entries * self.shown[of]

    def __matmul__(self, values: Floats) -> Floats:
        pointer = np.arange(len(self.cell) + 1, dtype=np.int32)
        by_column = (self.entries().astype(values.dtype, copy=False), self.cell, pointer)
        return np.asarray(scipy.sparse.csc_array(by_column, shape=(self.rows, len(self.cell))) @ values)

    def of_rows(self, rows: Ints) -> scipy.sparse.csr_array:
        """Some rows as a matrix."""
        place = np.full(self.rows, -1)
        place[rows] = np.arange(len(rows))
        members = np.flatnonzero(place[self.cell] >= 0)
        entries = self.entries(members), (place[self.cell[members]], members)
        return scipy.sparse.csr_array(entries, shape=(len(rows), len(self.cell)))


@dataclass(frozen=True, eq=False)
class RowsOfTables:
    """Matrix (row, column) of tables below each other, by products in the precision of values, which are those of a
    `csr_array` to the last digit.

    Each table has rows of every coordinate in turn. `tables` (table, coordinate) are their entries, None for zeros, and
    `sizes` (table,) numbers of rows of a coordinate. Columns are base cells, or base cells by coordinate if `apart`.
    """

    tables: tuple[tuple[TableEntries | None, ...], ...]
    sizes: tuple[int, ...]
    base_cells: int
    apart: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        coordinates = len(self.tables[0])
        return coordinates * sum(self.sizes), self.base_cells * (coordinates if self.apart else 1)

    @property
    def T(self) -> TransposedSums:
        return TransposedSums(self)

    def _columns(self, coordinate: int) -> slice:
        first = coordinate * self.base_cells * self.apart
        return slice(first, first + self.base_cells)

    def __matmul__(self, values: Floats) -> Floats:
        """The product with values (column,) or (column, side)."""
        return np.concatenate(
            [
                np.zeros((rows, *values.shape[1:]), values.dtype) if entries is None else entries @ values[self._columns(j)]
                for table, rows in zip(self.tables, self.sizes, strict=True)
                for j, entries in enumerate(table)
            ]
        )

    def back(self, values: Floats) -> Floats:
        """The transposed matrix times values (row,) or (row, side). Every column adds up its rows in their order."""
        onto, first = np.zeros((self.shape[1], *values.shape[1:]), values.dtype), 0
        by_columns = dict[int, list[tuple[int, TableEntries]]]()
        for table, rows in zip(self.tables, self.sizes, strict=True):
            for j, entries in enumerate(table):
                if entries is not None:
                    by_columns.setdefault(self._columns(j).start, []).append((first, entries))
                first += rows
        for column, parts in by_columns.items():
            if values.ndim == 1:
                for row, entries in parts:
                    of_cells = values[row : row + entries.rows].take(entries.cell)
                    onto[column : column + self.base_cells] += entries.entries() * of_cells
                continue
            at_once = max(1, ENTRIES // len(parts))
            for start in range(0, self.base_cells, at_once):
                of = slice(start, min(start + at_once, self.base_cells))
                rows_of_cells = np.stack([entries.cell[of] + np.int32(row) for row, entries in parts], axis=1)
                entries_of_cells = np.stack([entries.entries(of) for _, entries in parts], axis=1)
                pointer = np.arange(0, rows_of_cells.size + 1, len(parts), dtype=np.int32)
                matrix = (entries_of_cells.ravel().astype(values.dtype, copy=False), rows_of_cells.ravel(), pointer)
                form = (of.stop - of.start, len(values))
                onto[column + of.start : column + of.stop] = scipy.sparse.csr_array(matrix, shape=form) @ values
        return onto

    @property
    def matrix(self) -> scipy.sparse.csr_array:
        """The same with stored entries: large, but four times as fast for one side."""
        blocks, columns = list[scipy.sparse.csr_array](), self.shape[1]
        for table, rows in zip(self.tables, self.sizes, strict=True):
            for j, entries in enumerate(table):
                pointer = np.zeros(columns + 1, dtype=np.int32)
                if entries is None:
                    blocks.append(scipy.sparse.csr_array((rows, columns)))
                    continue
                pointer[self._columns(j).start + 1 :] = self.base_cells
                pointer[self._columns(j).start : self._columns(j).stop] = np.arange(self.base_cells)
                by_column = (entries.entries(), entries.cell, pointer)
                blocks.append(scipy.sparse.csc_array(by_column, shape=(rows, columns)).tocsr())
        return scipy.sparse.csr_array(scipy.sparse.vstack(blocks))

    def of_tables(self) -> Iterator[scipy.sparse.csr_array]:
        """The rows of every table in turn, as a matrix."""
        first, coordinates = 0, len(self.tables[0])
        for rows in self.sizes:
            yield self[np.arange(first, first := first + coordinates * rows)]

    def __getitem__(self, selection: Ints) -> scipy.sparse.csr_array:
        """Some rows as a matrix; `selection` is sorted."""
        blocks, first = list[scipy.sparse.csr_array](), 0
        for table, rows in zip(self.tables, self.sizes, strict=True):
            for j, entries in enumerate(table):
                chosen = selection[slice(*np.searchsorted(selection, [first, first + rows]))] - first
                first += rows
                if not len(chosen):
                    continue
                form, at = (len(chosen), self.shape[1]), self._columns(j).start
                block = scipy.sparse.csr_array(form) if entries is None else entries.of_rows(chosen)
                blocks.append(scipy.sparse.csr_array((block.data, block.indices + np.int32(at), block.indptr), shape=form))
        return scipy.sparse.csr_array(scipy.sparse.vstack(blocks))

    def squares(self) -> Floats:
        """Sums of squared entries, (row,)."""
        return np.concatenate([np.asarray(part.power(2).sum(axis=1)).ravel() for part in self.of_tables()])


@dataclass(frozen=True)
class TransposedSums:
    sums: RowsOfTables

    def __matmul__(self, values: Floats) -> Floats:
        return self.sums.back(values)


Matrix: TypeAlias = Any
"""A `csr_array`, or `RowsOfTables`: they have the same products, and the same selection of rows."""
Rows = list[Matrix]
"""Rows that are linear in z, by coordinate: (row, cell) each."""


def rows_of(
    cell: Ints | Codes, mean: Floats, prediction: Prediction, hidden: Floats | None = None, unequal: Singles | None = None
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


def rows_by_products(
    tables: Sequence[tuple[Codes, Floats, Singles | None]], prediction: Prediction, first: int
) -> list[RowsOfTables]:
    """Rows of tables below each other, from the coordinate `first` on: `rows_of` them, stacked, with entries computed at
    every product. A table is its cell of every base cell, its means, and what its sums show of base cells.
    """
    columns, coordinates = [np.ascontiguousarray(part) for part in prediction.means.T], range(prediction.means.shape[1])
    of_tables, sizes = list[list[tuple[TableEntries | None, ...]]](), tuple(len(mean) for _, mean, _ in tables)
    for cell, mean, unequal in tables:
        of_table = list[tuple[TableEntries | None, ...]]()
        for k in coordinates[first:]:
            shown = None if unequal is None else np.ascontiguousarray(unequal[:, k])
            entries = dict[int, TableEntries]({k: TableEntries(cell, len(mean), shown=shown)})
            if k:
                entries[0] = TableEntries(cell, len(mean), columns[k], np.ascontiguousarray(mean[:, k - 1]), shown=shown)
            of_table.append(tuple(entries.get(j) for j in coordinates))
        of_tables.append(of_table)
    return [
        RowsOfTables(tuple(tuple(entries[j] for entries in of_table) for of_table in of_tables), sizes, len(columns[0]))
        for j in coordinates
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
