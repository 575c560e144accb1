"""Whether a cell's noisy sums are those that the reference predicts, and what a drift of shape then adds to its errors.

Post-processing of noisy sums, so that it costs nothing. A current file that is another sample of the reference's law has
scales (log s, log g) about 0, by sampling of both files and noise alone. A cell that is farther off has drifted. Estimates
follow a drift of scale; they do not follow one of shape. So the planned drift of shape, at the scales of such a cell,
enters its errors as a bias.
"""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.clipping import Cell

DRIFTED = 3.3
"""Deviations of sampling and noise beyond which a cell has drifted: a normal error exceeds them with a chance of .001."""


def departures(scales: Floats, sampling: Floats, noise: Floats) -> Floats:
    """(log s, log g) in deviations of sampling and noise, (cell, 2); variances of these, (cell, 2) each."""
    return np.asarray(scales / np.sqrt(np.maximum(sampling + noise, 1e-300)))


def shape_bias(cell: Cell, scales: tuple[float, float], limits: tuple[float, float, float]) -> Floats:
    """Errors of (log mean weight, mean outcome), (2,), of a file of the planned drift of shape at these scales."""
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
