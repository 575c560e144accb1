"""For `copula`, `lognormal` and `modips`: quantiles of the χ distribution for many uniforms at once."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.polynomial.chebyshev import chebval

from dpdist.core.records import Floats

NODES = 24
"""Number of terms of the Chebyshev series."""
_ANGLES = np.pi * (np.arange(NODES) + 0.5) / NODES
_POINTS = np.cos(_ANGLES)
_TO_SERIES = np.cos(np.outer(np.arange(NODES), _ANGLES)) * np.where(np.arange(NODES) == 0, 1.0, 2.0)[:, None] / NODES
EPSILON = float(np.finfo(float).eps)


def chi_quantiles(degrees: float, uniforms: Floats) -> Floats:
    """Inverse distribution function of the χ law at many uniforms, to double precision, (draw,)."""
    # In the normal quantile z the result is nearly linear, so a short Chebyshev series replaces it, unless its last
    # coefficients exceed rounding error, as for few degrees of freedom.
    if len(uniforms) > 4 * NODES:
        z = scipy.special.ndtri(uniforms)
        middle, half = (z.max() + z.min()) / 2.0, (z.max() - z.min()) / 2.0
        values = _at_normal_quantile(degrees, middle + half * _POINTS)
        centre = values[NODES // 2]
        series = _TO_SERIES @ (values - centre)
        terms = np.flatnonzero(np.abs(series) > EPSILON * values.min())
        if len(terms) and terms[-1] < NODES - 4:
            return np.asarray(centre + chebval((z - middle) / half, series[: terms[-1] + 1]))
    return np.asarray(np.sqrt(2.0 * scipy.special.gammaincinv(degrees / 2.0, uniforms)))


def _at_normal_quantile(degrees: float, z: Floats) -> Floats:
    shape = degrees / 2.0
    low = scipy.special.gammaincinv(shape, scipy.special.ndtr(z))
    high = scipy.special.gammainccinv(shape, scipy.special.ndtr(-z))
    return np.asarray(np.sqrt(2.0 * np.where(z < 0.0, low, high)))
