"""Records the exact sums to which a mechanism adds noise, over a whole run on a file. They are confidential.

In place of noise the mechanism gets a `Tap`, an array of numbers that identify its draws. When a `Tap` is added to a sum,
the sum is recorded, and the result is the sum without noise or a value that is imposed. So the mechanism's code is
unchanged.
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
"""A function that replaces the n-th noisy sum; it is called with n, from 0, and the sum without noise."""


class Enough(Exception):
    """Raised when the requested number of sums was recorded."""


class NotAdded(Exception):
    """Raised when a mechanism does more with its noise than add it, so that released values follow another law."""


class Meter:
    """Gives a mechanism taps in place of noise during one run, and records sums, noise scales and laws of all figures."""

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
        """All sums to which noise was added, in units of its scale."""
        return np.asarray(self.exact_sums / self.scale)

    @property
    def exact_sums(self) -> Floats:
        """All sums to which noise was added, without it."""
        return np.concatenate([np.empty(0), *self.found])

    @property
    def scale(self) -> Floats:
        """The noise scale of every sum."""
        return np.array([float(self.scales[draw]) for draw in self.of_figures])

    @property
    def of_figures(self) -> list[int]:
        """The number of the draw that was added to each sum."""
        drawn = np.concatenate([np.empty(0), *self.drawn]).astype(np.int64)
        assert len(drawn) == len(np.unique(drawn)), "a draw was used twice"
        return [int(draw) for draw in drawn]


class Tap(np.ndarray[Any, np.dtype[np.float64]]):
    """Numbers of draws in place of noise. Adding a `Tap` to a sum records the sum."""

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
