"""Predicted values of published cells, and their predicted errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.tables.limits import direct_variances, sampled_variances
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.workload import AddedCells


class PredictedCells(NamedTuple):
    """Published cells as the prediction has them: total weights (cell,), means (cell, outcome), and direct variances of
    counts and of means times counts given numbers of records, (cell, 1 + outcome).

    `sampled` (cell, 1 + outcome) are direct variances of counts and totals, which have those of numbers of records as well.
    """

    cells: AddedCells
    total_weight: Floats
    mean: Floats
    direct: Floats
    sampled: Floats

    @classmethod
    def of(cls, published: AddedCells, count: Floats, prediction: Prediction) -> PredictedCells:
        weight = count * prediction.means[:, 0]
        total_weight = np.maximum(published @ weight, 1e-300)
        mean = np.column_stack([published @ (weight * outcome) / total_weight for outcome in prediction.means[:, 1:].T])
        direct = direct_variances(published, count, mean, prediction)
        squares = direct_variances(published, count, np.zeros_like(mean), prediction)[:, 1:]
        of_totals = np.maximum(squares - (total_weight[:, None] * mean) ** 2 / count.sum(), 0.0)
        sampled = np.column_stack([sampled_variances(published, count, prediction), of_totals])
        return cls(published, total_weight, mean, direct, sampled)

    @property
    def unit(self) -> Floats:
        """Direct variances as a verdict has them, of counts and of means times counts, (cell, 1 + outcome)."""
        return np.column_stack([self.sampled[:, 0], self.direct[:, 1:]])


class PredictedErrors(NamedTuple):
    """Predicted variances of published cells: of counts and of means times counts, and of totals, (cell, 1 + outcome) each.

    `ratio` (cell,) is the number of the file's records over the reference's. No error has drift that would show in the
    noisy sums: errors are those of a file of the reference's population.
    """

    figures: PredictedCells
    variance: Floats
    of_totals: Floats
    ratio: Floats

    def means(self, k: int) -> tuple[Floats, Floats, Floats]:
        """Errors of the release and of the reference alone, and direct standard errors, of counts (0) or of means."""
        return self._roots(self.variance[:, k], self.figures.direct[:, k], self.figures.unit[:, k])

    def totals(self, k: int) -> tuple[Floats, Floats, Floats]:
        """The same of totals."""
        direct = self.figures.direct[:, k] + self.figures.mean[:, k - 1] ** 2 * self.figures.direct[:, 0]
        return self._roots(self.of_totals[:, k], direct, self.figures.sampled[:, k])

    def _roots(self, variance: Floats, direct: Floats, unit: Floats) -> tuple[Floats, Floats, Floats]:
        return np.sqrt(variance), np.sqrt(direct * (1.0 + self.ratio)), np.sqrt(unit)
