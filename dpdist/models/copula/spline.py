"""The regression of an outcome's score on the weight's: linear between knots, flat beyond ±2.5 (METHODS §5b).

b(v) = (1, v, (v − k)₊ …) with v = clip(z_w, ±2.5). In every interval between knots b is a line in z_w, so that sums of
(1, z_y, z_w, z_y², z_y z_w, z_w²) by interval are sufficient, and a log density is a dot product with the same six.

The conjugate law of a regression worth n0 = 10 records, with D = diag(10, 20, …, 20), centred at (β₀, σ₀²):
K = A'diag(α)A + D, β̂ = K⁻¹(A'diag(α)z + Dβ₀), SS = Σα r² + (β̂ − β₀)'D(β̂ − β₀) + n0 σ₀², ν = Σα + n0; σ² = SS/χ²_ν,
β ~ N(β̂, σ²K⁻¹).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import ndtri

from dpdist.core.records import Floats, Ints
from dpdist.models.numerics.chi import chi_quantiles

KNOTS = np.array([-1.5, -0.75, 0.0, 0.75, 1.5])
REACH = 2.5
EDGES = np.array([-REACH, *KNOTS, REACH])
INTERVALS, BASIS = len(EDGES) + 1, len(KNOTS) + 2
TERMS = 6
"""Sums of an interval: 1, z_y, z_w, z_y², z_y z_w, z_w²."""
WORTH = 10.0
"""Number n0 of records that a prior is worth."""
PRECISION = np.array([WORTH] + [2.0 * WORTH] * (BASIS - 1))


def intervals(v: Floats) -> Ints:
    """Interval of each weight's score, from 0 below −2.5 to INTERVALS − 1."""
    return np.searchsorted(EDGES, v, side="right")


def basis(v: Floats) -> Floats:
    """b(v), (…, BASIS)."""
    inside = np.clip(v, -REACH, REACH)
    hinges = np.maximum(inside[..., None] - KNOTS, 0.0)
    return np.concatenate([np.ones((*inside.shape, 1)), inside[..., None], hinges], axis=-1)


def _lines() -> tuple[Floats, Floats]:
    """b of every interval as constant + slope·v, (interval, BASIS) each."""
    constant, slope = np.zeros((INTERVALS, BASIS)), np.zeros((INTERVALS, BASIS))
    constant[0], constant[-1] = basis(np.array(-REACH)), basis(np.array(REACH))
    for j in range(1, INTERVALS - 1):
        left = EDGES[j - 1]
        slope[j] = [0.0, 1.0, *(left >= KNOTS)]
        constant[j] = [1.0, 0.0, *np.where(left >= KNOTS, -KNOTS, 0.0)]
    return constant, slope


CONSTANT, SLOPE = _lines()


def products(z_y: Floats, z_w: Floats) -> Floats:
    """1, z_y, z_w, z_y², z_y z_w, z_w² of every record, (TERMS, record)."""
    return np.array([np.ones_like(z_w), z_y, z_w, z_y * z_y, z_y * z_w, z_w * z_w])


class Moments(NamedTuple):
    """Sums A'diag(α)A, A'diag(α)z, Σαz² and Σα of one or several regressions."""

    gram: Floats
    cross: Floats
    square: Floats
    total: Floats


def spline_moments(sums: Floats) -> Moments:
    """Moments of the outcome's regression, from sums by interval, (…, interval, TERMS)."""
    n, u, v, uu, uv, vv = np.moveaxis(sums, -1, 0)
    gram = np.einsum("...j,ja,jb->...ab", n, CONSTANT, CONSTANT) + np.einsum("...j,ja,jb->...ab", vv, SLOPE, SLOPE)
    mixed = np.einsum("...j,ja,jb->...ab", v, CONSTANT, SLOPE)
    gram = gram + mixed + np.swapaxes(mixed, -1, -2)
    cross = u @ CONSTANT + uv @ SLOPE
    return Moments(gram, cross, uu.sum(axis=-1), n.sum(axis=-1))


def mean_moments(total: Floats, linear: Floats, square: Floats) -> Moments:
    """Moments of a mean and a variance alone, from Σα, Σαz, Σαz²."""
    return Moments(total[..., None, None], linear[..., None], square, total)


class Prior(NamedTuple):
    """β₀ (…, basis) and σ₀² (…,)."""

    location: Floats
    variance: Floats

    @classmethod
    def independence(cls, shape: tuple[int, ...], size: int) -> Prior:
        """Prior without any information: scores are standard normal, and outcome and weight are independent."""
        return cls(np.zeros((*shape, size)), np.ones(shape))

    def of_units(self, unit: Ints) -> Prior:
        """One prior per unit, from one per cell or part of a cell; all cells of a unit have the same prior."""
        first = np.unique(unit, return_index=True)[1]
        size = self.location.shape[-1]
        return Prior(self.location.reshape(-1, size)[first], self.variance.reshape(-1)[first])


class Conjugate(NamedTuple):
    """K, β̂, SS and ν of one or several regressions."""

    precision: Floats
    location: Floats
    scatter: Floats
    degrees: Floats

    @classmethod
    def of(cls, moments: Moments, prior: Prior) -> Conjugate:
        weight = PRECISION[: moments.cross.shape[-1]]
        k = moments.gram + np.diag(weight)
        b = moments.cross + weight * prior.location
        location = np.linalg.solve(k, b[..., None])[..., 0]
        known = (weight * prior.location**2).sum(axis=-1) + moments.square - (b * location).sum(axis=-1)
        scatter = np.maximum(known, 0.0) + WORTH * prior.variance
        return cls(k, np.asarray(location, dtype=np.float64), scatter, moments.total + WORTH)

    @property
    def variance(self) -> Floats:
        """SS/ν."""
        return self.scatter / self.degrees

    def draw(self, uniforms: Floats) -> tuple[Floats, Floats]:
        """Draws of σ (draw, unit) and β (draw, unit, basis), from uniforms (draw, unit·(1 + basis))."""
        units, size = self.location.shape
        own = uniforms.reshape(len(uniforms), units, 1 + size)
        sd, location = np.empty((len(own), units)), np.empty((len(own), units, size))
        for u in range(units):
            sd[:, u] = np.sqrt(self.scatter[u]) / chi_quantiles(float(self.degrees[u]), own[:, u, 0])
            root = np.linalg.cholesky(self.precision[u])
            spread = solve_triangular(root, ndtri(own[:, u, 1:]).T, lower=True, trans="T").T
            location[:, u] = self.location[u] + sd[:, u, None] * spread
        return sd, location


def together(sums: Floats, unit: NDArray[np.int64], axis: int) -> Floats:
    """Sums of the cells of each unit, along an axis."""
    membership = (np.arange(int(unit.max()) + 1)[:, None] == unit).astype(np.float64)
    return np.moveaxis(np.tensordot(membership, sums, axes=(1, axis)), 0, axis)
