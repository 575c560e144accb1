"""What public data let expect of a file before it is measured: its cells, their prediction, and the law of residual sums.

The prediction is that of the reference, or of noisy sums of a chain's first period. Totals of earlier periods are further
rows of the posterior. Before the file is measured they move the prediction from which residuals are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints
from dpdist.estimation.donors import PeriodTotals
from dpdist.mechanisms.tables.drift_sizes import learned
from dpdist.mechanisms.tables.effects import FEW, Families, NoisyCellSums, PredictionBySums, predicted_by_sums
from dpdist.mechanisms.tables.learned_prediction import learners_of, origin_and_deviation, predict
from dpdist.mechanisms.tables.learners import recalled
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.prediction import Prediction, of_one_law
from dpdist.mechanisms.tables.random_effects import Loadings
from dpdist.mechanisms.tables.residual_prior import PeriodCells, ResidualPrior
from dpdist.mechanisms.tables.rows import Rows, placed_in, rows_about, stacked
from dpdist.mechanisms.tables.sizes import NumberChanges, Sizes, changes_in_sums, changes_in_turn
from dpdist.mechanisms.tables.spec import EFFECTS, PredictionName
from dpdist.mechanisms.tables.weight_ratios import WeightRatios

WIDE_DRIFT = 0.2
"""Relative drift of weights and outcomes that the limits of the first measurement have room for."""
WIDEST_DRIFT = 0.5
"""The same where a noisy law is known, and no reference."""
NEARER, MOST_ALIKE = 0.5, 0.5
"""An outcome is taken from 0 if more than a fiftieth of its values are nearer to 0 than this part of the mean, or if more
than this share of records has one value."""


@dataclass(frozen=True, eq=False)
class ExpectedFile:
    """Base cells and measured tables of a file, with what predicts them.

    `codes` (cell, column) are levels, `sizes` their numbers, `count` (cell,) public numbers of records, which nothing reads
    if they are `secret`. `tables` holds the columns and the cell of every base cell by measured table, `placed` those of
    the reference's crosses, -1 for none.
    """

    codes: Ints
    sizes: tuple[int, ...]
    count: Floats
    tables: tuple[tuple[tuple[int, ...], Codes], ...]
    placed: tuple[Codes, ...]
    reference: ReferenceSample
    lowest: Floats
    highest: Floats
    """Public bounds of weight and outcomes, (1 + outcome,)."""
    weight: Floats | None = None
    """Public weights, (cell,): nothing is measured for them. None if weights are measured."""
    secret: bool = False
    history: tuple[PeriodTotals, ...] = ()
    """Totals of earlier periods since the reference, the earliest first; none where numbers of records are secret."""
    laws: tuple[ReferenceSample, ...] = ()
    """Other laws that noisy counts may have meant, where there is no reference."""
    alike: bool = False
    """True if `reference` is a sample of one law for all cells, which no reference taught: its records are in no cell."""
    learner: PredictionName = EFFECTS
    """What learns from the reference."""
    of_trees: Floats | None = None
    """What trees have predicted, if they are grown (`Prediction.of_trees`)."""
    laplace: bool = True
    """True if noise has a Laplace law: far noise of earlier periods is then not taken for drift."""

    @property
    def weights_known(self) -> bool:
        return self.weight is not None

    @property
    def columns_of_tables(self) -> list[tuple[int, ...]]:
        return [by for by, _ in self.tables]

    def _cells_of(self, codes: Ints, fewest: int = 0) -> list[Ints]:
        """The cell of every cross, by table of at least `fewest` columns."""
        return [
            np.unique(codes[:, list(by)], axis=0, return_inverse=True)[1].reshape(-1)
            for by in self.columns_of_tables
            if len(by) >= fewest
        ]

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
        public = self.sizes, self.columns_of_tables, self.lowest, self.highest
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
    def weight_ratios(self) -> WeightRatios:
        """Weights of reference records over predicted ones, for the numbers of records of the file."""
        return WeightRatios.of(self.informed)

    @cached_property
    def by_sums(self) -> PredictionBySums | None:
        """What the first period's noisy sums tell of crosses, if the chain began without a reference."""
        if self.root is None:
            return None
        combinations = self.combinations[0]
        codes, (cross,) = union_of_codes(combinations, [self.root.codes])
        weight = None
        if self.weights_known:
            weight = self._known_weights(codes, self.later, self.combinations[1])
            weight[cross] = self.root.weight
        before = self._of_one_law(codes, weight)
        count = np.bincount(cross, weights=self.root.count, minlength=len(codes)).astype(np.float64)
        families = Families.of([*codes.T, *self._cells_of(codes)], count)
        sums = _cell_sums(self.root, cross, before)
        by_sums = predicted_by_sums(self.reference, before, families, count, self.lowest, self.highest, sums, self.laws)
        predictions = [prediction.within(len(combinations)) for prediction in (by_sums.prediction, *by_sums.by_law)]
        if self.weights_known:
            weight = self._known_weights(combinations, self.later, self.combinations[1])
            predictions = [prediction.weighing(weight) for prediction in predictions]
        return PredictionBySums(predictions[0], tuple(predictions[1:]))

    def _of_one_law(self, codes: Ints, weight: Floats | None) -> Prediction:
        law, ones = self.reference, np.ones(len(codes))
        outcomes = np.average(law.outcomes, weights=np.maximum(law.weight, 1e-300), axis=0)
        base = max(float(law.weight.mean()), 1e-300) * ones if weight is None else weight
        means = np.column_stack([base, np.outer(ones, outcomes)])
        origin, _ = origin_and_deviation(law, means[:, 1:], self.lowest[1:], self.highest[1:], of_range=0.0)
        # Outcomes of which some are nearer to 0, and answers of which one has most records, are on no such scale: a level
        # with others lies many standard deviations away.
        near = np.quantile(law.outcomes * np.sign(outcomes), FEW, axis=0) <= NEARER * np.abs(outcomes)
        most = [np.unique(values, return_counts=True)[1].max() > MOST_ALIKE * len(values) for values in law.outcomes.T]
        origin = np.where(near | np.array(most), 0.0, origin)
        # Values far from it are on a scale that begins elsewhere, and do not change in proportion.
        return of_one_law(law, means, law.proportional & (origin == 0.0), weight is not None, origin=origin)

    @cached_property
    def prediction(self) -> Prediction:
        """What the reference's records predict at base cells of the file."""
        prediction = self.at_crosses.within(len(self.codes)) if self.later else self.at_crosses
        if self.secret or self.alike:
            return prediction
        of_numbers = self.changes.of_numbers
        if self.history or self.weight is not None:
            known = self.codes, self.count, self.columns_of_tables
            of_numbers = NumberChanges.of(*known, *self._numbers_of_reference).of_numbers
        worth = of_numbers[self.reference.of_records(np.arange(len(of_numbers)))]
        # Where the reference has no level of the file, none of its records tells more than others.
        return replace(prediction, worth=worth if (worth != 1.0).any() and worth.any() else None)

    @cached_property
    def informed(self) -> Prediction:
        """What the reference and earlier periods predict: residuals of all records are taken from it."""
        if not self.later:
            return self.prediction
        rows, observed, errors = self.remembered
        posterior = learned(self.prior_of_periods, rows, observed, errors, laplace=self.laplace)
        residuals = posterior.estimate(observed)[: len(self.count)] / self.numbers.count[:, None]
        if self.secret:
            # Sums of weights go with secret numbers of records, which the file's own first sums tell.
            residuals[:, 0] = 0.0
        return self.prediction.shifted(residuals, self.lowest, self.highest)

    @cached_property
    def remembered(self) -> tuple[Rows, Floats, Floats]:
        """Rows of earlier periods' totals, residual sums about the reference's prediction, variances of their errors."""
        rows, values, errors = list[Rows](), list[Floats](), list[Floats]()
        place, cells, first = len(self.codes), len(self.prior_of_periods.size), int(self.weights_known)
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

    def placed_records(self, table: int) -> Codes:
        """The cell of every reference record in a measured table, (record,), -1 for none. Those of all tables take much
        memory.
        """
        return self.reference.of_records(self.placed[table])

    @property
    def wide(self) -> float:
        return WIDEST_DRIFT if self.first_year else WIDE_DRIFT

    @cached_property
    def numbers(self) -> Sizes:
        """Numbers of records of base cells: public, or those that the reference lets expect of a file of its own size."""
        if not self.secret:
            return Sizes.public(self.count)
        of_reference = self.reference.of_records(self.reference.codes)
        return Sizes.predicted(self.codes, self.sizes, self.columns_of_tables, of_reference)

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
        return NumberChanges.of(self.codes, self.count, self.columns_of_tables, *before)

    @cached_property
    def prior_of_periods(self) -> ResidualPrior:
        """The law of z before the measurement, with spreads that the reference shows, and without drift."""
        if not self.later:
            changed = changes_in_sums(self.changes.of_cells, self.count * self.prediction.means[:, 0])
            return replace(self.prior_about(self.prediction), changed=changed, resized=self.changes.of_all)
        codes, places = self.combinations
        cells = self._cells_of(codes, 2)
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
        in_turn = changes_in_turn(codes, numbers, self.columns_of_tables, *before)
        # Weights keep a change in all periods after it.
        steps = [
            scipy.sparse.diags_array((earlier.period >= period).astype(np.float64)) @ changes[earlier.cross]
            for period, changes in enumerate(in_turn, start=1)
        ]
        predicted = earlier.size * self.at_crosses.means[earlier.cross, 0]
        return changes_in_sums(scipy.sparse.hstack(steps).tocsr(), predicted)

    def prior_about(self, prediction: Prediction) -> ResidualPrior:
        return ResidualPrior.of(
            prediction, self.numbers, list(self.codes.T), [cell for by, cell in self.tables if len(by) > 1]
        )

    @cached_property
    def prior(self) -> ResidualPrior:
        """The law of z before the measurement, for a file of the reference's size if numbers of records are secret."""
        earlier = self.prior_of_periods.earlier
        if earlier is None:
            return self.prior_of_periods
        spread = np.concatenate([self.informed.spread, earlier.spread[len(self.codes) :]])
        return replace(self.prior_of_periods, earlier=earlier._replace(spread=spread))

    def shifted(self, deviation: Floats) -> Prediction:
        """The law by what sums show of deviations from the reference's prediction, (cell, 1 + outcome)."""
        means = deviation[: len(self.count)] / self.count[:, None]
        return self.prediction.shifted(means, self.lowest, self.highest)

    def unknown(self, cell: Codes, prediction: Prediction) -> Floats:
        """Variances of errors of a prediction without a reference, in sums over cells, (cell, 1 + outcome)."""
        relative = np.sqrt(np.column_stack([load.variance for load in prediction.loadings]))
        errors = np.where(relative > 0.0, relative * prediction.spread, self.wide * prediction.drifting)
        return np.column_stack([np.bincount(cell, weights=self.count * error) ** 2 for error in errors.T])

    @cached_property
    def light(self) -> ExpectedFile:
        """This file without tables, with the prediction and numbers of records alone: for limits of given tables."""
        copy = replace(self, tables=(), placed=(), laws=(), history=())
        copy.__dict__["numbers"] = replace(self.numbers, shared=Loadings.none(len(self.count)))
        copy.__dict__.update(prediction=self.prediction.without_factors, changes=self.changes)
        return copy


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
