"""Small-area estimation: shrinkage to a mean, and composites of a cell's own estimate and one from similar cells."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats

KNOWN_VARIANCE = 1e-12
"""Variance below which values are treated as known."""
SMALLEST = 1e-300
"""Smallest variance used as a divisor, so that a quotient does not overflow."""


class Shrinkage(NamedTuple):
    """Values after shrinkage, with the mean that they are shrunk to.

    `own_weight` (cell,) is the weight of a cell's own value. `drift` is A, the variance of true values between cells.
    """

    own_weight: Floats
    values: Floats
    mean: float
    drift: float


def shrink(values: Floats, sampling: Floats, noise: Floats) -> Shrinkage:
    """Shrinks cells' values towards their mean, by the share of noise in their variance.

    `sampling` and `noise` (cell,) are known variances. The variance A of true values between cells is estimated by
    moments (DerSimonian & Laird). A value keeps (A + sampling)/(A + sampling + noise) of its distance from the mean.
    """
    variances = np.maximum(sampling + noise, KNOWN_VARIANCE)
    weight = 1.0 / variances
    share, excess = weight / weight.sum(), values - np.average(values, weights=weight)
    room = float((weight * (1.0 - share)).sum())
    drift = (
        max(0.0, (float((weight * excess**2).sum()) - (len(values) - 1)) / room)
        if room > KNOWN_VARIANCE * weight.sum()
        else 0.0
    )
    mean = float(np.average(values, weights=1.0 / (drift + variances)))
    own_weight = (drift + variances - noise) / (drift + variances)
    return Shrinkage(own_weight, mean + own_weight * (values - mean), mean, drift)


class Composite(NamedTuple):
    """Result of mixing own and borrowed estimates, (cell,) each.

    `own_weight` is the weight of a cell's own estimate, and `error` is the mean squared error of the mixture.
    """

    own_weight: Floats
    error: Floats
    unlike: Floats
    """Standard deviation of a cell's true value about the borrowed value, (cell,)."""


def composite(difference: Floats, sampling: Floats) -> Composite:
    """Mixes own and borrowed estimates by precision; the own estimate has the weight 1 − V/max(V + τ², d²).

    d, `difference`, is the own less the borrowed estimate, and V, `sampling`, is the sampling variance of d. Both are
    (cell,).

    An infinite V, or NaN in d, means a cell without records. It takes the whole borrowed estimate, with the error τ².
    """
    # The variance τ² between cells follows from the moments of all differences (DerSimonian & Laird). A cell with d² above
    # V + τ² uses its own d² instead. So borrowing moves no estimate by more than its own sampling error.
    has_variance = np.isfinite(sampling)
    unlike = (
        shrink(difference[has_variance], np.zeros(int(has_variance.sum())), sampling[has_variance]).drift
        if has_variance.any()
        else 0.0
    )
    weight, error = np.zeros(len(difference)), np.full(len(difference), unlike)
    variance = np.maximum(np.maximum(unlike + sampling[has_variance], difference[has_variance] ** 2), SMALLEST)
    weight[has_variance] = 1.0 - sampling[has_variance] / variance
    error[has_variance] = weight[has_variance] * sampling[has_variance]
    far = np.full(len(difference), np.sqrt(unlike))
    far[has_variance] = np.sqrt(variance - sampling[has_variance])
    return Composite(weight, error, far)
