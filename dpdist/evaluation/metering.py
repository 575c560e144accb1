"""Records the noisy queries of a mechanism: the sums to which noise is added, for a whole run on a file (confidential).

In place of noise a mechanism gets a `Tap`, which holds the numbers of its draws. Every sum that a `Tap` is added to is
recorded. The result is the sum without noise, or an imposed value. So a mechanism is metered unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise
from dpdist.job import NoiseName

Imposed = Callable[[int, Floats], Floats]
"""Replacement for the n-th noisy sum, which is given without its noise."""


class Enough(Exception):
    """Raised when the requested number of sums was recorded."""


class NotAdded(Exception):
    """Raised when a mechanism uses its noise otherwise than by addition, so that the released values have another law."""


class Meter:
    """Serves noise to one run of a mechanism, and records its queries: values, scales and laws of all noisy figures."""

    def __init__(self, sums: int | None = None, imposed: Imposed | None = None):
        self.sums, self.imposed = sums, imposed
        self.scales: list[Fraction] = []
        self.laws: list[NoiseName] = []
        self.found: list[Floats] = []
        self.drawn: list[Floats] = []

    def __call__(self, request: Noise) -> Floats:
        start = len(self.scales)
        self.scales += [request.scale] * request.size
        self.laws += [request.law] * request.size
        tap: Tap = np.arange(start, start + request.size, dtype=np.float64).view(Tap)
        tap.meter = self
        return tap

    def added(self, query: Floats, draws: Floats) -> Floats:
        self.found.append(query.reshape(-1).copy())
        self.drawn.append(draws.reshape(-1).copy())
        if len(self.found) == self.sums:
            raise Enough
        return query if self.imposed is None else self.imposed(len(self.found) - 1, query)

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
        return np.array([float(self.scales[draw]) for draw in self.of_figures])

    @property
    def of_figures(self) -> list[int]:
        """Returns the number of the draw of every figure."""
        drawn = np.concatenate([np.empty(0), *self.drawn]).astype(np.int64)
        assert len(drawn) == len(np.unique(drawn)), "a draw was used twice"
        return [int(draw) for draw in drawn]


class Tap(np.ndarray[Any, np.dtype[np.float64]]):
    """Numbers of draws in place of noise. A sum with a `Tap` is recorded."""

    meter: Meter

    def __array_finalize__(self, obj: object) -> None:
        if isinstance(obj, Tap) and hasattr(obj, "meter"):
            self.meter = obj.meter

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        found = super().__array_function__(func, types, args, kwargs)
        if isinstance(found, np.ndarray):
            tap: Tap = found.view(Tap)
            tap.meter = self.meter
            return tap
        return found

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        others = [each for each in inputs if not isinstance(each, Tap)]
        if ufunc is not np.add or method != "__call__" or len(others) != 1:
            raise NotAdded(f"noise is used in another way than by adding it: {ufunc.__name__}")
        return self.meter.added(*np.broadcast_arrays(np.asarray(others[0]), self.view(np.ndarray)))
