"""Clipping limits of cells, and the choice of those with the least predicted error, from the reference (METHODS §7b).

The limits are the centre μ and the half width R of each outcome's clipping interval, and the weight cap U.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.reference.clipping import FLAT, Cell
from dpdist.reference.histogram_cells import HistogramCell

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


class Limits(NamedTuple):
    """Limits of every cell, fixed before the current file is seen.

    They are the centre μ, (cell,) or (cell, outcome); the weight cap U, (cell,); and the half width R, as μ.
    """

    centre: Floats
    cap: Floats
    reach: Floats

    def clipped(self, cell: Codes | Ints, weight: Floats, outcome: Floats) -> tuple[Floats, Floats]:
        """v of every record, (record,), and c in the shape of `outcome`, (record,) or (record, outcome); none is NaN.

        Raises `ValueError` for limits at which no record could be clipped; limits are public.
        """
        if not all(np.isfinite(limit).all() for limit in self) or min(self.cap.min(), self.reach.min()) <= 0.0:
            raise ValueError("a weight cap or a half-width that is not above 0, or a limit that is not finite")
        v = np.clip(weight, 0.0, self.cap[cell]) / self.cap[cell]
        # A warning for some values only would reveal them; values that overflow are clipped.
        with np.errstate(over="ignore"):
            return v, np.clip((outcome - self.centre[cell]) / self.reach[cell], -1.0, 1.0)


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

    No cap is above `most`, the public bound at which the current file's weights are clipped when it is read. The
    predicted error is in variances of direct estimates: the tails' sampling in both files, noise, and a planned drift.
    """
    first, weighted = cells[0], cells[0].weighted
    caps = np.unique(np.minimum(_caps(first), most)) if weighted else np.array([1.0])
    windows = [_windows(cell) for cell in cells]
    best, limits = np.inf, _chosen(float(caps[-1]), [tried[-1] for tried in windows])
    moved = [cell.drifted() for cell in cells]
    for cap in caps:
        if not isinstance(first, HistogramCell) and _slope(first, cap) <= FLAT:
            continue
        total = _of_count(first, moved[0][0], float(cap), n, noise)
        chosen = []
        for cell, (_, wider), tried in zip(cells, moved, windows, strict=True):
            if total >= best:
                break
            errors = _of_mean(cell, wider, float(cap), tried, n, noise)
            total += float(errors.min())
            chosen.append(tried[errors.argmin()])
        if total < best:
            best, limits = total, _chosen(float(cap), chosen)
    return limits


def _chosen(cap: float, windows: Sequence[Floats]) -> Chosen:
    return Chosen(tuple(float(centre) for centre, _ in windows), cap, tuple(float(reach) for _, reach in windows))


def _slope(cell: Cell, cap: float) -> float:
    return float((np.minimum(cell.weight, cap) / cap * (cell.weight < cap)).mean()) if cell.weighted else np.inf


def _caps(cell: Cell) -> Floats:
    """Values of U that are tried, with the public bound where no reference shows the largest weight."""
    caps = _candidates(cell.weight)
    if isinstance(cell, HistogramCell) and np.isfinite(cell.largest_weight):
        caps = np.append(caps[caps < cell.largest_weight], cell.largest_weight)
    return caps


def _files(cell: Cell, n: int) -> float:
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

    A sample whose mean v is δ higher has weights that are b δ higher, where b is their regression on v. s(δ) is solved
    exactly: near its maximum mean v hardly rises with s, and a cap may cut the largest weights off.
    """
    share, v = cell.weight / cell.mean_weight - 1.0, np.minimum(cell.weight, cap) / cap
    of_v, files = float(v.var()), _files(cell, n)
    regression = float(((v - v.mean()) * share).mean()) / of_v if of_v > FLAT**2 else 0.0
    sampling, of_noise = of_v * files, noise.weight / n**2
    part, moves = sampling / (sampling + of_noise), NODES * (sampling + of_noise) ** 0.5
    missed = cell.solve_weights(v.mean() + moves, cap) - regression * part * moves
    separate = float((share - regression * (v - v.mean())).var()) * files + regression**2 * sampling * (1.0 - part)
    return float(NODE_WEIGHTS @ missed**2) + separate


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
        influence = gain[:, None] * (q - q.mean(axis=1, keepdims=True) - across[:, None] * (v - v.mean()))
        lost = (direct[None] - influence).var(axis=1) * _files(cell, n)
        lost += (gain / n) ** 2 * (noise.product + noise.weight * across**2)
        changed = float(np.average(wider, weights=cell.weight)) - cell.mean
        total = (lost + (gain * ((c_moved - c) * v).mean(axis=1) - changed) ** 2) / variance
    return np.where(np.isfinite(total), total, np.inf)


def _windows(cell: Cell) -> Floats:
    """Values of μ and R that are tried, (interval, 2), in order of R; the interval is from μ − R to μ + R.

    The noise on Σvc grows with R. So some intervals reach no farther on either side of the mean than the outcomes do.
    Symmetric ones are tried as well: one that ends at the smallest outcome cannot show that this outcome has dropped.
    """
    whole = np.array([[(cell.low + cell.top) / 2.0, (cell.top - cell.low) / 2.0]])
    if len(np.unique(cell.outcome)) <= 2:
        return whole
    mean, sides = cell.mean, np.array([cell.mean - cell.outcome.min(), cell.outcome.max() - cell.mean])
    reaches = _candidates(np.abs(cell.outcome - mean))
    both = np.repeat(reaches[:, None], 2, axis=1)
    held = np.concatenate([np.minimum(both, sides * np.maximum(1.0, both / sides.max())), both])
    low, top = np.maximum(mean - held[:, 0], cell.low), np.minimum(mean + held[:, 1], cell.top)
    windows = np.unique(np.column_stack([(top - low) / 2.0, (low + top) / 2.0]), axis=0)[:, ::-1]
    wide = windows[windows[:, 1] > 0.0]
    if isinstance(cell, HistogramCell):
        wide = np.concatenate([wide, whole])
    return wide if len(wide) else whole


def _candidates(values: Floats) -> Floats:
    largest = float(values.max())
    if largest <= 0.0:
        return np.array([1.0])
    quantiles = np.quantile(values, QUANTILES)
    tail = np.geomspace(max(quantiles[-1], largest * LEAST_LIMIT), largest, TAIL)
    candidates = np.concatenate([quantiles, tail, largest * BEYOND])
    return np.unique(candidates[candidates >= largest * LEAST_LIMIT])
