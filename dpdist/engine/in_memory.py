"""What answers a mechanism's rounds in memory: noise from a key, for studies and calibration on public data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise


def noise_of(key: Key) -> Callable[[Noise], Floats]:
    """Noise of the law that is asked for, keyed: never for a release, whose noise nobody can draw again.

    The discrete Laplace law is the difference of two geometric variables. The discrete Gaussian law is a normal variable
    rounded to a whole number, which has its shape where σ is above 1.
    """

    def noise(request: Noise) -> Floats:
        rng = key.generator("noise", set=request.set)
        if request.law == "gaussian":
            return np.rint(rng.normal(0.0, float(request.scale), request.size))
        stop = -np.expm1(-1.0 / float(request.scale))
        one, two = rng.geometric(stop, (2, request.size))
        return np.asarray(one - two, dtype=np.float64)

    return noise
