"""Independent draws from a two-parameter posterior, on a grid.

Coordinate v is one parameter on a public interval. Coordinate t is the other parameter, measured from its mode given v, in
units of its scale there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpdist.core.records import Floats

NODES, COARSE, ZOOMS, DROP, MARGIN = 321, 33, 7, 18.0, 2
"""Nodes of an axis of the last grid and of earlier grids; number of times that the grid shrinks; DROP and MARGIN."""
T_BOX = (-40.0, 40.0)
"""Interval of t at the start."""
GRID_ERROR = 5e-4
"""Total variation between the grid's law and the posterior with v on its public interval, for five or more records.

Near the normal limit it is 1.1e-4.
"""
FEW_RECORDS_ERROR = 2e-3
"""Total variation for fewer than five records, where the edges of the prior and far tails remain."""
LOWEST = -1e300
"""Lowest log density with which the grid calculates; lower ones are raised to it."""

LogDensity = Callable[[Floats, Floats], Floats]
"""A function that gives the log density, up to a constant, at the nodes of the axes t and v, (t, v)."""


# The grid starts as the public box and shrinks ZOOMS times. Each time, an axis keeps the part where the density exceeds
# e^−DROP times its maximum, and MARGIN more cells at either end. Draws come from the *bilinear interpolant* of the density
# at these nodes.
#
# Error: let cells be h standard deviations wide. For a normal law p, an axis adds h²·E|p''/p|/24 ≈ h²/25 to the total
# variation: 1.4e-4 for two axes. Outside of the last box the density is below e^−DROP = 1.5e-8 of the maximum. All steps
# are continuous in the density: with the same uniforms, similar statistics give similar draws.
def draw(log_density: LogDensity, v_box: tuple[float, float], uniforms: Floats) -> tuple[Floats, Floats]:
    """Coordinates t and v, (draw,) each, by inverse distribution functions: t from its marginal law, then v given t.

    `uniforms` is (draw, 2).
    """
    t, v = (np.linspace(low, high, NODES) for low, high in zoomed(log_density, v_box))
    values = log_density(t, v)
    density = np.exp(values - values.max())
    marginal = density[:, 1:].sum(axis=1) + density[:, :-1].sum(axis=1)
    cell, step = _inverse(marginal[None, :], uniforms[:, 0])
    rows = (1.0 - step[:, None]) * density[cell] + step[:, None] * density[cell + 1]
    other, inside = _inverse(rows, uniforms[:, 1])
    return t[0] + (cell + step) * (t[1] - t[0]), v[0] + (other + inside) * (v[1] - v[0])


def zoomed(log_density: LogDensity, v_box: tuple[float, float]) -> Floats:
    """Ends of the box (axis, end) outside which the density is below e^−DROP of its maximum."""
    box = np.array([T_BOX, v_box])
    for _ in range(ZOOMS):
        t, v = (np.linspace(low, high, COARSE) for low, high in box)
        values = np.maximum(log_density(t, v), LOWEST)
        box = np.array([_extent(values.max(axis=1), t), _extent(values.max(axis=0), v)])
    return box


def _extent(profile: Floats, nodes: Floats) -> tuple[float, float]:
    """Ends, widened by MARGIN cells, of the part whose log density is at most DROP below its maximum."""
    above = np.flatnonzero(profile >= profile.max() - DROP)
    first, last, width = above[0], above[-1], nodes[1] - nodes[0]
    low = nodes[first] - (_share(profile, first, first - 1) + MARGIN) * width if first > 0 else nodes[0]
    high = nodes[last] + (_share(profile, last, last + 1) + MARGIN) * width if last < len(nodes) - 1 else nodes[-1]
    return max(float(low), float(nodes[0])), min(float(high), float(nodes[-1]))


def _share(profile: Floats, inner: int, outer: int) -> float:
    """Position in the cell, from inner to outer node (0 to 1), at which the profile is DROP below its maximum."""
    level = profile.max() - DROP
    return float((profile[inner] - level) / (profile[inner] - profile[outer]))


def _inverse(density: Floats, uniforms: Floats) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]], Floats]:
    """Quantiles of piecewise linear densities (draw or 1, node), as a cell and a position within the cell, in [0, 1]."""
    mass = np.zeros_like(density)
    np.cumsum(density[:, 1:] + density[:, :-1], axis=1, out=mass[:, 1:])
    target = uniforms * mass[:, -1]
    if len(density) == 1:
        cell = np.searchsorted(mass[0], target, side="right") - 1
    else:
        cell = (mass <= target[:, None]).sum(axis=1) - 1
    cell = np.clip(cell, 0, density.shape[1] - 2)
    row = np.zeros(len(cell), dtype=np.intp) if len(density) == 1 else np.arange(len(cell))
    left, right = density[row, cell], density[row, cell + 1]
    rest = target - mass[row, cell]
    root = np.sqrt(np.maximum(left * left + (right - left) * rest, 0.0))
    return cell, np.clip(rest / np.maximum(left + root, np.finfo(float).tiny), 0.0, 1.0)
