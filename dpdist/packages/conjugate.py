"""Systems too large for a dense factor, by conjugate gradients: many right sides at once, and errors of shared terms.

No matrix of terms by terms, or of measured sums by measured sums, is formed. Each right side has its own steps, and ends
when its residual is `TOLERANCE` of what it was, or small beside posterior standard deviations. Some sides
at a time have a thread: which ones no machine changes, so that digits are the same with every number of processors.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.core.this_process import processors
from dpdist.packages.nested import NestedTerms

TOLERANCE = 1e-12
"""Residual at which a solution ends, relative to the right side, in the preconditioner's norm."""
OF_ESTIMATES, OF_VARIANCES = 1e-9, 1e-5
"""The same for systems of all observations. Estimates are exact to rounding. A drawn error is off by half a percent of its
figure's standard error at most."""
ROUGHLY = 1e-3
"""The same for systems of random right sides, whose solutions are averaged: these err by some percent anyway."""
SIDES_AT_ONCE, ENTRIES_AT_ONCE = 8, 4_096
"""Right sides of one thread, and entries of these that a processor's own memory holds."""
SIGNS, SEED_OF_SIGNS = 128, 9
"""Number of vectors of random signs that give variances of many rows, and their seed."""
ROWS_AT_ONCE = 1_000
"""Rows whose exact variances are computed together."""
MOST_STEPS = 5_000
"""Number of steps after which a system counts as unsolvable."""


def conjugate_gradients(
    times: Callable[[Floats], Floats],
    preconditioned: Callable[[Floats], Floats],
    right: Floats,
    tolerance: float = TOLERANCE,
) -> Floats:
    """Solutions of a symmetric positive definite system for right sides, (entry, side).

    Raises `ArithmeticError` where `MOST_STEPS` are not enough.
    """

    def solved(few: slice) -> Floats:
        return _solved(times, preconditioned, np.ascontiguousarray(right[:, few]), tolerance)

    several = [slice(start, start + SIDES_AT_ONCE) for start in range(0, right.shape[1], SIDES_AT_ONCE)]
    if len(several) == 1:
        return solved(several[0])
    with ThreadPoolExecutor(processors()) as pool:
        return np.hstack(list(pool.map(solved, several)))


def _solved(
    times: Callable[[Floats], Floats],
    preconditioned: Callable[[Floats], Floats],
    right: Floats,
    tolerance: float,
) -> Floats:
    x, left = np.zeros_like(right), right.copy()
    turned = preconditioned(left)
    direction, square = turned.copy(), _products(left, turned)
    wanted = tolerance**2 * square
    for _ in range(MOST_STEPS):
        open_ = square > wanted
        if not open_.any():
            return x
        image = times(direction)
        step = np.where(open_, square / np.where(open_, _products(direction, image), 1.0), 0.0)
        for start in range(0, len(x), ENTRIES_AT_ONCE):
            few = slice(start, start + ENTRIES_AT_ONCE)
            x[few] += direction[few] * step
            left[few] -= image[few] * step
        turned = preconditioned(left)
        now = _products(left, turned)
        direction *= np.where(open_, now / np.where(square > 0.0, square, 1.0), 0.0)
        direction += turned
        square = np.where(open_, now, square)
    raise ArithmeticError(f"a system of {len(right):,} unknowns is not solved in {MOST_STEPS:,} steps")


def _products(one: Floats, other: Floats) -> Floats:
    """Sums of products by side, (side,), in an order that no processor changes."""
    return np.asarray(np.einsum("ij,ij->j", one, other))


@dataclass(frozen=True)
class TermPrecision:
    """Errors of shared terms by their precision Λ = Z'WZ + diag(a priori), never formed.

    W (cell,) are precisions of the cells' residuals, 0 without records. `few` are terms of many cells each, which overlap
    most: their part of Λ is dense, and solved exactly within the preconditioner.
    """

    terms: NestedTerms
    weight: Floats
    prior: Floats
    few: Ints

    @cached_property
    def diagonal(self) -> Floats:
        """The diagonal of Λ, (term,)."""
        return np.asarray(self.terms.back(self.weight) + self.prior)

    @cached_property
    def _factor_of_few(self) -> tuple[Floats, bool]:
        """The factor of the part of Λ of a few terms."""
        z = self.terms.columns(self.few)
        part = (z.T @ scipy.sparse.diags_array(self.weight) @ z).toarray() + np.diag(self.prior[self.few])
        return scipy.linalg.cho_factor(part, lower=True)

    def times(self, x: Floats) -> Floats:
        """Λ x for (term, side)."""
        return np.asarray(self.terms.back(self.weight[:, None] * (self.terms @ x)) + self.prior[:, None] * x)

    def preconditioned(self, x: Floats) -> Floats:
        """About Λ⁻¹ x for (term, side)."""
        made = x / self.diagonal[:, None]
        made[self.few] = scipy.linalg.cho_solve(self._factor_of_few, x[self.few])
        return made

    def spread(self, x: Floats, tolerance: float = TOLERANCE) -> Floats:
        """The terms' covariance times (term,) or (term, side)."""
        sides, _ = x.reshape(len(x), -1), self._factor_of_few  # made here: threads would make it again
        return conjugate_gradients(self.times, self.preconditioned, sides, tolerance).reshape(x.shape)

    def variances(self, z: NestedTerms) -> Floats:
        """Variances of z times the errors, (row,), for z (row, term): means over probes with random signs."""
        signs = np.random.default_rng(SEED_OF_SIGNS).choice([-1.0, 1.0], (z.finest.shape[0], SIGNS))
        return np.asarray((signs * (z @ self.spread(z.back(signs), ROUGHLY))).mean(axis=1))

    def drawn(self, rng: np.random.Generator) -> Floats:
        """A draw of the terms' errors, (term,)."""
        of_cells, seen = np.zeros(len(self.weight)), self.weight > 0.0
        of_cells[seen] = np.sqrt(self.weight[seen]) * rng.standard_normal(int(seen.sum()))
        drawn = self.terms.back(of_cells) + np.sqrt(self.prior) * rng.standard_normal(len(self.prior))
        return self.spread(drawn, ROUGHLY)

    @cached_property
    def root(self) -> Floats:
        """A root of the terms' covariance, (term, term): dense, for few terms."""
        z = self.terms.matrix
        return root_of_inverse((z.T @ scipy.sparse.diags_array(self.weight) @ z).toarray() + np.diag(self.prior))


@dataclass(frozen=True)
class TermRoot:
    """Errors of shared terms by a root of their covariance, (term, term).

    `weight` and `prior` are those of `TermPrecision`, if a reference is behind them.
    """

    root: Floats
    weight: Floats = field(default_factory=lambda: np.zeros(0))
    prior: Floats = field(default_factory=lambda: np.zeros(0))

    def spread(self, x: Floats, tolerance: float = 0.0) -> Floats:
        """The terms' covariance times (term,) or (term, side), exactly."""
        return np.asarray(self.root @ (self.root.T @ x))

    def variances(self, terms: NestedTerms) -> Floats:
        """Variances of z times the errors, (row,), for z (row, term)."""
        z = terms.matrix
        batches = (z[start : start + ROWS_AT_ONCE] @ self.root for start in range(0, z.shape[0], ROWS_AT_ONCE))
        return np.concatenate([np.asarray((part**2).sum(axis=1)) for part in batches])

    def drawn(self, rng: np.random.Generator) -> Floats:
        """A draw of the terms' errors, (term,)."""
        return np.asarray(self.root @ rng.standard_normal(len(self.root)))


def root_of_inverse(precision: Floats) -> Floats:
    """The lower triangular root of the inverse of a dense matrix."""
    factor = scipy.linalg.cholesky(precision[::-1, ::-1], lower=True)  # so the precision is UU', with U upper triangular
    inverse, singular = scipy.linalg.lapack.dtrtri(factor, lower=1)
    assert not singular
    return np.ascontiguousarray(inverse[::-1, ::-1].T)
