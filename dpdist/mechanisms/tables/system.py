"""The measured tables of a file: what the reference predicts of them, their limits, and estimates from their noisy sums.

All records are one table without columns, measured first with limits wide enough for drift. Its noisy sums calibrate
the prediction from which records' residuals in the other tables are taken. The posterior stays about the reference's
prediction, with drift as terms of its own: Σ(w − m') = Σ(w − m) − Σ(m' − m) for the calibrated m', so that no error of
the calibration is lost. Where numbers of records are secret, records add Σ w = Σ(w − 0) in the same way. The first sums
then tell the file's size relative to its reference, by which limits and the spread of z are chosen.

Totals of earlier periods are further rows of the posterior. Before the file is measured they move the prediction from which
residuals are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.keys import digest
from dpdist.core.records import UNIT, Codes, Floats, Ints
from dpdist.core.sharing import share_out
from dpdist.core.this_process import return_memory
from dpdist.estimation.donors import PeriodTotals
from dpdist.mechanisms.tables import posterior as of_sums
from dpdist.mechanisms.tables.drift_sizes import STABLE, learned
from dpdist.mechanisms.tables.effects import Families, NoisyCellSums, PredictionBySums, predicted_by_sums
from dpdist.mechanisms.tables.learners import recalled
from dpdist.mechanisms.tables.limits import (
    STEPS_WIDER,
    TableLimits,
    choose,
    following,
    left_of_changes,
)
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.posterior import Posterior
from dpdist.mechanisms.tables.predicted import PredictedCells, PredictedErrors
from dpdist.mechanisms.tables.prediction import Prediction, learners_of, of_one_law, predict
from dpdist.mechanisms.tables.random_effects import Loadings
from dpdist.mechanisms.tables.residual_prior import PeriodCells, ResidualPrior
from dpdist.mechanisms.tables.residual_samples import PLANNED_DRIFT
from dpdist.mechanisms.tables.rows import (
    FigureRows,
    Matrix,
    Rows,
    RowsOfTables,
    TableEntries,
    placed_in,
    rows_about,
    rows_by_products,
    rows_of,
    stacked,
)
from dpdist.mechanisms.tables.shares import PublishedTable, Target, best_parts, equal_parts, in_turn, part_beyond
from dpdist.mechanisms.tables.sizes import NumberChanges, Sizes, changes_in_sums, changes_in_turn
from dpdist.mechanisms.tables.spec import EFFECTS, PredictionName
from dpdist.mechanisms.tables.workload import AddedCells
from dpdist.privacy.guarantees import NoisyQuery

WIDE_DRIFT = 0.2
"""Relative drift of weights and outcomes that the limits of the first measurement have room for."""
NUMBER = Fraction(1, 50)
"""Part of the budget that measures the number of records before, where it is secret."""
WIDEST_DRIFT = 0.5
"""The same where a noisy law is known, and no reference."""
LEAST_GROWTH, MOST_GROWTH = 1e-3, 1e3
"""Range of a file's number of records relative to its reference's, where it is secret."""
LEAST_FACTOR, MOST_FACTOR = 0.02, 50.0
"""Range of the factor of weights since the reference, where numbers of records are secret."""
CLEAR = 8.0
"""Squared standard errors of a relative change that is taken for noise where numbers of records are secret."""
FACTOR_STEPS = 5
"""Steps in which the factor of weights and what limits clip of them are found."""
FAR = 0.5
"""Relative change of a base cell's means beyond which sums show less of it than of their other cells."""
LARGE = 50_000
"""Number of base cells from which stages return the memory that they have freed: they then need much."""
MOST_CALIBRATIONS = 3
"""Number of calibrations whose limits are kept."""
STEPS, SETTLED, UNSETTLED = 6, 0.05, 0.001
"""Largest number of times that what limits clip follows the law that sums show; the change in standard errors below which a
sum has settled; and the part of all sums that need not settle."""
NOT_EXACT = 3e-5
"""Least relative error of sums: covariances of sums without any are singular."""
PLANNED = (0.005, 0.015)
"""Relative drift in predicted errors, of levels and cells, and of all cells together: what the posterior allows for where
the file has not drifted, because noise hides it."""


class CommonFactors(NamedTuple):
    """Factors of weights and outcomes since the reference, shrunk by the noise, and the relative deviation they leave.

    `growth` is the factor on numbers of records where they are secret. `first` are the limits of the first sums, with
    what they are expected to clip of weights and outcomes times their factors.
    """

    factors: Floats
    deviation: float
    growth: float = 1.0
    first: TableLimits | None = None


class Reading(NamedTuple):
    """A posterior, the residual sums it is given, and limits of all measurements with what they clip by its law."""

    posterior: Posterior
    observed: Floats
    limits: tuple[TableLimits, ...]


@dataclass(frozen=True, eq=False)
class TableSystem:
    """Base cells and measured tables, with the reference.

    `codes` (cell, column) are levels, `sizes` their numbers, `count` (cell,) public numbers of records, which nothing reads
    if they are `secret`. `tables` holds the columns and the cell of every base cell by measured table, `placed` those of
    the reference's crosses, -1 for none.
    """

    codes: Ints
    sizes: tuple[int, ...]
    count: Floats
    tables: tuple[tuple[tuple[int, ...], Ints], ...]
    placed: tuple[Codes, ...]
    reference: ReferenceSample
    lowest: Floats
    highest: Floats
    """Public bounds of weight and outcomes, (1 + outcome,)."""
    joint: NoisyQuery
    """The query for all measurements together, in units of 1/UNIT."""
    weight: Floats | None = None
    """Public weights, (cell,): nothing is measured for them. None if weights are measured."""
    secret: bool = False
    history: tuple[PeriodTotals, ...] = ()
    """Totals of earlier periods since the reference, the earliest first; none where numbers of records are secret."""
    published: tuple[PublishedTable, ...] = ()
    """What the tables show, with their priorities; if empty, the measured cells."""
    largest: bool = False
    """True if the largest error of a figure shall be least, and not the mean squared one."""
    laws: tuple[ReferenceSample, ...] = ()
    """Other laws that noisy counts may have meant, where there is no reference."""
    beyond: Floats | None = None
    """Noisy numbers of records beyond limits of all tables, (cell, coordinate × step), once they are measured."""
    alike: bool = False
    """True if `reference` is a sample of one law for all cells, which no reference taught: its records are in no cell."""
    learner: PredictionName = EFFECTS
    """What learns from the reference."""
    of_trees: Floats | None = None
    """What trees have predicted, if they are grown (`Prediction.of_trees`)."""

    def variance(self, part: Fraction) -> float:
        """Variance of the noise on a sum of contributions under a part of the budget."""
        return self.joint.share("", part).variance / UNIT**2

    @cached_property
    def parts(self) -> tuple[Fraction, ...]:
        """Parts of the budget, of all records first, then of every table: those of the least predicted error.

        They sum to 1, or to what the number of records and counts of records beyond limits leave.
        """
        equal = equal_parts(len(self.tables), self._rest)
        if self.first_year or not self.tables:
            return in_turn(equal) if self.first_year else equal
        return best_parts(self.at_equal.posterior, self.target, equal, self.at_equal.noise, self._power)

    @property
    def part_beyond(self) -> Fraction:
        """Part of the budget for every table's counts of records beyond limits: 0 unless it shows single records."""
        if self.first_year:
            return Fraction(0)
        coordinates = len(self.lowest) - (self.weight is not None)
        cells = sum(int(cell.max()) + 1 for _, cell in self.tables)
        return part_beyond(self.joint, len(self.tables), coordinates, cells * coordinates * STEPS_WIDER)

    @property
    def _rest(self) -> Fraction:
        return 1 - NUMBER * self.secret - len(self.tables) * self.part_beyond

    @property
    def parts_again(self) -> tuple[Fraction, ...]:
        """Parts of the budget of tables that are measured a second time."""
        return self.parts[1 + len(self.tables) :]

    @property
    def _power(self) -> int:
        """The power of a part with which noise's variance falls."""
        return 2 if self.laplace else 1

    @property
    def laplace(self) -> bool:
        return self.joint.law == "laplace"

    def noise(self, part: Fraction) -> Floats:
        """Variances of the noise on sums of u under a part of the budget, (1 + outcome,); pairs of them are measured where
        numbers of records are secret.
        """
        outcomes = len(self.lowest) - 1
        factors = [2.0 * outcomes, *[2.0] * outcomes] if self.secret else [1.0] * (1 + outcomes)
        return self.variance(part) * np.array(factors)

    def sharing(self, parts: tuple[Fraction, ...]) -> TableSystem:
        """This system with these parts of the budget."""
        copy = self.under(self.joint)
        copy.__dict__["parts"] = parts
        return copy

    def widened(self, beyond: Floats) -> TableSystem:
        """This system with limits that noisy numbers of records beyond them widen, (cell, coordinate × step)."""
        copy = replace(self, beyond=beyond)
        copy.__dict__.update({**self.sharing(self.parts).__dict__, "beyond": beyond, "_limits_known": {}})
        return copy

    def under(self, joint: NoisyQuery) -> TableSystem:
        """This system with another budget: what does not depend on noise stays."""
        of_all = ("at_crosses", "prediction", "informed", "numbers", "_prior", "prior", "_limits_known")
        copy = replace(self, joint=joint)
        copy.__dict__.update({name: getattr(self, name) for name in of_all})
        further = ("figures", "target", "rows_of_totals", "at_equal")
        of_figures = {name: self.__dict__[name] for name in further if name in self.__dict__}
        if joint is not self.joint and "at_equal" in of_figures:
            before = copy.__dict__["before"] = of_figures.pop("at_equal").posterior
            # Best parts of many sums take long, and are nearly the same under other budgets.
            if "parts" in self.__dict__ and not before.dense and self._rest == copy._rest:
                copy.__dict__["parts"] = self.parts
        copy.__dict__.update(of_figures)
        return copy

    @cached_property
    def before(self) -> Posterior | None:
        """The planned posterior under another budget, if it is known."""
        return None

    @cached_property
    def figures(self) -> tuple[PredictedCells, ...]:
        """Published cells by table, as they are predicted."""
        tables = [table.cells for table in self.published] or [
            AddedCells.of(scipy.sparse.csr_array((np.ones(len(cell)), (cell, np.arange(len(cell))))))
            for _, cell in self.tables
        ]
        return tuple(PredictedCells.of(cells, self.numbers.count, self.informed) for cells in tables)

    @cached_property
    def target(self) -> Target:
        """Counts and means of all published cells."""
        worths = [table.worth for table in self.published] or [np.ones(len(self.lowest))] * len(self.tables)
        weights = list[Floats]()
        for figures, worth in zip(self.figures, worths, strict=True):
            relative = np.column_stack([np.ones(len(figures.total_weight)), figures.mean**2])
            positive = figures.unit > 1e-9 * figures.total_weight[:, None] ** 2 * relative
            weight = worth * np.where(positive, 1.0 / np.where(positive, figures.unit, 1.0), 0.0)
            weights.append((weight if self.largest else weight / np.maximum(positive.sum(axis=0), 1)).T.ravel())
        rows = self._rows((figures.cells, figures.mean) for figures in self.figures)
        return Target(rows, np.concatenate(weights), self.largest)

    @cached_property
    def rows_of_totals(self) -> FigureRows:
        """Rows of counts and totals of all published cells."""
        return self._rows((figures.cells, np.zeros_like(figures.mean)) for figures in self.figures)

    def _rows(self, tables: Iterable[tuple[AddedCells, Floats]]) -> FigureRows:
        """Rows of residuals about the reference's prediction."""
        return FigureRows(tuple(tables), self.prediction.means, len(self._prior.size))

    @cached_property
    def combinations(self) -> tuple[Ints, list[Ints]]:
        """Codes of base cells, then of further crosses of earlier periods; and the cross of every earlier base cell."""
        return union_of_codes(self.codes, [totals.codes for totals in self.later])

    @property
    def root(self) -> PeriodTotals | None:
        """The first period of a chain that began without a reference: its sums tell cells apart."""
        return self.history[0] if self.alike and self.history else None

    @property
    def later(self) -> tuple[PeriodTotals, ...]:
        """Earlier periods after the reference, or after the chain's first period without one."""
        return self.history[1:] if self.root is not None else self.history

    @property
    def first_year(self) -> bool:
        """True if neither a reference nor an earlier period tells cells apart."""
        return self.alike and not self.history

    @cached_property
    def at_crosses(self) -> Prediction:
        """What the reference's records predict, or noisy sums of the first period."""
        if self.by_sums is not None:
            return self.by_sums.prediction
        (codes, places), weight = self.combinations, self.weight
        if weight is not None and self.history:
            weight = self._known_weights(codes, self.later, places)
        if self.alike:
            return self._of_one_law(codes, weight)
        public = self.sizes, [by for by, _ in self.tables], self.lowest, self.highest
        if self.of_trees is None:
            learners = learners_of(self.learner, self.reference, *public, weight is not None)
        else:
            learners = recalled(self.of_trees)
        prediction = predict(self.reference, codes, *public, weight, learners)
        return replace(prediction, adds_weight=self.secret)

    def _known_weights(self, codes: Ints, periods: Sequence[PeriodTotals], places: Sequence[Ints]) -> Floats:
        """Public weights of crosses: the file's, then those that periods state, (cross,)."""
        weight = np.ones(len(codes))
        for totals, cross in zip(periods, places, strict=True):
            weight[cross] = totals.weight
        if self.weight is not None:
            weight[: len(self.codes)] = self.weight
        return weight

    @cached_property
    def by_sums(self) -> PredictionBySums | None:
        """What the first period's noisy sums tell of crosses, if the chain began without a reference."""
        if self.root is None:
            return None
        combinations = self.combinations[0]
        codes, (cross,) = union_of_codes(combinations, [self.root.codes])
        weights_known, weight = self.weight is not None, None
        if weights_known:
            weight = self._known_weights(codes, self.later, self.combinations[1])
            weight[cross] = self.root.weight
        before = self._of_one_law(codes, weight)
        count = np.bincount(cross, weights=self.root.count, minlength=len(codes)).astype(np.float64)
        indices = [np.unique(codes[:, list(by)], axis=0, return_inverse=True)[1].reshape(-1) for by, _ in self.tables]
        families = Families.of([*codes.T, *indices], count)
        sums = _cell_sums(self.root, cross, before)
        by_sums = predicted_by_sums(
            self.reference, before, families, count, self.lowest, self.highest, sums, weights_known, self.laws
        )
        predictions = [prediction.within(len(combinations)) for prediction in (by_sums.prediction, *by_sums.by_law)]
        if weights_known:
            weight = self._known_weights(combinations, self.later, self.combinations[1])
            predictions = [prediction.weighing(weight) for prediction in predictions]
        return PredictionBySums(predictions[0], tuple(predictions[1:]))

    def _of_one_law(self, codes: Ints, weight: Floats | None) -> Prediction:
        law, ones = self.reference, np.ones(len(codes))
        outcomes = np.average(law.outcomes, weights=np.maximum(law.weight, 1e-300), axis=0)
        base = max(float(law.weight.mean()), 1e-300) * ones if weight is None else weight
        return of_one_law(law, np.column_stack([base, np.outer(ones, outcomes)]), self.lowest, weight is not None)

    @cached_property
    def prediction(self) -> Prediction:
        """What the reference's records predict at base cells of the file."""
        return self.at_crosses.within(len(self.codes)) if self.later else self.at_crosses

    @cached_property
    def informed(self) -> Prediction:
        """What the reference and earlier periods predict: residuals of all records are taken from it."""
        if not self.later:
            return self.prediction
        rows, observed, errors = self._remembered
        z = learned(self._prior, rows, observed, errors, laplace=self.laplace).estimate(observed)[: len(self.count)]
        residuals = z / self.numbers.count[:, None]
        if self.secret:
            # Sums of weights go with secret numbers of records, which the file's own first sums tell.
            residuals[:, 0] = 0.0
        return self.prediction.shifted(residuals, self.lowest, self.highest)

    @cached_property
    def _remembered(self) -> tuple[Rows, Floats, Floats]:
        """Rows of earlier periods' totals, residual sums about the reference's prediction, variances of their errors."""
        rows, values, errors = list[Rows](), list[Floats](), list[Floats]()
        place, cells, first = len(self.codes), len(self._prior.size), int(self.weight is not None)
        for totals, cross in zip(self.later, self.combinations[1], strict=True):
            means = self.at_crosses.means[cross].copy()
            if self.weight is not None:
                means[:, 0] = totals.weight
            prediction = replace(self.at_crosses, means=means)
            # Where numbers are secret, residual sums are about those of a file of the reference's size.
            about_numbers = replace(totals, count=self.numbers.count[cross]) if self.secret else totals
            adding, about, observed, error = _cell_sums(about_numbers, np.arange(len(cross)), prediction)
            of_history = placed_in(rows_about(adding, about, prediction), place, cells)
            rows.append([part[first * len(about) :] for part in of_history])
            values.append(observed[:, first:].T.ravel())
            errors.append(error[:, first:].T.ravel())
            place += len(cross)
        return stacked(rows), np.concatenate(values), np.concatenate(errors)

    @property
    def _placed_records(self) -> Iterator[Codes]:
        """The cell of every reference record by measured table, (record,), -1 for none."""
        return map(self.reference.of_records, self.placed)

    @property
    def wide(self) -> float:
        return WIDEST_DRIFT if self.first_year else WIDE_DRIFT

    @cached_property
    def numbers(self) -> Sizes:
        """Numbers of records of base cells: public, or those that the reference lets expect of a file of its own size."""
        if not self.secret:
            return Sizes.public(self.count)
        of_reference = self.reference.of_records(self.reference.codes)
        return Sizes.predicted(self.codes, self.sizes, [by for by, _ in self.tables], of_reference)

    @property
    def _numbers_of_reference(self) -> tuple[Codes, Floats]:
        """Codes of the reference's crosses, and their numbers of records."""
        crosses = len(self.reference.codes)
        number = np.bincount(self.reference.of_records(np.arange(crosses)), minlength=crosses)
        return self.reference.codes, number.astype(np.float64)

    @cached_property
    def changes(self) -> NumberChanges:
        """Drift of weights that public numbers of records let expect since the last period, or since the reference."""
        if self.secret or self.first_year or self.weight is not None:
            return NumberChanges.none(len(self.codes))
        before = (self.history[-1].codes, self.history[-1].count) if self.history else self._numbers_of_reference
        return NumberChanges.of(self.codes, self.count, [by for by, _ in self.tables], *before)

    @cached_property
    def first(self) -> TableLimits:
        """Limits of all records as one cell."""
        return self.first_limits(1.0)

    def first_limits(self, growth: float) -> TableLimits:
        """The same for this factor on numbers of records."""
        return self._first(self.informed, growth)

    def _first(self, prediction: Prediction, growth: float, fixed: TableLimits | None = None) -> TableLimits:
        one_cell = np.zeros(len(self.codes), dtype=np.int64)
        placed = np.zeros(len(self.reference.weight), dtype=np.int32)
        return self._limits(one_cell, placed, prediction, self.parts[0], self.wide, growth, fixed, together=True)

    def _limits(
        self,
        cell: Ints,
        placed: Ints | Codes,
        prediction: Prediction,
        part: Fraction,
        drift: float,
        growth: float,
        fixed: TableLimits | None = None,
        narrow: bool = False,
        together: bool = False,
    ) -> TableLimits:
        """Limits for `growth` times the numbers of records; their own `size` is that of the reference's numbers."""
        noise, count = self.noise(part), self.numbers.count
        if self.alike:
            # A noisy law is not known as well as by its many values, which are in no cell.
            placed = np.full(len(prediction.residuals), -1)
        ends, unknown = (self.highest, self.lowest), self._unknown(cell, prediction) if self.alike else None
        room = self.changes.room(drift, len(self.lowest), together)
        of_law = cell, placed, growth * count, prediction, noise, *ends, room, fixed, unknown, narrow
        chosen = choose(*of_law, together=together and not (self.secret or self.alike))
        if not self.secret:
            return chosen
        # Residual sums are about the reference's prediction, and so is what is clipped of them.
        size, weight = (np.bincount(cell, weights=part) for part in (count, count * self.prediction.means[:, 0]))
        return replace(chosen, size=size.astype(np.float64), beyond=chosen.hidden * (weight / size)[:, None])

    def _unknown(self, cell: Ints, prediction: Prediction) -> Floats:
        """Variances of errors of a prediction without a reference, in sums over cells, (cell, 1 + outcome)."""
        relative = np.sqrt(np.column_stack([load.variance for load in prediction.loadings]))
        errors = np.where(relative > 0.0, relative * prediction.spread, self.wide * prediction.drifting)
        return np.column_stack([np.bincount(cell, weights=self.count * error) ** 2 for error in errors.T])

    def growth(self, number: float) -> tuple[float, float]:
        """The factor on the reference's number of records by a noisy number, shrunk by the noise, and its variance."""
        records = float(self.numbers.count.sum())
        error, relative = self.variance(NUMBER) / records**2, number / records - 1.0
        spread = max(WIDE_DRIFT**2, relative**2 - CLEAR * error)
        trust = spread / (spread + error)
        return float(np.clip(1.0 + trust * relative, LEAST_GROWTH, MOST_GROWTH)), trust * error

    def calibration(self, sums: Floats, number: float | None = None) -> CommonFactors:
        """From the first noisy sums, (1 + outcome,), and the noisy number of records, where it is secret."""
        if number is None:
            return self._calibration(self.first, sums, 1.0, 0.0)
        growth, error = self.growth(number)
        first = self.first_limits(growth)
        calibration = self._calibration(first, sums, growth, error)
        for _ in range(FACTOR_STEPS):
            limits = self._first(self.informed.rescaled(calibration.factors), growth, first)
            calibration = self._calibration(limits, sums, growth, error)
        return calibration

    def _calibration(self, limits: TableLimits, sums: Floats, growth: float, error: float) -> CommonFactors:
        """`growth` has the variance `error`."""
        prediction = self.informed
        residual, hidden = self._residual_sums(limits, prediction, sums[None], prediction)[0], limits.hidden[0]
        errors = self.noise(self.parts[0]) * limits.scale[0] ** 2 + limits.loss[0]
        # What is clipped of a secret number of records goes with the count.
        residual[0], errors[0] = residual[0] / (1.0 - hidden[0]), errors[0] / (1.0 - hidden[0]) ** 2
        residual[1:], errors[1:] = (
            residual[1:] + hidden[1:] * residual[0],
            errors[1:] + hidden[1:] ** 2 * errors[0],
        )
        predicted = float(self.numbers.count @ prediction.means[:, 0])
        weight = growth * predicted
        residual[0] += predicted - weight
        total_weight = max(weight + residual[0], 0.1 * weight)
        relative = np.concatenate([residual[:1] / weight, residual[1:] / total_weight])
        # An outcome whose mean is 0 has no relative drift: its error is then beyond all trust.
        scale = np.concatenate([[1.0], np.maximum(np.abs(limits.mean[0]), 1e-100)])
        relative, variance = relative / scale, errors / (weight * scale) ** 2
        variance[0] += error / growth**2
        spread = np.full(len(scale), self.wide**2)
        if self.secret:
            spread[0] = max(spread[0], relative[0] ** 2 - CLEAR * variance[0])
        elif stays := self.changes.of_all:
            # The file has a sample of another size, or a population of another size.
            sizes = variance[0] + self.wide**2 * np.array([1.0, (1.0 + stays) ** 2])
            odds = np.log([1.0 - STABLE, STABLE]) - 0.5 * np.log(sizes)
            odds -= 0.5 * (relative[0] - np.array([0.0, stays])) ** 2 / sizes
            spread[0] += stays**2 * scipy.special.expit(odds[1] - odds[0])
        trust = spread / (spread + variance)
        if self.weight is not None:
            trust[0] = 0.0
        least, most = (LEAST_FACTOR, MOST_FACTOR) if self.secret else np.sort([1.0, 1.0 + self.changes.of_all]) * [0.5, 2.0]
        factors = np.clip(1.0 + trust * relative, [least, *[0.5] * (len(scale) - 1)], [most, *[2.0] * (len(scale) - 1)])
        # Limits have room for drift relative to outcomes' means and spread, and factors are relative to means alone.
        outcomes = self.numbers.count @ prediction.spread[:, 1:] / predicted
        part = np.concatenate([[1.0], scale[1:] / np.hypot(scale[1:], outcomes)])
        return CommonFactors(factors, float((np.sqrt(trust * variance) * part).max()), growth, limits)

    def limits(self, calibration: CommonFactors) -> tuple[Prediction, tuple[TableLimits, ...]]:
        """The calibrated prediction and the limits of every table."""
        budget = self.parts, self.joint.law, self.joint.scale
        key = (*budget, *calibration.factors.tolist(), calibration.deviation, calibration.growth)
        if key not in self._limits_known:
            if len(self._limits_known) >= MOST_CALIBRATIONS:
                self._limits_known.pop(next(iter(self._limits_known)))
            self._limits_known[key] = self._limits_of(calibration)
        return self._limits_known[key]

    @property
    def _light(self) -> TableSystem:
        """This system without tables, with the prediction and numbers of records alone: for limits of given tables."""
        copy = replace(self, tables=(), placed=(), published=(), laws=(), history=())
        copy.__dict__["numbers"] = replace(self.numbers, shared=Loadings.none(len(self.count)))
        copy.__dict__.update(prediction=self.prediction.without_factors, changes=self.changes)
        return copy

    @cached_property
    def _limits_known(self) -> dict[tuple[object, ...], tuple[Prediction, tuple[TableLimits, ...]]]:
        """The last results of `limits` under all budgets: publication asks for those of the released sums several times."""
        return {}

    def _return_memory(self) -> None:
        """Returns what the stage before has freed, where that is much."""
        if len(self.codes) >= LARGE:
            return_memory()

    def _limits_of(self, calibration: CommonFactors) -> tuple[Prediction, tuple[TableLimits, ...]]:
        self._return_memory()
        calibrated = self.informed.rescaled(calibration.factors)
        drift, narrow = float(np.hypot(PLANNED_DRIFT, calibration.deviation)), self.part_beyond > 0
        parts = self.parts[1 : 1 + len(self.tables)]
        pieces = [
            (cell, placed, part) for (_, cell), placed, part in zip(self.tables, self._placed_records, parts, strict=True)
        ]
        limiting = _Limiting(self._light, calibrated.without_factors, drift, calibration.growth, narrow)
        of_tables = list(share_out(limiting, pieces))
        if self.beyond is not None:
            ends = np.cumsum([len(table.size) for table in of_tables])[:-1]
            counts = np.split(self.beyond, ends)
            of_tables = [table.widened(of_table) for table, of_table in zip(of_tables, counts, strict=True)]
        return calibrated, tuple(of_tables)

    @cached_property
    def _prior(self) -> ResidualPrior:
        """The law of z before the measurement, with spreads that the reference shows, and without drift."""
        if not self.later:
            changed = changes_in_sums(self.changes.of_cells, self.count * self.prediction.means[:, 0])
            return replace(self._prior_about(self.prediction), changed=changed, resized=self.changes.of_all)
        codes, places = self.combinations
        cells = [
            np.unique(codes[:, list(by)], axis=0, return_inverse=True)[1].reshape(-1)
            for by, _ in self.tables
            if len(by) > 1
        ]
        cross = np.concatenate([np.arange(len(self.codes)), *places])
        period = np.concatenate([np.full(len(place), k) for k, place in enumerate(places, start=1)])
        pairs = list(zip(self.later, places, strict=True))
        factors = [
            totals.weight / self.at_crosses.means[place, 0] if self.secret else np.ones(len(place))
            for totals, place in pairs
        ]
        scatter = [totals.scatter / factor[:, None] for totals, factor in zip(self.later, factors, strict=True)]
        earlier = PeriodCells(
            cross,
            np.concatenate([np.full(len(self.codes), 1 + len(places)), period]),
            np.concatenate([self.numbers.count, *(totals.count for totals in self.later)]),
            np.concatenate([self.prediction.spread, *scatter]),
            np.array([*(totals.since for totals in self.later), 1.0]),
        )
        if not self.secret:
            sizes = Sizes.public(np.bincount(cross, weights=earlier.size).astype(np.float64))
            law = ResidualPrior.of(self.at_crosses, sizes, list(codes.T), cells)
            # One factor for all cells of a period: a cell's own would multiply what changes of its numbers add.
            ratios = [
                float(totals.count @ totals.weight / (totals.count @ self.at_crosses.means[place, 0]))
                for totals, place in pairs
            ]
            cells_of = [len(self.codes), *map(len, places)]
            factor = np.repeat([ratios[-1], *ratios], cells_of)[:, None] * np.ones(len(self.lowest))
            changed, resized = self._changes_of_periods(earlier), self.changes.of_all
            return replace(law, earlier=earlier, changed=changed, resized=resized, factor=factor)
        growth = float(self.later[-1].count.sum() / self.numbers.count.sum())
        weight = np.concatenate([np.ones(len(self.codes)), *factors])
        law = ResidualPrior.of(self.at_crosses, self.numbers, list(codes.T), cells)
        return replace(law, earlier=earlier, weight=weight, growth=growth)

    def _changes_of_periods(self, earlier: PeriodCells) -> Loadings | None:
        """What changes of public numbers between periods let expect of weights since, in sums, (cell, change)."""
        if self.weight is not None:
            return None
        codes, places = self.combinations
        numbers = [
            np.bincount(place, totals.count, len(codes)).astype(np.float64)
            for place, totals in zip(places, self.later, strict=True)
        ]
        numbers.append(np.pad(self.count, (0, len(codes) - len(self.count))))
        before: tuple[Ints | Codes, Floats] = self._numbers_of_reference
        if self.root is not None:
            before = self.root.codes, self.root.count
        in_turn = changes_in_turn(codes, numbers, [by for by, _ in self.tables], *before)
        # Weights keep a change in all periods after it.
        steps = [
            scipy.sparse.diags_array((earlier.period >= period).astype(np.float64)) @ changes[earlier.cross]
            for period, changes in enumerate(in_turn, start=1)
        ]
        predicted = earlier.size * self.at_crosses.means[earlier.cross, 0]
        return changes_in_sums(scipy.sparse.hstack(steps).tocsr(), predicted)

    def _prior_about(self, prediction: Prediction) -> ResidualPrior:
        return ResidualPrior.of(
            prediction, self.numbers, list(self.codes.T), [cell for by, cell in self.tables if len(by) > 1]
        )

    @property
    def prior_of_periods(self) -> ResidualPrior:
        """The law of z of the file and of earlier periods, with spreads that the reference shows."""
        return self._prior

    @cached_property
    def prior(self) -> ResidualPrior:
        """The law of z before the measurement, for a file of the reference's size if numbers of records are secret."""
        earlier = self._prior.earlier
        if earlier is None:
            return self._prior
        spread = np.concatenate([self.informed.spread, earlier.spread[len(self.codes) :]])
        return replace(self._prior, earlier=earlier._replace(spread=spread))

    def residuals(
        self,
        calibrated: Prediction,
        limits: Sequence[TableLimits],
        sums: Sequence[Floats],
        of_all: TableLimits | None = None,
    ) -> Iterator[tuple[TableLimits, Floats, Floats]]:
        """By measurement its limits, residual sums about the reference's prediction, and variances of their errors.

        Arguments are those of `observed`.
        """
        predictions = (self.informed, *[calibrated] * len(limits))
        parts = self.parts[: 1 + len(limits)]
        for table, origin, noisy, part in zip((of_all or self.first, *limits), predictions, sums, parts, strict=True):
            yield self._residuals(table, origin, noisy, self.prediction, part)

    def _residuals(
        self, limits: TableLimits, origin: Prediction, noisy: Floats, about: Prediction, part: Fraction
    ) -> tuple[TableLimits, Floats, Floats]:
        """`residuals` of one measurement from the prediction `origin`, `about` another one."""
        response = 1.0 - limits.slope
        value = self._residual_sums(limits, origin, noisy, about) - limits.expected
        least = (NOT_EXACT * np.bincount(limits.cell, weights=self.numbers.count * about.means[:, 0])[:, None]) ** 2
        least = least * np.column_stack([np.ones(len(limits.size)), limits.mean**2])
        errors = (self.noise(part) * limits.scale**2 + limits.loss) / response**2
        return limits, limits.expected + value / response, np.maximum(errors, least)

    def read(
        self, calibrated: Prediction, limits: Sequence[TableLimits], sums: Sequence[Floats], calibration: CommonFactors
    ) -> Reading:
        """The posterior of measurements, whose limits clip what the law that sums show lets expect.

        Arguments are those of `observed` and `posterior`.
        """
        all_limits = (calibration.first or self.first, *limits)

        def observed_under(all_limits: tuple[TableLimits, ...]) -> tuple[Rows, Floats, Floats, Matrix]:
            rows, observed, errors = self.observed(calibrated, all_limits[1:], sums, all_limits[0])
            return rows, observed, errors, self.clipped(all_limits[1:], all_limits[0], calibrated)

        rows, observed, errors, clipped = observed_under(all_limits)
        posterior, moved = self.posterior(rows, observed, errors, calibration, clipped=clipped), None
        if self.changes.of_cells.nnz:
            moved = self._moved(posterior.deviation(observed))
            posterior = self.posterior(rows, observed, errors, calibration, clipped=clipped, moved=moved)
        # Without a reference and for secret numbers, slopes say what is clipped; what is counted is not clipped.
        if self.secret or self.alike or self.beyond is not None:
            return Reading(posterior.with_tails(observed), observed, all_limits)
        for _ in range(STEPS):
            all_limits, before = (
                self._following(all_limits, calibrated, posterior.deviation(observed)[: len(self.count)]),
                observed,
            )
            rows, observed, errors, clipped = observed_under(all_limits)
            # What limits had clipped of a drift shows more of it.
            posterior = self.posterior(
                rows, observed, errors, calibration, clipped=clipped, moved=moved, previous=posterior
            )
            if np.count_nonzero(np.abs(observed - before) > SETTLED * np.sqrt(errors)) <= UNSETTLED * len(errors):
                break
        return Reading(posterior.with_tails(observed), observed, all_limits)

    def _moved(self, deviation: Floats) -> Prediction:
        """The law by what sums show of deviations from the reference's prediction, (cell, 1 + outcome)."""
        means = deviation[: len(self.count)] / self.count[:, None]
        return self.prediction.shifted(means, self.lowest, self.highest)

    def _following(
        self, limits: Sequence[TableLimits], calibrated: Prediction, deviation: Floats
    ) -> tuple[TableLimits, ...]:
        """Limits of all measurements, with what they clip where the law has moved by sums, (cell, 1 + outcome)."""
        self._return_memory()
        before, count, law = self.prediction, self.count[:, None], self._moved(deviation)
        means, weight = before.means, law.means[:, :1]
        drift_sums = count * np.column_stack([weight - means[:, :1], weight * (law.means[:, 1:] - means[:, 1:])])
        everywhere, followed = np.zeros(len(self.reference.weight), dtype=np.int32), list[TableLimits]()
        light = before.without_factors, law.without_factors, self.informed.without_factors, calibrated.without_factors
        clipping = _Following(*light, self.count, self.highest, self.lowest)
        bare = [replace(table, unequal=None) for table in limits]
        pieces = list(zip(bare, (everywhere, *self._placed_records), (True, *[False] * len(self.tables)), strict=True))
        for table, clipped in zip(limits, share_out(clipping, pieces), strict=True):
            sums = [drift_sums[:, 0], *((means[:, 1:] - table.mean[table.cell]) * drift_sums[:, :1] + drift_sums[:, 1:]).T]
            added = table.added(np.column_stack(sums))
            lacking = 0.0 if clipped.unequal is None else table.added(np.column_stack(sums) * (clipped.unequal - 1.0))
            followed.append(replace(clipped, expected=added, lacking=lacking))
        return tuple(followed)

    def observed(
        self,
        calibrated: Prediction,
        limits: Sequence[TableLimits],
        sums: Sequence[Floats],
        of_all: TableLimits | None = None,
    ) -> tuple[Rows, Floats, Floats]:
        """Rows of all measurements and earlier totals, residual sums about the reference's prediction, variances of errors.

        `sums` (cell, 1 + outcome) are noisy sums of u, of all records first, whose limits are the system's own or
        `of_all`. Public weights have no row.
        """
        rows, values, errors, first = list[Rows](), list[Floats](), list[Floats](), int(self.weight is not None)
        measured = (of_all or self.first, *limits)
        by_products = self._by_products(measured)
        for table, value, error in self.residuals(calibrated, limits, sums, of_all):
            value = value + table.lacking
            if not by_products:
                hidden = None if self.alike else table.hidden
                of_table = rows_of(table.cell, table.mean, self.prediction, hidden, table.unequal)
                rows.append([row[first * len(value) :] for row in placed_in(of_table, 0, len(self._prior.size))])
            values.append(value[:, first:].T.ravel())
            errors.append(error[:, first:].T.ravel())
        if by_products:
            cells = zip(self._cells_of_tables, measured, strict=True)
            tables = [(cell, table.mean, table.unequal) for cell, table in cells]
            return rows_by_products(tables, self.prediction, first), np.concatenate(values), np.concatenate(errors)
        if self.by_sums is not None:
            by_law = self._laws(self.by_sums, calibrated, (of_all or self.first, *limits))
            errors = [np.concatenate(errors) + (by_law**2).sum(axis=1)]
        if self.later:
            of_history, value, error = self._remembered
            rows.append(of_history)
            values.append(value)
            errors.append(error)
        return stacked(rows), np.concatenate(values), np.concatenate(errors)

    def _by_products(self, measured: Sequence[TableLimits]) -> bool:
        """True if sums of a file alone are so many that entries of their rows are computed at every product."""
        sums = sum(len(table.size) for table in measured) * (len(self.lowest) - int(self.weight is not None))
        return sums > of_sums.MOST_DENSE and not (self.secret or self.alike or self.later)

    @cached_property
    def _cells_of_tables(self) -> tuple[Codes, ...]:
        """The cell of every base cell by measurement, that of all records first, (cell,) each."""
        return np.zeros(len(self.codes), dtype=np.int32), *(cell.astype(np.int32) for _, cell in self.tables)

    def again(
        self, calibrated: Prediction, limits: Sequence[TableLimits], sums: Sequence[Floats]
    ) -> tuple[PredictionBySums, tuple[TableLimits, ...]]:
        """What first measurements tell of cells, and limits of tables by it, where one prediction serves all cells.

        Arguments are those of `observed`. The last result is kept: measurement and estimate ask for the same.
        """
        key = digest(tuple(sums))
        if key not in self._by_sums:
            self._by_sums.clear()
            self._by_sums[key] = self._again(calibrated, limits, sums)
        return self._by_sums[key]

    @cached_property
    def _by_sums(self) -> dict[str, tuple[PredictionBySums, tuple[TableLimits, ...]]]:
        return {}

    def _again(
        self, calibrated: Prediction, limits: Sequence[TableLimits], sums: Sequence[Floats]
    ) -> tuple[PredictionBySums, tuple[TableLimits, ...]]:
        base = np.arange(len(self.codes))
        families = Families.of([*self.codes.T, *(cell for _, cell in self.tables)], self.count)
        residuals = list(self.residuals(calibrated, limits, sums))
        adding = [scipy.sparse.csr_array((np.ones(len(base)), (table.cell, base))) for table, *_ in residuals]
        columns = (
            np.concatenate(parts) for parts in zip(*((table.mean, *rest) for table, *rest in residuals), strict=True)
        )
        measured = NoisyCellSums(scipy.sparse.vstack(adding).tocsr(), *columns)
        ends = self.lowest, self.highest
        weights_known = self.weight is not None
        before = self.reference, self.prediction, families, self.count
        by_sums = predicted_by_sums(*before, *ends, measured, weights_known, self.laws)
        of_tables = zip(self.tables, self._placed_records, self.parts_again, strict=True)
        second_limits = [
            self._limits(cell, placed, by_sums.prediction, part, PLANNED_DRIFT, 1.0)
            for (_, cell), placed, part in of_tables
        ]
        return by_sums, tuple(second_limits)

    def observed_again(
        self, by_sums: PredictionBySums, limits: Sequence[TableLimits], sums: Sequence[Floats]
    ) -> tuple[Rows, Floats, Floats, scipy.sparse.csr_array]:
        """`observed` of the second measurements, about the prediction by the first, with factors of what limits clip.

        The last factors are of the law: another one has other clipped parts in all cells.
        """
        rows, values, errors, first = list[Rows](), list[Floats](), list[Floats](), int(self.weight is not None)
        for table, value, error in self.residuals_again(by_sums, limits, sums):
            rows.append([row[first * len(value) :] for row in rows_of(table.cell, table.mean, by_sums.prediction)])
            values.append(value[:, first:].T.ravel())
            errors.append(error[:, first:].T.ravel())
        laws = self._laws(by_sums, by_sums.prediction, limits)
        clipped = [self._factors(limits), scipy.sparse.csr_array(laws)]
        observed = np.concatenate(values), np.concatenate(errors) + (laws**2).sum(axis=1)
        return stacked(rows), *observed, scipy.sparse.hstack(clipped).tocsr()

    def residuals_again(
        self, by_sums: PredictionBySums, limits: Sequence[TableLimits], sums: Sequence[Floats]
    ) -> Iterator[tuple[TableLimits, Floats, Floats]]:
        """`residuals` of the second measurements, about the prediction by the first."""
        for table, noisy, part in zip(limits, sums, self.parts_again, strict=True):
            yield self._residuals(table, by_sums.prediction, noisy, by_sums.prediction, part)

    def _laws(self, by_sums: PredictionBySums, origin: Prediction, limits: Sequence[TableLimits]) -> Floats:
        """Factors of what limits clip by the law, of residuals from the prediction `origin`, (row, law): another law has
        other clipped parts in all cells.
        """
        first, factors = int(self.weight is not None), list[Floats]()
        cells, before = len(self.codes), by_sums.prediction.spread
        ratio = np.divide(origin.spread, before[:cells], out=np.zeros_like(origin.spread), where=origin.spread > 0.0)
        predictions = [
            replace(origin, spread=prediction.spread[:cells] * ratio, residuals=prediction.residuals)
            for prediction in by_sums.by_law
        ]
        for table in limits:
            placed, part = np.full(0, -1), self.parts[0]
            beyond = [
                self._limits(table.cell, placed, prediction, part, PLANNED_DRIFT, 1.0, table).beyond
                for prediction in predictions
            ]
            differences = np.array([each - table.beyond for each in beyond]).reshape(len(beyond), *table.beyond.shape)
            differences *= table.size[:, None] / np.sqrt(max(len(beyond), 1)) / (1.0 - table.slope)
            factors.append(np.array([each[:, first:].T.ravel() for each in differences]).reshape(len(beyond), -1).T)
        return np.concatenate(factors)

    def totals(
        self,
        period: str,
        calibrated: Prediction,
        limits: Sequence[TableLimits],
        sums: Sequence[Floats],
        of_all: TableLimits | None = None,
        growth: float = 1.0,
    ) -> PeriodTotals:
        """What later periods learn from this one. `of_all` is that of `observed`; `growth` is the factor of secret numbers
        of records times that of weights, since the reference.
        """
        measurements = [
            (self.prediction, *residuals)
            for residuals in self.residuals(calibrated, limits, sums[: 1 + len(limits)], of_all)
        ]
        if self.parts_again:
            by_sums, second_limits = self.again(calibrated, limits, sums[: 1 + len(limits)])
            measurements += [
                (by_sums.prediction, *residuals)
                for residuals in self.residuals_again(by_sums, second_limits, sums[1 + len(limits) :])
            ]
            calibrated = by_sums.prediction
        spread = calibrated.spread
        if self.beyond is not None:
            spread = np.maximum(spread, self._shown(limits))
        row, about, total, variance, first = list[Ints](), list[Floats](), list[Floats](), list[Floats](), 0
        for prediction, table, value, error in measurements:
            weight, outcomes = self.numbers.count * prediction.means[:, 0], prediction.means[:, 1:]
            columns = [weight, *(weight[:, None] * (outcomes - table.mean[table.cell])).T]
            predicted = [np.bincount(table.cell, weights=column, minlength=len(table.size)) for column in columns]
            row.append(first + table.cell)
            about.append(table.mean)
            if self.secret:
                value, error = _with_hidden(table.hidden, value, error)
            total.append(np.column_stack(predicted) + value)
            variance.append(error)
            first += len(table.size)
        return PeriodTotals(
            *(period, self.codes, self.numbers.count * growth, np.array(row)),
            np.concatenate(about),
            np.concatenate(total),
            np.concatenate(variance),
            *(calibrated.means[:, 0], spread, np.zeros(0)),
        )

    def _residual_sums(self, limits: TableLimits, prediction: Prediction, noisy: Floats, about: Prediction) -> Floats:
        """Sums of residuals `about` a prediction, (cell, 1 + outcome), by noisy sums of those from another one."""
        mean, count = limits.mean[limits.cell], self.numbers.count[:, None]
        offset, weight = prediction.subtracted[:, None], about.means[:, :1]
        gained = count * np.column_stack(
            [offset - weight, offset * (prediction.means[:, 1:] - mean) - weight * (about.means[:, 1:] - mean)]
        )
        cells = len(limits.size)
        added = [np.bincount(limits.cell, weights=column, minlength=cells) for column in gained.T]
        return limits.observed(noisy) + np.column_stack(added)

    def noises(self, limits: Sequence[TableLimits]) -> list[Floats]:
        """Variances of the noise in the rows of every measurement, (row,) each."""
        pairs = zip((self.first, *limits), self.parts, strict=True)
        return [(self.noise(part) * table.scale**2)[:, int(self.weight is not None) :].T.ravel() for table, part in pairs]

    def clipped(
        self, limits: Sequence[TableLimits], of_all: TableLimits | None = None, calibrated: Prediction | None = None
    ) -> Matrix:
        """Factors of what limits clip, by row of `observed` and by base cell's coordinate: all measurements clip the same
        records. `of_all` and `calibrated` are those of `observed`.
        """
        measured = (of_all or self.first, *limits)
        if self._by_products(measured):
            first, root = int(self.weight is not None), np.sqrt(self.numbers.count)
            of_records = [np.sqrt(table.loss / table.size[:, None]) / (1.0 - table.slope) for table in measured]
            tables = [
                tuple(TableEntries(cell, len(of_record), root, factor=factor) for factor in of_record[:, first:].T.copy())
                for cell, of_record in zip(self._cells_of_tables, of_records, strict=True)
            ]
            return RowsOfTables(tuple(tables), tuple(map(len, of_records)), len(root), apart=True)
        factors = self._factors(measured)
        if self.by_sums is not None:
            origin = calibrated or self.informed
            laws = self._laws(self.by_sums, origin, (of_all or self.first, *limits))
            factors = scipy.sparse.hstack([factors, scipy.sparse.csr_array(laws)]).tocsr()
        earlier = scipy.sparse.csr_array((len(self._remembered[1]) if self.later else 0, factors.shape[1]))
        return scipy.sparse.vstack([factors, earlier]).tocsr()

    def _factors(self, measured: Sequence[TableLimits]) -> scipy.sparse.csr_array:
        """Factors of what these limits clip, by row and by base cell's coordinate."""
        cells, first, root = len(self.codes), int(self.weight is not None), np.sqrt(self.numbers.count)
        coordinates, factors = len(self.lowest) - first, list[scipy.sparse.csr_array]()
        for table in measured:
            of_record = (np.sqrt(table.loss / table.size[:, None]) / (1.0 - table.slope))[table.cell, first:]
            adding = scipy.sparse.csr_array((np.ones(cells), (table.cell, np.arange(cells))))
            by_coordinate = scipy.sparse.kron(scipy.sparse.eye_array(coordinates), adding).tocsr()
            factors.append(by_coordinate @ scipy.sparse.diags_array((of_record * root[:, None]).T.ravel()))
        return scipy.sparse.vstack(factors).tocsr()

    def posterior(
        self,
        rows: Rows,
        observed: Floats,
        errors: Floats,
        calibration: CommonFactors | None = None,
        refined: Prediction | None = None,
        clipped: Matrix | None = None,
        moved: Prediction | None = None,
        previous: Posterior | None = None,
    ) -> Posterior:
        """`calibration` is that of the first sums, by which z varies where numbers of records are secret. `refined` is the
        prediction by first measurements, if arguments are those of the second. `clipped` are factors of errors that rows
        share. `moved` is the law that sums show: records vary as it says in cells whose public numbers have changed.
        `previous` is a posterior given nearly the same sums.
        """
        prior = self.prior
        if refined is not None:
            return learned(self._prior_about(refined), rows, observed, errors, clipped, self.laplace)
        if calibration is not None and not self.secret:
            prior = prior.rescaled(self._factors_of_residuals(calibration.factors))
        if moved is not None:
            changed = np.diff(self.changes.of_cells.indptr)[:, None] > 0
            prior = prior.spreading(np.where(changed, moved.spread, prior.spread[: len(self.codes)]))
        if calibration is not None and self.beyond is not None:
            spread = self._shown(self.limits(calibration)[1])
            prior = prior.spreading(np.maximum(prior.spread[: len(self.codes)], spread))
        if self.secret and calibration is not None:
            weight = float(calibration.factors[0])
            growth = calibration.growth * weight
            prior = prior.sized(self.numbers.times(growth), weight, growth)
        return learned(prior, rows, observed, errors, clipped, self.laplace, previous)

    def _factors_of_residuals(self, factors: Floats) -> Floats:
        """Factors of residuals from those of weights and outcomes, (1 + outcome,).

        Residuals of an outcome that may be negative do not go with its mean, and those of one that falls go with its root.
        """
        outcomes = np.where(self.lowest[1:] >= 0.0, np.where(factors[1:] < 1.0, np.sqrt(factors[1:]), factors[1:]), 1.0)
        return np.concatenate([factors[:1], factors[0] * outcomes])

    def _shown(self, limits: Sequence[TableLimits]) -> Floats:
        """Spreads that go with the limits of counted records, (cell, 1 + outcome): a cell has such a record in no table or
        in all.
        """
        of_tables = [(table.scale / 2.0 / np.sqrt(table.size)[:, None])[table.cell] for table in limits]
        return np.asarray(np.min(of_tables, axis=0)) * (self.prediction.spread > 0.0)

    @cached_property
    def at_equal(self) -> Planned:
        """The law before the current file is read, under the planned drift and equal parts."""
        system = self.sharing(equal_parts(len(self.tables), self._rest))
        nothing = np.zeros(len(self.lowest))
        # How far a calibration deviates follows from its noise, and not from what it finds.
        calibrated, limits = system.limits(CommonFactors(nothing + 1.0, system.calibration(nothing).deviation))
        sums = [np.zeros((len(table.size), len(self.lowest))) for table in (system.first, *limits)]
        rows, _, errors = system.observed(calibrated, limits, sums)
        self._return_memory()
        before, clipped = self.before, system.clipped(limits, calibrated=calibrated)
        posterior = Posterior(self.prior.drifting(*PLANNED), rows, errors, clipped)
        # Rows depend on limits only where numbers of records are secret.
        if before is not None:
            posterior = before.under(errors, clipped, rows)
        return Planned(posterior, system.parts, system.noises(limits))

    @cached_property
    def planned(self) -> Posterior:
        """The posterior before the current file is read. Limits are those of equal parts, which differ little in error."""
        of_noise, equal = np.concatenate(self.at_equal.noise), np.array(self.at_equal.parts, dtype=float)
        owner = np.repeat(np.arange(len(equal)), list(map(len, self.at_equal.noise)))
        more = of_noise * ((equal / np.array(self.parts, dtype=float))[owner] ** self._power - 1.0)
        posterior = self.at_equal.posterior
        return posterior.under(posterior.noise + np.pad(more, (0, len(posterior.noise) - len(more))))

    @cached_property
    def errors(self) -> tuple[PredictedErrors, ...]:
        """Predicted errors of published cells, by table."""
        size = [len(figures.total_weight) * len(self.lowest) for figures in self.figures]
        ends, count = np.cumsum(size)[:-1], self.numbers.count
        of_means, of_totals = (
            [part.reshape(len(self.lowest), -1).T for part in np.split(self.planned.variances(rows), ends)]
            for rows in (self.target.rows, self.rows_of_totals)
        )
        places = self.informed.places[self.informed.places >= 0]
        of_reference = np.bincount(places, minlength=len(count)).astype(float)
        errors = list[PredictedErrors]()
        for figures, means, totals in zip(self.figures, of_means, of_totals, strict=True):
            with np.errstate(divide="ignore", invalid="ignore"):
                records = figures.cells @ of_reference
                ratio = np.where(records > 0.0, figures.cells @ count / records, np.nan)
            errors.append(PredictedErrors(figures, means, totals, ratio))
        return tuple(errors)


@dataclass(frozen=True)
class _Limiting:
    """Work on a table, by its cell of every base cell, of every reference record, and its part of the budget: limits."""

    system: TableSystem
    prediction: Prediction
    drift: float
    growth: float
    narrow: bool

    def __call__(self, table: tuple[Ints, Codes, Fraction]) -> TableLimits:
        cell, placed, part = table
        return self.system._limits(cell, placed, self.prediction, part, self.drift, self.growth, narrow=self.narrow)


@dataclass(frozen=True)
class _Following:
    """Work on limits, the table's cell of every reference record, and whether the table is that of all records: limits with
    what they clip where the law has moved.

    Residuals of all records are taken from the prediction `informed`, and in other tables from the `calibrated` one.
    """

    before: Prediction
    law: Prediction
    informed: Prediction
    calibrated: Prediction
    count: Floats
    highest: Floats
    lowest: Floats

    def __call__(self, piece: tuple[TableLimits, Codes, bool]) -> TableLimits:
        limits, placed, of_all = piece
        law, about = following(self.law, self.before, limits.cell, placed, self.count), self.calibrated
        about, ends = (self.informed if of_all else about), (self.highest, self.lowest)
        followed = choose(limits.cell, placed, self.count, law, 1.0, *ends, PLANNED_DRIFT, limits, about=about)
        unequal = left_of_changes(followed, self.law, about, self.count, self.lowest) if self.far else None
        return replace(followed, unequal=unequal)

    @property
    def far(self) -> bool:
        """Whether a base cell has moved by more than `FAR`, relative to its mean, or mean and spread of an outcome."""
        moved = np.abs(self.law.means - self.calibrated.means)
        moved[:, 1:] *= self.calibrated.means[:, :1]
        reach = self.calibrated.drifting
        return bool((moved > FAR * reach)[reach > 0.0].any())


class Planned(NamedTuple):
    """A posterior before the current file is read, the parts of the budget, and variances of noise by measurement."""

    posterior: Posterior
    parts: tuple[Fraction, ...]
    noise: list[Floats]


def _with_hidden(hidden: Floats, value: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Residual sums of all records, with variances, from those that lack a part of the count, (row, 1 + outcome) each."""
    count, of_count = value[:, :1] / (1.0 - hidden[:, :1]), variance[:, :1] / (1.0 - hidden[:, :1]) ** 2
    rest, errors = value[:, 1:] + hidden[:, 1:] * count, variance[:, 1:] + hidden[:, 1:] ** 2 * of_count
    return np.column_stack([count, rest]), np.column_stack([of_count, errors])


def union_of_codes(codes: Ints, further_codes: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
    """Codes of crosses, these first, then further ones of others; and the cross of every row of the others."""
    if not further_codes:
        return codes, []
    combinations, place = np.unique(np.concatenate([codes, *further_codes]), axis=0, return_inverse=True)
    first, *rest = np.split(place.reshape(-1), np.cumsum([len(codes), *map(len, further_codes)])[:-1])
    number = np.full(len(combinations), -1)
    number[first] = np.arange(len(first))
    further = np.flatnonzero(number < 0)
    number[further] = len(first) + np.arange(len(further))
    return np.concatenate([codes, combinations[further]]), [number[cross] for cross in rest]


def _cell_sums(period: PeriodTotals, cross: Ints, prediction: Prediction) -> NoisyCellSums:
    """A period's totals about a prediction at crosses; `cross` are those of the period's base cells."""
    base, row = np.tile(np.arange(len(cross)), len(period.row)), period.row.ravel()
    rows, means = len(period.total), prediction.means[cross]
    adding = scipy.sparse.csr_array((np.ones(len(base)), (row, cross[base])), shape=(rows, len(prediction.means)))
    weight = period.count * means[:, 0]
    columns = [weight[base], *(weight[base, None] * (means[base, 1:] - period.about[row])).T]
    predicted = np.column_stack([np.bincount(row, weights=column, minlength=rows) for column in columns])
    return NoisyCellSums(adding, period.about, period.total - predicted, period.variance)
