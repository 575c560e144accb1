"""For `reference_tables.cells`: clipping limits of cells with the least predicted error, from the reference.

The limits are the centre μ and the half width R of each outcome's clipping interval, and the weight cap U.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.reference.clipping import FLAT, Cell, below
from dpdist.reference.histogram_cells import HistogramCell

QUANTILES = np.array([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, 0.985])
"""Levels of the reference's quantiles that are tried as limits."""
TAIL = 6
"""Number of limits that are tried from the last quantile to the reference's largest value, in equal ratios."""
BEYOND = np.array([1.3, 2.0])
"""Factors of the reference's largest value that are tried as limits beyond it."""

RECORDS = 20_000
"""Number of records whose clipped values are in memory at a time, for every interval that is tried."""
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
    caps = _distinct(np.minimum(_caps(first), most)) if weighted else np.array([1.0])
    windows = [_windows(cell) for cell in cells]
    best, limits = np.inf, _chosen(float(caps[-1]), [tried[-1] for tried in windows])
    moved = [cell.drifted() for cell in cells]
    steep = [isinstance(first, HistogramCell) or _slope(first, cap) > FLAT for cap in caps.tolist()]
    caps = caps[steep]
    of_means = [
        None if isinstance(cell, HistogramCell) or not len(caps) else _of_means(cell, wider, caps, tried, n, noise)
        for cell, (_, wider), tried in zip(cells, moved, windows, strict=True)
    ]
    of_counts = _of_counts(first, moved[0][0], caps, n, noise).tolist()
    for number, (cap, total) in enumerate(zip(caps.tolist(), of_counts, strict=True)):
        chosen = []
        for cell, of_mean, tried in zip(cells, of_means, windows, strict=True):
            if total >= best:
                break
            if isinstance(cell, HistogramCell):
                errors = cell.errors_of_mean(cap, tried, n, noise)
            else:
                assert of_mean is not None
                errors = of_mean[number]
            total += float(errors.min())
            chosen.append(tried[errors.argmin()])
        if total < best:
            best, limits = total, _chosen(cap, chosen)
    return limits


def _chosen(cap: float, windows: Sequence[Floats]) -> Chosen:
    return Chosen(tuple(float(centre) for centre, _ in windows), cap, tuple(float(reach) for _, reach in windows))


def _distinct(values: Floats) -> Floats:
    """The values in rising order; of values within EDGE of each other, which differ by rounding only, the largest."""
    rising = np.unique(values)
    return np.asarray(rising[np.append(below(rising[:-1], rising[1:]), True)])


def _slope(cell: Cell, cap: float) -> float:
    return float((np.minimum(cell.weight, cap) / cap * below(cell.weight, cap)).mean()) if cell.weighted else np.inf


def _caps(cell: Cell) -> Floats:
    """Values of U that are tried, with the public bound if no reference shows the largest weight."""
    caps = _candidates(cell.weight)
    if isinstance(cell, HistogramCell) and np.isfinite(cell.largest_weight):
        caps = np.append(caps[caps < cell.largest_weight], cell.largest_weight)
    return caps


def _files(cell: Cell, n: int) -> float:
    return 1.0 / n + 1.0 / cell.records


def _of_counts(cell: Cell, heavier: Floats, caps: Floats, n: int, noise: Noise) -> Floats:
    """Predicted squared errors of the cell's count under several caps, (cap,), in variances of the direct estimate."""
    if isinstance(cell, HistogramCell):
        return np.array([cell.error_of_count(cap, n, noise.weight) for cap in caps.tolist()])
    if not cell.weighted:
        return np.zeros(len(caps))
    lost = _of_scales(cell, caps[:, None], n, noise)
    drift = cell.solve_weights((np.minimum(heavier, caps[:, None]) / caps[:, None]).mean(axis=1), caps)
    direct = (float((cell.weight / cell.mean_weight).var()) + 1.0) / n
    return np.asarray((lost + drift**2) / direct)


def _of_scales(cell: Cell, caps: Floats, n: int, noise: Noise) -> Floats:
    """Mean squared errors of the log scale s that sampling of both files and noise on Σ(1 − v) cause, (cap,).

    A sample whose mean v is δ higher has weights that are b δ higher, where b is their regression on v. s(δ) is solved
    exactly: near its maximum mean v hardly rises with s, and a cap may cut the largest weights off. `caps` are (cap, 1).
    """
    share, v = cell.weight / cell.mean_weight - 1.0, np.minimum(cell.weight, caps) / caps
    of_v, mean, files = v.var(axis=1, keepdims=True), v.mean(axis=1, keepdims=True), _files(cell, n)
    varied = of_v > FLAT**2
    regression = np.where(varied, ((v - mean) * share).mean(axis=1, keepdims=True) / np.where(varied, of_v, 1.0), 0.0)
    sampling, of_noise = of_v * files, noise.weight / n**2
    part, moves = sampling / (sampling + of_noise), NODES * (sampling + of_noise) ** 0.5
    missed = cell.solve_weights(mean + moves, caps) - regression * part * moves
    separate = (share - regression * (v - mean)).var(axis=1, keepdims=True) * files
    separate += regression**2 * sampling * (1.0 - part)
    return np.asarray(missed**2 @ NODE_WEIGHTS + separate[:, 0])


def _of_means(cell: Cell, wider: Floats, caps: Floats, windows: Floats, n: int, noise: Noise) -> Floats:
    """Predicted squared errors of a cell's mean outcome for each weight cap and clipping interval (μ, R), (cap, interval).

    With influence d of a record on the direct mean, and gain · (vc − across · v) on the clipped one, the sampling error is
    the variance of their difference. All moments are sums over records of a factor of c and a factor of v. So they are
    products of matrices, for all caps and intervals at once.
    """
    centre, reach = windows[:, :1], windows[:, 1:]
    direct, rate = cell.direct_influence()[:, 1], cell.rate
    direct = direct - direct.mean()
    q, steep, crossed, squared, shared, bias, whole = sums = np.zeros((7, len(windows), len(caps)))
    for start in range(0, len(direct), RECORDS):
        rows = slice(start, start + RECORDS)
        v = np.minimum(cell.weight[rows, None], caps) / caps
        c = np.clip((cell.outcome[rows] - centre) / reach, -1.0, 1.0)
        moved = np.clip((wider[rows] - centre) / reach, -1.0, 1.0) - c
        within = cell.within(centre, reach, rows).astype(np.float64)
        moving, square = v * below(cell.weight[rows, None], caps), v * v
        q += c @ v
        steep += within @ (v * rate[rows, None])
        crossed += c @ moving
        squared += c @ square
        shared += c @ (v * direct[rows, None])
        bias += moved @ v
        whole += (c * c) @ square
    sums /= len(direct)
    v = np.minimum(cell.weight[:, None], caps) / caps
    slope, of_v = (v * below(cell.weight[:, None], caps)).mean(axis=0), v.mean(axis=0)
    if not cell.weighted:
        slope = np.full(len(caps), np.inf)
    variance = max(float(direct.var()) / n, 1e-12 / n, 1e-12 * (cell.top - cell.low) ** 2)
    changed = float(np.average(wider, weights=cell.weight)) - cell.mean
    with np.errstate(divide="ignore", invalid="ignore"):
        gain, across = cell.mean_rate * reach / steep, crossed / slope
        clipped = whole - q**2 - 2.0 * across * (squared - q * of_v) + across**2 * v.var(axis=0)
        both = shared - across * (v * direct[:, None]).mean(axis=0)
        lost = np.maximum(direct.var() - 2.0 * gain * both + gain**2 * clipped, 0.0) * _files(cell, n)
        lost += (gain / n) ** 2 * (noise.product + noise.weight * across**2)
        total = (lost + (gain * bias - changed) ** 2) / variance
    return np.where(np.isfinite(total), total, np.inf).T


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
