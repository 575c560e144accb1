"""Chooses the clipping limits of a cell with the least predicted error, from the reference (METHODS §7b).

The limits are the centre μ and the half width R of each outcome's clipping interval, and the weight cap U. A record with
weight w and outcome y enters by v = min(w, U)/U and vc, where c = (y − μ)/R clipped to ±1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.cell_shape import FLAT
from dpdist.mechanisms.reference_tables.clipping import Cell
from dpdist.mechanisms.reference_tables.histogram_cells import HistogramCell

QUANTILES = np.array([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, 0.985])
"""Levels of the reference's quantiles that are tried as limits."""
TAIL = 6
"""Number of limits that are tried from the last quantile to the reference's largest value, in equal ratios."""
BEYOND = np.array([1.3, 2.0])
"""Factors of the reference's largest value that are tried as limits beyond it."""

LEAST_LIMIT = 1e-3
"""Smallest limit, as a share of the largest value; smaller quantiles may be rounding errors."""

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()
"""Gauss–Hermite quadrature of a standard normal error, out to 4.5 standard deviations."""


class Noise(NamedTuple):
    """Variances of the noise on Σ(1 − v) and on Σvc, in squared records."""

    weight: float
    product: float


class Chosen(NamedTuple):
    """Limits of one cell: μ and R for each outcome, and U."""

    centre: tuple[float, ...]
    cap: float
    reach: tuple[float, ...]


def choose(cells: Sequence[Cell], n: int, noise: Noise, most: float = np.inf) -> Chosen:
    """The limits of one cell with n current records; `cells` describe the cell for each outcome.

    No cap is above `most`, the public bound at which the current file's weights are clipped when it is read.

    The predicted error is a sum over the statistics, in variances of direct estimates. It has three parts: the tails'
    sampling in both files, noise, and a planned drift.
    """
    first, weighted = cells[0], cells[0].weighted
    caps = np.unique(np.minimum(_caps(first), most)) if weighted else np.array([1.0])
    windows = [_windows(cell) for cell in cells]
    best, limits = np.inf, _chosen(float(caps[-1]), [each[-1] for each in windows])
    moved = [cell.drifted() for cell in cells]
    for cap in caps:
        if not isinstance(first, HistogramCell) and _slope(first, cap) <= FLAT:
            continue
        total = _of_count(first, moved[0][0], float(cap), n, noise)
        chosen = []
        for cell, (_, wider), own in zip(cells, moved, windows, strict=True):
            if total >= best:
                break
            errors = _of_mean(cell, wider, float(cap), own, n, noise)
            total += float(errors.min())
            chosen.append(own[errors.argmin()])
        if total < best:
            best, limits = total, _chosen(float(cap), chosen)
    return limits


def _chosen(cap: float, windows: Sequence[Floats]) -> Chosen:
    return Chosen(tuple(float(centre) for centre, _ in windows), cap, tuple(float(reach) for _, reach in windows))


def _slope(cell: Cell, cap: float) -> float:
    """The derivative of mean v by log scale s at s = 0."""
    return float((np.minimum(cell.weight, cap) / cap * (cell.weight < cap)).mean()) if cell.weighted else np.inf


def _caps(cell: Cell) -> Floats:
    """Values of U that are tried. The public bound is among them where no reference shows the largest weight."""
    found = _candidates(cell.weight)
    if isinstance(cell, HistogramCell) and np.isfinite(cell.largest_weight):
        found = np.append(found[found < cell.largest_weight], cell.largest_weight)
    return found


def _files(cell: Cell, n: int) -> float:
    """Variance of a mean of both files together, in variances of one record."""
    return 1.0 / n + 1.0 / cell.records


def _of_count(cell: Cell, heavier: Floats, cap: float, n: int, noise: Noise) -> float:
    """Predicted squared error of the cell's count under a cap, in variances of the direct estimate."""
    if isinstance(cell, HistogramCell):
        return cell.error_of_count(cap, n, noise.weight)
    if not cell.weighted:
        return 0.0
    lost = _of_scale(cell, cap, n, noise)
    drift = cell.solve_weight(float((np.minimum(heavier, cap) / cap).mean()), cap)
    direct = (float((cell.weight / cell.mean_weight).var()) + 1.0) / n
    return (lost + drift**2) / direct


def _of_scale(cell: Cell, cap: float, n: int, noise: Noise) -> float:
    """Mean squared error of the log scale s that sampling of both files and noise on Σ(1 − v) cause.

    A sample whose mean v is δ higher has weights that are b δ higher, where b is their regression on v. The code solves
    for s(δ), the exact inverse. Near its maximum, mean v hardly rises with s. A cap may cut the largest weights off. A
    sample with slightly more mass there then has a mean v that no s, or only a large s, gives.
    """
    share, v = cell.weight / cell.mean_weight - 1.0, np.minimum(cell.weight, cap) / cap
    of_v, files = float(v.var()), _files(cell, n)
    regression = float(((v - v.mean()) * share).mean()) / of_v if of_v > FLAT**2 else 0.0
    sampling, of_noise = of_v * files, noise.weight / n**2
    part, moves = sampling / (sampling + of_noise), NODES * (sampling + of_noise) ** 0.5
    missed = cell.solve_weights(v.mean() + moves, cap) - regression * part * moves
    apart = float((share - regression * (v - v.mean())).var()) * files + regression**2 * sampling * (1.0 - part)
    return float(NODE_WEIGHTS @ missed**2) + apart


def _of_mean(cell: Cell, wider: Floats, cap: float, windows: Floats, n: int, noise: Noise) -> Floats:
    """Predicted squared errors of a cell's mean outcome for each clipping interval (μ, R), (interval,)."""
    if isinstance(cell, HistogramCell):
        return cell.errors_of_mean(cap, windows, n, noise)
    direct = cell.direct_influence()[:, 1]
    variance = max(float(direct.var()) / n, 1e-12 / n, 1e-12 * (cell.top - cell.low) ** 2)
    centre, reach = windows[:, :1], windows[:, 1:]
    v, slope = np.minimum(cell.weight, cap) / cap, _slope(cell, cap)
    within = cell.within(centre, reach)
    with np.errstate(divide="ignore", invalid="ignore"):
        c = np.clip((cell.outcome[None] - centre) / reach, -1.0, 1.0)
        c_moved = np.clip((wider[None] - centre) / reach, -1.0, 1.0)
        steep = (within * (v * cell.rate)).mean(axis=1) / reach[:, 0]
        gain = cell.mean_rate / steep
        across = (c * (v * (cell.weight < cap))).mean(axis=1) / slope
        q = c * v
        found = gain[:, None] * (q - q.mean(axis=1, keepdims=True) - across[:, None] * (v - v.mean()))
        lost = (direct[None] - found).var(axis=1) * _files(cell, n)
        lost += (gain / n) ** 2 * (noise.product + noise.weight * across**2)
        changed = float(np.average(wider, weights=cell.weight)) - cell.mean
        total = (lost + (gain * ((c_moved - c) * v).mean(axis=1) - changed) ** 2) / variance
    return np.where(np.isfinite(total), total, np.inf)


def _windows(cell: Cell) -> Floats:
    """Values of μ and R that are tried, (interval, 2), in order of R; the interval is from μ − R to μ + R.

    The noise on Σvc grows with R. So an interval reaches from the mean to the tried limit on one side, and on the other
    side no farther than the outcomes do. For wages, half of which are 0 and the rest long-tailed, a symmetric interval
    would be mostly empty below the mean. Symmetric intervals are tried as well. An interval that ends at the smallest
    outcome cannot show that wages at a minimum wage have dropped. Outcomes that differ only by rounding may give an
    interval without width. It is not tried, because nothing can be clipped there.
    """
    whole = np.array([[(cell.low + cell.top) / 2.0, (cell.top - cell.low) / 2.0]])
    if len(np.unique(cell.outcome)) <= 2:
        return whole
    mean, sides = cell.mean, np.array([cell.mean - cell.outcome.min(), cell.outcome.max() - cell.mean])
    reaches = _candidates(np.abs(cell.outcome - mean))
    both = np.repeat(reaches[:, None], 2, axis=1)
    held = np.concatenate([np.minimum(both, sides * np.maximum(1.0, both / sides.max())), both])
    low, top = np.maximum(mean - held[:, 0], cell.low), np.minimum(mean + held[:, 1], cell.top)
    found = np.unique(np.column_stack([(top - low) / 2.0, (low + top) / 2.0]), axis=0)[:, ::-1]
    wide = found[found[:, 1] > 0.0]
    if isinstance(cell, HistogramCell):
        wide = np.concatenate([wide, whole])
    return wide if len(wide) else whole


def _candidates(values: Floats) -> Floats:
    largest = float(values.max())
    if largest <= 0.0:
        return np.array([1.0])
    quantiles = np.quantile(values, QUANTILES)
    tail = np.geomspace(max(quantiles[-1], largest * LEAST_LIMIT), largest, TAIL)
    found = np.concatenate([quantiles, tail, largest * BEYOND])
    return np.unique(found[found >= largest * LEAST_LIMIT])
