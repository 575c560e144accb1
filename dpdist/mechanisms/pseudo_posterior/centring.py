"""Computes the constants of mechanism `centred` from a reference, before the current file is seen (METHODS §4b).

The mechanism clamps a(f − f at θ_ref) to ±M, where f is a record's log likelihood. θ_ref is a parameter fixed on the
reference, and a is the power of the likelihood. A drift is the change of a parameter since the reference.
"""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats

FAR = 3.0
"""Standard deviations of a posterior draw over which the clamped log likelihood ratio must stay a parabola."""
KAPPA, STEADY = 1.5, 0.25
"""κ, the smallest ratio of M to a, for a planned drift of at most STEADY standard deviations of a record.

With a smaller ratio, most of the clamped posterior's mass may lie at a spurious mode.
"""
DRIFTING_KAPPA = 2.0
"""κ for a larger planned drift, up to `job.LARGEST_DRIFT`."""
ALLOWANCE = 3.0
"""Mean loss of log likelihood that is allowed beside 1.5 for each dimension (see `spurious`)."""


def kappa_of(drift: float) -> float:
    """κ, the smallest ratio of M to a, for a planned drift, which is in standard deviations of a record."""
    return KAPPA if drift <= STEADY else DRIFTING_KAPPA


def power(clamp: float, dimensions: int, records: int, reference_records: int, drift: float, kappa: float = KAPPA) -> float:
    """a = min(1, M/κ, a_local): the power of the likelihood at which a typical record is not clamped.

    M is `clamp`, d is `dimensions`, n is `records` and n_ref is `reference_records`. a_local solves z²(a²(τ² + d/n) + a
    d/n) = M² with z = 3 and τ² = drift² + d/n_ref. The left side is the spread of a(f(θ) − f(θ_ref)) over records, for
    draws θ of power a. `drift` is in standard deviations of a record. All arguments are public.
    """
    spread = drift**2 + dimensions / reference_records
    square, linear = spread + dimensions / records, dimensions / records
    local = (-linear + np.sqrt(linear**2 + 4.0 * square * (clamp / FAR) ** 2)) / (2.0 * square)
    return float(min(1.0, clamp / kappa, local))


def spurious(lost: Floats, dimensions: int) -> bool:
    """True if draws of a clamped posterior are not near θ_ref.

    `lost` (draw,) is a Σ f(θ_ref) − f(θ_s) over records. About its own mode, a posterior of power a loses χ²_d/2, which
    is d/2 in the mean. With 200 records, where prior and clamp matter, it lost up to .9 d in tests. Under a spurious mode
    the loss is proportional to the number of records. With 2,000 records it is a hundred times d/2.
    """
    return not float(lost.mean()) <= 1.5 * dimensions + ALLOWANCE
