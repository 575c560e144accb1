"""For `reference_tables.post`: estimates the scale of relative weights again, from a table's noisy sums.

Cells of a group have weights of one histogram, times a typical weight measured under noise. The noisy sums of all its
cells estimate the histogram's scale better. The prior of the scale is Laplace about the typical weight, as the noise is
Laplace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpdist.core.records import Floats
from dpdist.reference.clipping import Cell
from dpdist.reference.histogram_cells import GRID, HistogramCell


def rescaled(
    summary: Sequence[Sequence[Cell]], caps: Floats, v: Floats, count: Floats, noise: float, bounds: tuple[float, float]
) -> list[list[Cell]]:
    """Cells of every outcome at their groups' scales, which follow from noisy mean v (cell,) over `count` (cell,)
    records.

    `noise` is the variance of the noise on Σ(1 − v). Cells whose scale has no error are unchanged.
    """
    cells_now, groups = [list(cells) for cells in summary], np.array([cell.group for cell in summary[0]])
    for number in np.unique(groups):
        rows = np.flatnonzero(groups == number)
        first = summary[0][rows[0]]
        if not isinstance(first, HistogramCell) or not first.scale_error or not count[rows].sum():
            continue
        scale, error = _posterior(first, caps[rows], v[rows], count[rows], noise)
        for cells in cells_now:
            for k in rows.tolist():
                cell = cells[k]
                assert isinstance(cell, HistogramCell)
                cells[k] = replace(cell.of_size(np.exp(scale), bounds), scale_error=error)
    return cells_now


def _posterior(cell: HistogramCell, caps: Floats, v: Floats, count: Floats, noise: float) -> tuple[float, float]:
    """Mean and standard deviation of the log scale of a group, relative to the typical weight."""
    scales = cell.scale_error * GRID
    present, total = count > 0, float(count.sum())
    mean = float(count[present] @ v[present]) / total
    distinct, which = np.unique(caps, return_inverse=True)
    share = np.bincount(which.reshape(-1), weights=count) / total
    expected = sum(part * cell.mean_v(scales, cap) for part, cap in zip(share, distinct, strict=True))
    clipped = np.minimum(cell.weight, float(caps @ count) / total) / (float(caps @ count) / total)
    variance = noise * present.sum() / total**2 + float(clipped.var()) / total
    loss = 0.5 * (mean - np.asarray(expected)) ** 2 / variance + 2.0**0.5 * np.abs(GRID)
    mass = np.exp(loss.min() - loss)
    centre = float(mass @ scales / mass.sum())
    return centre, float(np.sqrt(mass @ (scales - centre) ** 2 / mass.sum()))
