"""Noisy sums of all measurements, and the posterior that they give.

The posterior stays about the reference's prediction, with drift as terms of its own, so that no error of the calibration
is lost. Where numbers of records are secret, records add Σ w = Σ(w − 0) in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints, quotient_or
from dpdist.estimation.donors import PeriodTotals
from dpdist.mechanisms.tables import posterior as of_sums
from dpdist.mechanisms.tables.common_factors import common_factors
from dpdist.mechanisms.tables.conjugate import OF_LAW
from dpdist.mechanisms.tables.drift_sizes import learned
from dpdist.mechanisms.tables.followed_limits import followed_limits, steadied
from dpdist.mechanisms.tables.limits import TableLimits
from dpdist.mechanisms.tables.measurements import CommonFactors, ResidualMeasurements, UnclippedSums, with_hidden
from dpdist.mechanisms.tables.posterior import Posterior
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.residual_prior import ResidualPrior
from dpdist.mechanisms.tables.rows import (
    Matrix,
    Rows,
    RowsOfTables,
    TableEntries,
    placed_in,
    rows_by_products,
    rows_of,
    stacked,
)

STEPS, SHORTEST, SETTLED, UNSETTLED = 12, 0.05, 0.05, 0.001
"""Largest number of times that what limits clip follows the law that sums show; the least part of a step that is taken; the
change in standard errors, by a whole step, below which a sum has settled; and the part of all sums that need not settle."""


class Observed(NamedTuple):
    """Rows of all measurements and earlier totals, residual sums about the reference's prediction, variances of errors,
    what a standard error of weights' inequality adds, and factors of what limits clip, by row and by base cell's
    coordinate: all measurements clip the same records.
    """

    rows: Rows
    values: Floats
    errors: Floats
    of_inequality: Floats
    clipped: Matrix


class Reading(NamedTuple):
    """A posterior, the residual sums it is given, and limits of all measurements with what they clip by its law."""

    posterior: Posterior
    observed: Floats
    limits: tuple[TableLimits, ...]


@dataclass(frozen=True, eq=False)
class MeasuredSums:
    """Noisy sums of u, (cell, 1 + outcome), of all records first, and the limits under which they were measured.

    Sums of tables may be lacking: limits follow from those of all records.
    """

    asked: ResidualMeasurements
    calibration: CommonFactors
    calibrated: Prediction
    """The prediction about which residuals in tables are taken."""
    limits: tuple[TableLimits, ...]
    sums: Sequence[Floats]

    @classmethod
    def of(cls, asked: ResidualMeasurements, sums: Sequence[Floats], number: float | None = None) -> Self:
        """`number` is the noisy number of records, where it is secret."""
        return cls.under(asked, common_factors(asked, sums[0][0], number), sums)

    @classmethod
    def under(cls, asked: ResidualMeasurements, calibration: CommonFactors, sums: Sequence[Floats]) -> Self:
        calibrated, of_tables = asked.limits(calibration)
        return cls(asked, calibration, calibrated, (calibration.first, *of_tables), sums)

    def given(self, sums: Sequence[Floats]) -> Self:
        """With noisy sums of all measurements."""
        return replace(self, sums=sums)

    def widened(self, beyond: Floats) -> Self:
        """These sums with limits that noisy numbers of records beyond them widen, (cell, coordinate × step)."""
        return self.under(replace(self.asked, beyond=beyond), self.calibration, self.sums)

    @property
    def all_limits(self) -> tuple[TableLimits, ...]:
        """Limits of all measurements, in their order."""
        return self.limits

    def unclipped(self) -> Iterator[UnclippedSums]:
        """Residual sums about the reference's prediction, by measurement."""
        asked, file = self.asked, self.asked.file
        origins = (file.informed, *[self.calibrated] * (len(self.limits) - 1))
        for table, origin, noisy, part in zip(
            self.limits, origins, self.sums, asked.parts[: len(self.limits)], strict=True
        ):
            yield asked.unclipped(table, origin, noisy, file.prediction, part)

    def observed(self) -> Observed:
        """Public weights have no row."""
        file, rows, values, errors = self.asked.file, list[Rows](), list[Floats](), list[Floats]()
        of_inequality = list[Floats]()
        first, by_products = int(file.weights_known), self._by_products
        for table, value, error in self.unclipped():
            value = value + table.lacking
            if not by_products:
                hidden = None if file.alike else table.hidden
                of_table = rows_of(table.cell, table.mean, file.prediction, hidden, table.unequal)
                of_periods = placed_in(of_table, 0, len(file.prior_of_periods.size))
                rows.append([row[first * len(value) :] for row in of_periods])
            values.append(value[:, first:].T.ravel())
            errors.append(error[:, first:].T.ravel())
            of_inequality.append(self.calibration.inequality_error * table.added_by_inequality[:, first:].T.ravel())
        if by_products:
            cells = (np.zeros(len(file.codes), dtype=np.int32), *(cell for _, cell in file.tables))
            tables = [(cell, table.mean, table.unequal) for cell, table in zip(cells, self.limits, strict=True)]
            products = rows_by_products(tables, file.prediction, first)
            self.asked.return_memory()
            value, error, added = map(np.concatenate, (values, errors, of_inequality))
            return Observed(products, value, error, added, self._clipped_by_products(cells))
        laws: Floats | None = None
        if file.by_sums is not None:
            laws = self.asked.clipped_by_laws(file.by_sums, self.calibrated, self.limits)
        elif file.secret:
            laws = np.concatenate([table.T.ravel() for table in self._by_weights])[:, None]
        if laws is not None:
            errors = [np.concatenate(errors) + (laws**2).sum(axis=1)]
        earlier = 0
        if file.later:
            of_history, value, error = file.remembered
            rows.append(of_history)
            values.append(value)
            errors.append(error)
            of_inequality.append(np.zeros(len(value)))
            earlier = len(value)
        self.asked.return_memory()
        clipped = self.asked.clipped(self.limits, laws)
        none = scipy.sparse.csr_array((earlier, clipped.shape[1]))
        clipped = scipy.sparse.vstack([clipped, none]).tocsr()
        value, error, added = map(np.concatenate, (values, errors, of_inequality))
        return Observed(stacked(rows), value, error, added, clipped)

    @cached_property
    def _by_weights(self) -> list[Floats]:
        return self.asked.clipped_by_weights(self.calibration, self.calibrated, self.limits)

    @property
    def _by_products(self) -> bool:
        """True if sums of a file alone are so many that entries of their rows are computed at every product."""
        file = self.asked.file
        sums = sum(len(table.size) for table in self.limits) * (len(file.lowest) - file.weights_known)
        return sums > of_sums.MOST_DENSE and not (file.secret or file.alike or file.later)

    def _clipped_by_products(self, cells: Sequence[Codes]) -> RowsOfTables:
        first, root = int(self.asked.file.weights_known), np.sqrt(self.asked.file.numbers.count)
        tables = [
            tuple(TableEntries(cell, len(factors), root, factor=factor) for factor in factors[:, first:].T.copy())
            for cell, factors in zip(cells, (table.clipped_of_record for table in self.limits), strict=True)
        ]
        return RowsOfTables(tuple(tables), tuple(len(table.size) for table in self.limits), len(root), apart=True)

    def posterior(
        self, observed: Observed, moved: Prediction | None = None, previous: Posterior | None = None
    ) -> Posterior:
        """`moved` is the law that sums show: records vary as it says in cells whose public numbers have changed, or that
        have new records. `previous` is a posterior given nearly the same sums.
        """
        prior = self._prior(moved)
        rows, values, errors, of_inequality, clipped = observed
        return learned(prior, rows, values, errors, clipped, self.asked.laplace, previous, of_inequality)

    def _prior(self, moved: Prediction | None) -> ResidualPrior:
        asked, file, factors = self.asked, self.asked.file, self.calibration.factors
        prior, cells = file.prior, len(file.codes)
        if not file.secret:
            prior = prior.rescaled(_factors_of_residuals(factors, file.prediction) * self._factors_of_spread)
        if moved is not None:
            changed = np.diff(file.changes.of_cells.indptr)[:, None] > 0
            spread = np.where(changed, moved.spread, prior.spread[:cells])
            prior = prior.spreading(file.prediction.with_new_records(moved, spread))
        if asked.beyond is not None:
            prior = prior.spreading(np.maximum(prior.spread[:cells], asked.shown(self.limits[1:])))
        return prior.sized(file.numbers.times(self._growth), float(factors[0]), self._growth) if file.secret else prior

    @property
    def _factors_of_spread(self) -> Floats:
        """Factors of residuals by weights that are more unequal than the reference's, (1 + outcome,)."""
        before = self.asked.file.informed.rescaled(self.calibration.factors).spread.sum(axis=0)
        now = self.calibrated.spread.sum(axis=0)
        return quotient_or(1.0, now, before)

    @property
    def _growth(self) -> float:
        """The factor of secret numbers of records times that of weights, since the reference; 1 for public ones."""
        return self.calibration.growth * float(self.calibration.factors[0]) if self.asked.file.secret else 1.0

    @cached_property
    def reading(self) -> Reading:
        """What sums show: their limits clip what the law that they show lets expect."""
        file, sums, observed = self.asked.file, self, self.observed()
        posterior, solution = self.posterior(observed), None
        if file.changes.of_cells.nnz:
            solution = posterior.solve(observed.values, OF_LAW)
            posterior = self.posterior(observed, self._law(posterior.deviation(solution)))
        # Without a reference and for secret numbers, slopes say what is clipped; what is counted is not clipped.
        steps = 0 if file.secret or file.alike or self.asked.beyond is not None else STEPS
        errors = np.sqrt(file.numbers.count)[:, None] * file.prediction.spread
        followed, step, length = np.zeros_like(errors), np.zeros_like(errors), 1.0
        for number in range(steps):
            self.asked.return_memory()
            # A law needs few digits, and many sums hardly differ between steps.
            solution = posterior.solve(observed.values, OF_LAW, solution)
            last, step = step, posterior.deviation(solution)[: len(errors)] - followed
            length = _length(length, quotient_or(0.0, last, errors), quotient_or(0.0, step, errors)) if number else 1.0
            followed = followed + length * step
            law, before = self._law(followed), observed.values
            sums = replace(sums, limits=self._steadied(followed_limits(file, sums.limits, self.calibrated, law)))
            observed = sums.observed()
            # What limits had clipped of a drift shows more of it.
            posterior = self.posterior(observed, law, posterior)
            far = np.abs(observed.values - before) > SETTLED * length * np.sqrt(observed.errors)
            if np.count_nonzero(far) <= UNSETTLED * len(far):
                break
        return Reading(posterior.with_tails(observed.values, solution), observed.values, sums.limits)

    def _steadied(self, followed: Sequence[TableLimits]) -> tuple[TableLimits, ...]:
        """The same limits, whose errors follow noise less."""
        found, parts = list[TableLimits](), self.asked.parts
        for table, after, part, levels in zip(self.limits, followed, parts[: len(followed)], self._levels, strict=True):
            noise = self.asked.noise(part) * table.scale**2
            found.append(replace(after, loss=steadied(after.loss, table.loss, noise, levels, table.size)))
        return tuple(found)

    @cached_property
    def _levels(self) -> list[Ints]:
        """Levels of every table's columns, (cell, column)."""
        codes, columns = self.asked.file.codes, ((), *self.asked.file.columns_of_tables)
        first = (np.unique(table.cell, return_index=True)[1] for table in self.limits)
        return [codes[cells][:, list(by)] for cells, by in zip(first, columns, strict=True)]

    def _law(self, deviation: Floats) -> Prediction:
        """The law by what sums show of deviations from the reference's prediction, (cell, 1 + outcome)."""
        return self.asked.file.shifted(deviation).with_inequality(self.calibration.inequality)

    def totals(self, period: str) -> PeriodTotals:
        """What later periods learn from this one."""
        read, calibrated = replace(self, limits=self.reading.limits), self.calibrated
        # Where records have changed, later periods know how these vary.
        before, now = self._prior(None).spread, self.reading.posterior.prior.spread
        cells = len(calibrated.spread)
        ratio = quotient_or(1.0, now, before)[:cells]
        calibrated = replace(calibrated, spread=calibrated.spread * ratio)
        return read.totals_of(period, ((self.asked.file.prediction, sums) for sums in read.unclipped()), calibrated)

    def totals_of(
        self, period: str, measured: Iterable[tuple[Prediction, UnclippedSums]], calibrated: Prediction
    ) -> PeriodTotals:
        """The same of these residual sums about predictions."""
        file, spread, count = self.asked.file, calibrated.spread, self.asked.file.numbers.count
        if self.asked.beyond is not None:
            spread = np.maximum(spread, self.asked.shown(self.limits[1:]))
        row, about, total, variance, first = list[Codes](), list[Floats](), list[Floats](), list[Floats](), 0
        by_weights = iter(self._by_weights if file.secret else ())
        for prediction, (table, value, error) in measured:
            weight, outcomes = count[:, None] * prediction.means[:, :1], prediction.means[:, 1:]
            predicted = table.added(np.column_stack([weight, weight * (outcomes - table.mean[table.cell])]))
            row.append((first + table.cell).astype(np.int32))
            about.append(table.mean)
            error = error + (self.calibration.inequality_error * table.added_by_inequality) ** 2
            if file.secret:
                value, error = with_hidden(table.hidden, value, error + next(by_weights) ** 2)
            total.append(predicted + value)
            variance.append(error)
            first += len(table.size)
        return PeriodTotals(
            *(period, file.codes, count * self._growth, np.array(row)),
            np.concatenate(about),
            np.concatenate(total),
            np.concatenate(variance),
            *(calibrated.means[:, 0], spread, np.zeros(0)),
        )


def _length(length: float, last: Floats, step: Floats) -> float:
    """The part of a step to take after the `last` one, of which `length` was taken: less where steps turn back, all where
    they shrink, and half as much where they grow (dynamic relaxation of Irons and Tuck, 1969).
    """
    turn = step - last
    shrinking = -float((turn * last).sum())
    most = length * shrinking / float((turn**2).sum()) if shrinking > 0.0 else length / 2.0
    return min(max(most, SHORTEST), 1.0)


def _factors_of_residuals(factors: Floats, prediction: Prediction) -> Floats:
    """Factors of residuals from those of weights and outcomes, (1 + outcome,).

    Residuals of an outcome with gains and losses do not go with its mean, and those of one that falls go with its root.
    """
    outcomes = np.where(prediction.proportional, np.where(factors[1:] < 1.0, np.sqrt(factors[1:]), factors[1:]), 1.0)
    return np.concatenate([factors[:1], factors[0] * outcomes])
