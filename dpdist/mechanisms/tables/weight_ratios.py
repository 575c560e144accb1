"""Weights of reference records over predicted ones, and the share of large ones among a file's records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.tables.prediction import Prediction, powers_of_ratios

QUANTILE, LEAST_RATIO = 0.95, 1.5
"""Quantile of weights over predicted ones beyond which a weight is large, and the smallest such ratio."""
FEWEST = 0.005
"""Smallest share of large weights that tells how unequal weights are."""
STEPS = np.array([-1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0])
"""Inequalities under which the factor of weights is computed; between them it is interpolated."""


@dataclass(frozen=True, eq=False)
class WeightRatios:
    """Reference records by the ratio of their weight to the predicted one, in ascending order, (record,).

    `worth` are the numbers of the file's records that they stand for, `large` is the ratio beyond which a weight is large,
    and `constant` are the factors that keep the sum of weights, at `STEPS`.
    """

    ratio: Floats
    worth: Floats
    large: float
    constant: Floats

    @classmethod
    def of(cls, prediction: Prediction) -> WeightRatios:
        predicted, weight = prediction.weights_of_records
        ratio, worth = weight / predicted, np.ones(len(weight)) if prediction.worth is None else prediction.worth
        order = np.argsort(ratio, kind="stable")
        ratio, worth = ratio[order], worth[order]
        quantile = ratio[np.searchsorted(np.cumsum(worth), QUANTILE * worth.sum())]
        sums = [(weight * powers_of_ratios(weight, predicted, step)).sum() for step in STEPS]
        return cls(ratio, worth, max(float(quantile), LEAST_RATIO), weight.sum() / np.array(sums))

    @cached_property
    def beyond(self) -> Floats:
        """Shares of the file's records beyond the first so many ratios, (1 + record,)."""
        return np.asarray(1.0 - np.concatenate([[0.0], np.cumsum(self.worth)]) / self.worth.sum())

    @property
    def effective_records(self) -> float:
        """The number of reference records of equal worth that tell as much."""
        return float(self.worth.sum() ** 2 / (self.worth**2).sum())

    def share(self, inequality: Floats, factor: Floats) -> Floats:
        """Shares of records with large weights where weights have these inequalities, and these factors of their means."""
        constant = np.exp(np.interp(inequality, STEPS, np.log(self.constant)))
        least = (self.large / (constant * factor)) ** np.exp(-inequality)
        return np.asarray(np.maximum(self.beyond[np.searchsorted(self.ratio, least, side="right")], 0.0))

    @property
    def expected(self) -> float:
        """The share of large weights that are as unequal as the reference's."""
        return float(self.share(np.zeros(1), np.ones(1))[0])
