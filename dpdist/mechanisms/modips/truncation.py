"""For `modips.query`: keeps noisy whole sums within a public range, at its nearest end or by a truncated law.

The truncated law is drawn from noise without limits, as follows. Noise that is not negative has a geometric size g.
Negative noise has the geometric size g = −1 − noise. The range has R values at or above the sum, and L values below it.
A geometric variable modulo m is a geometric variable truncated at m. So g is taken modulo the larger of R and L. It is
kept if it is below the number of values on its side. The kept values follow exactly the discrete Laplace law truncated
to the range. Because one side keeps all of its noise, at least half of the candidates are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise
from dpdist.privacy.queries import NoisyQuery

CANDIDATES = 64
"""Noise candidates for a sum. All of them are refused with a probability of at most 2^−64. Then more are drawn."""


class OutsideDomain(ValueError):
    """Raised for sums that no file within the public bounds has. It names no sum and no value."""


class Truncated(NamedTuple):
    """Query for draws of the law truncated to [low, high], (sum,); NaN if all candidates were refused."""

    sums: Floats
    """Whole numbers; confidential."""
    noise: Noise
    """CANDIDATES for every sum."""
    low: Floats
    high: Floats
    stated: NoisyQuery
    """What the draws lose, at this scale."""

    @property
    def ends(self) -> tuple[Floats, Floats]:
        return self.low, self.high

    def under(self, noise: Floats) -> Floats:
        return truncated(self.sums, noise.reshape(len(self.sums), CANDIDATES), self.low, self.high)


def clamped(noisy: Floats, low: Floats, high: Floats) -> Floats:
    """Noisy sums, (sum,), set to the nearest end of their range where they lie outside."""
    return np.clip(noisy, low, high)


def truncated(sums: Floats, noise: Floats, low: Floats, high: Floats) -> Floats:
    """Draws of the law truncated to [low, high], (sum,), from candidates (sum, candidate); NaN if all were refused.

    Raises `OutsideDomain` for a sum outside its range, because the support of the draws would then reveal it.
    """
    if ((sums < low) | (sums > high)).any():
        raise OutsideDomain("a sum is not within the range that public bounds give it")
    exact, start, end = (values.astype(np.int64)[:, None] for values in (sums, low, high))
    noise = noise.astype(np.int64)
    up, size = noise >= 0, np.where(noise >= 0, noise, -1 - noise)
    above, below = end - exact + 1, exact - start
    held = size % np.maximum(above, below)
    kept = held < np.where(up, above, below)
    drawn = np.where(up, exact + held, exact - 1 - held)
    first = np.argmax(kept, axis=1)
    rows = np.arange(len(sums))
    return np.where(kept[rows, first], drawn[rows, first].astype(np.float64), np.nan)
