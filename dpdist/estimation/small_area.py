"""Small-area estimation: mixes a cell's own estimate with an estimate from similar cells, by size and similarity."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats

KNOWN_VARIANCE = 1e-12
"""Variance below which values are treated as known."""
SMALLEST = 1e-300
"""Smallest variance used as a divisor, so that a quotient does not overflow."""


class Shrunk(NamedTuple):
    """Values after shrinkage, with the mean that they are shrunk to.

    `kept` (cell,) is the weight of a cell's own value. `drift` is A, the variance of true values between cells.
    """

    kept: Floats
    values: Floats
    mean: float
    drift: float


def shrunk(values: Floats, sampling: Floats, noise: Floats) -> Shrunk:
    """Shrinks the values of cells towards their common mean, as far as noise moved them.

    `sampling` and `noise` (cell,) are known variances. The variance A of true values between cells is estimated by
    moments (DerSimonian & Laird). A value keeps (A + sampling)/(A + sampling + noise) of its distance from the mean.
    """
    known = np.maximum(sampling + noise, KNOWN_VARIANCE)
    weight = 1.0 / known
    share, excess = weight / weight.sum(), values - np.average(values, weights=weight)
    room = float((weight * (1.0 - share)).sum())
    drift = (
        max(0.0, (float((weight * excess**2).sum()) - (len(values) - 1)) / room)
        if room > KNOWN_VARIANCE * weight.sum()
        else 0.0
    )
    mean = float(np.average(values, weights=1.0 / (drift + known)))
    kept = (drift + known - noise) / (drift + known)
    return Shrunk(kept, mean + kept * (values - mean), mean, drift)


class Composite(NamedTuple):
    """Result of mixing own and borrowed estimates, (cell,) each.

    `own` is the weight of a cell's own estimate, and `error` is the mean squared error of the mixture.
    """

    own: Floats
    error: Floats
    unlike: Floats
    """Standard deviation of a cell's true value about the value that it borrows, (cell,)."""


def composite(apart: Floats, sampling: Floats) -> Composite:
    """Mixes own and borrowed estimates by precision; the own estimate has the weight 1 − V/max(V + τ², d²).

    d, `apart`, is the own less the borrowed estimate, and V, `sampling`, is the sampling variance of d; both are (cell,).
    The variance τ² between cells follows from the moments of all differences (DerSimonian & Laird). A cell with d² above
    V + τ² uses its own d² instead. So borrowing moves no estimate by more than its own sampling error.

    An infinite V, or NaN in d, means a cell without records. Such a cell takes the whole borrowed estimate, with the
    error τ².
    """
    known = np.isfinite(sampling)
    unlike = shrunk(apart[known], np.zeros(int(known.sum())), sampling[known]).drift if known.any() else 0.0
    own, error = np.zeros(len(apart)), np.full(len(apart), unlike)
    variance = np.maximum(np.maximum(unlike + sampling[known], apart[known] ** 2), SMALLEST)
    own[known] = 1.0 - sampling[known] / variance
    error[known] = own[known] * sampling[known]
    far = np.full(len(apart), np.sqrt(unlike))
    far[known] = np.sqrt(variance - sampling[known])
    return Composite(own, error, far)
