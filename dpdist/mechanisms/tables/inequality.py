"""By what weights are more unequal than the reference's, from the noisy number of records with large weights.

Weights w of predicted mean m are taken to be those of the reference with another exponent: m (w/m)^κ, times a constant that
keeps their sum. Their inequality is log κ. Where it is above 0, limits clip more of weights than the reference lets expect,
and noisy sums alone would show that as weights that have fallen. The number of records whose weights are far above m shows
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpdist.core.records import UNIT, Floats
from dpdist.mechanisms.tables.measurements import CommonFactors, ResidualMeasurements
from dpdist.mechanisms.tables.prediction import Prediction, powers_of_ratios

INEQUALITIES = {0.01: 0.2, 0.03: 0.25, 0.1: 0.35, 0.3: 0.15, 0.9: 0.05}
"""Standard deviations of changes of inequality, with their probabilities: logarithms of weights' variation changed by .05
in the median between consecutive periods of public files, by .12 or more in a quarter, and by .55 once in thirty.
"""
QUANTILE, LEAST_RATIO = 0.95, 1.5
"""Quantile of weights over predicted ones beyond which a weight is large, and the smallest such ratio."""
STEPS = np.array([-1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0])
"""Inequalities under which the factor of weights is computed; between them it is interpolated."""
CHANGES = np.linspace(STEPS[0], STEPS[-1], 401)
"""Changes of inequality whose likelihoods are compared."""
OTHER_FORM = 1 / 3
"""Standard error of a change that has another form, relative to it."""


class WeightRatios(NamedTuple):
    """Weights of reference records over predicted ones, (record,), in ascending order, and that beyond which they are
    large.

    `constant` are the factors that keep the sum of weights, at `STEPS`.
    """

    ratio: Floats
    large: float
    constant: Floats

    @classmethod
    def of(cls, prediction: Prediction) -> WeightRatios:
        predicted, weight = prediction.weights_of_records
        ratio = weight / predicted
        sums = [(weight * powers_of_ratios(weight, predicted, step)).sum() for step in STEPS]
        large = max(float(np.quantile(ratio, QUANTILE)), LEAST_RATIO)
        return cls(np.sort(ratio), large, weight.sum() / np.array(sums))

    def share(self, inequality: Floats, factor: Floats) -> Floats:
        """Shares of records with large weights where weights have these inequalities, and these factors of their means."""
        constant = np.exp(np.interp(inequality, STEPS, np.log(self.constant)))
        least = (self.large / (constant * factor)) ** np.exp(-inequality)
        return 1.0 - np.searchsorted(self.ratio, least, side="right") / len(self.ratio)


def thresholds(asked: ResidualMeasurements, before: CommonFactors) -> Floats:
    """Weights beyond which a record's is large, (cell,), by the factors of the first sums."""
    informed = asked.file.informed
    return np.asarray(WeightRatios.of(informed).large * before.factors[0] * informed.means[:, 0])


def expected_large(asked: ResidualMeasurements) -> float:
    """What is measured of large weights that are as unequal as the reference's (`ResidualMeasurements.large`)."""
    share = WeightRatios.of(asked.file.informed).share(np.zeros(1), np.ones(1))[0]
    return float(UNIT * asked.file.count.sum() * (2.0 * share - 1.0))


def with_inequality(
    asked: ResidualMeasurements, number: float, before: CommonFactors, under: Callable[[float], CommonFactors]
) -> CommonFactors:
    """Common factors with the inequality that the noisy `number` of records with large weights shows.

    `before` are those by the first sums alone, about which weights are large, and `under` an inequality.
    """
    large, records = WeightRatios.of(asked.file.informed), float(asked.file.count.sum())
    found = [before if step == 0.0 else under(float(step)) for step in STEPS]
    factor, error = (np.array(part) for part in zip(*((each.factors[0], each.error) for each in found), strict=True))
    relative = np.exp(np.interp(CHANGES, STEPS, np.log(factor))) / before.factors[0]
    share = large.share(CHANGES, relative)
    # The factor of weights has an error, and moves weights beyond what is large.
    steepness = (large.share(CHANGES, 1.05 * relative) - large.share(CHANGES, relative / 1.05)) / (2.0 * np.log(1.05))
    sampled = share * (1.0 - share) * (records + records**2 / len(large.ratio))
    variance = asked.variance(asked.part_of_large) / 4.0 + sampled
    variance += (records * steepness * np.interp(CHANGES, STEPS, error)) ** 2
    sizes, probability = (np.array(list(part)) for part in (INEQUALITIES, INEQUALITIES.values()))
    law = (probability / sizes * np.exp(-0.5 * (CHANGES[:, None] / sizes) ** 2)).sum(axis=1)
    likelihood = -0.5 * ((number - records * share) ** 2 / variance + np.log(variance))
    law *= np.exp(likelihood - likelihood.max())
    mean = float(np.average(CHANGES, weights=law))
    deviation = np.hypot(np.sqrt(np.average((CHANGES - mean) ** 2, weights=law)), OTHER_FORM * mean)
    return under(mean)._replace(inequality=mean, of_inequality=float(deviation))
