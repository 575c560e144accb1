"""Nonlinear shrinkage for cells whose outcomes have become smaller: infers a low scale from a clipped statistic.

g is the log scale of a cell's outcomes relative to the reference (METHODS §7b). As g falls, clipped outcomes depend on it
less and less. Below a tenth of the reference's scale, all of them lie at one end of the clipping interval. There the curve
is so flat that small noise in the statistic changes g by any amount. Linear shrinkage would treat such a cell as unknown,
and pull it back up. So the normal prior of g is combined with the likelihood of the statistic itself, whose noise hardly
depends on g. On a straight curve this equals linear shrinkage.

`clipping_inversion` uses this rule if the curve is not straight and g is below the mean of the cells. Otherwise it uses
linear shrinkage, but for a statistic at the upper end of the curve, which is flat too. Linear shrinkage would leave such a
cell the common figure alone, although its statistic shows that its outcomes are larger. An estimate that is too low errs by
at most the mean itself, but one that is too high may err by any amount. Where noise is as large as the statistic, the
statistic does not show whether outcomes have become smaller. Then the cell is shrunk to the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpdist.mechanisms.reference_tables.cell_shape import LARGEST_LOG_SCALE

STRAIGHT = 0.99
"""If a cell's own value has at least this weight, noise moves it so little that the curve counts as straight.

`clipping_inversion` then keeps linear shrinkage.
"""
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
