"""Computes the centred clamp's constants from a reference, before the current file is seen (METHODS §4b)."""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats

FAR = 3.0
"""Standard deviations of a posterior draw over which the clamped log likelihood ratio must stay a parabola."""
KAPPA, STEADY = 1.5, 0.25
"""κ for a planned drift of at most STEADY standard deviations of a record; without κ a spurious mode wins."""
DRIFTING_KAPPA = 2.0
"""κ for a larger planned drift, up to `job.LARGEST_DRIFT`."""
ALLOWANCE = 3.0


def kappa_of(drift: float) -> float:
    """κ for a planned drift in standard deviations of a record."""
    return KAPPA if drift <= STEADY else DRIFTING_KAPPA


def power(clamp: float, dimensions: int, records: int, reference_records: int, drift: float, kappa: float = KAPPA) -> float:
    """a = min(1, M/κ, a_local): the power of the likelihood under which a typical record is not clamped.

    The power a_local solves z²(a²(τ² + d/n) + a d/n) = M² with z = 3 and τ² = drift² + d/n_ref. The left side is the
    spread of a(f(θ) − f(θ_ref)) over records for draws θ of power a. `drift` is in standard deviations of a record. All
    arguments are public.
    """
    spread = drift**2 + dimensions / reference_records
    square, linear = spread + dimensions / records, dimensions / records
    local = (-linear + np.sqrt(linear**2 + 4.0 * square * (clamp / FAR) ** 2)) / (2.0 * square)
    return float(min(1.0, clamp / kappa, local))


def spurious(lost: Floats, dimensions: int) -> bool:
    """True if draws of a clamped posterior are not near θ_ref, given a Σ f(θ_ref) − f(θ_s) of each draw, (draw,).

    About its mode a posterior of power a loses χ²_d/2, which is d/2 on average. With 200 records, where prior and clamp
    matter, we measured up to .9 d. Under a spurious mode the loss is proportional to n: a hundred times as much with
    2,000 records.
    """
    return not float(lost.mean()) <= 1.5 * dimensions + ALLOWANCE
