"""Quantiles of the χ distribution for many uniforms at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats

FEWEST, MOST = 8.0, 1e5
"""Degrees of freedom between which a series serves."""
FEW = 64
"""Number of uniforms up to which single inversions take less time than a series."""
FARTHEST = 8.3
"""Absolute normal quantiles of uniforms in double precision are smaller."""


def chi_quantiles(degrees: float, uniforms: Floats) -> Floats:
    """Inverse distribution function of the χ law at many uniforms, (draw,).

    Errors are at most 24 units in the last place of the largest quantile.
    """
    return np.asarray(ChiLevels.of(uniforms[None]).quantiles(np.array([degrees]))[0])


# Let q be the quantile of the χ law with ν degrees of freedom at the normal quantile z. Then q/√ν is nearly linear in z and
# smooth in 1/√ν (Cornish & Fisher 1938). So one Chebyshev series in both serves all levels and laws but those of few or of
# very many degrees of freedom. Its coefficients err by the rounding error of the largest quantile.
class ChebyshevInterval(NamedTuple):
    """Chebyshev polynomials of an interval (middle − half, middle + half), `terms` of them."""

    middle: float
    half: float
    terms: int

    def nodes(self) -> Floats:
        return np.asarray(self.middle + self.half * np.cos(self._angles()))

    def to_series(self) -> Floats:
        """From values at the nodes to coefficients, (term, node)."""
        sums = np.cos(np.outer(np.arange(self.terms), self._angles())) * (2.0 / self.terms)
        sums[0] /= 2.0
        return np.asarray(sums)

    def _angles(self) -> Floats:
        return np.asarray(np.pi * (np.arange(self.terms) + 0.5) / self.terms)

    def polynomials_at(self, values: Floats) -> Floats:
        """Polynomials (value, term) at a few values (value,)."""
        position = np.clip((values - self.middle) / self.half, -1.0, 1.0)
        return np.asarray(np.cos(np.arccos(position)[:, None] * np.arange(self.terms)))

    def polynomials(self, values: Floats) -> Floats:
        """Polynomials (..., term, value) at many values (..., value)."""
        position = (values - self.middle) / self.half
        table = np.empty((self.terms, *values.shape))
        table[0], table[1] = 1.0, position
        doubled = 2.0 * position
        for k in range(2, self.terms):
            np.multiply(doubled, table[k - 1], out=table[k])
            table[k] -= table[k - 2]
        return np.ascontiguousarray(np.moveaxis(table, 0, -2))


QUANTILES = ChebyshevInterval(0.0, FARTHEST, 48)
ROOTS = ChebyshevInterval((MOST**-0.5 + FEWEST**-0.5) / 2.0, (FEWEST**-0.5 - MOST**-0.5) / 2.0, 32)
"""Of 1/√ν."""


@cache
def _series() -> Floats:
    """Coefficients of q/√ν − 1 by polynomials of 1/√ν and of z, (term, term)."""
    z, root = QUANTILES.nodes(), ROOTS.nodes()
    shape = 0.5 / root[:, None] ** 2
    low, high = scipy.special.ndtr(z[z < 0.0]), scipy.special.ndtr(-z[z >= 0.0])
    squares = np.empty((len(root), len(z)))
    squares[:, z < 0.0] = scipy.special.gammaincinv(shape, low)
    squares[:, z >= 0.0] = scipy.special.gammainccinv(shape, high)
    ratios = np.sqrt(2.0 * squares) * root[:, None] - 1.0
    return np.asarray(ROOTS.to_series() @ ratios @ QUANTILES.to_series().T)


@dataclass(frozen=True, eq=False)
class ChiLevels:
    """Uniforms (law, draw) at which χ laws of any degrees of freedom are inverted.

    `table` has the polynomials at their normal quantiles, (law, term, draw). It is empty for few uniforms.
    """

    uniforms: Floats
    table: Floats

    @classmethod
    def of(cls, uniforms: Floats) -> ChiLevels:
        if uniforms.shape[1] <= FEW:
            return cls(uniforms, np.empty((len(uniforms), QUANTILES.terms, 0)))
        return cls(uniforms, QUANTILES.polynomials(scipy.special.ndtri(uniforms)))

    def quantiles(self, degrees: Floats) -> Floats:
        """Quantiles of χ laws with these degrees of freedom (law,): (law, draw)."""
        if self.table.size and degrees.min() >= FEWEST and degrees.max() <= MOST:
            coefficients = ROOTS.polynomials_at(degrees**-0.5) @ _series()
            return np.asarray(np.sqrt(degrees)[:, None] * (1.0 + (coefficients[:, None] @ self.table)[:, 0]))
        return np.asarray(np.sqrt(2.0 * scipy.special.gammaincinv(degrees[:, None] / 2.0, self.uniforms)))
