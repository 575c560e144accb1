"""Estimates means from noisy clipped statistics: inverts clipping, shrinks noise, and computes standard errors.

Post-processing of the released sums with the reference. Cell c has (log s_c, log g_c); its estimate has variance ν² from
noise, which is known, and σ² from sampling of both files, also known. Drift has an unknown variance A, common to cells.
The estimate is shrunk to the cells' precision-weighted mean by (A + σ²)/(A + σ² + ν²). So it moves towards the current
file's statistics without noise, not towards the reference. A cell whose outcomes fell is shrunk by its statistic's curve
(`falling`).
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
from dpdist.mechanisms.reference_tables.drift_test import DRIFTED, departures, shape_bias
from dpdist.mechanisms.reference_tables.histogram_scales import with_own_tails
from dpdist.mechanisms.reference_tables.sensitivity import UNIT, Limits
from dpdist.mechanisms.reference_tables.shrinkage import STRAIGHT, posterior

LEAST_VARIANCE = 1e-12
OWN = 0.5
"""Part of a misfit's variance that is specific to a cell. The rest is common to its group and cancels in differences."""


class ClippingInversion(NamedTuple):
    """Per cell: (mean weight, mean outcome), and covariances of (log mean weight, mean outcome) from sampling and noise;
    deviations of what cells have in common, the error of the mean that they are shrunk to; deviations that noise in their
    histograms and the tails of these bring; their (log s, log g); A of both, (cell, 2); how far (log s, log g) as solved
    are from 0, in deviations of sampling and noise; the part of (log s, log g) that is a cell's own, (cell, 2)."""

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
    """`sums` (cell, 2) in units and `limits` of one outcome, `count` (cell,)."""
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
    """Shrinks cells towards each other.

    Returns the weights of the cells' estimates and the estimates, (cell, 2); the noise's covariances, (cell, 2, 2); A,
    (2,); and their common deviations, (cell, 2).

    `cells` has each cell with its limits, its noisy mean vc and the variances of the noise on its mean statistics.
    `current` is the current file's part of `sampling`.
    """
    parts = [shrunk(raw[:, k], sampling[:, k], noise[:, k, k]) for k in range(2)]
    kept, moved = (np.column_stack([part[i] for part in parts]) for i in range(2))
    spread, noise = np.array([part.drift for part in parts]), noise.copy()
    for k, (cell, limits, mean, of_means) in enumerate(cells):
        if cell.curved and kept[k, 1] < STRAIGHT and raw[k, 1] < parts[1].mean:
            curve = partial(_product, cell, raw[k, 0], limits, of_means)
            before = max(spread[1] + sampling[k][1], LEAST_VARIANCE)
            moved[k, 1], after = posterior(curve, mean, parts[1].mean, before)
            kept[k, 1], noise[k] = _kept(before, after, noise[k])
    together = _together(kept, sampling, np.diagonal(noise, axis1=1, axis2=2), current, spread)
    return kept, moved, noise, spread, together


def _product(cell: Cell, s: float, limits: tuple[float, float, float], of_means: Floats, g: float) -> tuple[float, float]:
    """Returns mean vc under a scale of outcomes at the estimated s, and the deviation of its noise with that of s."""
    product, along = cell.product(s, g, limits)
    return product, float(np.sqrt(of_means[1] + along**2 * of_means[0]))


def _kept(before: float, after: float, noise: Floats) -> tuple[float, Floats]:
    """Weight of a cell's own value and covariance of (log s, log g), of which noise makes log g's variances `before` and
    `after` its statistic was seen."""
    kept = min(1.0, max(LEAST_VARIANCE, 1.0 - after / before))
    factor = np.diag([1.0, np.sqrt(after / kept / max(noise[1, 1], LEAST_VARIANCE))])
    return kept, np.asarray(factor @ noise @ factor)


def _together(kept: Floats, sampling: Floats, noise: Floats, current: Floats, spread: Floats) -> Floats:
    """Returns deviations of (log s, log g) that are common to cells, (cell, 2).

    `current`: the current file's part of `sampling`.

    Every cell is shrunk to a mean that holds its own error as well, so that both errors go together. With V the mean's
    variance, σ² = σ_now² + σ_ref² and D = A + σ² + ν², those of like cells have the covariance V (1 − k)(2σ_now² + ν²)/D
    (σ_ref moves log s and the reference's mean weight against each other): their mean errs as if none had been shrunk.
    """
    whole = np.maximum(spread + sampling + noise, LEAST_VARIANCE)
    of_mean = 1.0 / (1.0 / whole).sum(axis=0)
    return np.asarray(np.sqrt(of_mean * (1.0 - kept) * (2.0 * current + noise) / whole))


def noise_of_scales(slopes: Sequence[Slopes], of_means: Floats, farthest: Floats) -> Floats:
    """Returns the covariance of (log s, log g), (2, 2), from noise on mean statistics.

    It is taken where these are least informative, under the reference or the estimate. No deviation exceeds `farthest`,
    as no scale does.
    """
    found = [each.inverse @ of_means @ each.inverse.T for each in slopes]
    flattest = max(found, key=lambda own: float(own[1, 1]))
    deviations = np.sqrt([max(own[0, 0] for own in found), flattest[1, 1]])
    factor = np.diag(np.minimum(deviations, farthest) / np.sqrt(np.maximum(np.diag(flattest), LEAST_VARIANCE)))
    return np.asarray(factor @ flattest @ factor)
