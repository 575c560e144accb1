"""For `reference.inversion`: how far cells have drifted from the reference, and errors by drifting shapes (METHODS §7b).

Without drift, log scales (s, g) differ from 0 only by noise and by sampling of both files. Estimates follow a drift of
scale, but not a drift of shape. So errors of a drifted cell include a bias: the effect of the planned drift of shape at
the cell's scales.
"""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats
from dpdist.reference.clipping import Cell

DRIFTED = 3.3
"""A cell beyond this many standard deviations counts as drifted; a normal error exceeds them with probability .001."""


def departures(scales: Floats, sampling: Floats, noise: Floats) -> Floats:
    """The log scales (s, g) in standard deviations, (cell, 2); `sampling` and `noise` are their variances, (cell, 2)."""
    return np.asarray(scales / np.sqrt(np.maximum(sampling + noise, 1e-300)))


def departure_at_cap(cell: Cell, v: float, n: float, cap: float, noise: float) -> float:
    """The departure of mean v itself, in standard deviations; `noise` is the variance of the noise on Σ(1 − v).

    Where all weights reach the cap, or none is seen, the log scale s has no end, and its error hides any departure.
    """
    clipped = np.minimum(cell.weight, cap) / cap
    variance = noise / n**2 + float(clipped.var()) * (1.0 / n + 1.0 / cell.records)
    return float((v - clipped.mean()) / np.sqrt(max(variance, 1e-300)))


def shape_bias(cell: Cell, scales: tuple[float, float], limits: tuple[float, float, float]) -> Floats:
    """Errors of (log mean weight, mean outcome), (2,), by the planned drift of shape, at these log scales."""
    s, g = scales
    heavier, wider = cell.drifted()
    now = Cell(heavier * np.exp(s), wider, cell.low, cell.top, cell.scaled, cell.records, cell.weighted)
    outcome = now.moved(g) if cell.scaled else np.clip(wider + (cell.moved(g) - cell.outcome), cell.low, cell.top)
    centre, cap, half_width = limits
    v = np.minimum(now.weight, cap) / cap if cell.weighted else np.ones(len(outcome))
    q = v * np.clip((outcome - centre) / half_width, -1.0, 1.0)
    solved = cell.solve(float(v.mean()), float(q.mean()), limits)
    mean = float(np.average(outcome, weights=now.weight))
    of_outcome = 0.0 if cell.two_valued else cell.mean_at(solved[1]) - mean
    return np.array([solved[0] - s if cell.weighted else 0.0, of_outcome])


def beyond_limits(cell: Cell, scales: tuple[float, float], limits: tuple[float, float, float]) -> Floats:
    """Derivatives of (log mean weight, mean outcome), (2,), by a log scale that applies only beyond the limits."""
    (s, g), (centre, cap, half_width) = scales, limits
    weight, outcome = cell.weight * np.exp(s), cell.moved(g)
    heavy = float(weight[weight > cap].sum() / weight.sum()) if cell.weighted else 0.0
    rate = (outcome if cell.scaled else cell.unit) * (outcome < cell.top)
    return np.array([heavy, float(np.average(rate * (np.abs(outcome - centre) > half_width), weights=weight))])
