"""The centred clamp's constants, fixed from a reference before the current file is seen (METHODS §4b)."""

from __future__ import annotations

import numpy as np

FAR = 3.0
"""Standard deviations of a posterior draw over which the clamped log likelihood ratio is to stay a parabola."""
KAPPA = 1.5
"""For a planned drift of at most .25 sd of a record; 2 serves up to .66. Without it a spurious mode wins."""


def power(clamp: float, dimensions: int, records: int, reference_records: int, drift: float, kappa: float = KAPPA) -> float:
    """a = min(1, M/κ, a_local): the power of the likelihood under which a typical record is not clamped.

    a_local solves z²(a²(τ² + d/n) + a d/n) = M², z = 3, τ² = drift² + d/n_ref: the spread of a(f(θ) − f(θ_ref)) over
    records for draws θ of power a. `drift` in standard deviations of a record. All of it is public.
    """
    spread = drift**2 + dimensions / reference_records
    square, linear = spread + dimensions / records, dimensions / records
    local = (-linear + np.sqrt(linear**2 + 4.0 * square * (clamp / FAR) ** 2)) / (2.0 * square)
    return float(min(1.0, clamp / kappa, local))
