"""Simulates noise with the laws that releases use, from a seed: for standard errors and studies, never for a release."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from dpdist.core.records import Floats
from dpdist.job import NoiseName


def simulated_noise(law: NoiseName, scale: Fraction, size: int, rng: np.random.Generator) -> Floats:
    """Draws whole numbers (size,). `scale` is b of the Laplace law, or σ of the Gaussian law.

    A discrete Laplace variable is the difference of two geometric ones. The discrete Gaussian law is approximated by
    rounding a normal variable, which is accurate for σ above 1.
    """
    if law == "gaussian":
        return np.rint(rng.normal(0.0, float(scale), size))
    stop = -np.expm1(-1.0 / float(scale))
    one, two = rng.geometric(stop, (2, size))
    return np.asarray(one - two, dtype=np.float64)
