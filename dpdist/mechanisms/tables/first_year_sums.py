"""Noisy sums of a file without a reference: sums of scores tell cells apart, and residuals are about what they predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, TypeAlias

import numpy as np

from dpdist.core.records import Floats
from dpdist.estimation.donors import PeriodTotals
from dpdist.mechanisms.tables.drift_sizes import learned
from dpdist.mechanisms.tables.effects import PredictionBySums
from dpdist.mechanisms.tables.limits import TableLimits
from dpdist.mechanisms.tables.measured_sums import MeasuredSums, Reading
from dpdist.mechanisms.tables.measurements import CommonFactors, ResidualMeasurements, UnclippedSums
from dpdist.mechanisms.tables.rows import Rows, rows_of, stacked
from dpdist.mechanisms.tables.scores import RecordScores


@dataclass(frozen=True, eq=False)
class FirstYearSums:
    """Noisy sums of tables, and limits by what sums of scores tell of cells."""

    first: MeasuredSums
    """Sums of all records alone."""
    scores: Sequence[Floats]
    """Noisy sums of scores of every table, (cell, score)."""
    by_sums: PredictionBySums
    limits: tuple[TableLimits, ...]
    sums: Sequence[Floats]

    @classmethod
    def after(cls, first: MeasuredSums, scores: Sequence[Floats], sums: Sequence[Floats] = ()) -> Self:
        asked, file = first.asked, first.asked.file
        variances = [asked.variance(part) for part in asked.parts_of_scores]
        by_sums = RecordScores.of(file).predicted(file, scores, variances, first.calibrated, first.calibration.deviation)
        limits = [
            asked.limits_of(cell, file.placed_records(k), by_sums.prediction, part)
            for k, ((_, cell), part) in enumerate(zip(file.tables, asked.parts_of_tables, strict=True))
        ]
        return cls(first, scores, by_sums, tuple(limits), sums)

    def given(self, sums: Sequence[Floats]) -> Self:
        """With noisy sums of all measurements."""
        return replace(self, sums=sums[1:])

    @property
    def asked(self) -> ResidualMeasurements:
        return self.first.asked

    @property
    def calibration(self) -> CommonFactors:
        return self.first.calibration

    @property
    def all_limits(self) -> tuple[TableLimits, ...]:
        return (*self.first.limits, *self.limits)

    def unclipped(self) -> Iterator[UnclippedSums]:
        """Residual sums about the prediction by scores."""
        prediction = self.by_sums.prediction
        for table, noisy, part in zip(self.limits, self.sums, self.asked.parts_of_tables, strict=True):
            yield self.asked.unclipped(table, prediction, noisy, prediction, part)

    @cached_property
    def reading(self) -> Reading:
        """What sums of tables show. Factors of what limits clip by the law are of all cells: another law has other clipped
        parts in all of them.
        """
        asked, prediction = self.asked, self.by_sums.prediction
        rows, values, errors, first = list[Rows](), list[Floats](), list[Floats](), int(asked.file.weights_known)
        for table, value, error in self.unclipped():
            rows.append([row[first * len(value) :] for row in rows_of(table.cell, table.mean, prediction)])
            values.append(value[:, first:].T.ravel())
            errors.append(error[:, first:].T.ravel())
        laws, observed = asked.clipped_by_laws(self.by_sums, prediction, self.limits), np.concatenate(values)
        noise = np.concatenate(errors) + (laws**2).sum(axis=1)
        prior, clipped = asked.file.prior_about(prediction), asked.clipped(self.limits, laws)
        posterior = learned(prior, stacked(rows), observed, noise, clipped, asked.laplace)
        return Reading(posterior, observed, self.first.limits)

    def totals(self, period: str) -> PeriodTotals:
        """What later periods learn from this one."""
        prediction, before = self.by_sums.prediction, self.asked.file.prediction
        of_all = next(iter(self.first.unclipped()))
        measured = [(before, of_all), *((prediction, sums) for sums in self.unclipped())]
        return self.first.totals_of(period, measured, prediction)


ReleasedSums: TypeAlias = MeasuredSums | FirstYearSums
