"""Outcomes that fell: what a clipped statistic tells of a scale below the other cells' (METHODS §7b).

Clipped outcomes tell a fall of their scale less and less: below a tenth they all lie at one end. By the slope there noise
moves log g by any amount, and a cell that is surely low is taken for one of which nothing is known and shrunk back. So the
normal prior of log g meets the statistic itself, whose noise hardly differs; on a straight curve that is the linear
shrinkage. Down, an error is at most the mean. Up it has no end, and the slope's caution stays. Where noise is as large as
the statistic, nothing is told of a fall either, and the cell goes with the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpdist.mechanisms.reference_tables.cell_shape import LARGEST_LOG_SCALE

STRAIGHT = 0.99
"""Weight of a cell's own value above which noise moves it too little for its curve to bend."""
WIDE = 6.0
"""Deviations that a grid reaches."""
GRID_POINTS = (31, 31, 31, 31, 61)
"""Of the grids, each over what the one before left."""


def posterior(
    curve: Callable[[float], tuple[float, float]], seen: float, mean: float, variance: float
) -> tuple[float, float]:
    """Mean and variance of a scale, normal before, given a statistic with normal noise; `curve` tells what the statistic is
    under a scale, with which it rises, and its noise's deviation."""
    low, high = -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE
    for points in GRID_POINTS:
        grid = np.linspace(low, high, points)
        told, error = np.array([curve(scale) for scale in grid.tolist()]).T
        loss = 0.5 * ((seen - told) / error) ** 2 + np.log(error) + 0.5 * (grid - mean) ** 2 / variance
        held = np.flatnonzero(loss <= loss.min() + 0.5 * WIDE**2)
        low, high = float(grid[max(held[0] - 1, 0)]), float(grid[min(held[-1] + 1, points - 1)])
    mass = np.exp(loss.min() - loss)
    mass[[0, -1]] /= 2.0
    found = float(mass @ grid / mass.sum())
    return found, float(mass @ (grid - found) ** 2 / mass.sum())
