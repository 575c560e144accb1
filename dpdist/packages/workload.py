"""For all of `packages`: base cells that occur, tables over their columns, and sparse matrices that add cells up.

A base cell is a combination of all columns of the tables. Only combinations that occur in the file are listed, so empty
combinations cost nothing. The rows of a table's published cells are in the order of `core.table_cells.cross`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints


@dataclass(frozen=True)
class PackageTable:
    """A published table: positions of its columns, whether margins are published, and its weight in the objective."""

    name: str
    by: tuple[int, ...]
    margins: bool = True
    priority: float = 1.0


@dataclass(frozen=True)
class Workload:
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

    def __len__(self) -> int:
        return len(self.count)

    @property
    def measured(self) -> tuple[tuple[int, ...], ...]:
        """The largest column sets of tables: those that no other table's set contains."""
        sets = [frozenset(table.by) for table in self.tables]
        kept = dict.fromkeys(columns for columns in sets if not any(columns < other for other in sets))
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
            sets.update(frozenset(by) for size in sizes for by in combinations(table.by, size))

        def finest(columns: frozenset[int]) -> frozenset[int]:
            return columns.difference(*(coarser.get(column, ()) for column in columns))

        kept = {finest(columns) for columns in sets} - {finest(frozenset(by)) for by in self.measured}
        cells = {tuple(sorted(by)): math.prod(self.sizes[column] for column in by) for by in kept}
        return tuple(sorted(cells, key=lambda by: (cells[by], by)))

    def named(self, by: Sequence[int]) -> str:
        """The name of a set of columns."""
        return " x ".join(self.names[column] if self.names else str(column) for column in by) or "all cells"

    def groups(self, by: Sequence[int]) -> Ints:
        """The group of every base cell, (cell,), as a number for each occurring combination of these columns."""
        key = np.zeros(len(self), dtype=np.int64)
        for column in by:
            key = key * self.sizes[column] + self.codes[:, column]
        return np.asarray(np.unique(key, return_inverse=True)[1].reshape(-1), dtype=np.int64)

    def summing(self, by: Sequence[int]) -> scipy.sparse.csr_array:
        """Adds base cells up to the occurring combinations of these columns, (group, cell)."""
        return indicator(self.groups(by))

    def published(self, table: PackageTable) -> scipy.sparse.csr_array:
        """Adds base cells up to a table's cells, (published cell, cell): all combinations of levels, margins last."""
        sizes = [self.sizes[column] + (1 if table.margins else 0) for column in table.by]
        rows, cells = [], np.arange(len(self))
        for total in product(*([False, True] if table.margins else [False] for _ in table.by)):
            row = np.zeros(len(self), dtype=np.int64)
            for column, size, summed in zip(table.by, sizes, total, strict=True):
                row = row * size + (size - 1 if summed else self.codes[:, column])
            rows.append(row)
        targets, every = np.concatenate(rows), int(np.prod(sizes, dtype=np.int64))
        matrix = (np.ones(len(targets)), (targets, np.tile(cells, len(rows))))
        return scipy.sparse.csr_array(matrix, shape=(every, len(self)))


def indicator(groups: Ints) -> scipy.sparse.csr_array:
    """A matrix of 0 and 1 that adds entries up by group, (group, entry)."""
    number = int(groups.max()) + 1 if len(groups) else 0
    return scipy.sparse.csr_array((np.ones(len(groups)), (groups, np.arange(len(groups)))), shape=(number, len(groups)))
