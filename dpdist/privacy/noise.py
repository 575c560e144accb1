"""Noise by OpenDP's samplers (METHODS §10), or imitated from a seed for studies.

OpenDP's samplers are safe in floating point and cannot be seeded. So noise is drawn once, and stored before use
(`storage.noise_once`). Simulated noise is for standard errors and studies, never for a release.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np

from dpdist.core.records import Floats
from dpdist.job import NoiseName

LARGEST_SCALE = Fraction(2**46)
"""Largest scale of noise on whole-number statistics.

Below it, sums of up to 2^52 plus forty noise scales are exact in float64. Above it, the last bits of a noisy sum would
reveal the exact sum, and OpenDP's whole numbers would overflow.
"""
LARGEST_SCORE = 2**52
"""Largest public part of a score. Below it, scores and their noise are exact in float64."""


def whole_laplace(scale: Fraction, size: int) -> Floats:
    """Draws whole numbers η, (size,), with P(η) ∝ e^(−|η|/b); on whole-number statistics, b = sensitivity/ε gives ε.

    Sums of whole numbers are exact in float64. The scale b is rounded up to float64.
    """
    return _draw("laplace", scale, size)


def whole_gaussian(scale: Fraction, size: int) -> Floats:
    """Draws whole numbers η, (size,), with P(η) ∝ e^(−η²/2σ²); on whole-number statistics, σ² = Δ²/2ρ gives ρ-zCDP.

    Δ is the L2 sensitivity (Canonne, Kamath & Steinke 2020), and σ is rounded up to float64.
    """
    return _draw("gaussian", scale, size)


def _draw(law: Literal["laplace", "gaussian"], scale: Fraction, size: int) -> Floats:
    if scale <= 0:
        raise ValueError("a noise scale must be greater than 0")
    if scale > LARGEST_SCALE:
        raise ValueError(f"a noise scale of more than 2^46 leaves no exact sums: {float(scale):.3g}")
    # Imported at the first draw, because a process that only plans draws no noise.
    import opendp.prelude as dp

    dp.enable_features("contrib")
    distance, make = {
        "laplace": (dp.l1_distance, dp.m.make_laplace),
        "gaussian": (dp.l2_distance, dp.m.make_gaussian),
    }[law]
    space = dp.vector_domain(dp.atom_domain(T="i64")), distance(T="i64")
    measurement = make(*space, scale=float(np.nextafter(float(scale), np.inf)))
    return np.array(measurement([0] * size), dtype=np.float64)


def simulated_noise(law: NoiseName, scale: Fraction, size: int, rng: np.random.Generator) -> Floats:
    """Draws whole numbers (size,) from a seed. `scale` is b of the Laplace law, or σ of the Gaussian law."""
    if law == "gaussian":
        # A rounded normal variable: accurate for σ above 1.
        return np.rint(rng.normal(0.0, float(scale), size))
    # A discrete Laplace variable is the difference of two geometric ones.
    stop = -np.expm1(-1.0 / float(scale))
    first, second = rng.geometric(stop, (2, size))
    return np.asarray(first - second, dtype=np.float64)
