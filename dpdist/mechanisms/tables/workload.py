"""Base cells that occur in a file, the tables over their columns, and sparse matrices that add cells up.

A base cell is a combination of all columns of the tables. Only combinations that occur in the file are listed, so empty
combinations cost nothing. The rows of a table's published cells are in the order of `core.records.cross`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints

Universe: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Positions of columns, each with its levels that count, in order."""


@dataclass(frozen=True)
class WorkloadTable:
    """A published table: positions of its columns, whether margins are published, and its weight in the objective."""

    name: str
    by: tuple[int, ...]
    margins: bool = True
    priority: float = 1.0
    universe: Universe = ()
    """Whose figures the table has; empty: those of all base cells."""


@dataclass(frozen=True)
class Workload:
    """Base cells and tables.

    `codes` (cell, column) are levels of the base cells, `sizes` the number of levels of every column, and `count` (cell,)
    the public number of records. `outcomes` is the number of outcomes.
    """

    codes: Ints
    sizes: tuple[int, ...]
    count: Floats
    tables: tuple[WorkloadTable, ...]
    names: tuple[str, ...] = ()
    """Names of the columns, or their positions if there are none."""
    outcomes: int = 1

    def __len__(self) -> int:
        return len(self.count)

    @cached_property
    def universes(self) -> tuple[Universe, ...]:
        """The tables' universes, each once. They are columns of two levels, outside and inside, after the other columns."""
        return tuple(dict.fromkeys(table.universe for table in self.tables if table.universe))

    def _inside(self, universe: Universe) -> Ints:
        inside = [np.isin(self.codes[:, column], levels) for column, levels in universe]
        return np.asarray(np.all(inside, axis=0) if inside else np.ones(len(self)), dtype=np.int64)

    def inside(self, column: int) -> Ints:
        """Whether base cells are inside a universe, given its number among columns, (cell,): 1 or 0."""
        return self._column(column)[1]

    def _column(self, column: int) -> tuple[int, Ints]:
        """Number of levels of a column or universe, and the level of every base cell, (cell,)."""
        if column < len(self.sizes):
            return self.sizes[column], self.codes[:, column]
        return 2, self._inside(self.universes[column - len(self.sizes)])

    def _separated(self, columns: Iterable[int], universe: Universe) -> frozenset[int]:
        """Columns whose crosses separate a table's cells: a universe over other columns is one of them."""
        columns = frozenset(columns)
        if columns.issuperset(column for column, _ in universe):
            return columns
        return columns | {len(self.sizes) + self.universes.index(universe)}

    def _with_universes(self, columns: frozenset[int]) -> frozenset[int]:
        """These columns, and the universes that they tell."""
        universes = enumerate(self.universes, start=len(self.sizes))
        return columns | {k for k, universe in universes if columns.issuperset(column for column, _ in universe)}

    @property
    def measured(self) -> tuple[tuple[int, ...], ...]:
        """The largest column sets of tables: those that no other table's set contains."""
        sets = list(dict.fromkeys(self._separated(table.by, table.universe) for table in self.tables))
        with_universes = [self._with_universes(columns) for columns in sets]
        maximal_sets = [
            columns
            for columns in sets
            if not any(
                columns != other and columns <= superset for other, superset in zip(sets, with_universes, strict=True)
            )
        ]
        return tuple(tuple(sorted(columns)) for columns in maximal_sets)

    def named(self, by: Sequence[int]) -> str:
        """The name of a set of columns."""
        return " x ".join(self._name(column) for column in by) or "all cells"

    def _name(self, column: int) -> str:
        if column < len(self.sizes):
            return self.names[column] if self.names else str(column)
        return f"universe {column - len(self.sizes) + 1}"

    def groups(self, by: Sequence[int]) -> Ints:
        """The group of every base cell, (cell,), as a number for each occurring combination of these columns."""
        key = np.zeros(len(self), dtype=np.int64)
        for column in by:
            size, codes = self._column(column)
            key = key * size + codes
        return np.asarray(np.unique(key, return_inverse=True)[1].reshape(-1), dtype=np.int64)

    def number_of_groups(self, by: Sequence[int]) -> int:
        """The number of occurring combinations of these columns."""
        return int(self.groups(by).max(initial=-1)) + 1

    def summing(self, by: Sequence[int]) -> scipy.sparse.csr_array:
        """Adds base cells up to the occurring combinations of these columns, (group, cell)."""
        return indicator(self.groups(by))

    def published(self, table: WorkloadTable) -> AddedCells:
        """Adds base cells up to a table's cells, (published cell, cell): all combinations of levels, margins last.

        Base cells outside the table's universe are in none. A column of the universe has its levels alone.
        """
        universe, inside = dict(table.universe), self._inside(table.universe).astype(bool)
        levels = [np.asarray(universe.get(column, range(self.sizes[column]))) for column in table.by]
        columns = ((of_column, self.codes[inside, k]) for k, of_column in zip(table.by, levels, strict=True))
        codes = [np.searchsorted(*pair).astype(np.int32) for pair in columns]
        key = np.zeros(int(inside.sum()), dtype=np.int64)
        for code, of_column in zip(codes, levels, strict=True):
            key = key * len(of_column) + code
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        sizes, rows = [len(of_column) + table.margins for of_column in levels], []
        for total in product(*([False, True] if table.margins else [False] for _ in table.by)):
            row = np.zeros(len(first), dtype=np.int32)
            for code, size, summed in zip(codes, sizes, total, strict=True):
                row = row * size + (size - 1 if summed else code[first])
            rows.append(row)
        targets, cells = np.concatenate(rows), int(np.prod(sizes, dtype=np.int64))
        matrix = (np.ones(len(targets)), (targets, np.tile(np.arange(len(first), dtype=np.int32), len(rows))))
        # Groups of all tables take much memory.
        groups = np.full(len(self), -1, dtype=np.min_scalar_type(-1 - len(first)))
        groups[inside] = group.reshape(-1)
        return AddedCells(scipy.sparse.csr_array(matrix, shape=(cells, len(first))), groups)


@dataclass(frozen=True, eq=False)
class AddedCells:
    """Sums of base cells (published cell, cell) as a product: sums of groups of base cells, and sums of these.

    The base cells of a group are in the same published cells. `published` is (published cell, group). `group` (cell,) is
    the group of every cell, -1 of those in none.
    """

    published: scipy.sparse.csr_array
    group: NDArray[np.signedinteger[Any]]

    @classmethod
    def of(cls, matrix: scipy.sparse.csr_array) -> AddedCells:
        """By a matrix (published cell, cell), of which every base cell is a group."""
        return cls(matrix, np.arange(matrix.shape[1], dtype=np.int32))

    @property
    def _groups(self) -> scipy.sparse.csr_array:
        """Takes values of groups to their cells, (cell, group): made at every use, as that of 100 tables is large."""
        inside = self.group >= 0
        pointer = np.concatenate([[0], np.cumsum(inside)]).astype(np.int32)
        matrix = (np.ones(pointer[-1]), self.group[inside].astype(np.int32), pointer)
        return scipy.sparse.csr_array(matrix, shape=(len(self.group), self.published.shape[1]))

    def __len__(self) -> int:
        return int(self.published.shape[0])

    def __matmul__(self, values: Floats) -> Floats:
        """Sums of values of base cells, (cell,) or (cell, side)."""
        return np.asarray(self.published @ (self._groups.T @ values))

    def back(self, values: Floats) -> Floats:
        """The transposed matrix times values of published cells, (published cell,) or (published cell, side)."""
        return np.asarray(self._groups @ (self.published.T @ values))

    @property
    def matrix(self) -> scipy.sparse.csr_array:
        return scipy.sparse.csr_array(self.published @ self._groups.T)


def indicator(groups: Ints) -> scipy.sparse.csr_array:
    """A matrix of 0 and 1 that adds entries up by group, (group, entry)."""
    number = int(groups.max()) + 1 if len(groups) else 0
    return scipy.sparse.csr_array((np.ones(len(groups)), (groups, np.arange(len(groups)))), shape=(number, len(groups)))
