"""Draws a release's noise with OpenDP's samplers, which are safe in floating point and cannot be seeded (METHODS §10).

If a task is computed again, it would draw other noise. So noise is drawn once, and stored before use
(`storage.noise_once`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np

from dpdist.core.records import Floats

LARGEST_SCALE = Fraction(2**46)
"""Largest scale of noise on whole-number statistics.

Below it, sums of up to 2^52 plus forty noise scales are exact in float64. Above it, the last bits of a noisy sum would
reveal the sum, and OpenDP's whole numbers would overflow.
"""
LARGEST_SCORE = 2**52
"""Largest public part of a score. The score and its noise are then exact in float64."""


def whole_laplace(scale: Fraction, size: int) -> Floats:
    """Draws whole numbers η, (size,), with P(η) ∝ e^(−|η|/b), for whole-number statistics: b = sensitivity/ε gives ε.

    A sum of whole numbers is exact in float64, so the last bits of a noisy count reveal nothing. The scale b is rounded up
    to float64.
    """
    return _drawn("laplace", scale, size)


def whole_gaussian(scale: Fraction, size: int) -> Floats:
    """Draws whole numbers η, (size,), with P(η) ∝ e^(−η²/2σ²), for whole-number statistics: σ² = Δ²/2ρ gives ρ-zCDP.

    Δ is their L2 sensitivity (Canonne, Kamath & Steinke 2020). σ is rounded up to float64.
    """
    return _drawn("gaussian", scale, size)


def _drawn(law: Literal["laplace", "gaussian"], scale: Fraction, size: int) -> Floats:
    """Draws noise of either law. OpenDP is imported at the first draw, because a process that only plans draws none."""
    if scale <= 0:
        raise ValueError("a noise scale must be greater than 0")
    if scale > LARGEST_SCALE:
        raise ValueError(f"a noise scale of more than 2^46 leaves no exact sums: {float(scale):.3g}")
    import opendp.prelude as dp

    dp.enable_features("contrib")
    distance, make = {
        "laplace": (dp.l1_distance, dp.m.make_laplace),
        "gaussian": (dp.l2_distance, dp.m.make_gaussian),
    }[law]
    space = dp.vector_domain(dp.atom_domain(T="i64")), distance(T="i64")
    measurement = make(*space, scale=float(np.nextafter(float(scale), np.inf)))
    return np.array(measurement([0] * size), dtype=np.float64)
