"""The measurements of a file's tables: their parts of the budget, their noise, and the limits of records' residuals.

All records are one table without columns, measured first with limits wide enough for drift. Its noisy sums calibrate
the prediction from which records' residuals in the other tables are taken, and their limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import scipy

from dpdist.core.records import UNIT, Codes, Floats, Ints, quotient_or
from dpdist.core.sharing import PiecesInTurn, share_out
from dpdist.core.this_process import return_memory
from dpdist.mechanisms.tables.effects import PredictionBySums
from dpdist.mechanisms.tables.expected import ExpectedFile
from dpdist.mechanisms.tables.limits import STEPS_WIDER, TableLimits, even_parts
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.residual_samples import PLANNED_DRIFT, PLANNED_INEQUALITY
from dpdist.mechanisms.tables.scores import RecordScores
from dpdist.mechanisms.tables.shares import OF_SCORES, enough_for_scores, equal_parts, part_beyond, with_scores
from dpdist.mechanisms.tables.table_law import TableLaw
from dpdist.mechanisms.tables.weight_ratios import FEWEST
from dpdist.privacy.guarantees import NoisyQuery

NUMBER = Fraction(1, 50)
"""Part of the budget that measures the number of records before, where it is secret."""
LARGE = 50_000
"""Number of base cells from which stages return the memory that they have freed: they then need much."""
PART_OF_LARGE = Fraction(1, 40)
"""Part of the budget that measures the number of records with large weights."""
NOT_EXACT = 3e-5
"""Least relative error of sums: covariances of sums without any are singular."""


class CommonFactors(NamedTuple):
    """Factors of weights and outcomes since the reference, shrunk by the noise, and the relative deviation they leave.

    `first` are the limits of the first sums, with what they are expected to clip of weights and outcomes times their
    factors. `growth` is the factor on numbers of records where they are secret.
    """

    factors: Floats
    deviation: float
    first: TableLimits
    growth: float = 1.0
    error: float = 0.0
    """Relative standard error of the factor of weights."""
    inequality: float = 0.0
    """By what weights are more unequal than the reference's, and the standard error of this (`inequality`)."""
    inequality_error: float = 0.0


class UnclippedSums(NamedTuple):
    """Residual sums of a table about a prediction, and variances of their errors, (cell, 1 + outcome) each."""

    limits: TableLimits
    value: Floats
    error: Floats


@dataclass(frozen=True, eq=False)
class ResidualMeasurements:
    """What is asked of a file: sums of all records first, then of every table, each under its part of the budget."""

    file: ExpectedFile
    joint: NoisyQuery
    """The query for all measurements together, in units of 1/UNIT."""
    parts: tuple[Fraction, ...] = ()
    """Parts of the budget of all records, of every table, and of sums of scores of tables without a reference.

    They sum to 1, or to what the number of records and counts of records beyond limits leave.
    """
    beyond: Floats | None = None
    """Noisy numbers of records beyond limits of all tables, (cell, coordinate × step), once they are measured."""
    large: float | None = None
    """The noisy number of records with large weights less that of others, in units of 1/UNIT, once it is measured."""

    @property
    def under_equal_parts(self) -> Self:
        tables = len(self.file.tables)
        rest = 1 - NUMBER * self.file.secret - tables * self.part_beyond - self.part_of_large
        return replace(self, parts=equal_parts(tables, rest))

    @property
    def after_scores(self) -> Self:
        """These measurements with sums of scores of every table by a part of its own, the less the more they will show."""
        slope, of_scores = RecordScores.of(self.file).slopes(self.file).min(), list[Fraction]()
        for (_, cell), part in zip(self.file.tables, self.parts_of_tables, strict=True):
            noise = math.sqrt(self.variance(part * OF_SCORES))
            errors = quotient_or(np.inf, noise, slope * np.bincount(cell, weights=self.file.count))
            of_scores.append(enough_for_scores(float(np.median(errors)), self.power))
        return replace(self, parts=with_scores(self.parts, of_scores))

    @property
    def part_beyond(self) -> Fraction:
        """Part of the budget for every table's counts of records beyond limits: 0 unless it shows single records."""
        if self.file.first_year:
            return Fraction(0)
        coordinates = len(self.file.lowest) - self.file.weights_known
        cells = sum(int(cell.max()) + 1 for _, cell in self.file.tables)
        return part_beyond(self.joint, len(self.file.tables), coordinates, cells * coordinates * STEPS_WIDER)

    @property
    def part_of_large(self) -> Fraction:
        """Part of the budget for the number of records with large weights: 0 where noisy counts show the law of weights,
        limits clip none, weights are public, or hardly any of the reference is large.
        """
        known = self.file.weights_known or self.file.alike or self.file.secret or self.part_beyond
        return Fraction(0) if known or self.file.weight_ratios.expected < FEWEST else PART_OF_LARGE

    @property
    def with_large_weights(self) -> float | None:
        """The noisy number of records with large weights, once it is measured."""
        return None if self.large is None else (self.large / UNIT + float(self.file.count.sum())) / 2.0

    @property
    def parts_of_tables(self) -> tuple[Fraction, ...]:
        return self.parts[1 : 1 + len(self.file.tables)]

    @property
    def parts_of_scores(self) -> tuple[Fraction, ...]:
        """Parts of the budget of sums of scores of tables: none with a reference."""
        return self.parts[1 + len(self.file.tables) :]

    @property
    def laplace(self) -> bool:
        return self.joint.law == "laplace"

    @property
    def power(self) -> int:
        """The power of a part with which noise's variance falls."""
        return 2 if self.laplace else 1

    def variance(self, part: Fraction) -> float:
        """Variance of the noise on a sum of contributions under a part of the budget."""
        return self.joint.share("", part).variance / UNIT**2

    def noise(self, part: Fraction) -> Floats:
        """Variances of the noise on sums of u under a part of the budget, (1 + outcome,); pairs of them are measured where
        numbers of records are secret.
        """
        outcomes = len(self.file.lowest) - 1
        factors = [2.0 * outcomes, *[2.0] * outcomes] if self.file.secret else [1.0] * (1 + outcomes)
        return self.variance(part) * np.array(factors)

    def noises(self, limits: Sequence[TableLimits]) -> list[Floats]:
        """Variances of the noise in the rows of every measurement, (row,) each."""
        pairs = zip(limits, self.parts, strict=True)
        return [(self.noise(part) * table.scale**2)[:, int(self.file.weights_known) :].T.ravel() for table, part in pairs]

    @cached_property
    def first(self) -> TableLimits:
        """Limits of all records as one cell."""
        return self.first_limits(1.0, self.file.informed)

    def first_limits(self, growth: float, informed: Prediction, fixed: TableLimits | None = None) -> TableLimits:
        """The same for this factor on numbers of records."""
        one_cell = np.zeros(len(self.file.codes), dtype=np.int32)
        placed = np.zeros(len(self.file.reference.weight), dtype=np.int32)
        inequality_error = PLANNED_INEQUALITY if self.part_of_large else 0.0
        known = self.parts[0], self.file.wide, growth, fixed
        return self.limits_of(one_cell, placed, informed, *known, together=True, inequality_error=inequality_error)

    def limits_of(
        self,
        cell: Codes,
        placed: Ints | Codes,
        prediction: Prediction,
        part: Fraction,
        drift: float = PLANNED_DRIFT,
        growth: float = 1.0,
        fixed: TableLimits | None = None,
        narrow: bool = False,
        together: bool = False,
        inequality_error: float = 0.0,
    ) -> TableLimits:
        """Limits for `growth` times the numbers of records; their own `size` is that of the reference's numbers."""
        file, count = self.file, self.file.numbers.count
        if file.alike:
            # A noisy law is not known as well as by its many values, which are in no cell.
            placed = np.full(len(prediction.residuals.values), -1)
        ends, unknown = (file.highest, file.lowest), file.unknown(cell, prediction) if file.alike else None
        room = file.changes.room(drift, len(file.lowest), together)
        # What counts of records will widen needs no room.
        prediction = prediction if narrow else prediction.with_room()
        together = together and not file.alike
        law = TableLaw(cell, placed, growth * count, prediction, *ends, room, together, unknown, inequality_error)
        noise = self.noise(part)
        chosen = law.under(fixed) if fixed is not None else law.narrow_limits(noise) if narrow else law.limits(noise)
        if not file.secret:
            return chosen
        # Residual sums are about the reference's prediction, and so is what is clipped of them.
        size, weight = (np.bincount(cell, weights=part) for part in (count, count * file.prediction.means[:, 0]))
        return replace(chosen, size=size.astype(np.float64), beyond=chosen.hidden * (weight / size)[:, None])

    def limits(self, calibration: CommonFactors) -> tuple[Prediction, tuple[TableLimits, ...]]:
        """The calibrated prediction and the limits of every table."""
        self.return_memory()
        calibrated = self.file.informed.rescaled(calibration.factors)
        # Limits of tables without a reference follow from sums of scores.
        tables = () if self.parts_of_scores else self.file.tables
        calibrated = calibrated.with_inequality(calibration.inequality)
        drift, narrow = float(np.hypot(PLANNED_DRIFT, calibration.deviation)), self.part_beyond > 0
        light = replace(self, file=self.file.light, beyond=None)
        known = drift, calibration.growth, narrow, calibration.inequality_error
        limiting = _Limiting(light, calibrated.without_factors, *known)

        def piece(table: int) -> tuple[Codes, Codes, Fraction]:
            return tables[table][1], self.file.placed_records(table), self.parts[1 + table]

        of_tables = share_out(limiting, PiecesInTurn(piece, len(tables)))
        # Other processes' copies of the cells would take memory.
        limits = [replace(table, cell=cell) for table, (_, cell) in zip(of_tables, tables, strict=True)]
        if self.beyond is not None:
            ends = np.cumsum([len(table.size) for table in limits])[:-1]
            counts = np.split(self.beyond, ends)
            limits = [table.widened(of_table) for table, of_table in zip(limits, counts, strict=True)]
        return calibrated, tuple(limits)

    def return_memory(self) -> None:
        """Returns what the stage before has freed, where that is much."""
        if len(self.file.codes) >= LARGE:
            return_memory()

    def residual_sums(self, limits: TableLimits, origin: Prediction, noisy: Floats, about: Prediction) -> Floats:
        """Sums of residuals `about` a prediction, (cell, 1 + outcome), by noisy sums of those from the prediction `origin`:
        Σ(w − m') = Σ(w − m) − Σ(m' − m).
        """
        mean, count = limits.mean[limits.cell], self.file.numbers.count[:, None]
        offset, weight = origin.subtracted[:, None], about.means[:, :1]
        gained = count * np.column_stack(
            [offset - weight, offset * (origin.means[:, 1:] - mean) - weight * (about.means[:, 1:] - mean)]
        )
        return limits.observed(noisy) + limits.added(gained)

    def unclipped(
        self, limits: TableLimits, origin: Prediction, noisy: Floats, about: Prediction, part: Fraction
    ) -> UnclippedSums:
        """The same with what limits are expected to clip, with variances of errors by noise and clipping."""
        response = 1.0 - limits.slope
        value = self.residual_sums(limits, origin, noisy, about) - limits.expected
        least = (NOT_EXACT * np.bincount(limits.cell, weights=self.file.numbers.count * about.means[:, 0])[:, None]) ** 2
        least = least * np.column_stack([np.ones(len(limits.size)), limits.mean**2])
        errors = (self.noise(part) * limits.scale**2 + limits.loss) / response**2
        return UnclippedSums(limits, limits.expected + value / response, np.maximum(errors, least))

    def shown(self, limits: Sequence[TableLimits]) -> Floats:
        """Spreads that go with the limits of counted records, (cell, 1 + outcome): a cell has such a record in no table or
        in all, but limits that begin wide hide it.
        """
        half = 2.0 * even_parts(self.file.prediction)
        most = np.min([(table.scale / half / np.sqrt(table.size)[:, None])[table.cell] for table in limits], axis=0)
        counted = np.any([np.broadcast_to(table.counted, table.scale.shape)[table.cell] for table in limits], axis=0)
        return np.asarray(np.where(counted, most, 0.0) * (self.file.prediction.spread > 0.0))

    def clipped(self, limits: Sequence[TableLimits], laws: Floats | None = None) -> scipy.sparse.csr_array:
        """Factors of what limits clip, by row and by base cell's coordinate, and by law if those of laws are given."""
        cells, first, root = len(self.file.codes), int(self.file.weights_known), np.sqrt(self.file.numbers.count)
        coordinates, factors = len(self.file.lowest) - first, list[scipy.sparse.csr_array]()
        for table in limits:
            of_record = table.clipped_of_record[table.cell, first:]
            adding = scipy.sparse.csr_array((np.ones(cells), (table.cell, np.arange(cells))))
            by_coordinate = scipy.sparse.kron(scipy.sparse.eye_array(coordinates), adding).tocsr()
            factors.append(by_coordinate @ scipy.sparse.diags_array((of_record * root[:, None]).T.ravel()))
        stacked = scipy.sparse.vstack(factors).tocsr()
        return stacked if laws is None else scipy.sparse.hstack([stacked, scipy.sparse.csr_array(laws)]).tocsr()

    def clipped_by_weights(
        self, calibration: CommonFactors, calibrated: Prediction, limits: Sequence[TableLimits]
    ) -> list[Floats]:
        """Standard deviations of errors that all sums of all tables share where numbers of records are secret, (cell, 1 +
        outcome): what limits clip of the count goes with the factor of weights, which has an error.
        """
        file, ones = self.file, np.ones(len(self.file.lowest) - 1)
        laws = [calibrated.rescaled(np.append(np.exp(side * calibration.error), ones)) for side in (-0.5, 0.5)]
        weight = file.numbers.count * file.prediction.means[:, 0] * calibration.growth * calibration.factors[0]
        everywhere, shared = np.zeros(len(file.reference.weight), dtype=np.int32), list[Floats]()
        for k, table in enumerate(limits):
            if table.clips_none:
                shared.append(np.zeros_like(table.beyond))
                continue
            of_reference = file.placed_records(k - 1) if k else everywhere
            known = self.parts[0], PLANNED_DRIFT, calibration.growth, table
            less, more = (self.limits_of(table.cell, of_reference, law, *known).hidden for law in laws)
            shared.append((more - less) * np.bincount(table.cell, weight)[:, None])
        return shared

    def clipped_by_laws(self, by_sums: PredictionBySums, origin: Prediction, limits: Sequence[TableLimits]) -> Floats:
        """Factors of what limits clip by the law, of residuals from the prediction `origin`, (row, law): another law has
        other clipped parts in all cells.
        """
        first, factors = int(self.file.weights_known), list[Floats]()
        cells, before = len(self.file.codes), by_sums.prediction.spread
        ratio = quotient_or(0.0, origin.spread, before[:cells])
        predictions = [
            replace(origin, spread=prediction.spread[:cells] * ratio, residuals=prediction.residuals, law=prediction.law)
            for prediction in by_sums.by_law
        ]
        for table in limits:
            placed, part = np.full(0, -1), self.parts[0]
            beyond = [
                table.beyond
                if table.clips_none
                else self.limits_of(table.cell, placed, prediction, part, fixed=table).beyond
                for prediction in predictions
            ]
            differences = np.array([each - table.beyond for each in beyond]).reshape(len(beyond), *table.beyond.shape)
            differences *= table.size[:, None] / np.sqrt(max(len(beyond), 1)) / (1.0 - table.slope)
            factors.append(np.array([each[:, first:].T.ravel() for each in differences]).reshape(len(beyond), -1).T)
        return np.concatenate(factors)


@dataclass(frozen=True)
class _Limiting:
    """Work on a table, by its cell of every base cell, of every reference record, and its part of the budget: limits."""

    asked: ResidualMeasurements
    prediction: Prediction
    drift: float
    growth: float
    narrow: bool
    inequality_error: float

    def __call__(self, table: tuple[Codes, Codes, Fraction]) -> TableLimits:
        cell, placed, part = table
        known = self.prediction, part, self.drift, self.growth
        return self.asked.limits_of(cell, placed, *known, narrow=self.narrow, inequality_error=self.inequality_error)


def with_hidden(hidden: Floats, value: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Residual sums of all records, with variances, from those that lack a part of the count, (row, 1 + outcome) each."""
    count, of_count = value[:, :1] / (1.0 - hidden[:, :1]), variance[:, :1] / (1.0 - hidden[:, :1]) ** 2
    rest, errors = value[:, 1:] + hidden[:, 1:] * count, variance[:, 1:] + hidden[:, 1:] ** 2 * of_count
    return np.column_stack([count, rest]), np.column_stack([of_count, errors])
