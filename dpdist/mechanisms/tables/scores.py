"""First sums of tables without a reference: of records' scores, the logarithms of their weights and outcomes.

The law of noisy counts spans all levels, and limits of its residuals would hide levels of small sizes in noise. A logarithm
is as clear in all of them. Where some records have no amount, whether one has is a score of its own: means go with the
share that has one, and with the sizes of those. Effects of levels and of tables' cells add up in log odds of shares and in
logarithms of sizes. Outcomes of either sign are their own scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import scipy

from dpdist.core.records import UNIT, Floats
from dpdist.mechanisms.tables.effects import (
    FARTHEST,
    FEW,
    LEAST_SHARE,
    NOT_EXACT,
    CoordinateEstimate,
    CoordinateSums,
    Effects,
    Families,
    PredictionBySums,
    Response,
    multiplying,
    within_cells,
)
from dpdist.mechanisms.tables.expected import ExpectedFile
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.random_effects import Loadings

SHARE = "share above 0"
"""Name of the score that tells whether a value is above 0."""
OUTSIDE = 0.02
"""Share of the law below the size of the lowest score, and above that of the highest one."""
ROUNDS = 3
"""Number of times that effects of sizes are fit, each with the law within cells that those before leave."""
EFFECTS = np.linspace(-FARTHEST, FARTHEST, 193)
"""Effects at which expected scores are computed."""


class ColumnScores(NamedTuple):
    """Scores of a column, from -1 to 1: whether a value is above 0, if `shared`, and its size, if `sized`.

    Sizes that are `multiplying` are logarithms of values above 0. Those from `low` to `high` have scores from -1 to 1.
    """

    low: float
    high: float
    multiplying: bool
    shared: bool
    sized: bool

    @classmethod
    def of(cls, law: Floats, multiplying: bool) -> Self:
        share = float((law > 0.0).mean())
        sizes = np.log(law[law > 0.0]) if multiplying else law
        low, high = np.quantile(sizes, [OUTSIDE, 1.0 - OUTSIDE]).tolist()
        shared = multiplying and share < 1.0 - FEW * (high > low)
        if high > low:
            return cls(low, high, multiplying, shared, True)
        return cls(low - 1.0, high + 1.0, multiplying, shared, not shared)

    @property
    def names(self) -> list[str]:
        return [SHARE] * self.shared + ["log size" if self.multiplying else "size"] * self.sized

    def __call__(self, values: Floats) -> Floats:
        """Scores of records, (record, score)."""
        some = values > 0.0
        scores = [np.where(some, 1.0, -1.0)] * self.shared
        if self.sized and self.multiplying:
            scores.append(np.where(some, self.of_sizes(np.log(np.where(some, values, 1.0))), 0.0))
        elif self.sized:
            scores.append(self.of_sizes(np.nan_to_num(values)))
        return np.column_stack(scores)

    def of_sizes(self, sizes: Floats) -> Floats:
        # Halves, as public bounds may be so far apart that their difference overflows.
        middle, half = self.low / 2.0 + self.high / 2.0, self.high / 2.0 - self.low / 2.0
        return np.clip(np.nan_to_num((np.clip(sizes, self.low, self.high) - middle) / half), -1.0, 1.0)

    def step(self, law: Floats) -> float:
        """What an effect of 1 adds to sizes."""
        return 1.0 if self.multiplying else float(law.std()) or 1.0

    def narrowed(self, law: Floats, part: float) -> Floats:
        """Sizes of a law with this part of their variance."""
        sizes = np.log(law[law > 0.0]) if self.multiplying else law
        return np.asarray(sizes.mean() + np.sqrt(part) * (sizes - sizes.mean()))


@dataclass(frozen=True, eq=False)
class SharesOfRecords:
    """Response of sums of signs to effects on the log odds of a share; `unit` is a score's part of a contribution."""

    count: Floats
    log_odds: float
    unit: float

    @classmethod
    def of(cls, count: Floats, share: float, unit: float) -> Self:
        """About the law's `share`."""
        return cls(count, float(scipy.special.logit(np.clip(share, LEAST_SHARE, 1.0 - LEAST_SHARE))), unit)

    def __call__(self, effects: Floats) -> tuple[Floats, Floats, Floats]:
        share = scipy.special.expit(self.log_odds + effects)
        slope = 2.0 * self.unit * self.count * share * (1.0 - share)
        return self.unit * self.count * (2.0 * share - 1.0), slope, 2.0 * self.unit * slope


@dataclass(frozen=True, eq=False)
class SizesOfRecords:
    """Response of sums of scores of sizes, by means and variances of a record's under `EFFECTS`, 0 for records without an
    amount: `share` (cell,) have one.
    """

    count: Floats
    share: Floats
    mean: Floats
    variance: Floats
    unit: float

    @classmethod
    def of(cls, count: Floats, share: Floats, scores: ColumnScores, sizes: Floats, step: float, unit: float) -> Self:
        """An effect of 1 adds a `step` to all sizes."""
        moved = [scores.of_sizes(sizes + step * effect) for effect in EFFECTS]
        mean, variance = np.array([[each.mean(), each.var()] for each in moved]).T
        return cls(count, share, mean, variance, unit)

    def __call__(self, effects: Floats) -> tuple[Floats, Floats, Floats]:
        columns = self.mean, np.gradient(self.mean, EFFECTS), self.variance
        mean, slope, variance = (np.interp(effects, EFFECTS, column) for column in columns)
        number = self.unit * self.count * self.share
        return number * mean, number * slope, self.unit * number * (variance + (1.0 - self.share) * mean**2)


@dataclass(frozen=True, eq=False)
class RecordScores:
    """What records add first to their cells of every table of a file without a reference."""

    columns: tuple[ColumnScores, ...]
    """Scores of the weight, if it is measured, and of outcomes."""
    weighted: bool

    @classmethod
    def of(cls, file: ExpectedFile) -> Self:
        law, before = file.reference, file.prediction
        of_outcomes = (ColumnScores.of(y, multiplying(before, k)) for k, y in enumerate(law.outcomes.T, start=1))
        if file.weights_known:
            return cls(tuple(of_outcomes), False)
        return cls((ColumnScores.of(law.weight, True), *of_outcomes), True)

    @property
    def number(self) -> int:
        """Number of scores of a record."""
        return sum(len(scores.names) for scores in self.columns)

    @property
    def unit(self) -> float:
        """A score's part of a contribution."""
        return 1.0 / self.number

    def slopes(self, file: ExpectedFile) -> Floats:
        """What effects of 1 add to a record's expected scores under the law, by their slopes at 0, (score,)."""
        law, one, slopes = file.reference, np.ones(1), list[Floats]()
        values = [law.weight, *law.outcomes.T][int(not self.weighted) :]
        for scores, of_law in zip(self.columns, values, strict=True):
            share = np.array([(of_law > 0.0).mean() if scores.multiplying else 1.0])
            if scores.shared:
                slopes.append(SharesOfRecords.of(one, share[0], self.unit)(np.zeros(1))[1])
            if scores.sized:
                known = scores, scores.narrowed(of_law, 1.0), scores.step(of_law), self.unit
                slopes.append(SizesOfRecords.of(one, share, *known)(np.zeros(1))[1])
        return np.concatenate(slopes)

    def contributions(self, weight: Floats, outcomes: Floats) -> Floats:
        """Scores of records in the nearest whole units of 1/UNIT, (record, score); the L1 norm is at most UNIT."""
        values = [weight, *outcomes.T][int(not self.weighted) :]
        scores = [of_column(column) for of_column, column in zip(self.columns, values, strict=True)]
        # Nearest ones, so that last digits of a score at an end decide nothing.
        return np.rint(np.column_stack(scores) * (UNIT // self.number))

    def predicted(
        self,
        file: ExpectedFile,
        sums: Sequence[Floats],
        variances: Sequence[float],
        calibrated: Prediction,
        error_of_all: float,
    ) -> PredictionBySums:
        """The prediction after noisy sums of every table, (cell, score), and variances of their noise by table.

        `calibrated` has the means of all records, and `error_of_all` is their relative error.
        """
        law, count = file.reference, file.count
        estimates, answers = list[CoordinateEstimate](), iter(np.concatenate(sums).T)
        by_scores = _ByScores.of(file, np.repeat(variances, list(map(len, sums))), error_of_all, self.unit)
        if file.weights_known:
            estimates.append(CoordinateEstimate.known(file.prediction.means[:, 0]))
        values = [law.weight, *law.outcomes.T][len(estimates) :]
        for k, (scores, of_law) in enumerate(zip(self.columns, values, strict=True), start=len(estimates)):
            worth = count * estimates[0].means if k else count
            mean = float(worth @ calibrated.means[:, k] / worth.sum())
            ends = file.lowest[k] if k else max(file.lowest[k], 1e-300), file.highest[k]
            origin = float(file.prediction.origin[k - 1]) if k else 0.0
            estimates.append(by_scores.estimate(scores, of_law, answers, worth, mean, origin, ends))
        return PredictionBySums.of(law, file.laws, file.prediction, count, estimates)


@dataclass(frozen=True, eq=False)
class _ByScores:
    """Tables' cells as rows of base cells, the effects of these, and variances of rows' noise."""

    count: Floats
    families: Families
    adding: scipy.sparse.csr_array
    error: Floats
    error_of_all: float
    unit: float

    @classmethod
    def of(cls, file: ExpectedFile, variance: Floats, error_of_all: float, unit: float) -> Self:
        count, base = file.count, np.arange(len(file.codes))
        families = Families.of([*file.codes.T, *(cell for _, cell in file.tables)], count)
        of_tables = [scipy.sparse.csr_array((np.ones(len(base)), (cell, base))) for _, cell in file.tables]
        adding = scipy.sparse.vstack(of_tables).tocsr()
        # Covariances of sums without any error are singular.
        return cls(count, families, adding, variance + NOT_EXACT * (adding @ count) ** 2, error_of_all, unit)

    @property
    def loading_of_all(self) -> Loadings:
        """The relative error of the mean of all records."""
        ones = np.ones(len(self.count))
        return Loadings(
            self.families.design[:, :1], np.zeros(0), np.array([[self.error_of_all]]), self.error_of_all**2 * ones
        )

    def fitted(self, response: Response, observed: Floats) -> Effects:
        return Effects.of(self.families, CoordinateSums(self.adding, observed, self.error), response, self.error_of_all)

    def estimate(
        self,
        scores: ColumnScores,
        law: Floats,
        answers: Iterator[Floats],
        worth: Floats,
        mean: float,
        origin: float,
        ends: tuple[float, float],
    ) -> CoordinateEstimate:
        """What the next `answers` tell of a column, whose cells have this `mean` by their `worth` (cell,). Its error is
        relative to the distance from the `origin`.
        """
        cells, design = len(self.count), self.families.design
        share = np.full(cells, (law > 0.0).mean())
        relative, effects, errors = np.ones(cells), np.zeros(cells), Loadings.none(cells)
        if scores.shared:
            of_law, of_records = share, SharesOfRecords.of(self.count, share[0], self.unit)
            fit = self.fitted(of_records, next(answers))
            share = scipy.special.expit(of_records.log_odds + fit.of_cells)
            relative, errors = share / of_law, fit.errors(design).scaled(1.0 - share)
        step = scores.step(law)
        if scores.sized:
            answer, with_size, part = next(answers), share if scores.multiplying else np.ones(cells), 1.0
            for _ in range(ROUNDS):
                sizes = scores.narrowed(law, part)
                response = SizesOfRecords.of(self.count, with_size, scores, sizes, step, self.unit)
                fit = self.fitted(response, answer)
                effects = step * fit.of_cells
                part = within_cells(law, effects, self.count * with_size, scores.multiplying)
            errors = errors.plus(fit.errors(design))
        if scores.multiplying:
            relative = relative * np.exp(effects - effects.max())
            means = np.clip(relative * (mean * worth.sum() / float(worth @ relative)), *ends)
            return CoordinateEstimate(means, effects, errors.plus(self.loading_of_all).scaled(means), True, share)
        means = np.clip(mean + effects - float(worth @ effects) / worth.sum(), *ends)
        of_all = self.loading_of_all.scaled(np.full(cells, np.hypot(mean - origin, step)))
        return CoordinateEstimate(means, effects, errors.scaled(np.full(cells, step)).plus(of_all), False, share)
