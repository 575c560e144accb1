"""Tests whether a cell's noisy sums agree with the reference, and adds a bias to the errors of cells that have drifted.

This is post-processing of noisy sums, so it costs no budget. Suppose that the current file is another sample of the
reference's law. Its log scales (s, g) relative to the reference then differ from 0 only by sampling of both files and by
noise. A cell that differs by more has drifted. Estimates follow a drift of scale, but not a drift of shape. So the errors
of such a cell include, as a bias, what a planned drift of shape does at the cell's scales.

The errors of all cells grow with the measured drift. Let A be the variance of the cells' log scales beyond sampling and
noise (DerSimonian & Laird). What lies beyond a cell's limits may have changed by another log scale than what lies within
them. The variance of this difference is taken as A, as if the parts of a cell differed as much as two cells do. Without
drift A is near 0. A change that all cells share is a change of scale, which estimates follow, and is not in A.
"""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.clipping import Cell


def departures(scales: Floats, sampling: Floats, noise: Floats) -> Floats:
    """The log scales (s, g) in standard deviations, (cell, 2); `sampling` and `noise` are their variances, (cell, 2)."""
    return np.asarray(scales / np.sqrt(np.maximum(sampling + noise, 1e-300)))


def shape_bias(cell: Cell, scales: tuple[float, float], limits: tuple[float, float, float]) -> Floats:
    """Errors of (log mean weight, mean outcome), (2,), in a file with the planned drift of shape at these log scales."""
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
    """Derivatives of (log mean weight, mean outcome), (2,), by a log scale of what lies beyond the limits alone."""
    (s, g), (centre, cap, half_width) = scales, limits
    weight, outcome = cell.weight * np.exp(s), cell.moved(g)
    heavy = float(weight[weight > cap].sum() / weight.sum()) if cell.weighted else 0.0
    rate = (outcome if cell.scaled else cell.unit) * (outcome < cell.top)
    return np.array([heavy, float(np.average(rate * (np.abs(outcome - centre) > half_width), weights=weight))])
