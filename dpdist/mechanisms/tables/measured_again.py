"""Second measurements of tables, where one prediction serves all cells: the first ones tell cells apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeAlias

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.estimation.donors import PeriodTotals
from dpdist.mechanisms.tables.drift_sizes import learned
from dpdist.mechanisms.tables.effects import Families, NoisyCellSums, PredictionBySums, predicted_by_sums
from dpdist.mechanisms.tables.limits import TableLimits
from dpdist.mechanisms.tables.measured_sums import MeasuredSums, Reading
from dpdist.mechanisms.tables.measurements import CommonFactors, ResidualMeasurements, UnclippedSums
from dpdist.mechanisms.tables.rows import Rows, rows_of, stacked


@dataclass(frozen=True, eq=False)
class MeasuredAgain:
    """Noisy sums of tables' second measurements, and limits by what the first ones tell of cells."""

    first: MeasuredSums
    by_sums: PredictionBySums
    limits: tuple[TableLimits, ...]
    sums: Sequence[Floats]

    @classmethod
    def after(cls, first: MeasuredSums, sums: Sequence[Floats] = ()) -> Self:
        asked, file = first.asked, first.asked.file
        base = np.arange(len(file.codes))
        families = Families.of([*file.codes.T, *(cell for _, cell in file.tables)], file.count)
        unclipped = list(first.unclipped())
        adding = [scipy.sparse.csr_array((np.ones(len(base)), (table.cell, base))) for table, *_ in unclipped]
        columns = zip(*((table.mean, value, error) for table, value, error in unclipped), strict=True)
        measured = NoisyCellSums(scipy.sparse.vstack(adding).tocsr(), *map(np.concatenate, columns))
        before = file.reference, file.prediction, families, file.count, file.lowest, file.highest
        by_sums = predicted_by_sums(*before, measured, file.weights_known, file.laws)
        limits = [
            asked.limits_of(cell, file.placed_records(k), by_sums.prediction, part)
            for k, ((_, cell), part) in enumerate(zip(file.tables, asked.parts_again, strict=True))
        ]
        return cls(first, by_sums, tuple(limits), sums)

    @property
    def asked(self) -> ResidualMeasurements:
        return self.first.asked

    @property
    def calibration(self) -> CommonFactors:
        return self.first.calibration

    @property
    def limits_in_turn(self) -> tuple[TableLimits, ...]:
        return (*self.first.limits, *self.limits)

    def unclipped(self) -> Iterator[UnclippedSums]:
        """Residual sums about the prediction by the first measurements."""
        prediction = self.by_sums.prediction
        for table, noisy, part in zip(self.limits, self.sums, self.asked.parts_again, strict=True):
            yield self.asked.unclipped(table, prediction, noisy, prediction, part)

    @cached_property
    def reading(self) -> Reading:
        """What second sums show. Factors of what limits clip by the law are of all cells: another law has other clipped
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
        measured = [(before, sums) for sums in self.first.unclipped()] + [(prediction, sums) for sums in self.unclipped()]
        return self.first.totals_of(period, measured, prediction)


ReleasedSums: TypeAlias = MeasuredSums | MeasuredAgain
