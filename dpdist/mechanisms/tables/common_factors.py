"""Common factors of weights and outcomes since the reference, from the noisy sums of all records.

Where numbers of records are secret, the noisy number tells the file's size relative to its reference's before, by which
limits and the spread of z are chosen.
"""

from __future__ import annotations

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.mechanisms.tables.drift_sizes import STABLE
from dpdist.mechanisms.tables.expected import WIDE_DRIFT
from dpdist.mechanisms.tables.limits import TableLimits
from dpdist.mechanisms.tables.measurements import NUMBER, CommonFactors, ResidualMeasurements, with_hidden

LEAST_GROWTH, MOST_GROWTH = 1e-3, 1e3
"""Range of a file's number of records relative to its reference's, where it is secret."""
LEAST_FACTOR, MOST_FACTOR = 0.02, 50.0
"""Range of the factor of weights since the reference, where numbers of records are secret."""
CLEAR = 8.0
"""Squared standard errors of a relative change that is taken for noise where numbers of records are secret."""
FACTOR_STEPS = 5
"""Steps in which the factor of weights and what limits clip of them are found."""


def growth_of(asked: ResidualMeasurements, number: float) -> tuple[float, float]:
    """The factor on the reference's number of records by a noisy number, shrunk by the noise, and its variance."""
    records = float(asked.file.numbers.count.sum())
    error, relative = asked.variance(NUMBER) / records**2, number / records - 1.0
    spread = max(WIDE_DRIFT**2, relative**2 - CLEAR * error)
    trust = spread / (spread + error)
    return float(np.clip(1.0 + trust * relative, LEAST_GROWTH, MOST_GROWTH)), trust * error


def common_factors(asked: ResidualMeasurements, sums: Floats, number: float | None = None) -> CommonFactors:
    """From the first noisy sums, (1 + outcome,), and the noisy number of records, where it is secret."""
    if number is None:
        return _factors(asked, asked.first, sums, 1.0, 0.0)
    growth, error = growth_of(asked, number)
    first = asked.first_limits(growth, asked.file.informed)
    calibration = _factors(asked, first, sums, growth, error)
    for _ in range(FACTOR_STEPS):
        limits = asked.first_limits(growth, asked.file.informed.rescaled(calibration.factors), first)
        calibration = _factors(asked, limits, sums, growth, error)
    return calibration


def _factors(asked: ResidualMeasurements, limits: TableLimits, sums: Floats, growth: float, error: float) -> CommonFactors:
    """`growth` has the variance `error`."""
    file, prediction = asked.file, asked.file.informed
    residual = asked.residual_sums(limits, prediction, sums[None], prediction)
    # What is clipped of a secret number of records goes with the count.
    noise = asked.noise(asked.parts[0]) * limits.scale**2 + limits.loss
    (residual,), (errors,) = with_hidden(limits.hidden, residual, noise)
    predicted = float(file.numbers.count @ prediction.means[:, 0])
    weight = growth * predicted
    residual[0] += predicted - weight
    total_weight = max(weight + residual[0], 0.1 * weight)
    relative = np.concatenate([residual[:1] / weight, residual[1:] / total_weight])
    # An outcome whose mean is its origin has no relative drift: its error is then beyond all trust.
    distance = limits.mean[0] - prediction.origin
    scale = np.concatenate([[1.0], np.copysign(np.maximum(np.abs(distance), 1e-100), distance)])
    relative, variance = relative / scale, errors / (weight * scale) ** 2
    variance[0] += error / growth**2
    spread = np.full(len(scale), file.wide**2)
    if file.secret:
        spread[0] = max(spread[0], relative[0] ** 2 - CLEAR * variance[0])
    elif stays := file.changes.of_all:
        # The file has a sample of another size, or a population of another size.
        sizes = variance[0] + file.wide**2 * np.array([1.0, (1.0 + stays) ** 2])
        odds = np.log([1.0 - STABLE, STABLE]) - 0.5 * np.log(sizes)
        odds -= 0.5 * (relative[0] - np.array([0.0, stays])) ** 2 / sizes
        spread[0] += stays**2 * scipy.special.expit(odds[1] - odds[0])
    trust = spread / (spread + variance)
    if file.weights_known:
        trust[0] = 0.0
    least, most = (LEAST_FACTOR, MOST_FACTOR) if file.secret else np.sort([1.0, 1.0 + file.changes.of_all]) * [0.5, 2.0]
    factors = np.clip(1.0 + trust * relative, [least, *[0.5] * (len(scale) - 1)], [most, *[2.0] * (len(scale) - 1)])
    # Limits have room for drift relative to outcomes' means and spread, and factors are relative to means alone.
    outcomes = file.numbers.count @ prediction.spread[:, 1:] / predicted
    part = np.concatenate([[1.0], np.abs(scale[1:]) / np.hypot(scale[1:], outcomes)])
    return CommonFactors(factors, float((np.sqrt(trust * variance) * part).max()), limits, growth)
