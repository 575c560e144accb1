"""Projects figures onto non-negative figures with a known sum, by least squares."""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats, Ints


def nearest_on_simplex(values: Floats, total: Floats) -> Floats:
    """The nearest non-negative values with the given sum, along the last axis, in least squares.

    They are max(values − t, 0), with t such that they sum to `total` (…,), which is at least 0 (Held, Wolfe & Crowder
    1974). Sorting the values gives t.
    """
    ordered = -np.sort(-values, axis=-1)
    number = np.arange(1, values.shape[-1] + 1)
    level = (np.cumsum(ordered, axis=-1) - total[..., None]) / number
    last = np.maximum((ordered > level).sum(axis=-1, keepdims=True) - 1, 0)
    return np.asarray(np.maximum(values - np.take_along_axis(level, last, axis=-1), 0.0))


def nearest_on_simplices(values: Floats, group: Ints, total: Floats) -> Floats:
    """The same projection within groups: `values` and `group` are (value,), and `total` is (group,). No group is empty."""
    order = np.lexsort((-values, group))
    ordered, own = values[order], group[order]
    start = np.searchsorted(own, np.arange(len(total)))
    summed = np.concatenate([[0.0], np.cumsum(ordered)])
    number = np.arange(len(values)) - start[own] + 1
    level = (summed[1:] - summed[start[own]] - total[own]) / number
    last = np.maximum(np.bincount(own, weights=ordered > level, minlength=len(total)).astype(np.int64) - 1, 0)
    return np.asarray(np.maximum(values - level[start + last][group], 0.0))
