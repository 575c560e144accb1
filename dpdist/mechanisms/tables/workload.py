"""For `cells`: base cells that occur, tables over their columns, and sparse matrices that add cells up.

A base cell is a combination of all columns of the tables. Only combinations that occur in the file are listed, so empty
combinations cost nothing. The rows of a table's published cells are in the order of `core.table_cells.cross`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TypeAlias

import numpy as np
import scipy

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
        whole = [self._with_universes(columns) for columns in sets]
        kept = [
            one for one in sets if not any(one != other and one <= held for other, held in zip(sets, whole, strict=True))
        ]
        return tuple(tuple(sorted(columns)) for columns in kept)

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

    def published_cells(self, table: WorkloadTable) -> int:
        """The number of a table's published cells, margins included."""
        kept = dict(table.universe)
        return math.prod(len(kept.get(column, range(self.sizes[column]))) + table.margins for column in table.by)

    def margins(self, table: WorkloadTable) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
        """`published` as a product, as `margins` gives it, once for every table."""
        if table not in self._margins:
            self._margins[table] = margins(self.published(table))
        return self._margins[table]

    @cached_property
    def _margins(self) -> dict[WorkloadTable, tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]]:
        return {}

    def published(self, table: WorkloadTable) -> scipy.sparse.csr_array:
        """Adds base cells up to a table's cells, (published cell, cell): all combinations of levels, margins last.

        Base cells outside the table's universe are in none. A column of the universe has its levels alone.
        """
        kept, cells = dict(table.universe), np.flatnonzero(self._inside(table.universe))
        levels = [np.asarray(kept.get(column, range(self.sizes[column]))) for column in table.by]
        codes = [np.searchsorted(of_column, self.codes[cells, k]) for k, of_column in zip(table.by, levels, strict=True)]
        sizes, rows = [len(of_column) + table.margins for of_column in levels], []
        for total in product(*([False, True] if table.margins else [False] for _ in table.by)):
            row = np.zeros(len(cells), dtype=np.int64)
            for code, size, summed in zip(codes, sizes, total, strict=True):
                row = row * size + (size - 1 if summed else code)
            rows.append(row)
        targets, every = np.concatenate(rows), int(np.prod(sizes, dtype=np.int64))
        matrix = (np.ones(len(targets)), (targets, np.tile(cells, len(rows))))
        return scipy.sparse.csr_array(matrix, shape=(every, len(self)))


def margins(matrix: scipy.sparse.csr_array) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
    """A table's matrix (published cell, cell) as a product: cells as sums of groups, and groups as sums of base cells.

    Base cells of a group are in the same published cells. The first of these differs between groups.
    """
    by_cell = scipy.sparse.csc_array(matrix)
    by_cell.sort_indices()
    inside = np.flatnonzero(np.diff(by_cell.indptr))
    _, first, group = np.unique(by_cell.indices[by_cell.indptr[inside]], return_index=True, return_inverse=True)
    ones = (np.ones(len(inside)), (group.reshape(-1), inside))
    adding = scipy.sparse.csr_array(ones, shape=(len(first), matrix.shape[1]))
    return scipy.sparse.csr_array(by_cell[:, inside[first]]), adding


def indicator(groups: Ints) -> scipy.sparse.csr_array:
    """A matrix of 0 and 1 that adds entries up by group, (group, entry)."""
    number = int(groups.max()) + 1 if len(groups) else 0
    return scipy.sparse.csr_array((np.ones(len(groups)), (groups, np.arange(len(groups)))), shape=(number, len(groups)))
