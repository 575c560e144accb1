"""For `reference_tables.post`: means from noisy clipped sums, by inverting clipping and shrinking noise (METHODS §7b).

Clipping is inverted by a cell's log scales (s, g): of the weights and of the outcomes, relative to the reference. These
scales have a known variance ν² from noise and σ² from sampling, and between cells an unknown variance A from drift. A cell
is shrunk to the cells' precision-weighted mean by (A + σ²)/(A + σ² + ν²). A cell whose statistic is on the flat part of its
curve is shrunk by that curve (`posterior`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dpdist.core.records import UNIT, Floats
from dpdist.estimation.small_area import shrunk
from dpdist.reference.clipping import LARGEST_LOG_SCALE, Cell, Slopes, below
from dpdist.reference.drift import DRIFTED, beyond_limits, departure_at_cap, departures, shape_bias
from dpdist.reference.histogram_cells import with_own_tails
from dpdist.reference.limits import Limits, Noise

STRAIGHT = 0.99
"""If a cell's own value has at least this weight, noise moves the value so little that the curve counts as straight.

`_shrunk_within` then keeps linear shrinkage.
"""
WIDE = 6.0
"""Half width of a grid, in standard deviations."""
GRID_POINTS = (31, 31, 31, 31, 61)
"""Numbers of points of the successive grids; each covers the interval that the grid before it left."""


def posterior(
    curve: Callable[[Floats], tuple[Floats, Floats]], seen: float, mean: float, variance: float
) -> tuple[float, float]:
    """Posterior mean and variance of a log scale with a normal prior, given a statistic `seen` with normal noise.

    `curve` gives, for log scales, (scale,), the statistic's values, which rise with the scale, and the standard deviations
    of their noise. On a straight curve this is linear shrinkage. The prior has `mean` and `variance`.
    """
    low, high = -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE
    for points in GRID_POINTS:
        grid = np.linspace(low, high, points)
        value, error = curve(grid)
        loss = 0.5 * ((seen - value) / error) ** 2 + np.log(error) + 0.5 * (grid - mean) ** 2 / variance
        held = np.flatnonzero(loss <= loss.min() + 0.5 * WIDE**2)
        low, high = float(grid[max(held[0] - 1, 0)]), float(grid[min(held[-1] + 1, points - 1)])
    mass = np.exp(loss.min() - loss)
    mass[[0, -1]] /= 2.0
    centre = float(mass @ grid / mass.sum())
    return centre, float(mass @ (grid - centre) ** 2 / mass.sum())


AT_END = 0.999
"""Part of the largest log scale from which a solved one is at the end of the search."""
LEAST_VARIANCE = 1e-12
"""Smallest variance used as a divisor."""
FEW = 8.0
"""Number of a cell's records beyond a limit as which those of similar cells count."""
FARTHEST_LEAN = 3.0
"""Largest lean of a small reference, in standard errors of its records: the end of a search is no solution."""
OWN = 0.5
"""Part of a misfit's variance that is specific to a cell. The rest is common to its group and cancels in differences."""


class ClippingInversion(NamedTuple):
    """Figures of cells after clipping was inverted; shapes are (cell, 2) unless stated otherwise.

    - `estimate`: mean weight and mean outcome.
    - `sampling`, `noise`: covariances of (log mean weight, mean outcome) from sampling and from noise, (cell, 2, 2).
    - `common`: standard deviations of an error that cells have in common: of the mean to which they are shrunk, and of
      what few reference records leave out beyond the limits.
    - `tail`: standard deviations of the error that noise in histograms and their tails cause.
    - `scale`: the log scales (s, g) of the estimate.
    - `drift`: A, the variance between cells.
    - `departure`: the solved (s, g), in standard deviations of sampling and noise.
    - `kept`: the weight of a cell's own (s, g) in the estimate.
    """

    estimate: Floats
    sampling: Floats
    noise: Floats
    common: Floats
    tail: Floats
    scale: Floats
    drift: Floats
    departure: Floats
    kept: Floats


def invert_clipping(
    cells: Sequence[Cell], limits: Limits, sums: Floats, count: Floats, noise_of: Noise, shrinkage: bool
) -> ClippingInversion:
    """Estimates the means of cells from the noisy clipped sums of one outcome.

    `sums` (cell, 2), in units of 1/UNIT, are Σ(1 − v) and Σvc. `limits` are the limits for this outcome, and `count`
    (cell,) are numbers of records.
    """
    solved, sampling, noise, slopes_of_cells, of_records = [], [], [], [], []
    of_sums = np.diag(noise_of)
    v = 1.0 - sums[:, 0] / UNIT / count
    cells = with_own_tails(cells, limits[1], v, count, noise_of.weight)
    for cell, cell_limits, total, n in zip(cells, zip(*limits, strict=True), sums / UNIT, count, strict=True):
        slopes = cell.slopes(cell_limits)
        solved.append(cell.solve(1.0 - total[0] / n, total[1] / n, cell_limits))
        of_records.append(slopes.influence.var(axis=0) / n)
        sampling.append(of_records[-1] + (0.0 if cell.blur is not None else slopes.influence.var(axis=0) / cell.records))
        bent = cell.under(solved[-1][0], 0.0 if cell.two_valued else solved[-1][1]).slopes(cell_limits)
        noise.append(noise_of_scales([slopes, bent], of_sums / n**2, np.array([LARGEST_LOG_SCALE, cell.farthest])))
        slopes_of_cells.append(slopes)
    raw, own_noise = np.array(solved), np.array(noise)
    departure = departures(raw, np.array(sampling), np.diagonal(own_noise, axis1=1, axis2=2))
    for k in np.flatnonzero(np.abs(raw[:, 0]) >= LARGEST_LOG_SCALE).tolist():
        if cells[k].blur is None:
            departure[k, 0] = departure_at_cap(cells[k], v[k], count[k], limits[1][k], noise_of.weight)
    kept, moved, spread, together = np.ones_like(raw), raw.copy(), np.zeros_like(raw), np.zeros_like(raw)
    own_limits = list(zip(*limits, strict=True))
    means = sums[:, 1] / UNIT / count
    within = np.array([cell.shrunk_within for cell in cells])
    for number in np.unique(within[within >= 0]) if shrinkage else ():
        rows = np.flatnonzero(within == number).tolist()
        if len(rows) > 2:
            of_cells = [(cells[k], own_limits[k], float(means[k]), np.diag(of_sums) / count[k] ** 2) for k in rows]
            of_now = [np.zeros(2) if cells[k].blur is not None else of_records[k] for k in rows]
            found_in = _shrunk_within(of_cells, raw[rows], np.array(sampling)[rows], own_noise[rows], np.array(of_now))
            kept[rows], moved[rows], own_noise[rows], spread[rows], together[rows] = found_in
    estimate: list[tuple[float, float]] = []
    covariances: tuple[list[Floats], list[Floats]] = ([], [])
    unseen = np.zeros_like(raw)
    grown = [cell.growth(g) for cell, g in zip(cells, moved[:, 1].tolist(), strict=True)]
    for k, cell in enumerate(cells):
        rates = np.diag([1.0, cell.mean_rate]) @ np.diag(kept[k])
        influence = slopes_of_cells[k].influence @ rates.T
        if cell.blur is None:
            scales = (float(moved[k, 0]), float(moved[k, 1]))
            tail, unseen[k] = tail_of_reference(cell, own_limits[k], scales, kept[k])
            own_sampling = influence.T @ influence / len(influence) / count[k] + tail / cell.records
        else:
            direct = cell.direct_influence()
            own_sampling = direct.T @ direct / len(direct) / count[k]
        left = np.diag([1.0, cell.mean_rate**2]) * ((1.0 - kept[k]) ** 2 * spread[k])
        drifted = (np.abs(departure[k]) > DRIFTED) & (cell.blur is None)
        biased = np.diag(shape_bias(cell, (raw[k, 0], raw[k, 1]), own_limits[k]) ** 2) if drifted.any() else 0.0
        if cell.blur is None and spread[k].any():
            biased = biased + np.diag(beyond_limits(cell, (moved[k, 0], moved[k, 1]), own_limits[k]) ** 2 * spread[k])
        now = np.diag([1.0, grown[k]])
        covariances[0].append(now @ (own_sampling + left + np.diag([0.0, cell.of_unlikeness])) @ now + biased)
        covariances[1].append(now @ rates @ own_noise[k] @ rates.T @ now)
        estimate.append((cell.mean_weight * np.exp(moved[k, 0]), cell.mean_at(moved[k, 1])))
    rate = np.array([[1.0, cell.mean_rate * growth] for cell, growth in zip(cells, grown, strict=True)])
    blurred = np.array(
        [cell.blurred(cell_limits) * [1.0, g**2] for cell, cell_limits, g in zip(cells, own_limits, grown, strict=True)]
    )
    misfit = np.array([cell.misfit(*figures) for cell, *figures in zip(cells, moved.tolist(), own_limits, strict=True)])
    of_sampling, of_noise = (np.array(figures) for figures in covariances)
    of_noise[:, [0, 1], [0, 1]] += OWN * misfit**2
    common = np.hypot(together * rate, unseen)
    tail = np.sqrt(blurred + (1.0 - OWN) * misfit**2)
    return ClippingInversion(np.array(estimate), of_sampling, of_noise, common, tail, moved, spread, departure, kept)


def tail_of_reference(
    cell: Cell, limits: tuple[float, float, float], scales: tuple[float, float], kept: Floats
) -> tuple[Floats, Floats]:
    """The reference's error in (log mean weight, mean outcome): its covariance for one record, (2, 2), and its lean, (2,).

    The covariance is of what clipped sums do not determine. `scales` are the log scales (s, g), with the weights `kept`.
    """
    # A reference of few records may have none beyond the limits, and then shows no error there. So the records of similar
    # cells count as FEW of the cell's own. By their shape the same clipped sums give other means: this is the lean.
    (centre, cap, half_width), similar = limits, cell.as_similar
    covariances, means = [], []
    seen = cell.statistics(*scales, limits)
    for shape in (cell, similar):
        left = shape.direct_influence() - shape.slopes(limits).influence * (kept * [1.0, shape.mean_rate])
        covariances.append(left.T @ left / len(left))
        s, g = scales if shape is cell else shape.solve(*seen, limits)
        means.append([s, shape.mean_at(g)])
    outside = [below(cap, cell.weight), below(half_width, np.abs(cell.outcome - centre))]
    beyond = cell.records * np.mean(outside, axis=1)
    share = FEW / (FEW + beyond) * [1.0, cell.scaled]
    own_part, common_part = np.sqrt(1.0 - share), np.sqrt(share)
    covariance = np.outer(own_part, own_part) * covariances[0] + np.outer(common_part, common_part) * covariances[1]
    lean = share * kept * np.abs(np.diff(means, axis=0)[0])
    return covariance, np.minimum(lean, FARTHEST_LEAN * np.sqrt(np.diag(covariance) / cell.records))


def _shrunk_within(
    cells: Sequence[tuple[Cell, tuple[float, float, float], float, Floats]],
    raw: Floats,
    sampling: Floats,
    noise: Floats,
    current: Floats,
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Shrinks the log scales (s, g) of cells towards each other.

    Returns the weights of the cells' own values, (cell, 2); the estimates, (cell, 2); the noise's covariances, (cell, 2,
    2); A, (2,); and standard deviations of the common error, (cell, 2).

    `cells` has each cell with its limits, its noisy mean vc and the variances of the noise on its mean statistics.
    `current` is the part of `sampling` that comes from the current file.
    """
    parts = [shrunk(raw[:, k], sampling[:, k], noise[:, k, k]) for k in range(2)]
    kept, moved = (np.column_stack([part[i] for part in parts]) for i in range(2))
    spread, noise = np.array([part.drift for part in parts]), noise.copy()
    for k, (cell, limits, mean, of_means) in enumerate(cells):
        at_end = raw[k, 1] > AT_END * cell.farthest
        if cell.curved and kept[k, 1] < STRAIGHT and (raw[k, 1] < parts[1].mean or at_end):
            curve = partial(_product, cell, raw[k, 0], limits, of_means)
            before = max(spread[1] + sampling[k][1], LEAST_VARIANCE)
            moved[k, 1], after = posterior(curve, mean, parts[1].mean, before)
            kept[k, 1], noise[k] = _kept(before, after, noise[k])
    together = _together(kept, sampling, np.diagonal(noise, axis1=1, axis2=2), current, spread)
    return kept, moved, noise, spread, together


def _product(
    cell: Cell, s: float, limits: tuple[float, float, float], of_means: Floats, g: Floats
) -> tuple[Floats, Floats]:
    """Mean vc under log scales g at the estimated s, and the standard deviations of its noise, with that of noise in s."""
    product, along = cell.products(s, g, limits)
    return product, np.sqrt(of_means[1] + along**2 * of_means[0])


def _kept(before: float, after: float, noise: Floats) -> tuple[float, Floats]:
    """The weight of a cell's own value, and the covariance of the noise in (s, g), after nonlinear shrinkage.

    `before` and `after` are the variances of g before and after the statistic was seen. Linear shrinkage by this weight
    would leave the variance `after`.
    """
    kept = min(1.0, max(LEAST_VARIANCE, 1.0 - after / before))
    factor = np.diag([1.0, np.sqrt(after / kept / max(noise[1, 1], LEAST_VARIANCE))])
    return kept, np.asarray(factor @ noise @ factor)


def _together(kept: Floats, sampling: Floats, noise: Floats, current: Floats, spread: Floats) -> Floats:
    """Standard deviations of the error common to cells, (cell, 2): that of the mean to which (s, g) are shrunk.

    With V the variance of that mean, k a cell's own weight, σ_now² = `current` and D = A + σ² + ν², like cells have the
    covariance V (1 − k)(2σ_now² + ν²)/D. The reference's sampling is left out: s offsets an error of the reference's mean
    weight.
    """
    whole = np.maximum(spread + sampling + noise, LEAST_VARIANCE)
    of_mean = 1.0 / (1.0 / whole).sum(axis=0)
    return np.asarray(np.sqrt(of_mean * (1.0 - kept) * (2.0 * current + noise) / whole))


def noise_of_scales(slopes: Sequence[Slopes], of_means: Floats, farthest: Floats) -> Floats:
    """The covariance of the log scales (s, g), (2, 2), from noise on the mean statistics.

    It is computed where statistics are least informative: under the reference or under the estimate. No standard
    deviation exceeds `farthest`, because no log scale does.
    """
    covariances = [slope.inverse @ of_means @ slope.inverse.T for slope in slopes]
    flattest = max(covariances, key=lambda covariance: float(covariance[1, 1]))
    deviations = np.sqrt([max(covariance[0, 0] for covariance in covariances), flattest[1, 1]])
    factor = np.diag(np.minimum(deviations, farthest) / np.sqrt(np.maximum(np.diag(flattest), LEAST_VARIANCE)))
    return np.asarray(factor @ flattest @ factor)


STEP = 0.05
"""Step of the numerical derivative, in the logarithm of the count."""


def elasticities(cells: Sequence[Cell], limits: Limits, sums: Floats, count: Floats, inverted: ClippingInversion) -> Floats:
    """d log(mean weight)/d log n and d(mean outcome)/d log n of the same sums, with n the count, (cell, 2).

    `invert_clipping` has the same first arguments, and `inverted` is its result. The cells' common mean is held fixed,
    because it averages the errors of many counts.
    """
    made = np.empty((len(cells), 2))
    for k, (cell, cell_limits, total) in enumerate(zip(cells, zip(*limits, strict=True), sums / UNIT, strict=True)):
        ends = [
            np.array(cell.solve(1.0 - total[0] / n, total[1] / n, cell_limits)) for n in count[k] * np.exp([STEP, -STEP])
        ]
        moved = inverted.kept[k] * (ends[0] - ends[1]) / 2.0
        scale = float(inverted.scale[k, 1])
        made[k] = moved[0], (cell.mean_at(scale + moved[1]) - cell.mean_at(scale - moved[1])) / 2.0
    return made / STEP
