"""For `packages.posterior` and `package`: linear functions of the base cells' sums, measured and published ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.packages.levels import Levels
from dpdist.packages.limits import CellLimits
from dpdist.packages.strategy import FACTOR_STEPS, Measured

ROWS_AT_ONCE = 1_000
"""Published figures whose errors are computed together, because memory for shared terms grows with them."""


class Sums(NamedTuple):
    """Linear functions of the base cells' sums: a matrix for each of (Σe, Σer of every outcome, Σa, Σq), (row, cell)."""

    parts: tuple[scipy.sparse.csr_array, ...]

    def __len__(self) -> int:
        return int(self.parts[0].shape[0])

    def batches(self) -> Iterator[Sums]:
        """The functions, at most `ROWS_AT_ONCE` at a time."""
        for start in range(0, max(len(self), 1), ROWS_AT_ONCE):
            yield Sums(tuple(scipy.sparse.csr_array(part[start : start + ROWS_AT_ONCE]) for part in self.parts))

    @property
    def whole(self) -> Sums:
        """These functions."""
        return self

    def applied(self, function: Callable[[Sums], Sequence[Floats]]) -> Sequence[Floats]:
        """Matrices that are linear in these functions, (row, …) each."""
        return function(self)

    def drawn(self, values: Floats) -> Floats:
        """The functions of draws of the first sums, (sum, cell, draw): (row, draw)."""
        return np.asarray(sum(part @ of_sum for part, of_sum in zip(self.parts, values, strict=False)))

    def turned(self, x: Floats) -> Floats:
        """The transposed functions of (row, side), as (cell, sum, side)."""
        return np.stack([part.T @ x for part in self.parts], axis=1)

    def of(self, z: Floats) -> Floats:
        """The functions of sums (cell, sum)."""
        return np.asarray(sum(part @ z[:, k] for k, part in enumerate(self.parts)))

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
        fine = (_stacked(parts) for parts in zip(*(one.fine.parts for one in several), strict=True))
        return cls(scipy.sparse.csr_array(scipy.sparse.block_diag([one.rows for one in several])), Sums(tuple(fine)))


Functions: TypeAlias = Sums | MarginSums


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


class Layers(NamedTuple):
    """Functions of base cells in layers, in each of which a cell has one row.

    `rows` (layer, cell), and `factors` (layer, sum, cell): 0 where a cell is in fewer layers. Tables, and rows of one
    kind in an aggregation, are layers. So products of two sets of functions are grouped sums of one pair of layers after
    the other, which are much faster than products of sparse matrices.
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
        layer = np.arange(len(every)) - np.searchsorted(cell, cell)
        rows = np.zeros((int(layer.max(initial=-1)) + 1, cells), dtype=np.int64)
        factors = np.zeros((len(rows), len(parts), cells))
        rows[layer, cell] = row
        for k, (keys, values) in enumerate(entries):
            place = np.searchsorted(every, keys)
            factors[layer[place], k, cell[place]] = values
        return cls(rows, factors)


def add_grouped(whole: Sequence[Floats], rows: Ints, columns: Ints, weights: Sequence[Floats]) -> None:
    """Adds sums of weights (cell,) by row and column of the cells, (cell,) each, to whole matrices (row, column)."""
    top, left = int(rows.min()), int(columns.min())
    shape = int(rows.max()) + 1 - top, int(columns.max()) + 1 - left
    key = (rows - top) * shape[1] + (columns - left)
    for matrix, weight in zip(whole, weights, strict=True):
        part = np.bincount(key, weight, shape[0] * shape[1]).reshape(shape)
        matrix[top : top + shape[0], left : left + shape[1]] += part


def crossed(one: Sums, other: Sums, block: Floats, layers: Layers | None = None) -> Floats:
    """Covariance of two sets of functions by a block for every cell, (row, row). `layers` are those of `other`."""
    whole = np.zeros((len(one), len(other)))
    blocks = np.ascontiguousarray(np.moveaxis(block, 0, 2)[: len(one.parts)])  # published functions may leave out sizes
    first, same = Layers.of(one.parts), one is other
    second = [
        (*pair, np.flatnonzero(pair[1].any(axis=1)))
        for pair in zip(*(first if same else layers or Layers.of(other.parts)), strict=True)
    ]
    for number, (rows, factors) in enumerate(zip(*first, strict=True)):
        pulled = np.einsum("ic,ijc->jc", factors, blocks)
        for place, (columns, others, held) in enumerate(second[number:] if same else second):
            weight = sum((pulled[k] * others[k] for k in held), np.zeros(len(rows)))
            add_grouped([whole], rows, columns, [weight / 2.0 if same and place == 0 else weight])
    return whole + whole.T if same else whole


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
