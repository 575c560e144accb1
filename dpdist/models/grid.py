"""Independent draws from a smooth density of two parameters, on a grid of its own, without Markov chains.

The grid's place depends on the density alone, and so on the released posterior's definition only through its statistics:
starting from a fixed public box, ZOOMS times the box shrinks to where the density along an axis is within e^−DROP of its
maximum, a margin of MARGIN cells added. The last box has NODES × NODES nodes; draws come from the *bilinear interpolant*
of the density at them. Its total variation to the density restricted to the box is the grid's error: with cells of h
standard deviations an axis contributes h²·E|p''/p|/24 ≈ h²/25 for a normal law, 1e-4 in all here (GRID_ERROR bounds what
tests measure against a grid twice as fine). The density outside the last box is under e^−DROP = 1.5e-8 of its maximum.

All steps are continuous in the density, so that the same uniforms give close draws for close statistics.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpdist.records import Floats

NODES, COARSE, ZOOMS, DROP, MARGIN = 401, 49, 7, 18.0, 3
GRID_ERROR = 5e-4
"""Total variation between what is drawn from and the posterior within the public box."""
LOWEST = -1e300

LogDensity = Callable[[Floats, Floats], Floats]
"""Log density, (u, v), of coordinates u and v on two axes; up to a constant."""
Box = tuple[tuple[float, float], tuple[float, float]]


def draw(log_density: LogDensity, box: Box, uniforms: Floats, nodes: int = NODES) -> tuple[Floats, Floats]:
    """Coordinates (draw,) by inverse distribution functions: u from its marginal, then v given u; uniforms (draw, 2)."""
    (u_low, u_high), (v_low, v_high) = zoomed(log_density, box)
    u, v = np.linspace(u_low, u_high, nodes), np.linspace(v_low, v_high, nodes)
    values = log_density(u, v)
    density = np.exp(values - values.max())
    marginal = density[:, 1:].sum(axis=1) + density[:, :-1].sum(axis=1)
    cell, step = _inverse(marginal[None, :], uniforms[:, 0])
    rows = (1.0 - step[:, None]) * density[cell] + step[:, None] * density[cell + 1]
    other, inside = _inverse(rows, uniforms[:, 1])
    return (
        u_low + (cell + step) * (u_high - u_low) / (nodes - 1),
        v_low + (other + inside) * (v_high - v_low) / (nodes - 1),
    )


def zoomed(log_density: LogDensity, box: Box) -> Box:
    """The part of the box that holds all but e^−DROP of the density."""
    limits = np.array(box)
    for _ in range(ZOOMS):
        u, v = (np.linspace(low, high, COARSE) for low, high in limits)
        values = np.maximum(log_density(u, v), LOWEST)
        limits = np.array([_extent(values.max(axis=1), u), _extent(values.max(axis=0), v)])
    return (float(limits[0, 0]), float(limits[0, 1])), (float(limits[1, 0]), float(limits[1, 1]))


def _extent(profile: Floats, nodes: Floats) -> tuple[float, float]:
    """Where the profile first and last crosses its maximum − DROP, MARGIN cells further out, within the nodes."""
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
