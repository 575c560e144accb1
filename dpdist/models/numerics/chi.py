"""For `copula`, `lognormal` and `modips`: quantiles of the χ distribution for many uniforms at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.polynomial.chebyshev import chebvander

from dpdist.core.records import Floats

NODES = 24
"""Number of terms of the Chebyshev series."""
_ANGLES = np.pi * (np.arange(NODES) + 0.5) / NODES
_POINTS = np.cos(_ANGLES)
_TO_SERIES = np.cos(np.outer(np.arange(NODES), _ANGLES)) * np.where(np.arange(NODES) == 0, 1.0, 2.0)[:, None] / NODES
EPSILON = float(np.finfo(float).eps)


def chi_quantiles(degrees: float, uniforms: Floats) -> Floats:
    """Inverse distribution function of the χ law at many uniforms, to double precision, (draw,)."""
    return ChiLevels.of(uniforms).quantiles(degrees)


# In the normal quantile z the result is nearly linear, so a short Chebyshev series replaces it, unless its last
# coefficients exceed rounding error, as for few degrees of freedom. The polynomials do not depend on the degrees.
@dataclass(frozen=True, eq=False)
class ChiLevels:
    """Uniforms at which χ laws of any degrees of freedom are inverted. `table` is empty if a series would not pay.

    `low` and `high` are the probabilities below nodes of a Chebyshev series with a negative normal quantile, and above
    the others; `table` has the polynomials at the uniforms, (draw, term).
    """

    uniforms: Floats
    low: Floats
    high: Floats
    table: Floats

    @classmethod
    def of(cls, uniforms: Floats) -> ChiLevels:
        if len(uniforms) <= 4 * NODES:
            return cls(uniforms, np.empty(0), np.empty(0), np.empty((0, NODES)))
        z = scipy.special.ndtri(uniforms)
        middle, half = (z.max() + z.min()) / 2.0, (z.max() - z.min()) / 2.0
        nodes = middle + half * _POINTS
        below = nodes < 0.0
        low, high = scipy.special.ndtr(nodes[below]), scipy.special.ndtr(-nodes[~below])
        return cls(uniforms, low, high, chebvander((z - middle) / half, NODES - 1))

    def quantiles(self, degrees: float) -> Floats:
        """Quantiles of the χ law with these degrees of freedom, (draw,)."""
        shape = degrees / 2.0
        if len(self.table):
            squares = [scipy.special.gammainccinv(shape, self.high), scipy.special.gammaincinv(shape, self.low)]
            values = np.sqrt(2.0 * np.concatenate(squares))  # nodes descend, so those above 0 come first
            centre = values[NODES // 2]
            series = _TO_SERIES @ (values - centre)
            terms = np.flatnonzero(np.abs(series) > EPSILON * values.min())
            if len(terms) and terms[-1] < NODES - 4:
                stop = terms[-1] + 1
                return np.asarray(centre + self.table[:, :stop] @ series[:stop])
        return np.asarray(np.sqrt(2.0 * scipy.special.gammaincinv(shape, self.uniforms)))
