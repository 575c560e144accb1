"""Independent draws from a smooth posterior of two parameters, on a grid, without Markov chains.

A model gives its log density in coordinates (t, v): v is one parameter on a public interval, t the other one, measured
from its mode given v in units of its scale there, so that t is of the order of 1 at every v. Starting from the public box
the grid shrinks ZOOMS times to where the density along an axis is within e^−DROP of its maximum, MARGIN cells added; the
last one has NODES × NODES nodes. Draws come from the *bilinear interpolant* of the density at these nodes.

Error: with cells of h standard deviations an axis contributes h²·E|p''/p|/24 ≈ h²/25 for a normal law to the total
variation, 1.4e-4 for two axes; GRID_ERROR bounds what tests measure. What lies outside the last box has a density under
e^−DROP = 1.5e-8 of the maximum. All steps are continuous in the density: the same uniforms give close draws for close
statistics.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpdist.core.records import Floats

NODES, COARSE, ZOOMS, DROP, MARGIN = 321, 33, 7, 18.0, 2
T_BOX = (-40.0, 40.0)
GRID_ERROR = 5e-4
"""Total variation between the grid's law and the posterior with v on its public interval, from five records on.

Near the normal limit it is 1.1e-4.
"""
FEW_RECORDS_ERROR = 2e-3
"""Total variation with fewer than five records, where the prior's edges and far tails remain."""
LOWEST = -1e300

LogDensity = Callable[[Floats, Floats], Floats]
"""Log density, (t, v), at nodes of two axes; up to a constant."""


def draw(log_density: LogDensity, v_box: tuple[float, float], uniforms: Floats) -> tuple[Floats, Floats]:
    """Coordinates t and v, (draw,), by inverse distribution functions: t from its marginal, then v given t.

    Uniforms (draw, 2).
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
    """The box, (axis, end), that contains all but e^−DROP of the density."""
    box = np.array([T_BOX, v_box])
    for _ in range(ZOOMS):
        t, v = (np.linspace(low, high, COARSE) for low, high in box)
        values = np.maximum(log_density(t, v), LOWEST)
        box = np.array([_extent(values.max(axis=1), t), _extent(values.max(axis=0), v)])
    return box


def _extent(profile: Floats, nodes: Floats) -> tuple[float, float]:
    """Places where the profile first and last crosses its maximum − DROP, widened by MARGIN cells within the nodes."""
    above = np.flatnonzero(profile >= profile.max() - DROP)
    first, last, width = above[0], above[-1], nodes[1] - nodes[0]
    low = nodes[first] - (_share(profile, first, first - 1) + MARGIN) * width if first > 0 else nodes[0]
    high = nodes[last] + (_share(profile, last, last + 1) + MARGIN) * width if last < len(nodes) - 1 else nodes[-1]
    return max(float(low), float(nodes[0])), min(float(high), float(nodes[-1]))


def _share(profile: Floats, inner: int, outer: int) -> float:
    """Share of the cell from the inner to the outer node that lies above the level."""
    level = profile.max() - DROP
    return float((profile[inner] - level) / (profile[inner] - profile[outer]))


def _inverse(density: Floats, uniforms: Floats) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]], Floats]:
    """Cell and place within it, in [0, 1], of quantiles of piecewise linear densities, (draw or 1, node)."""
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
