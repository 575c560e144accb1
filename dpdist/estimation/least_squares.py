"""Estimates combined: additive figures nearest to noisy ones, projections onto a simplex, shrinkage of small areas.

A figure is the sum of x over the crosstab rows of its cell: figures are M x, with M the 0/1 matrix (cell, row).
The solution is x = M⁺ y: of all x with the least sum of squares |y − M x|², it is the shortest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Cells, Floats, Ints, quotient, quotient_or
from dpdist.job import StatisticName

KNOWN_VARIANCE = 1e-12
"""Variance below which values are treated as known."""
SMALLEST = 1e-300
"""Smallest variance used as a divisor, so that a quotient does not overflow."""


class Shrinkage(NamedTuple):
    """Values after shrinkage, with the mean that they are shrunk to.

    `own_weight` (cell,) is the weight of a cell's own value. `drift` is A, the variance of true values between cells.
    """

    own_weight: Floats
    values: Floats
    mean: float
    drift: float


def shrink(values: Floats, sampling: Floats, noise: Floats) -> Shrinkage:
    """Shrinks cells' values towards their mean, by the share of noise in their variance.

    `sampling` and `noise` (cell,) are known variances. The variance A of true values between cells is estimated by
    moments (DerSimonian & Laird). A value keeps (A + sampling)/(A + sampling + noise) of its distance from the mean.
    """
    variances = np.maximum(sampling + noise, KNOWN_VARIANCE)
    weight = 1.0 / variances
    share, excess = weight / weight.sum(), values - np.average(values, weights=weight)
    room = float((weight * (1.0 - share)).sum())
    drift = (
        max(0.0, (float((weight * excess**2).sum()) - (len(values) - 1)) / room)
        if room > KNOWN_VARIANCE * weight.sum()
        else 0.0
    )
    mean = float(np.average(values, weights=1.0 / (drift + variances)))
    own_weight = (drift + variances - noise) / (drift + variances)
    return Shrinkage(own_weight, mean + own_weight * (values - mean), mean, drift)


class Composite(NamedTuple):
    """Result of mixing own and borrowed estimates, (cell,) each.

    `own_weight` is the weight of a cell's own estimate, and `error` is the mean squared error of the mixture.
    """

    own_weight: Floats
    error: Floats


def composite(difference: Floats, sampling: Floats) -> Composite:
    """Mixes own and borrowed estimates by precision; the own estimate has the weight 1 − V/max(V + τ², d²).

    d, `difference`, is the own less the borrowed estimate, and V, `sampling`, is the sampling variance of d. Both are
    (cell,).

    An infinite V, or NaN in d, means a cell without records. It takes the whole borrowed estimate, with the error τ².
    """
    # The variance τ² between cells follows from the moments of all differences (DerSimonian & Laird). A cell with d² above
    # V + τ² uses its own d² instead. So borrowing moves no estimate by more than its own sampling error.
    has_variance = np.isfinite(sampling)
    unlike = (
        shrink(difference[has_variance], np.zeros(int(has_variance.sum())), sampling[has_variance]).drift
        if has_variance.any()
        else 0.0
    )
    weight, error = np.zeros(len(difference)), np.full(len(difference), unlike)
    variance = np.maximum(np.maximum(unlike + sampling[has_variance], difference[has_variance] ** 2), SMALLEST)
    weight[has_variance] = 1.0 - sampling[has_variance] / variance
    error[has_variance] = weight[has_variance] * sampling[has_variance]
    return Composite(weight, error)


DIRECT = 3_000
"""Largest side of a matrix that is factorised directly; this takes about ten seconds and 150 MB."""
ZERO = 1e-10
"""Eigenvalues up to this share of the largest count as 0."""
MOST_STEPS = 300
CLOSE = 1e-10
"""Iteration stops after a step of this size, relative to the largest x."""
NEAR_ENOUGH = 1e-6
"""From this size of the last step, relative to the largest x, a statement names it."""


class Solution(NamedTuple):
    """x of every draw, (draw, row), and the size of the last step over the largest x; 0 without steps."""

    rows: Floats
    last_step: float


# The solution x = M⁺ y is found in one of two ways:
#
# - Up to DIRECT cells or rows, the smaller of M Mᵀ and Mᵀ M is split into its eigenvectors once. M has no full rank:
#   margins follow from other cells: eigenvalues that are 0 but for rounding are left out.
# - Beyond that, conjugate gradients on the normal equations take at most MOST_STEPS steps.
#
# `Solution.last_step` states how far the result is from the solution. Figures M x add up in any case.
@dataclass(frozen=True)
class LeastSquares:
    """The matrix M of a set of cells, and the root of the pseudoinverse of its smaller square; None if it is too large."""

    membership: scipy.sparse.csr_array
    root: Floats | None
    """L with M⁺ = Mᵀ L Lᵀ (cell, rank) or M⁺ = L Lᵀ Mᵀ (row, rank)."""

    @classmethod
    def of(cls, membership: scipy.sparse.csr_array) -> LeastSquares:
        if min(membership.shape) > DIRECT:
            return cls(membership, None)
        cells, rows = membership.shape
        square = (membership @ membership.T if cells <= rows else membership.T @ membership).toarray()
        values, vectors = scipy.linalg.eigh(square, overwrite_a=True, check_finite=False)
        positive = values > ZERO * values.max(initial=0.0)
        return cls(membership, vectors[:, positive] / np.sqrt(values[positive]))

    def solve(self, noisy: Floats) -> Solution:
        """The solutions for noisy figures, (draw, cell)."""
        if self.root is None:
            return self._steps(noisy.T)
        if len(self.root) == self.membership.shape[0]:
            return Solution((self.root @ (self.root.T @ noisy.T)).T @ self.membership, 0.0)
        return Solution(((noisy @ self.membership) @ self.root) @ self.root.T, 0.0)

    def _steps(self, noisy: Floats) -> Solution:
        x, residual = np.zeros((self.membership.shape[1], noisy.shape[1])), noisy.copy()
        slope = self.membership.T @ residual
        along, squares, size = slope.copy(), (slope**2).sum(axis=0), 0.0
        for _ in range(MOST_STEPS):
            image = self.membership @ along
            step = quotient_or(0.0, squares, (image**2).sum(axis=0))
            x, residual = x + step * along, residual - step * image
            size = float(np.abs(step * along).max(initial=0.0) / max(np.abs(x).max(initial=0.0), np.finfo(float).tiny))
            if size <= CLOSE:
                break
            slope = self.membership.T @ residual
            later = (slope**2).sum(axis=0)
            along, squares = slope + quotient_or(0.0, later, squares) * along, later
        return Solution(x.T, size)


def consistent(noisy: Floats, membership: scipy.sparse.csr_array) -> Floats:
    """The additive figures, (cell,), that are nearest to noisy ones in least squares.

    Additive figures have margins that are sums of cells. `membership` is (cell, crosstab row).
    """
    # All figures have noise of one variance, so this is the best linear unbiased estimate (Hay, Rastogi, Miklau & Suciu
    # 2010). With local sensitivities the tables have noise of different scales, but these scales are confidential, so the
    # fit does not use them.
    return np.asarray(membership @ LeastSquares.of(membership).solve(noisy[None]).rows[0])


def consistent_table(noisy: Mapping[StatisticName, Floats], cells: Cells) -> dict[StatisticName, Floats]:
    """One table's figures made consistent: counts and totals are additive, and means are their ratios if it has both."""
    return ratios({k: v if k == "mean" else consistent(v, cells.membership) for k, v in noisy.items()})


def ratios(figures: Mapping[StatisticName, Floats]) -> dict[StatisticName, Floats]:
    consistent_figures = dict(figures)
    if {"count", "mean", "total"} <= set(consistent_figures):
        consistent_figures["mean"] = quotient(consistent_figures["total"], consistent_figures["count"])
    return consistent_figures


def stacked(tables: Sequence[Cells]) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(scipy.sparse.vstack([cells.membership for cells in tables]))


def nearest_on_simplex(values: Floats, total: Floats) -> Floats:
    """The nearest non-negative values with the given sum, along the last axis, in least squares."""
    # They are max(values − t, 0), with t such that they sum to `total` (…,), which is at least 0 (Held, Wolfe & Crowder
    # 1974).
    ordered = -np.sort(-values, axis=-1)
    number = np.arange(1, values.shape[-1] + 1)
    level = (np.cumsum(ordered, axis=-1) - total[..., None]) / number
    last = np.maximum((ordered > level).sum(axis=-1, keepdims=True) - 1, 0)
    return np.asarray(np.maximum(values - np.take_along_axis(level, last, axis=-1), 0.0))


def nearest_on_simplices(values: Floats, group: Ints, total: Floats) -> Floats:
    """The same projection within groups: `values` and `group` are (value,), and `total` is (group,). No group is empty."""
    order = np.lexsort((-values, group))
    ordered, group_of_sorted = values[order], group[order]
    start = np.searchsorted(group_of_sorted, np.arange(len(total)))
    summed = np.concatenate([[0.0], np.cumsum(ordered)])
    number = np.arange(len(values)) - start[group_of_sorted] + 1
    level = (summed[1:] - summed[start[group_of_sorted]] - total[group_of_sorted]) / number
    last = np.maximum(np.bincount(group_of_sorted, weights=ordered > level, minlength=len(total)).astype(np.int64) - 1, 0)
    return np.asarray(np.maximum(values - level[start + last][group], 0.0))
