"""Common factors of weights and outcomes since the reference, from the noisy sums of all records.

Where numbers of records are secret, the noisy number of records is used first. It gives the file's size relative to the
reference's, by which limits and the spread of the prior are chosen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.mechanisms.tables.drift_sizes import COMMON_DRIFTS, STABLE
from dpdist.mechanisms.tables.expected import WIDE_DRIFT, ExpectedFile
from dpdist.mechanisms.tables.inequality import expected_large, given_large_weights
from dpdist.mechanisms.tables.limits import TableLimits
from dpdist.mechanisms.tables.measurements import NUMBER, CommonFactors, ResidualMeasurements, with_hidden

LEAST_GROWTH, MOST_GROWTH = 1e-3, 1e3
"""Range of a file's number of records relative to its reference's, where it is secret."""
CLEAR = 8.0
"""Squared standard errors of a relative change of the number of records that is taken for noise."""
LEAST_DRIFT = 0.1
"""Smallest standard deviation of the factor of weights before the measurement, where numbers of records are secret: a
narrower law would take drift of weights for noise of the number.
"""
LOG_FACTORS = np.array([-3.9, -2.0, -1.0, -0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 3.9])
"""Logarithms of the factors of weights under which it is computed what limits clip."""
FACTORS = 20_001
"""Number of factors of weights whose likelihoods are compared."""
LEAST_OF_LAWS, MOST_OF_LAWS = -0.9, 5.0
"""Range of relative deviations of a law's means: one draw of many has next to nothing, or far more than all others."""
FACTOR_STEPS = 2
"""Steps in which factors of outcomes and what limits clip of them are found."""


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
        # Numbers of records are public.
        def under(inequality: float) -> CommonFactors:
            limits = asked.first_limits(1.0, asked.file.informed.with_inequality(inequality), asked.first)
            return _factors(asked, limits, sums)

        before = _factors(asked, asked.first, sums)
        number = asked.with_large_weights
        return before if number is None else given_large_weights(asked, number, before, under)
    informed, (growth, error) = asked.file.informed, growth_of(asked, number)
    first = asked.first_limits(growth, informed)
    weights = _factor_of_weights(asked, first, float(sums[0]), growth, error)
    factors = _of_weights(weights.factor, asked.file)
    for _ in range(FACTOR_STEPS):
        limits = asked.first_limits(growth, informed.rescaled(factors), first)
        calibration = _factors(asked, limits, sums, growth, weights)
        factors = calibration.factors
    return calibration


def expected_factors(asked: ResidualMeasurements) -> CommonFactors:
    """Those of a file that is as predicted: how far a calibration deviates follows from its noise, and not from what it
    finds.
    """
    first, count, sums = asked.first, asked.file.numbers.count, np.zeros(len(asked.file.lowest))
    if not asked.file.secret:
        sums = -first.observed(sums[None])[0] / first.scale[0]
        expected = replace(asked, large=expected_large(asked) if asked.part_of_large else None)
        found = common_factors(expected, sums)
    else:
        sums[0] = count @ asked.file.informed.means[:, 0] * (1.0 - first.hidden[0, 0]) / first.weight[0]
        found = common_factors(asked, sums, float(count.sum()))
    return found._replace(factors=np.ones(len(sums)), first=first, inequality=0.0)


class _Weights(NamedTuple):
    """The factor of weights since the reference, and its relative standard error."""

    factor: float
    error: float


def _factor_of_weights(
    asked: ResidualMeasurements, first: TableLimits, noisy: float, growth: float, error: float
) -> _Weights:
    """From the noisy sum of clipped weights of all records, in limits, and their number, whose growth has the variance
    `error`.

    The sum rises with the number in proportion, but with weights only by what limits leave of their rise. So the law of the
    factor is computed where the sum over the number is compared with what is kept under every factor.
    """
    file, limit = asked.file, float(first.weight[0])
    predicted = growth * float(file.numbers.count @ file.informed.means[:, 0])
    under = [
        asked.first_limits(growth, file.informed.rescaled(_of_weights(factor, file)), first)
        for factor in np.exp(LOG_FACTORS)
    ]
    kept_part = np.log1p([-limits.hidden[0, 0] for limits in under])
    log_factor = np.linspace(LOG_FACTORS[0], LOG_FACTORS[-1], FACTORS)
    kept = np.exp(log_factor + np.interp(log_factor, LOG_FACTORS, kept_part))
    loss = np.interp(log_factor, LOG_FACTORS, [limits.loss[0, 0] for limits in under])
    variance = (asked.noise(asked.parts[0])[0] * limit**2 + loss) / predicted**2 + kept**2 * error / growth**2
    sizes, probability = np.hypot(list(COMMON_DRIFTS), LEAST_DRIFT), np.array(list(COMMON_DRIFTS.values()))
    before = (probability / sizes * np.exp(-0.5 * (log_factor[:, None] / sizes) ** 2)).sum(axis=1)
    likelihood = -0.5 * ((noisy * limit / predicted - kept) ** 2 / variance + np.log(variance))
    law = before * np.exp(likelihood - likelihood.max())
    mean = float(np.average(log_factor, weights=law))
    return _Weights(float(np.exp(mean)), float(np.sqrt(np.average((log_factor - mean) ** 2, weights=law))))


def _of_weights(factor: float, file: ExpectedFile) -> Floats:
    """Common factors with this one of weights alone, (1 + outcome,)."""
    return np.append(factor, np.ones(len(file.lowest) - 1))


def _means_of_laws(file: ExpectedFile) -> Floats:
    """Relative deviations of means of weights and outcomes under the laws that noisy counts may have meant, without a
    reference, (law, 1 + outcome): 0 otherwise. Those of outcomes are from their origin.
    """
    if not file.first_year or not file.laws:
        return np.zeros((1, len(file.lowest)))
    origin = file.prediction.origin
    means = [
        np.append(law.weight.mean(), np.average(law.outcomes, weights=law.weight, axis=0) - origin)
        for law in (file.reference, *file.laws)
    ]
    of_law = np.where(means[0] != 0.0, means[0], np.inf)
    return np.clip(np.array(means[1:]) / of_law - np.isfinite(of_law), LEAST_OF_LAWS, MOST_OF_LAWS)


def _factors(
    asked: ResidualMeasurements, limits: TableLimits, sums: Floats, growth: float = 1.0, weights: _Weights | None = None
) -> CommonFactors:
    """The factor of weights is found before where numbers of records are secret."""
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
    of_laws = _means_of_laws(file)
    spread = np.maximum(file.wide**2, (of_laws**2).mean(axis=0))
    if stays := file.changes.of_all:
        # The file has a sample of another size, or a population of another size.
        sizes = variance[0] + file.wide**2 * np.array([1.0, (1.0 + stays) ** 2])
        odds = np.log([1.0 - STABLE, STABLE]) - 0.5 * np.log(sizes)
        odds -= 0.5 * (relative[0] - np.array([0.0, stays])) ** 2 / sizes
        spread[0] += stays**2 * scipy.special.expit(odds[1] - odds[0])
    trust = spread / (spread + variance)
    if file.weights_known:
        trust[0] = 0.0
    least, most = np.minimum(0.5, 1.0 + of_laws.min(axis=0)), np.maximum(2.0, 1.0 + of_laws.max(axis=0))
    ends = np.sort([1.0, 1.0 + file.changes.of_all])
    factors = np.clip(1.0 + trust * relative, [least[0] * ends[0], *least[1:]], [most[0] * ends[1], *most[1:]])
    # Limits have room for drift relative to outcomes' means and spread, and factors are relative to means alone.
    outcomes = file.numbers.count @ prediction.spread[:, 1:] / predicted
    part = np.concatenate([[1.0], np.abs(scale[1:]) / np.hypot(scale[1:], outcomes)])
    deviations = np.sqrt(trust * variance) * part
    if weights is None:
        return CommonFactors(factors, float(deviations.max()), limits, growth, float(deviations[0]))
    factors[0], deviations[0] = weights
    return CommonFactors(factors, float(deviations.max()), limits, growth, weights.error)
