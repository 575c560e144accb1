"""For `packages.posterior` and `package`: linear functions of the base cells' sums, measured and published ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats
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

    def of(self, z: Floats) -> Floats:
        """The functions of sums (cell, sum)."""
        return np.asarray(sum(part @ z[:, k] for k, part in enumerate(self.parts)))

    def back(self, x: Floats) -> Floats:
        """The transposed functions of (row,), as (cell, sum)."""
        return np.column_stack([part.T @ x for part in self.parts])


def crossed(one: Sums, other: Sums, block: Floats) -> scipy.sparse.csr_array:
    """Covariance of two sets of functions by a block for every cell, sparse, (row, row)."""
    pairs = _held(one, other)
    none = scipy.sparse.csr_array((len(one), len(other)))
    return added([none, *(one.parts[i] @ scipy.sparse.diags_array(block[:, i, j]) @ other.parts[j].T for i, j in pairs)])


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
        weight, none = _scaled(one.of_weight), scipy.sparse.csr_array(one.of_weight.shape)
        rows = [[*[none] * (1 + outcomes), weight, *[none] * (outcomes + secret)]]
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
            constants.append(np.zeros(weight.shape[0]) if secret else np.asarray(outcome @ (tilt * count) + level @ count))
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
