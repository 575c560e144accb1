"""Exact draws from a clamped posterior of two parameters, π(θ) ∏ exp(clamp(α_i(f_i(θ) − g_i), ±M)) ([G] eq. 3.6).

By rejection: a grid over the model's public box serves as proposal only. It closes in on where the density is within
e^−DROP of its maximum; its lines are then moved to where the mass is. The envelope of a cell is the largest density at its
corners and at the nodes next to them; a proposal, uniform in its cell, is accepted with probability density/envelope, the
density being evaluated at the proposal itself. So the grid's spacing costs proposals, not accuracy: what is drawn from is
the posterior up to the mass outside the box that was closed in on, OUTSIDE at most, and to cells in which the density rises
above all nodes around (tests look for them).
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from dpdist.models.protocol import Boxed, Clamped, Draws
from dpdist.records import Floats

COARSE, NODES, ZOOMS, MOVES = 33, 97, 14, 2
DROP = 45.0
OUTSIDE = 1e-12
"""Bound of the total variation between what is drawn from and the posterior on the public box: e^−45 = 3e-20 of the largest
density is left out, over a box at most 10⁷ times as wide as the posterior's bulk."""
SPREAD = 0.25
"""Share of the lines that lie evenly over the box; the others follow the marginal mass."""
POINTS = 4096
"""Points at a time."""

Axes = tuple[Floats, Floats]


class Envelope(NamedTuple):
    """Lines of the grid and the log of the envelope in every cell, (cell, cell)."""

    axes: Axes
    log_height: Floats


def draw(model: Boxed, posterior: Clamped, draws: int, rng: np.random.Generator) -> Draws:
    """Independent draws."""
    records, count = posterior.distinct()
    envelope = _kept(model, posterior)
    areas = np.log(np.diff(envelope.axes[0]))[:, None] + np.log(np.diff(envelope.axes[1]))
    mass = np.cumsum(np.exp(envelope.log_height + areas - (envelope.log_height + areas).max()).ravel())
    accepted: list[Floats] = []
    found = 0
    while found < draws:
        uniforms = rng.random((2 * (draws - found) + 32, 4))
        cell = np.searchsorted(mass, uniforms[:, 0] * mass[-1], side="right")
        place = np.unravel_index(np.minimum(cell, len(mass) - 1), envelope.log_height.shape)
        corners = zip(envelope.axes, place, uniforms[:, 1:3].T, strict=True)
        points = np.column_stack([axis[k] + inside * (axis[k + 1] - axis[k]) for axis, k, inside in corners])
        log_ratio = log_density(model, records, count, points) - envelope.log_height[place]
        kept = points[np.log1p(-uniforms[:, 3]) <= log_ratio]
        accepted.append(kept)
        found += len(kept)
    return model.at(np.concatenate(accepted)[:draws])


def log_density(model: Boxed, records: Clamped, count: Floats, points: Floats) -> Floats:
    """Log of the clamped posterior density at points (point, 2) in the model's coordinates, up to a constant."""
    total = model.log_prior(points)
    for start in range(0, len(points), POINTS):
        own = slice(start, start + POINTS)
        for which, values, _ in model.tiles(model.at(points[own]), records.records):
            values -= records.offset[which, None]
            values *= records.alpha[which, None]
            np.clip(values, -records.clamp, records.clamp, out=values)
            total[own] += count[which] @ values
    return total


def envelope_of(model: Boxed, posterior: Clamped) -> Envelope:
    """The proposal's grid: closed in on the density, then moved to its mass."""
    records, count = posterior.distinct()

    def values(axes: Axes) -> Floats:
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        return log_density(model, records, count, points).reshape(len(axes[0]), len(axes[1]))

    axes = _lines(np.array(model.box), COARSE)
    found = values(axes)
    for _ in range(ZOOMS):
        box = _closed_in(axes, found)
        if (np.diff(box, axis=1)[:, 0] > [0.8 * (axis[-1] - axis[0]) for axis in axes]).all():
            break
        axes = _lines(box, COARSE)
        found = values(axes)
    for _ in range(MOVES):
        axes = _moved(axes, found, NODES)
        found = values(axes)
    return Envelope(axes, _highest_around(found))


def _lines(box: Floats, number: int) -> Axes:
    first, second = (np.linspace(low, high, number) for low, high in box)
    return first, second


def _closed_in(axes: Axes, values: Floats) -> Floats:
    """The box, (axis, end), of nodes that may have a density within e^−DROP of the maximum nearby, two cells added.

    Nearby: a node's value plus its largest difference to a neighbour; so a mode between nodes is not lost.
    """
    near = values + (_highest(values) + _highest(-values))
    wanted = near >= values.max() - DROP
    box = []
    for axis, own in zip(axes, (wanted.any(axis=1), wanted.any(axis=0)), strict=True):
        places = np.flatnonzero(own)
        box.append((axis[max(0, places[0] - 2)], axis[min(len(axis) - 1, places[-1] + 2)]))
    return np.array(box)


def _moved(axes: Axes, values: Floats, number: int) -> Axes:
    """Lines at quantiles of the marginal mass and, for a share SPREAD, even ones."""
    density = np.exp(values - values.max())
    cells = (density[:-1, :-1] + density[1:, :-1] + density[:-1, 1:] + density[1:, 1:]) / 4.0
    cells *= np.diff(axes[0])[:, None] * np.diff(axes[1])
    moved = []
    for axis, marginal in zip(axes, (cells.sum(axis=1), cells.sum(axis=0)), strict=True):
        even = np.diff(axis) / (axis[-1] - axis[0])
        shares = SPREAD * even + (1.0 - SPREAD) * np.sqrt(marginal * even) / np.sqrt(marginal * even).sum()
        mass = np.concatenate([[0.0], np.cumsum(shares)])
        moved.append(np.interp(np.linspace(0.0, mass[-1], number), mass, axis))
    return moved[0], moved[1]


def _highest(values: Floats) -> Floats:
    """Largest value of a node and its eight neighbours."""
    padded = np.pad(values, 1, mode="edge")
    rows = np.maximum(np.maximum(padded[:-2], padded[1:-1]), padded[2:])
    return np.asarray(np.maximum(np.maximum(rows[:, :-2], rows[:, 1:-1]), rows[:, 2:]))


def _highest_around(values: Floats) -> Floats:
    """Per cell the largest value at its corners and at the nodes next to them."""
    around = _highest(values)
    first = np.maximum(around[:-1], around[1:])
    return np.asarray(np.maximum(first[:, :-1], first[:, 1:]))


def _kept(model: Boxed, posterior: Clamped) -> Envelope:
    """The posterior's envelope, made once for all draws from it."""
    if posterior not in _ENVELOPES:
        _ENVELOPES[posterior] = envelope_of(model, posterior)
    return _ENVELOPES[posterior]


_ENVELOPES: WeakKeyDictionary[Clamped, Envelope] = WeakKeyDictionary()
