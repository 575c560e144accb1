"""Cells of reference records and of a file by public columns, and log-linear main effects fitted to sums over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Codes, Floats, Ints, grouped
from dpdist.mechanisms.tables.conjugate import solved
from dpdist.mechanisms.tables.random_effects import families, interactions

MOST_STEPS = 30
"""Largest number of Fisher scoring steps."""
RIDGE = 0.25
"""Records of the mean that the prior of a level's factor stands for, at a relative variance of 1."""
MOST_LEVELS = 800
"""Largest number of coefficients that a dense system solves."""


WholeNumbers = TypeVar("WholeNumbers", Codes, Ints)


MOST_LOSSES = 0.2
"""Losses over gains, in number and in sum, up to which an outcome's values change in proportion."""


class ReferenceSample(NamedTuple):
    """Records of the reference: weight (record,), outcomes (record, outcome), and codes by cross, (cross, column).

    `cross` is that of every record, (record,); without it, records are of one cross each, in order.
    """

    codes: Codes
    weight: Floats
    outcomes: Floats
    cross: Codes | None = None

    def of_records(self, values: WholeNumbers) -> WholeNumbers:
        """Values of crosses as records have them, (record,) or (record, column)."""
        return values if self.cross is None else values[self.cross]

    @property
    def proportional(self) -> NDArray[np.bool_]:
        """Marks outcomes whose values change in proportion, (outcome,): those that are hardly ever negative here, whatever
        bounds they have.
        """
        amounts = np.column_stack([self.outcomes, np.sign(self.outcomes)]) * self.weight[:, None]
        losses, gains = (np.maximum(sign * amounts, 0.0).sum(axis=0) for sign in (-1.0, 1.0))
        return np.asarray((losses <= MOST_LOSSES * gains).reshape(2, -1).all(axis=0))


def log_linear(design: scipy.sparse.csr_array, size: Floats, total: Floats, variance: float = 1.0) -> Floats:
    """Coefficients β of E(total) = size exp(design β): Poisson scores, and gamma laws of all factors but the first.

    `variance` is a record's, in units of its squared mean: what varies more shows less of effects. Under a gamma law, the
    mean of few records without a large value, or without a yes, is not taken for that of their level.
    """
    mean = total.sum() / max(size.sum(), 1e-300)
    beta = np.zeros(design.shape[1])
    if mean <= 0.0:
        beta[0] = -np.inf
        return beta
    beta[0], scale = np.log(mean), 1.0 / (mean * variance)
    ridge = np.full(design.shape[1], RIDGE)
    ridge[0] = 1e-9
    start = beta.copy()

    def objective(coefficients: Floats) -> float:
        eta = design @ coefficients
        effects = coefficients - start
        return float(scale * (size @ np.exp(eta) - total @ eta) + ridge @ (np.exp(effects) - effects))

    value = objective(beta)
    for _ in range(MOST_STEPS):
        fitted = size * np.exp(design @ beta)
        factors = np.exp(beta - start)
        score = scale * (design.T @ (total - fitted)) - ridge * (factors - 1.0)
        information = scale * (design.T @ scipy.sparse.diags_array(fitted) @ design) + scipy.sparse.diags_array(
            ridge * factors
        )
        step = _newton(information.tocsr(), score)
        step *= min(1.0, 5.0 / max(np.abs(step).max(), 1e-300))
        while (next_value := objective(beta + step)) > value + 1e-12 * abs(value) and np.abs(step).max() > 1e-10:
            step *= 0.5
        beta = beta + step
        if value - next_value < 1e-10 * (1.0 + abs(value)):
            break
        value = next_value
    return beta


def _newton(information: scipy.sparse.csr_array, score: Floats) -> Floats:
    if len(score) <= MOST_LEVELS:
        return np.asarray(scipy.linalg.solve(information.toarray(), score, assume_a="pos"))
    return solved(lambda x: information @ x, information.diagonal(), score)


def one_hot(codes: Ints, sizes: Sequence[int]) -> scipy.sparse.csr_array:
    """An intercept, and an indicator of every level of every column, (row, 1 + levels)."""
    rows, width = len(codes), 1 + len(sizes)
    columns = np.zeros((rows, width), dtype=np.int32)
    columns[:, 1:] = codes + (1 + np.cumsum([0, *sizes]))[None, : len(sizes)]
    pointer = np.arange(0, rows * width + 1, width, dtype=np.int32)
    return scipy.sparse.csr_array((np.ones(rows * width), columns.ravel(), pointer), shape=(rows, 1 + int(sum(sizes))))


class ReferenceCells(NamedTuple):
    """Cells of reference and file, those with reference records first, with the place of each record and base cell."""

    place: Codes
    """The cell of every reference record."""
    of_file: Codes
    """The cell of every base cell of the file."""
    size: Floats
    """Numbers of reference records, of cells that have any."""
    codes: Ints
    """Codes of all cells, (cell, column)."""
    design: scipy.sparse.csr_array
    families: list[Codes]
    """Cells of columns first, then of tables and pairs of columns."""
    interactions: list[Codes]
    """Cells of up to three columns."""

    @property
    def columns(self) -> int:
        return int(self.codes.shape[1])

    @classmethod
    def of(
        cls, reference: ReferenceSample, cells: Ints, sizes: Sequence[int], tables: Sequence[Sequence[int]]
    ) -> ReferenceCells:
        both = np.concatenate([reference.codes, cells.astype(np.int32)])
        group, first = grouped(list(both.T)) if both.shape[1] else (np.zeros(len(both), dtype=np.int64), np.zeros(1, int))
        combinations = both[first]
        place, of_file = np.split(group, [len(reference.codes)])
        number = np.bincount(reference.of_records(place), minlength=len(combinations))
        order = np.argsort(number == 0, kind="stable")
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        size = number[order][: int((number > 0).sum())].astype(np.float64)
        combinations = combinations[order]
        design, index = one_hot(combinations, sizes), families(tables, combinations)
        crosses = interactions(combinations, len(reference.weight))
        return cls(reference.of_records(rank[place]), rank[of_file], size, combinations, design, index, crosses)

    def added(self, values: Floats) -> Floats:
        """Sums of records' values by cell with records, (cell,)."""
        return np.bincount(self.place, weights=values, minlength=len(self.size)).astype(np.float64)

    def fitted(self, count: Floats, total: Floats, variance: float = 1.0) -> Floats:
        """Log-linear fit of totals to counts of cells with records, (cell,), at all cells."""
        return np.asarray(np.exp(self.design @ log_linear(self.design[: len(self.size)], count, total, variance)))
