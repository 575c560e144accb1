"""A linear spline of an outcome's normal score z_y on the weight's score z_w.

With v = z_w clipped to ±2.5, the basis is b(v) = (1, v, (v − k)₊ for every knot k).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints
from dpdist.models.numerics.chi import chi_quantiles

KNOTS = np.array([-1.5, -0.75, 0.0, 0.75, 1.5])
"""Scores of the weight at which the regression's slope changes."""
REACH = 2.5
"""Absolute score of the weight beyond which the regression is flat."""
EDGES = np.array([-REACH, *KNOTS, REACH])
INTERVALS, BASIS = len(EDGES) + 1, len(KNOTS) + 2
"""Numbers of intervals of z_w, including the two flat ones, and of basis functions."""
TERMS = 6
"""Number of sums in an interval: of 1, z_y, z_w, z_y², z_y z_w and z_w²."""
WORTH = 10.0
"""Number n0 of records that a prior is worth."""
PRECISION = np.array([WORTH] + [2.0 * WORTH] * (BASIS - 1))
"""The diagonal of the prior's matrix D."""


def intervals(v: Floats) -> Ints:
    """The interval of each score z_w, from 0 below −2.5 to INTERVALS − 1 from 2.5 on."""
    return np.searchsorted(EDGES, v, side="right")


def basis(v: Floats) -> Floats:
    """The basis functions b of weights' scores, (…, BASIS)."""
    inside = np.clip(v, -REACH, REACH)
    hinges = np.maximum(inside[..., None] - KNOTS, 0.0)
    return np.concatenate([np.ones((*inside.shape, 1)), inside[..., None], hinges], axis=-1)


def _lines() -> tuple[Floats, Floats]:
    """The basis functions of every interval as lines, constant + slope · z_w, (interval, BASIS) each."""
    constant, slope = np.zeros((INTERVALS, BASIS)), np.zeros((INTERVALS, BASIS))
    constant[0], constant[-1] = basis(np.array(-REACH)), basis(np.array(REACH))
    for j in range(1, INTERVALS - 1):
        edge = EDGES[j - 1]
        slope[j] = [0.0, 1.0, *(edge >= KNOTS)]
        constant[j] = [1.0, 0.0, *np.where(edge >= KNOTS, -KNOTS, 0.0)]
    return constant, slope


CONSTANT, SLOPE = _lines()


def products(z_y: Floats, z_w: Floats) -> Floats:
    """The products 1, z_y, z_w, z_y², z_y z_w and z_w² of every record, (TERMS, record)."""
    return np.array([np.ones_like(z_w), z_y, z_w, z_y * z_y, z_y * z_w, z_w * z_w])


class SplineMoments(NamedTuple):
    """Sums A'diag(α)A, A'diag(α)z, Σαz² and Σα of one or several regressions."""

    gram: Floats
    cross: Floats
    square: Floats
    total: Floats


def spline_moments(sums: Floats) -> SplineMoments:
    """Sums for the outcome's regression, from the sums of products by interval, (…, interval, TERMS)."""
    n, u, v, uu, uv, vv = np.moveaxis(sums, -1, 0)
    gram = np.einsum("...j,ja,jb->...ab", n, CONSTANT, CONSTANT) + np.einsum("...j,ja,jb->...ab", vv, SLOPE, SLOPE)
    mixed = np.einsum("...j,ja,jb->...ab", v, CONSTANT, SLOPE)
    gram = gram + mixed + np.swapaxes(mixed, -1, -2)
    cross = u @ CONSTANT + uv @ SLOPE
    return SplineMoments(gram, cross, uu.sum(axis=-1), n.sum(axis=-1))


def mean_moments(total: Floats, linear: Floats, square: Floats) -> SplineMoments:
    """Sums for a regression on a constant, from Σα, Σαz and Σαz²."""
    return SplineMoments(total[..., None, None], linear[..., None], square, total)


class SplinePrior(NamedTuple):
    """Centre of a regression's prior: β₀ (…, basis) and σ₀² (…,)."""

    location: Floats
    variance: Floats

    @classmethod
    def independence(cls, shape: tuple[int, ...], size: int) -> SplinePrior:
        """Prior without any information: scores are standard normal, and outcome and weight are independent."""
        return cls(np.zeros((*shape, size)), np.ones(shape))

    def of_units(self, unit: Ints) -> SplinePrior:
        """One prior per unit, from one per cell or part of a cell."""
        first = np.unique(unit, return_index=True)[1]
        size = self.location.shape[-1]
        return SplinePrior(self.location.reshape(-1, size)[first], self.variance.reshape(-1)[first])


# In every interval between knots, b is a line in z_w. So sums of (1, z_y, z_w, z_y², z_y z_w, z_w²) by interval are
# sufficient, and a log density is a dot product with these six products.
#
# The conjugate posterior: A has the rows b(v) of the records, z are their z_y, α their privacy weights, and r the residuals
# z − Aβ̂. The prior is worth n0 = 10 records and centred at (β₀, σ₀²); D = diag(10, 20, …, 20). Then
#
#     K = A'diag(α)A + D, β̂ = K⁻¹(A'diag(α)z + Dβ₀), SS = Σα r² + (β̂ − β₀)'D(β̂ − β₀) + n0 σ₀², ν = Σα + n0,
#     σ² = SS/χ²_ν, β ~ N(β̂, σ²K⁻¹).
class SplinePosterior(NamedTuple):
    """Posterior of one or several regressions: K, β̂, SS and ν, as in the module's text."""

    precision: Floats
    location: Floats
    scatter: Floats
    degrees: Floats

    @classmethod
    def of(cls, moments: SplineMoments, prior: SplinePrior) -> SplinePosterior:
        weight = PRECISION[: moments.cross.shape[-1]]
        k = moments.gram + np.diag(weight)
        b = moments.cross + weight * prior.location
        location = np.linalg.solve(k, b[..., None])[..., 0]
        squares = (weight * prior.location**2).sum(axis=-1) + moments.square - (b * location).sum(axis=-1)
        scatter = np.maximum(squares, 0.0) + WORTH * prior.variance
        return cls(k, np.asarray(location, dtype=np.float64), scatter, moments.total + WORTH)

    @property
    def variance(self) -> Floats:
        """SS/ν, an estimate of σ²."""
        return self.scatter / self.degrees

    def draw(self, uniforms: Floats) -> tuple[Floats, Floats]:
        """Draws of σ (draw, unit) and β (draw, unit, basis), from uniforms (draw, unit·(1 + basis))."""
        units, size = self.location.shape
        levels = uniforms.reshape(len(uniforms), units, 1 + size)
        sd, location = np.empty((len(levels), units)), np.empty((len(levels), units, size))
        for u in range(units):
            sd[:, u] = np.sqrt(self.scatter[u]) / chi_quantiles(float(self.degrees[u]), levels[:, u, 0])
            root = np.linalg.cholesky(self.precision[u])
            spread = scipy.linalg.solve_triangular(root, scipy.special.ndtri(levels[:, u, 1:]).T, lower=True, trans="T").T
            location[:, u] = self.location[u] + sd[:, u, None] * spread
        return sd, location


def together(sums: Floats, unit: NDArray[np.int64], axis: int) -> Floats:
    """Sums over the cells of each unit, along an axis; `unit` (cell,) is the unit of each cell."""
    membership = (np.arange(int(unit.max()) + 1)[:, None] == unit).astype(np.float64)
    return np.moveaxis(np.tensordot(membership, sums, axes=(1, axis)), 0, axis)
