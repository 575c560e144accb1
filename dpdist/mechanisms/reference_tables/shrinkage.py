"""Nonlinear shrinkage for outcomes that have dropped: infers a low scale from a clipped statistic (METHODS §7b).

g is the log scale of a cell's outcomes relative to the reference. The lower g, the less clipped outcomes depend on it:
below a tenth of the reference's scale all lie at one end. With the slope there, noise would move g by any amount. Linear
shrinkage would then treat a cell that has clearly dropped as unknown, and pull it back up. So the normal prior of g is
combined with the likelihood of the statistic itself, whose noise hardly depends on g. On a straight curve this equals
linear shrinkage.

Downwards, an error is at most the mean itself. Upwards it is unbounded, so the linear rule is kept there. Where noise is
as large as the statistic, a drop cannot be seen, and the cell is shrunk to the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpdist.mechanisms.reference_tables.cell_shape import LARGEST_LOG_SCALE

STRAIGHT = 0.99
"""If a cell's own value has at least this weight, noise moves it so little that the curve counts as straight."""
WIDE = 6.0
"""Half width of a grid, in standard deviations."""
GRID_POINTS = (31, 31, 31, 31, 61)
"""Numbers of points of the successive grids; each covers the interval that the grid before it left."""


def posterior(
    curve: Callable[[float], tuple[float, float]], seen: float, mean: float, variance: float
) -> tuple[float, float]:
    """Posterior mean and variance of a log scale with a normal prior, given a statistic `seen` with normal noise.

    `curve` gives, for a log scale, the statistic's value and the standard deviation of its noise. The value rises with
    the scale. The prior has `mean` and `variance`.
    """
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
