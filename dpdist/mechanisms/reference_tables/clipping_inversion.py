"""Estimates means from noisy clipped statistics: inverts clipping, shrinks noise, and computes standard errors.

This is post-processing of the released sums with the reference. Clipping is inverted by a cell's log scales (s, g): of
the weights and of the outcomes, relative to the reference (`clipping`). They have a known variance ν² from noise, and a
known variance σ² from sampling of both files. Drift makes them differ between cells with an unknown variance A. An
estimate is shrunk to the cells' precision-weighted mean by the factor (A + σ²)/(A + σ² + ν²). So it moves towards what
the current file's statistics would be without noise, not towards the reference. A cell whose outcomes have dropped is
shrunk by the curve of its statistic (`shrinkage`). So is one whose statistic is beyond all that a log scale gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.estimation.small_area import shrunk
from dpdist.mechanisms.reference_tables.cell_shape import LARGEST_LOG_SCALE
from dpdist.mechanisms.reference_tables.clipping import Cell, Slopes
from dpdist.mechanisms.reference_tables.clipping_intervals import Noise
from dpdist.mechanisms.reference_tables.drift_test import beyond_limits, departures, shape_bias
from dpdist.mechanisms.reference_tables.histogram_scales import with_own_tails
from dpdist.mechanisms.reference_tables.sensitivity import UNIT, Limits
from dpdist.mechanisms.reference_tables.shrinkage import STRAIGHT, posterior
from dpdist.models.outputs import DRIFTED

AT_END = 0.999
"""Part of the largest log scale from which a solved one is at the end of the search."""
LEAST_VARIANCE = 1e-12
"""Smallest variance used as a divisor."""
OWN = 0.5
"""Part of a misfit's variance that is specific to a cell. The rest is common to its group and cancels in differences."""


class ClippingInversion(NamedTuple):
    """Figures of cells after clipping was inverted; shapes are (cell, 2) unless stated otherwise.

    - `estimate`: mean weight and mean outcome.
    - `sampling`, `noise`: covariances of (log mean weight, mean outcome) from sampling and from noise, (cell, 2, 2).
    - `common`: standard deviations of an error that cells have in common: the error of the mean to which they are shrunk.
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
    found, sampling, noise, told, of_records = [], [], [], [], []
    of_sums = np.diag(noise_of)
    v = 1.0 - sums[:, 0] / UNIT / count
    cells = with_own_tails(cells, limits[1], v, count, noise_of.weight)
    for cell, own, total, n in zip(cells, zip(*limits, strict=True), sums / UNIT, count, strict=True):
        slopes = cell.slopes(own)
        found.append(cell.solve(1.0 - total[0] / n, total[1] / n, own))
        of_records.append(slopes.influence.var(axis=0) / n)
        sampling.append(of_records[-1] + (0.0 if cell.blur is not None else slopes.influence.var(axis=0) / cell.records))
        bent = cell.under(found[-1][0], 0.0 if cell.two_valued else found[-1][1]).slopes(own)
        noise.append(noise_of_scales([slopes, bent], of_sums / n**2, np.array([LARGEST_LOG_SCALE, cell.farthest])))
        told.append(slopes)
    raw, own_noise = np.array(found), np.array(noise)
    departure = departures(raw, np.array(sampling), np.diagonal(own_noise, axis1=1, axis2=2))
    kept, moved, spread, together = np.ones_like(raw), raw.copy(), np.zeros_like(raw), np.zeros_like(raw)
    own_limits = list(zip(*limits, strict=True))
    means = sums[:, 1] / UNIT / count
    within = np.array([cell.shrunk_within for cell in cells])
    for number in np.unique(within) if shrinkage else ():
        rows = np.flatnonzero(within == number).tolist()
        if len(rows) > 2:
            of_cells = [(cells[k], own_limits[k], float(means[k]), np.diag(of_sums) / count[k] ** 2) for k in rows]
            of_now = [np.zeros(2) if cells[k].blur is not None else of_records[k] for k in rows]
            found_in = _shrunk_within(of_cells, raw[rows], np.array(sampling)[rows], own_noise[rows], np.array(of_now))
            kept[rows], moved[rows], own_noise[rows], spread[rows], together[rows] = found_in
    estimate: list[tuple[float, float]] = []
    covariances: tuple[list[Floats], list[Floats]] = ([], [])
    grown = [cell.growth(g) for cell, g in zip(cells, moved[:, 1].tolist(), strict=True)]
    for k, cell in enumerate(cells):
        rates = np.diag([1.0, cell.mean_rate]) @ np.diag(kept[k])
        influence = told[k].influence @ rates.T
        tail = cell.direct_influence() - influence
        if cell.blur is None:
            own_sampling = influence.T @ influence / len(influence) / count[k] + tail.T @ tail / len(tail) / cell.records
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
    blurred = np.array([cell.blurred(own) * [1.0, g**2] for cell, own, g in zip(cells, own_limits, grown, strict=True)])
    misfit = np.array([cell.misfit(*each) for cell, *each in zip(cells, moved.tolist(), own_limits, strict=True)])
    of_sampling, of_noise = (np.array(each) for each in covariances)
    of_noise[:, [0, 1], [0, 1]] += OWN * misfit**2
    tail = np.sqrt(blurred + (1.0 - OWN) * misfit**2)
    return ClippingInversion(
        np.array(estimate), of_sampling, of_noise, together * rate, tail, moved, spread, departure, kept
    )


def _shrunk_within(
    cells: Sequence[tuple[Cell, tuple[float, float, float], float, Floats]],
    raw: Floats,
    sampling: Floats,
    noise: Floats,
    current: Floats,
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Shrinks the log scales (s, g) of cells towards each other.

    Returns five arrays: the weights of the cells' own values, (cell, 2); the estimates, (cell, 2); the noise's
    covariances, (cell, 2, 2); A, (2,); and standard deviations of the common error, (cell, 2).

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


def _product(cell: Cell, s: float, limits: tuple[float, float, float], of_means: Floats, g: float) -> tuple[float, float]:
    """Mean vc under log scale g at the estimated s, and the standard deviation of its noise.

    Noise in s contributes to it.
    """
    product, along = cell.product(s, g, limits)
    return product, float(np.sqrt(of_means[1] + along**2 * of_means[0]))


def _kept(before: float, after: float, noise: Floats) -> tuple[float, Floats]:
    """The weight of a cell's own value, and the covariance of the noise in (s, g), after nonlinear shrinkage.

    `before` and `after` are the variances of g before and after the statistic was seen. The noise in g gets the variance
    with which linear shrinkage by this weight would leave the variance `after`.
    """
    kept = min(1.0, max(LEAST_VARIANCE, 1.0 - after / before))
    factor = np.diag([1.0, np.sqrt(after / kept / max(noise[1, 1], LEAST_VARIANCE))])
    return kept, np.asarray(factor @ noise @ factor)


def _together(kept: Floats, sampling: Floats, noise: Floats, current: Floats, spread: Floats) -> Floats:
    """Standard deviations of the error of (s, g) that is common to cells, (cell, 2).

    Every cell is shrunk to a mean that has an error itself, so that all cells share this error. Let V be the mean's
    variance, k the weight of a cell's own value, and σ² = σ_now² + σ_ref² the sampling variance of the current file and
    of the reference. `current` is σ_now². With D = A + σ² + ν², the errors of like cells have the covariance V (1 −
    k)(2σ_now² + ν²)/D. The reference's sampling is not in it, because an error of its mean weight is offset by an error
    of s. With this covariance, the mean of the cells errs as if none had been shrunk.
    """
    whole = np.maximum(spread + sampling + noise, LEAST_VARIANCE)
    of_mean = 1.0 / (1.0 / whole).sum(axis=0)
    return np.asarray(np.sqrt(of_mean * (1.0 - kept) * (2.0 * current + noise) / whole))


def noise_of_scales(slopes: Sequence[Slopes], of_means: Floats, farthest: Floats) -> Floats:
    """The covariance of the log scales (s, g), (2, 2), from noise on the mean statistics.

    It is taken where the statistics are least informative: under the reference or under the estimate. No standard
    deviation exceeds `farthest`, because no log scale does.
    """
    found = [each.inverse @ of_means @ each.inverse.T for each in slopes]
    flattest = max(found, key=lambda own: float(own[1, 1]))
    deviations = np.sqrt([max(own[0, 0] for own in found), flattest[1, 1]])
    factor = np.diag(np.minimum(deviations, farthest) / np.sqrt(np.maximum(np.diag(flattest), LEAST_VARIANCE)))
    return np.asarray(factor @ flattest @ factor)
