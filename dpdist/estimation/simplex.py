"""The nearest figures, in least squares, that are not negative and have a known sum."""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats


def nearest_on_simplex(values: Floats, total: Floats) -> Floats:
    """max(values − t, 0) along the last axis, t such that they sum to `total` (…,), which is at least 0.

    It is the least squares projection (Held, Wolfe & Crowder 1974): t is found among the sorted values.
    """
    ordered = -np.sort(-values, axis=-1)
    number = np.arange(1, values.shape[-1] + 1)
    level = (np.cumsum(ordered, axis=-1) - total[..., None]) / number
    last = np.maximum((ordered > level).sum(axis=-1, keepdims=True) - 1, 0)
    return np.maximum(values - np.take_along_axis(level, last, axis=-1), 0.0)
