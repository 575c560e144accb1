"""For all of `packages`: base cells that occur, tables over their columns, and sparse matrices that add cells up.

A base cell is a combination of all columns of the tables. Only combinations that occur in the file are listed, so empty
combinations cost nothing. The rows of a table's published cells are in the order of `core.table_cells.cross`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any, TypeAlias

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints

Universe: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Positions of columns, each with its levels that count, in order."""


@dataclass(frozen=True)
class PackageTable:
    """A published table: positions of its columns, whether margins are published, and its weight in the objective."""

    name: str
    by: tuple[int, ...]
    margins: bool = True
    priority: float = 1.0
    universe: Universe = ()
    """Whose figures the table has; empty: those of all base cells."""


class WithoutCaches:
    """A dataclass that is stored by its fields: what follows from them takes more room than time."""

    def __getstate__(self) -> dict[str, Any]:
        assert is_dataclass(self)
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Workload(WithoutCaches):
    """Base cells and tables.

    `codes` (cell, column) are levels of the base cells, `sizes` the number of levels of every column, and `count` (cell,)
    the public number of records. `outcomes` is the number of outcomes.
    """

    codes: Ints
    sizes: tuple[int, ...]
    count: Floats
    tables: tuple[PackageTable, ...]
    names: tuple[str, ...] = ()
    """Names of the columns, or their positions if there are none."""
    outcomes: int = 1
    nested: tuple[tuple[int, ...], ...] = ()
    """Columns of every hierarchy, the coarsest first: a level lies in one level of the column before it."""
    secret: bool = False
    """True if the file's numbers of records are secret. `count` is then what the reference lets expect."""
    largest: bool = False
    """True if the objective is the largest squared error of a published figure, and not the mean of them."""
    weight: Floats | None = None
    """The public weight of all records of every base cell, (cell,); None if weights are measured."""

    def __len__(self) -> int:
        return len(self.count)

    def placed(self, codes: Ints) -> tuple[Ints, Ints]:
        """The base cell of every row of codes, (row,). Other crosses, (cross, column), are numbered after base cells."""
        every, place = np.unique(np.concatenate([self.codes, codes]), axis=0, return_inverse=True)
        of_cells, of_rows = np.split(place.reshape(-1), [len(self)])
        number = np.full(len(every), -1)
        number[of_cells] = np.arange(len(self))
        absent = np.flatnonzero(number < 0)
        number[absent] = len(self) + np.arange(len(absent))
        return np.asarray(number[of_rows], dtype=np.int64), np.asarray(every[absent], dtype=np.int64)

    def with_absent(self, codes: Ints, weight: Floats) -> Workload:
        """These base cells, then crosses without a record: `codes` (cross, column). `weight` (cross,) counts if weights are
        public.
        """
        public = None if self.weight is None else np.concatenate([self.weight, weight])
        count = np.concatenate([self.count, np.zeros(len(codes))])
        return replace(self, codes=np.concatenate([self.codes, codes]), count=count, weight=public)

    @cached_property
    def universes(self) -> tuple[Universe, ...]:
        """The tables' universes, each once. They are columns of two levels, outside and inside, after the other columns."""
        return tuple(dict.fromkeys(table.universe for table in self.tables if table.universe))

    def _inside(self, universe: Universe) -> Ints:
        inside = [np.isin(self.codes[:, column], levels) for column, levels in universe]
        return np.asarray(np.all(inside, axis=0) if inside else np.ones(len(self)), dtype=np.int64)

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

    @property
    def above(self) -> tuple[tuple[int, ...], ...]:
        """Column sets above the measured ones: with columns of hierarchies made coarser, and all that tables publish.

        A set that is measured already, given the hierarchies, is left out. Sets of few cells come first.
        """
        coarser = {column: chain[:place] for chain in self.nested for place, column in enumerate(chain)}
        ways = [[(column, *coarser.get(column, ())) for column in by] for by in self.measured]
        sets = {frozenset(by) for way in ways for by in product(*way)}
        for table in self.tables:
            sizes = range(len(table.by) + 1) if table.margins else (len(table.by),)
            sets.update(self._separated(by, table.universe) for size in sizes for by in combinations(table.by, size))

        def finest(columns: frozenset[int]) -> frozenset[int]:
            return columns.difference(*(coarser.get(column, ()) for column in columns))

        kept = {finest(columns) for columns in sets} - {finest(frozenset(by)) for by in self.measured}
        cells = {tuple(sorted(by)): math.prod(self._column(column)[0] for column in by) for by in kept}
        return tuple(sorted(cells, key=lambda by: (cells[by], by)))

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

    def published_cells(self, table: PackageTable) -> int:
        """The number of a table's published cells, margins included."""
        kept = dict(table.universe)
        return math.prod(len(kept.get(column, range(self.sizes[column]))) + table.margins for column in table.by)

    def margins(self, table: PackageTable) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
        """`published` as a product, as `margins` gives it, once for every table."""
        if table not in self._margins:
            self._margins[table] = margins(self.published(table))
        return self._margins[table]

    @cached_property
    def _margins(self) -> dict[PackageTable, tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]]:
        return {}

    def published(self, table: PackageTable) -> scipy.sparse.csr_array:
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
