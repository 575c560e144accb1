"""Estimates each cell's tail of weights where a group of cells shares one noisy histogram (METHODS §7b).

A group's histogram of weights is a mixture of its cells. If it were taken as each cell's shape, the tail of a cell with
large weights would be too long. If what lies beyond the cap were the same part of all cells, such a cell would lack most
of its own tail. So a cell's shape is the histogram with the deviations of log weights multiplied by κ, where κ² Var(log
w) + A = Var(log w). A is the variance of the cells' log scales, by moments of their noisy sums (DerSimonian & Laird).

A cell's log scale is normal with variance A before its noisy sum is seen. At its mean after the sum is seen, the cell's
shape gives what lies beyond the cap. These tails are then multiplied by one factor, so that all cells of the group
together have as much beyond their caps as the histogram has. This is post-processing of noisy sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpdist.core.records import Floats
from dpdist.estimation.small_area import shrunk
from dpdist.mechanisms.reference_tables.cell_shape import FLAT
from dpdist.mechanisms.reference_tables.clipping import Cell
from dpdist.mechanisms.reference_tables.histogram_cells import HistogramCell

ROUNDS = 6
"""Iterations of the fixed point for κ."""
LEAST_OWN = 0.1
"""Smallest κ, and smallest part of a group's tail that its cells' shapes must give.

With less, every cell has the group's tail.
"""
FEWEST = 3
"""Smallest number of cells of a group from which the variance of their scales is estimated."""


def with_own_tails(cells: Sequence[Cell], caps: Floats, v: Floats, count: Floats, noise: float) -> list[Cell]:
    """The cells, each with a separate tail, from noisy means `v` (cell,) over `count` (cell,) records.

    `noise` is the variance of the noise on Σ(1 − v). Cells of a reference, cells of groups of fewer than FEWEST cells,
    and cells without a weight stay as they are.
    """
    found = list(cells)
    groups = np.array([cell.group for cell in cells])
    for number in np.unique(groups):
        rows = np.flatnonzero(groups == number)
        own = [cell for k in rows.tolist() if isinstance(cell := cells[k], HistogramCell) and cell.weighted]
        if len(own) == len(rows) >= FEWEST:
            for k, cell in zip(rows.tolist(), _of_group(own, caps[rows], v[rows], count[rows], noise), strict=True):
                found[k] = cell
    return found


def _of_group(cells: Sequence[HistogramCell], caps: Floats, v: Floats, n: Floats, noise: float) -> list[HistogramCell]:
    """The cells of one group, each with a separate tail."""
    first, (distinct, which) = cells[0], np.unique(caps, return_inverse=True)
    clipped = np.array([_moments(first.weight, cap) for cap in distinct.tolist()])[which]
    mean, variance = np.maximum(clipped[:, 0], FLAT), clipped[:, 1] / n
    spread = max(float(np.log(np.maximum(first.weight, FLAT)).var()), FLAT)
    drift = shrunk(v / mean, variance / mean**2, noise / (n * mean) ** 2).drift
    shape, between = first, 0.0
    for _ in range(ROUNDS):
        rates = np.array([shape.rate_of_seen(cap) for cap in distinct.tolist()])[which]
        between = min(drift / float(np.average(rates**2, weights=n)), (1.0 - LEAST_OWN**2) * spread)
        shape = replace(first, own=float(np.sqrt(1.0 - between / spread)))
    error = np.sqrt(variance + noise / n**2)
    tail = np.array([shape.tail_of(*each, between) for each in zip(v, error, caps, strict=True)])
    held, of_group = n * np.maximum(v, 0.0) * caps, np.maximum(first.mean_weight / (mean * caps) - 1.0, 0.0)
    told, whole = float(held @ tail), float(held @ of_group)
    own = of_group if told <= LEAST_OWN * whole else tail * (whole / told)
    return [replace(cell, tail=float(t)) for cell, t in zip(cells, np.log1p(own) - np.log1p(of_group), strict=True)]


def _moments(weight: Floats, cap: float) -> tuple[float, float]:
    """Mean and variance of v = min(w, cap)/cap."""
    v = np.minimum(weight, cap) / cap
    return float(v.mean()), float(v.var())
