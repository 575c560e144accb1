"""Records the noisy queries of a mechanism: the sums to which noise is added, for a whole run on a file (confidential).

A `Meter` answers the queries in place of the engine. A sum is recorded, and given without noise or as an imposed value. So
a mechanism is metered unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.engine.protocol import Choice, Measurement, Query
from dpdist.job import NoiseName

Imposed = Callable[[int, Floats], Floats]
"""Replacement for the n-th noisy sum, which is given without its noise."""


class Enough(Exception):
    """Raised when the requested number of sums was recorded."""


class NotAdded(Exception):
    """Raised when a mechanism applies its noise otherwise than by addition, so that released values have another law."""


class Meter:
    """Answers one run of a mechanism, and records its noisy figures: values, scales and laws."""

    def __init__(
        self, sums: int | None = None, imposed: Imposed | None = None, choose: Callable[[Choice], Ints] | None = None
    ):
        self.sums, self.imposed, self.choose = sums, imposed, choose
        self.scales: list[Fraction] = []
        self.laws: list[NoiseName] = []
        self.found: list[Floats] = []

    def __call__(self, query: Query) -> Any:
        if isinstance(query, Choice):
            return query.under(np.zeros(query.noise.size)) if self.choose is None else self.choose(query)
        if not isinstance(query, Measurement):
            raise NotAdded(f"noise is applied in another way than by adding it: {type(query).__name__}")
        self.scales += [query.noise.scale] * query.sums.size
        self.laws += [query.noise.law] * query.sums.size
        self.found.append(query.sums.reshape(-1).copy())
        if len(self.found) == self.sums:
            raise Enough
        return query.sums if self.imposed is None else self.imposed(len(self.found) - 1, query.sums)

    @property
    def query(self) -> Floats:
        """Returns all noisy figures, in the scales of their noise."""
        return np.asarray(self.exact_sums / self.scale)

    @property
    def exact_sums(self) -> Floats:
        """Returns all noisy figures, without their noise."""
        return np.concatenate([np.empty(0), *self.found])

    @property
    def scale(self) -> Floats:
        """Returns the noise scale of every figure."""
        return np.array([float(scale) for scale in self.scales])
