"""By what weights are more unequal than the reference's, from the noisy number of records with large weights.

Weights w of predicted mean m are taken to be those of the reference with another exponent: m (w/m)^κ, times a constant that
keeps their sum. Their inequality is log κ. Where it is above 0, limits clip more of weights than the reference lets expect,
and noisy sums alone would show that as weights that have fallen. The number of records whose weights are far above m shows
it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy

from dpdist.core.records import UNIT, Floats
from dpdist.mechanisms.tables.measurements import CommonFactors, ResidualMeasurements
from dpdist.mechanisms.tables.weight_ratios import STEPS

INEQUALITIES = {0.01: 0.2, 0.03: 0.25, 0.1: 0.35, 0.3: 0.15, 0.9: 0.05}
"""Standard deviations of changes of inequality, with their probabilities: logarithms of weights' variation changed by .05
in the median between consecutive periods of public files, by .12 or more in a quarter, and by .55 once in thirty.
"""
CHANGES = np.linspace(STEPS[0], STEPS[-1], 401)
"""Changes of inequality whose likelihoods are compared."""
OTHER_FORM = 1 / 3
"""Standard error of a change that has another form, relative to it."""
OF_DRIFT = 1 / 4
"""Standard error of a factor of weights by what limits clip of it, relative to its distance from 1."""


def thresholds(asked: ResidualMeasurements, before: CommonFactors) -> Floats:
    """Weights beyond which a record's is large, (cell,), by the factors of the first sums."""
    return np.asarray(asked.file.weight_ratios.large * before.factors[0] * asked.file.informed.means[:, 0])


def expected_large(asked: ResidualMeasurements) -> float:
    """What is measured of large weights that are as unequal as the reference's (`ResidualMeasurements.large`)."""
    return float(UNIT * asked.file.count.sum() * (2.0 * asked.file.weight_ratios.expected - 1.0))


def given_large_weights(
    asked: ResidualMeasurements, number: float, before: CommonFactors, under: Callable[[float], CommonFactors]
) -> CommonFactors:
    """Common factors with the inequality that the noisy `number` of records with large weights shows.

    `before` are those by the first sums alone, about which weights are large, and `under` an inequality.
    """
    ratios, records = asked.file.weight_ratios, float(asked.file.count.sum())
    calibrations = [before if step == 0.0 else under(float(step)) for step in STEPS]
    factor, error = np.array([(each.factors[0], each.error) for each in calibrations]).T
    error = np.hypot(error, OF_DRIFT * (factor - 1.0))
    relative = np.exp(np.interp(CHANGES, STEPS, np.log(factor))) / before.factors[0]
    share = ratios.share(CHANGES, relative)
    # The factor of weights has an error, and moves weights beyond what is large.
    steepness = (ratios.share(CHANGES, 1.05 * relative) - ratios.share(CHANGES, relative / 1.05)) / (2.0 * np.log(1.05))
    variance = share * (1.0 - share) * (records + records**2 / ratios.effective_records)
    variance += (records * steepness * np.interp(CHANGES, STEPS, error)) ** 2
    sizes, probability = (np.array(list(part)) for part in (INEQUALITIES, INEQUALITIES.values()))
    law = (probability / sizes * np.exp(-0.5 * (CHANGES[:, None] / sizes) ** 2)).sum(axis=1)
    noise = asked.variance(asked.part_of_large) / 4.0
    likelihood = (_with_laplace if asked.laplace else _normal)(number - records * share, variance, noise)
    law *= np.exp(likelihood - likelihood.max())
    mean = float(np.average(CHANGES, weights=law))
    deviation = np.hypot(np.sqrt(np.average((CHANGES - mean) ** 2, weights=law)), OTHER_FORM * mean)
    return under(mean)._replace(inequality=mean, inequality_error=float(deviation))


def _normal(distance: Floats, variance: Floats, noise: float) -> Floats:
    """Log densities of distances by normal errors and normal noise of these variances, up to a constant."""
    return np.asarray(-0.5 * (distance**2 / (variance + noise) + np.log(variance + noise)))


def _with_laplace(distance: Floats, variance: Floats, noise: float) -> Floats:
    """The same by Laplace noise: the density of the sum of a normal and a Laplace variable."""
    scale, deviation = np.sqrt(noise / 2.0), np.sqrt(np.maximum(variance, 1e-6 * noise))
    sides = [
        side * distance / scale + scipy.special.log_ndtr(-side * distance / deviation - deviation / scale)
        for side in (-1.0, 1.0)
    ]
    return np.asarray(0.5 * (deviation / scale) ** 2 + np.logaddexp(*sides))
