"""Records the exact sums to which a mechanism adds noise, over a whole run on a file. They are confidential.

A `Meter` answers the queries in place of the engine. It records a sum, and returns the sum without noise or a value that
is imposed. So the mechanism's code is unchanged.

Noise of scale b may be kept within a range. Let M(x) be the probability with which x plus noise is in the range. The log
likelihood ratio of the sums x and x' is at most |x − x'|/b + log M(x') − log M(x), and it is attained. Over all figures
these losses add up. So two files lose the distance of their sums, and what the logarithms of M differ by.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.engine.protocol import Choice, Figures, Query
from dpdist.job import NoiseName

Imposed = Callable[[int, Floats], Floats]
"""A function that replaces the n-th noisy sum; it is called with n, from 0, and the sum without noise."""


class Enough(Exception):
    """Raised when the requested number of sums was recorded."""


class NotAdded(Exception):
    """Raised when a mechanism does more with its noise than add it within a range: released values have another law."""


class BeyondRange(Exception):
    """Raised for a sum that is not in the public range of what is drawn: no ε holds then. It names no sum."""


class Meter:
    """Answers the queries of one run of a mechanism, and records sums, noise scales and laws of its noisy figures."""

    def __init__(
        self, sums: int | None = None, imposed: Imposed | None = None, choose: Callable[[Choice], Ints] | None = None
    ):
        self.sums, self.imposed, self.choose = sums, imposed, choose
        self.scales: list[Fraction] = []
        self.laws: list[NoiseName] = []
        self.parts: list[Floats] = []
        self.low: list[Floats] = []
        self.high: list[Floats] = []

    def __call__(self, query: Query) -> Any:
        if isinstance(query, Choice):
            return query.under(np.zeros(query.noise.size)) if self.choose is None else self.choose(query)
        if not isinstance(query, Figures):
            raise NotAdded(f"noise is applied in another way than by adding it: {type(query).__name__}")
        low, high = query.ends
        if ((query.sums < low) | (query.sums > high)).any():
            raise BeyondRange("a sum is not in its public range")
        self.low.append(np.ravel(low))
        self.high.append(np.ravel(high))
        self.scales += [query.noise.scale] * query.sums.size
        self.laws += [query.noise.law] * query.sums.size
        self.parts.append(query.sums.reshape(-1).copy())
        if len(self.parts) == self.sums:
            raise Enough
        return query.sums if self.imposed is None else self.imposed(len(self.parts) - 1, query.sums)

    @property
    def query(self) -> Floats:
        """All sums to which noise was added, in units of its scale."""
        return np.asarray(self.exact_sums / self.scale)

    @property
    def exact_sums(self) -> Floats:
        """All sums to which noise was added, without it."""
        return np.concatenate([np.empty(0), *self.parts])

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """Public ends of the range of every figure, (figure,) each; infinite where noise is only added."""
        return np.concatenate([np.empty(0), *self.low]), np.concatenate([np.empty(0), *self.high])

    @property
    def scale(self) -> Floats:
        """Returns the noise scale of every figure."""
        return np.array([float(scale) for scale in self.scales])


def log_mass(sums: Floats, scale: Floats, ends: tuple[Floats, Floats]) -> Floats:
    """Log probability that sums plus discrete Laplace noise lie within their ranges, (…, figure); 0 without ends."""
    rate = np.exp(-1.0 / scale)
    beyond = sum(rate ** (np.abs(end - sums) + 1.0) for end in ends)
    return np.asarray(np.log1p(-beyond / (1.0 + rate)))
