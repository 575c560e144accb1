"""Measured tables of a file, what public data teach of them, and estimates from noisy sums: for `query` and `post`.

All records are one table without columns, measured first with limits wide enough for drift. Its noisy sums calibrate
the prediction from which records' residuals in the other tables are taken. The posterior stays about the reference's
prediction, with drift as terms of its own: Σ(w − m') = Σ(w − m) − Σ(m' − m) for the calibrated m', so that no error of
the calibration is lost. Where numbers of records are secret, records add Σ w = Σ(w − 0) in the same way. The first sums
then tell the file's size relative to its reference, by which limits and the spread of z are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import UNIT, Floats, Ints
from dpdist.mechanisms.tables.limits import PLANNED_DRIFT, TableLimits, choose, direct_variances
from dpdist.mechanisms.tables.posterior import Posterior, Prior, Rows, learned, rows_about, rows_of, stacked
from dpdist.mechanisms.tables.prediction import Prediction, ReferenceSample, predict
from dpdist.mechanisms.tables.sizes import Sizes
from dpdist.privacy.queries import NoisyQuery

FIRST = Fraction(1, 20)
"""Part of the budget that measures all records first."""
WIDE_DRIFT = 0.2
"""Relative drift of weights and outcomes that the limits of the first measurement have room for."""
NUMBER = Fraction(1, 50)
"""Part of the budget that measures the number of records before, where it is secret."""
LEAST_GROWTH, MOST_GROWTH = 1e-3, 1e3
"""Range of a file's number of records relative to its reference's, where it is secret."""
LEAST_FACTOR, MOST_FACTOR = 0.02, 50.0
"""Range of the factor of weights since the reference, where numbers of records are secret."""
CLEAR = 8.0
"""Squared standard errors of a relative change that is taken for noise where numbers of records are secret."""
FACTOR_STEPS = 5
"""Steps in which the factor of weights and what limits clip of them are found."""
PLANNED = (0.02, 0.05)
"""Relative drift that predicted errors provide for: of levels and cells, and of all cells together."""


def parts_of(tables: int, secret: bool = False) -> tuple[Fraction, ...]:
    """Parts of the budget: of all records first, then of every table; the rest is for the number of records."""
    left = 1 - NUMBER if secret else Fraction(1)
    return (FIRST, *[(left - FIRST) / tables] * tables) if tables else (left,)


class Calibration(NamedTuple):
    """Factors of weights and outcomes since the reference, shrunk by the noise, and the relative deviation they leave.

    `growth` is the factor on numbers of records where they are secret. `first` are the limits of the first sums, with
    what they are expected to clip of weights and outcomes times their factors.
    """

    factors: Floats
    deviation: float
    growth: float = 1.0
    first: TableLimits | None = None


@dataclass(frozen=True, eq=False)
class TableSystem:
    """Base cells and measured tables, with the reference.

    `codes` (cell, column) are levels, `sizes` their numbers, `count` (cell,) public numbers of records, which nothing reads
    if they are `secret`. `tables` holds the columns and the cell of every base cell by measured table, `placed` those of
    reference records, -1 for none.
    """

    codes: Ints
    sizes: tuple[int, ...]
    count: Floats
    tables: tuple[tuple[tuple[int, ...], Ints], ...]
    placed: tuple[Ints, ...]
    reference: ReferenceSample
    lowest: Floats
    highest: Floats
    """Public bounds of weight and outcomes, (1 + outcome,)."""
    joint: NoisyQuery
    """The query for all measurements together, in units of 1/UNIT."""
    weight: Floats | None = None
    """Public weights, (cell,): nothing is measured for them. None if weights are measured."""
    secret: bool = False

    def variance(self, part: Fraction) -> float:
        """Variance of the noise on a sum of contributions under a part of the budget."""
        return self.joint.share("", part).variance / UNIT**2

    @property
    def parts(self) -> tuple[Fraction, ...]:
        return parts_of(len(self.tables), self.secret)

    def noise(self, part: Fraction) -> Floats:
        """Variances of the noise on sums of u under a part of the budget, (1 + outcome,); pairs of them are measured where
        numbers of records are secret.
        """
        outcomes = len(self.lowest) - 1
        factors = [2.0 * outcomes, *[2.0] * outcomes] if self.secret else [1.0] * (1 + outcomes)
        return self.variance(part) * np.array(factors)

    @cached_property
    def prediction(self) -> Prediction:
        wanted = [by for by, _ in self.tables]
        prediction = predict(self.reference, self.codes, self.sizes, wanted, self.lowest, self.highest, self.weight)
        return replace(prediction, whole=float(self.secret))

    @cached_property
    def numbers(self) -> Sizes:
        """Numbers of records of base cells: public, or those that the reference lets expect of a file of its own size."""
        if not self.secret:
            return Sizes.public(self.count)
        return Sizes.predicted(self.codes, self.sizes, [by for by, _ in self.tables], self.reference.codes)

    @cached_property
    def first(self) -> TableLimits:
        """Limits of all records as one cell."""
        return self.first_limits(1.0)

    def first_limits(self, growth: float) -> TableLimits:
        """The same for this factor on numbers of records."""
        return self._first(self.prediction, growth)

    def _first(self, prediction: Prediction, growth: float, fixed: TableLimits | None = None) -> TableLimits:
        whole = np.zeros(len(self.codes), dtype=np.int64)
        placed = np.zeros(len(self.reference.weight), dtype=np.int64)
        return self._limits(whole, placed, prediction, self.parts[0], WIDE_DRIFT, growth, fixed)

    def _limits(
        self,
        cell: Ints,
        placed: Ints,
        prediction: Prediction,
        part: Fraction,
        drift: float,
        growth: float,
        fixed: TableLimits | None = None,
    ) -> TableLimits:
        """Limits for `growth` times the numbers of records; their own `size` is that of the reference's numbers."""
        noise, count = self.noise(part), self.numbers.count
        chosen = choose(cell, placed, growth * count, prediction, noise, self.highest, self.lowest, drift, fixed)
        if not self.secret:
            return chosen
        # Residual sums are about the reference's prediction, and so is what is clipped of them.
        size, weight = (np.bincount(cell, weights=part) for part in (count, count * self.prediction.means[:, 0]))
        return replace(chosen, size=size.astype(np.float64), beyond=chosen.hidden * (weight / size)[:, None])

    def growth(self, number: float) -> tuple[float, float]:
        """The factor on the reference's number of records by a noisy number, shrunk by the noise, and its variance."""
        records = float(self.numbers.count.sum())
        error, relative = self.variance(NUMBER) / records**2, number / records - 1.0
        spread = max(WIDE_DRIFT**2, relative**2 - CLEAR * error)
        trust = spread / (spread + error)
        return float(np.clip(1.0 + trust * relative, LEAST_GROWTH, MOST_GROWTH)), trust * error

    def calibration(self, sums: Floats, number: float | None = None) -> Calibration:
        """From the first noisy sums, (1 + outcome,), and the noisy number of records, where it is secret."""
        if number is None:
            return self._calibration(self.first, sums, 1.0, 0.0)
        growth, error = self.growth(number)
        first = self.first_limits(growth)
        calibration = self._calibration(first, sums, growth, error)
        for _ in range(FACTOR_STEPS):
            limits = self._first(self.prediction.rescaled(calibration.factors), growth, first)
            calibration = self._calibration(limits, sums, growth, error)
        return calibration

    def _calibration(self, limits: TableLimits, sums: Floats, growth: float, error: float) -> Calibration:
        """`growth` has the variance `error`."""
        prediction = self.prediction
        moved, hidden = self._residual_sums(limits, prediction, sums[None])[0], limits.hidden[0]
        errors = self.noise(self.parts[0]) * limits.scale[0] ** 2 + limits.loss[0]
        # What is clipped of a secret number of records goes with the count.
        moved[0], errors[0] = moved[0] / (1.0 - hidden[0]), errors[0] / (1.0 - hidden[0]) ** 2
        moved[1:], errors[1:] = moved[1:] + hidden[1:] * moved[0], errors[1:] + hidden[1:] ** 2 * errors[0]
        predicted = float(self.numbers.count @ prediction.means[:, 0])
        weight = growth * predicted
        moved[0] += predicted - weight
        held = max(weight + moved[0], 0.1 * weight)
        relative = np.concatenate([moved[:1] / weight, moved[1:] / held])
        # An outcome whose mean is 0 has no relative drift: its error is then beyond all trust.
        scale = np.concatenate([[1.0], np.maximum(np.abs(limits.mean[0]), 1e-100)])
        relative, variance = relative / scale, errors / (weight * scale) ** 2
        variance[0] += error / growth**2
        spread = np.full(len(scale), WIDE_DRIFT**2)
        if self.secret:
            spread[0] = max(spread[0], relative[0] ** 2 - CLEAR * variance[0])
        trust = spread / (spread + variance)
        if self.weight is not None:
            trust[0] = 0.0
        least, most = (LEAST_FACTOR, MOST_FACTOR) if self.secret else (0.5, 2.0)
        factors = np.clip(1.0 + trust * relative, [least, *[0.5] * (len(scale) - 1)], [most, *[2.0] * (len(scale) - 1)])
        # Limits have room for drift relative to outcomes' means and spread, and factors are relative to means alone.
        outcomes = self.numbers.count @ prediction.spread[:, 1:] / predicted
        part = np.concatenate([[1.0], scale[1:] / np.hypot(scale[1:], outcomes)])
        return Calibration(factors, float((np.sqrt(trust * variance) * part).max()), growth, limits)

    def limits(self, calibration: Calibration) -> tuple[Prediction, tuple[TableLimits, ...]]:
        """The calibrated prediction and the limits of every table."""
        calibrated = self.prediction.rescaled(calibration.factors)
        drift = float(np.hypot(PLANNED_DRIFT, calibration.deviation))
        of_tables = [
            self._limits(cell, placed, calibrated, part, drift, calibration.growth)
            for (_, cell), placed, part in zip(self.tables, self.placed, self.parts[1:], strict=True)
        ]
        return calibrated, tuple(of_tables)

    @cached_property
    def prior(self) -> Prior:
        """The law of z before the measurement, for a file of the reference's size if numbers of records are secret."""
        return Prior.of(self.prediction, self.numbers, list(self.codes.T), [cell for _, cell in self.tables])

    def observed(
        self,
        calibrated: Prediction,
        limits: Sequence[TableLimits],
        sums: Sequence[Floats],
        of_all: TableLimits | None = None,
    ) -> tuple[Rows, Floats, Floats]:
        """Rows of all measurements, residual sums about the reference's prediction, and variances of their errors.

        `sums` (cell, 1 + outcome) are noisy sums of u, of all records first, whose limits are the system's own or
        `of_all`. Public weights have no row.
        """
        rows, values, errors, first = list[Rows](), list[Floats](), list[Floats](), int(self.weight is not None)
        predictions = (self.prediction, *[calibrated] * len(limits))
        for one, taken, noisy, part in zip((of_all or self.first, *limits), predictions, sums, self.parts, strict=True):
            value = self._residual_sums(one, taken, noisy)
            rows.append([row[first * len(value) :] for row in rows_of(one.cell, one.mean, self.prediction, one.hidden)])
            values.append(value[:, first:].T.ravel())
            errors.append((self.noise(part) * one.scale**2 + one.loss)[:, first:].T.ravel())
        return stacked(rows), np.concatenate(values), np.concatenate(errors)

    def _residual_sums(self, limits: TableLimits, prediction: Prediction, noisy: Floats) -> Floats:
        """Sums of residuals from the reference's prediction, (cell, 1 + outcome), by noisy sums taken about another one."""
        about, count = limits.mean[limits.cell], self.numbers.count[:, None]
        taken, weight = prediction.subtracted[:, None], self.prediction.means[:, :1]
        gained = count * np.column_stack(
            [taken - weight, taken * (prediction.means[:, 1:] - about) - weight * (self.prediction.means[:, 1:] - about)]
        )
        cells = len(limits.size)
        added = [np.bincount(limits.cell, weights=column, minlength=cells) for column in gained.T]
        return limits.observed(noisy) + np.column_stack(added)

    def posterior(self, rows: Rows, observed: Floats, errors: Floats, calibration: Calibration | None = None) -> Posterior:
        """`calibration` is that of the first sums, by which z varies where numbers of records are secret."""
        if not self.secret or calibration is None:
            return learned(self.prior, rows, observed, errors)
        weight = float(calibration.factors[0])
        sizes = self.numbers.times(calibration.growth * weight)
        return learned(replace(self.prior, sizes=sizes, weight=weight), rows, observed, errors)

    @cached_property
    def planned(self) -> Posterior:
        """The posterior before the current file is read, under the planned drift."""
        calibrated, limits = self.limits(Calibration(np.ones(len(self.lowest)), 0.0))
        every = [np.zeros((len(one.size), len(self.lowest))) for one in (self.first, *limits)]
        rows, _, errors = self.observed(calibrated, limits, every)
        return Posterior(self.prior.drifting(*PLANNED), rows, errors)

    def errors_of_rows(self, published: scipy.sparse.csr_array) -> PredictedErrors:
        """Predicted errors of published cells, given as rows of base cells, (published cell, cell)."""
        prediction, size = self.prediction, self.numbers.count
        weight = size * prediction.means[:, 0]
        held = np.maximum(published @ weight, 1e-300)
        mean = np.column_stack([published @ (weight * one) / held for one in prediction.means[:, 1:].T])
        rows = rows_about(published, mean, prediction)
        variance = self.planned.variances(rows).reshape(1 + mean.shape[1], len(held)).T
        total_rows = rows_about(published, np.zeros_like(mean), prediction)
        of_totals = self.planned.variances(total_rows).reshape(1 + mean.shape[1], len(held)).T
        direct = direct_variances(published, size, mean, prediction)
        # Direct errors of counts and totals have those of a cell's number of records as well.
        squares = direct_variances(published, size, np.zeros_like(mean), prediction)
        squares[:, 0] = published @ (size * (prediction.spread[:, 0] ** 2 + prediction.means[:, 0] ** 2))
        sums = held[:, None] * np.column_stack([np.ones(len(held)), mean])
        sampled = np.maximum(squares - sums**2 / size.sum(), 0.0)
        places = prediction.places[prediction.places >= 0]
        of_reference = published @ np.bincount(places, minlength=len(weight)).astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(of_reference > 0.0, published @ size / of_reference, np.nan)
        return PredictedErrors(held, mean, variance, of_totals, direct, sampled, ratio)


class PredictedErrors(NamedTuple):
    """Predicted variances of published cells: of counts and of means times counts, of totals, and direct ones given numbers
    of records, (cell, 1 + outcome) each.

    `sampled` (cell, 1 + outcome) are direct variances of counts and totals, and `ratio` (cell,) is the number of the
    file's records over the reference's.
    """

    held: Floats
    mean: Floats
    variance: Floats
    of_totals: Floats
    direct: Floats
    sampled: Floats
    ratio: Floats

    def means(self, k: int) -> tuple[Floats, Floats, Floats]:
        """Errors of the release and of the reference alone, and direct standard errors, of counts (0) or of means."""
        size = self.held if k == 0 else self.held * np.abs(self.mean[:, k - 1])
        direct = self.direct[:, k]
        return self._roots(self.variance[:, k], direct, PLANNED[1] * size, direct if k else self.sampled[:, 0])

    def totals(self, k: int) -> tuple[Floats, Floats, Floats]:
        """The same of totals."""
        about = self.mean[:, k - 1]
        direct = self.direct[:, k] + about**2 * self.direct[:, 0]
        drift = PLANNED[1] * self.held * np.abs(about)
        return self._roots(self.of_totals[:, k], direct, drift, self.sampled[:, k])

    def _roots(self, variance: Floats, direct: Floats, drift: Floats, unit: Floats) -> tuple[Floats, Floats, Floats]:
        return np.sqrt(variance), np.sqrt(direct * (1.0 + self.ratio) + drift**2), np.sqrt(unit)
