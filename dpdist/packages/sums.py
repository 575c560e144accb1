"""For `packages.posterior` and `package`: linear functions of the base cells' sums, measured and published ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.packages.levels import Levels
from dpdist.packages.limits import CellLimits
from dpdist.packages.strategy import FACTOR_STEPS, Measured
from dpdist.packages.workload import WithoutCaches

ROWS_AT_ONCE = 1_000
"""Published figures whose errors are computed together, because memory for shared terms grows with them."""
ENTRIES_AT_ONCE = 4_000_000
"""Largest size of a matrix that grouped sums make at once, if one side alone is not larger."""


@dataclass(frozen=True)
class Sums(WithoutCaches):
    """Linear functions of the base cells' sums: a matrix for each of (Σe, Σer of every outcome, Σa, Σq), (row, cell)."""

    parts: tuple[scipy.sparse.csr_array, ...]

    def __len__(self) -> int:
        return int(self.parts[0].shape[0])

    @cached_property
    def layers(self) -> Layers:
        """The functions in layers."""
        return Layers.of(self.parts)

    @cached_property
    def by_cell(self) -> tuple[tuple[int, scipy.sparse.csc_array], ...]:
        """The sums that occur: number, and the functions of them, by cell."""
        return tuple((k, scipy.sparse.csc_array(part)) for k, part in enumerate(self.parts) if part.nnz)

    def batches(self) -> Iterator[Sums]:
        """The functions, at most `ROWS_AT_ONCE` at a time."""
        if len(self) <= ROWS_AT_ONCE:
            yield self
            return
        for start in range(0, max(len(self), 1), ROWS_AT_ONCE):
            yield Sums(tuple(scipy.sparse.csr_array(part[start : start + ROWS_AT_ONCE]) for part in self.parts))

    @classmethod
    def stacked(cls, several: Sequence[Sums]) -> Sums:
        """All rows of several."""
        return cls(tuple(_stacked(parts) for parts in zip(*(one.parts for one in several), strict=True)))

    @property
    def whole(self) -> Sums:
        """These functions."""
        return self

    def applied(self, function: Callable[[Sums], Sequence[Floats]]) -> Sequence[Floats]:
        """Matrices that are linear in these functions, (row, …) each."""
        return function(self)

    def drawn(self, values: Floats) -> Floats:
        """The functions of draws of the first sums, (sum, cell, draw): (row, draw)."""
        return np.asarray(sum(part @ values[k] for k, part in self.by_cell))

    def turned(self, x: Floats) -> Floats:
        """The transposed functions of (row, side), as (cell, sum, side)."""
        return np.stack([part.T @ x for part in self.parts], axis=1)

    def of(self, z: Floats) -> Floats:
        """The functions of sums (cell, sum)."""
        return np.asarray(sum(part @ z[:, k] for k, part in enumerate(self.parts)))

    def of_draws(self, z: Floats) -> Floats:
        """The functions of draws of sums, (draw, cell, sum): (draw, row)."""
        return np.asarray(sum(part @ np.ascontiguousarray(z[..., k].T) for k, part in enumerate(self.parts))).T.copy()

    def back(self, x: Floats) -> Floats:
        """The transposed functions of (row,), as (cell, sum)."""
        return np.column_stack([part.T @ x for part in self.parts])


class MarginSums(NamedTuple):
    """Sums `rows`, (row, fine), of `fine` functions, in which a base cell occurs once or twice: a table and its margins."""

    rows: scipy.sparse.csr_array
    fine: Sums

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def whole(self) -> Sums:
        """The same as functions of base cells."""
        parts = tuple(scipy.sparse.csr_array(self.rows @ part) for part in self.fine.parts)
        for part in parts:
            part.sort_indices()
        return Sums(parts)

    def batches(self) -> Iterator[MarginSums]:
        """The functions, at most `ROWS_AT_ONCE` at a time, each time with the fine ones in them."""
        if len(self) <= ROWS_AT_ONCE:
            yield self
            return
        for start in range(0, max(len(self), 1), ROWS_AT_ONCE):
            few = scipy.sparse.csc_array(self.rows[start : start + ROWS_AT_ONCE])
            used = np.flatnonzero(np.diff(few.indptr))
            fine = Sums(tuple(scipy.sparse.csr_array(part[used]) for part in self.fine.parts))
            yield MarginSums(scipy.sparse.csr_array(few[:, used]), fine)

    def applied(self, function: Callable[[Sums], Sequence[Floats]]) -> Sequence[Floats]:
        """As `Sums.applied`."""
        return [np.asarray(self.rows @ part) for part in function(self.fine)]

    def drawn(self, values: Floats) -> Floats:
        """As `Sums.drawn`."""
        return np.asarray(self.rows @ self.fine.drawn(values))

    def turned(self, x: Floats) -> Floats:
        """As `Sums.turned`."""
        return self.fine.turned(self.rows.T @ x)

    @classmethod
    def stacked(cls, several: Sequence[MarginSums]) -> MarginSums:
        """All rows of several."""
        rows = scipy.sparse.csr_array(scipy.sparse.block_diag([one.rows for one in several], format="csr"))
        return cls(rows, Sums.stacked([one.fine for one in several]))


Functions: TypeAlias = Sums | MarginSums


@dataclass(frozen=True)
class Layers:
    """Functions of base cells in layers, in each of which a cell has one row.

    `rows` (layer, cell), and `factors` (layer, sum, cell): 0 where a cell is in fewer layers. Tables, and rows of one
    kind in an aggregation, are layers. So products of two sets of functions are grouped sums of one layer after the
    other, which are much faster than products of sparse matrices.
    """

    rows: Ints
    factors: Floats

    @classmethod
    def of(cls, parts: Sequence[scipy.sparse.csr_array]) -> Layers:
        """The layers of matrices (row, cell), one for each sum."""
        (number, cells), entries = parts[0].shape, []
        for part in parts:
            by_cell = scipy.sparse.csc_array(part)
            by_cell.sort_indices()
            entries.append((np.repeat(np.arange(cells) * number, np.diff(by_cell.indptr)) + by_cell.indices, by_cell.data))
        every = np.sort(np.concatenate([keys for keys, _ in entries]), kind="stable")
        every = every[np.diff(every, prepend=-1) > 0]  # np.unique takes much longer
        cell, row = every // max(number, 1), every % max(number, 1)
        starts = np.flatnonzero(np.diff(cell, prepend=-1))
        layer = np.arange(len(every)) - np.repeat(starts, np.diff(starts, append=len(every)))
        rows = np.zeros((int(layer.max(initial=-1)) + 1, cells), dtype=np.int64)
        factors = np.zeros((len(rows), len(parts), cells))
        rows[layer, cell] = row
        for k, (keys, values) in enumerate(entries):
            place = np.searchsorted(every, keys)
            factors[layer[place], k, cell[place]] = values
        return cls(rows, factors)

    @cached_property
    def sets(self) -> tuple[tuple[Ints, tuple[int, ...], Floats], ...]:
        """Layers with the same groups of cells together: a group's number by cell, (cell,), the first row of every layer,
        and their factors, (layer, sum, cell)."""
        made, first = list[list[int]](), np.asarray(self.rows.min(axis=1)).tolist()
        for k, row in enumerate(self.rows):
            same = bool(made) and np.array_equal(row - first[k], self.rows[made[-1][0]] - first[made[-1][0]])
            made[-1].append(k) if same else made.append([k])
        return tuple((self.rows[few[0]] - first[few[0]], tuple(first[k] for k in few), self.factors[few]) for few in made)


def add_grouped(
    whole: Sequence[tuple[Floats, int]], functions: scipy.sparse.csc_array, group: Ints, values: Floats
) -> None:
    """Adds functions of values, (cell, side), by the cells' group, (cell,), to a matrix (…, row) for every side.

    A side's groups begin at its first row.
    """
    (rows, cells), number = functions.shape, int(group.max(initial=0)) + 1
    wide = np.int64 if rows * number > np.iinfo(np.int32).max else np.int32
    keys = functions.indices.astype(wide) + np.repeat((group * rows).astype(wide), np.diff(functions.indptr))
    entries: Any = functions.data, keys, functions.indptr
    by_group = scipy.sparse.csc_array(entries, shape=(rows * number, cells))
    at_once = max(ENTRIES_AT_ONCE // (rows * number), 1)
    for start in range(0, len(whole), at_once):
        few = whole[start : start + at_once]
        of_groups = (by_group @ np.ascontiguousarray(values[:, start : start + at_once])).reshape(number, rows, len(few))
        for side, (matrix, first) in enumerate(few):
            matrix[first : first + number] += of_groups[..., side]


def crossed(one: Sums, other: Sums, block: Floats) -> Floats:
    """Covariance of two sets of functions by a block for every cell, (row, row)."""
    whole = np.zeros((len(one), len(other)))
    blocks = np.ascontiguousarray(np.moveaxis(block, 0, 2)[: len(one.parts)])  # published functions may leave out sizes
    for group, firsts, factors in one.layers.sets:
        pulled = np.einsum("lic,ikc->klc", factors, blocks)
        for k, functions in other.by_cell:
            moved = np.flatnonzero(pulled[k].any(axis=1)).tolist()
            add_grouped([(whole, firsts[layer]) for layer in moved], functions, group, pulled[k][moved].T)
    return whole


def variances(sums: Sums, block: Floats) -> Floats:
    """The diagonal of `crossed(sums, sums, block)`, (row,)."""
    variance = np.zeros(len(sums))
    for i, j in _held(sums, sums):
        variance += (sums.parts[i] @ scipy.sparse.diags_array(block[:, i, j])).multiply(sums.parts[j]).sum(axis=1)
    return variance


def _held(one: Sums, other: Sums) -> list[tuple[int, int]]:
    """Pairs of sums that occur in two sets of functions."""
    rows, columns = ([k for k, part in enumerate(sums.parts) if part.nnz] for sums in (one, other))
    return list(product(rows, columns))


def added(parts: Sequence[Any]) -> scipy.sparse.csr_array:
    """The sum of sparse matrices."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return scipy.sparse.csr_array(whole)


def measured_sums(
    measurements: Sequence[Measured], limits: CellLimits, count: Floats, secret: bool = False
) -> tuple[Sums, Floats]:
    """Measurements in records, as functions of the base cells' sums, and the added constants, (row,).

    If numbers of records are `secret`, they are the last sum, and no constant depends on them.
    """
    outcomes = limits.half.shape[1]
    parts, constants = list[list[scipy.sparse.csr_array]](), list[Floats]()
    for one in measurements:
        weight, none = _scaled(one.of_weight), scipy.sparse.csr_array(one.of_outcome[0].shape)
        beside = scipy.sparse.csr_array(one.of_weight.shape)
        rows = [[*[beside] * (1 + outcomes), weight, *[beside] * (outcomes + secret)]]
        constants.append(np.zeros(weight.shape[0]))
        for number, factors in enumerate(zip(one.of_outcome, one.of_level, strict=True)):
            outcome, level = map(_scaled, factors)
            k = number % outcomes
            tilt, share = limits.tilt[:, k], limits.share[:, k]
            of_v = scipy.sparse.csr_array(outcome @ scipy.sparse.diags_array(tilt) + level)
            row = [none] * (2 + 2 * outcomes + secret)
            row[1 + outcomes] = -of_v
            row[2 + outcomes + k] = scipy.sparse.csr_array(outcome @ scipy.sparse.diags_array(share))
            if secret:
                row[-1] = of_v
            rows.append(row)
            constants.append(np.zeros(one.groups) if secret else np.asarray(outcome @ (tilt * count) + level @ count))
        parts += rows
    return Sums(tuple(_stacked(column) for column in zip(*parts, strict=True))), np.concatenate(constants)


def _scaled(factor: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(factor / FACTOR_STEPS)


def published_sums(matrix: scipy.sparse.csr_array, levels: Levels) -> tuple[Sums, ...]:
    """A table's counts, and the totals of every outcome, as functions of the base cells' sums."""
    none, outcomes = scipy.sparse.csr_array(matrix.shape), len(levels.outcomes)

    def weighted(factor: Floats) -> scipy.sparse.csr_array:
        return scipy.sparse.csr_array(matrix @ scipy.sparse.diags_array(factor))

    functions = [Sums((weighted(levels.weight), *[none] * (1 + 2 * outcomes)))]
    for k, outcome in enumerate(levels.outcomes):
        parts = [weighted(levels.weight * outcome.mean), *[none] * (1 + 2 * outcomes)]
        parts[1 + k] = weighted(levels.weight * outcome.unit)
        functions.append(Sums(tuple(parts)))
    return tuple(functions)


def _stacked(parts: Sequence[scipy.sparse.csr_array]) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))
