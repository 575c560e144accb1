"""The public model's predictions of weights and outcomes at base cells, with their errors, and how they move."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Codes, Floats, Ints, quotient_or
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.random_effects import Loadings

LEAST_SHARE = 0.1
"""Smallest predicted weight, relative to that of main effects."""
SMALLEST = 1e-6
"""Smallest relative spread of residuals."""
ROOM, LEAST_SPREAD = 0.5, 0.1
"""Parts of the deviation of all records that limits have room for, and that drift is relative to, where a cell's reference
records are all alike: the file may have others.
"""
MOST_RISE, MOST_SPREAD = 2.0, 10.0
"""Factors of a cell's mean beyond which it has new records, and up to which the spread rises with it."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """Leave-one-out residuals of reference records in standard deviations, (record, 1 + outcome)."""

    values: Floats

    @cached_property
    def by_size(self) -> Codes:
        """Records in the order of their largest residuals, (record,). Every table's limits need it."""
        return np.argsort(np.abs(self.values).max(axis=1), kind="stable").astype(np.int32)


class LawInCells(NamedTuple):
    """Records of one law in cells whose shares of records with an amount are not the law's.

    `means` and `spread` (cell, 1 + outcome) are those of records as they are in the law, moved to sizes in the cell. `some`
    marks those with an amount, (record, outcome), and `rarer` (cell, outcome) are shares of these over the law's.
    """

    means: Floats
    spread: Floats
    some: NDArray[np.bool_]
    rarer: Floats

    @property
    def others(self) -> Floats:
        """Shares of records without an amount over the law's, (cell, outcome)."""
        share = self.some.mean(axis=0)
        return np.asarray(np.maximum((1.0 - share * self.rarer) / np.maximum(1.0 - share, SMALLEST), 0.0))

    def worth(self, records: Ints, cell: Ints) -> Floats:
        """Numbers of the cell's records that each of these stands for, over that of the law, (…,)."""
        return np.asarray(np.where(self.some[records], self.rarer[cell], self.others[cell]).prod(axis=-1))

    def of_cells(self, cells: int) -> LawInCells:
        """Of the first so many cells."""
        return self._replace(means=self.means[:cells], spread=self.spread[:cells], rarer=self.rarer[:cells])


class RecordMoves(NamedTuple):
    """Moves of reference records by their `place`, (record,), -1 for those that do not move: factors of weights (place,),
    what is added to outcomes (place, outcome), and factors of spreads (place, 1 + outcome).
    """

    place: Codes
    weight: Floats
    outcomes: Floats
    spread: Floats


@dataclass(frozen=True, eq=False)
class FollowedRecords:
    """Reference records of a prediction, moved since: computed for those that are asked for, as all take much memory."""

    before: Prediction
    moves: tuple[RecordMoves, ...]

    def __getitem__(self, records: Ints) -> Floats:
        values = self.before.of_records(records)
        for of_record, weight, outcomes, spread in self.moves:
            inside = np.flatnonzero(of_record[records] >= 0)
            place = of_record[records[inside]]
            values[inside, 0, :1] *= weight[place, None]
            values[inside, 0, 1:] += outcomes[place]
            values[inside, 1] *= spread[place]
        return values


@dataclass(frozen=True)
class Prediction:
    """Prediction at base cells of the file; coordinate 0 is the weight, the others are outcomes.

    `means` (cell, 1 + outcome) are E(w|x) and E_w(y|x). `spread` (cell, 1 + outcome) is the standard deviation of one
    record's residual w − m_w, and of w(y − m_y). The error of a cell's residual sum is n times `spread` times (`loadings` @
    standard normals, plus a normal of standard deviation `alone`).
    """

    means: Floats
    spread: Floats
    loadings: tuple[Loadings, ...]
    """Loadings of every coordinate, (cell, effect)."""
    alone: Floats
    """Lone errors of every coordinate, (cell, 1 + outcome)."""
    correlation: Floats
    """Correlations of standardised residuals, (1 + outcome, 1 + outcome)."""
    residuals: Residuals
    places: Codes
    """The base cell of every reference record, -1 if the file has none such."""
    at_reference: Floats | FollowedRecords
    """`means` and `spread` at every reference record without its own influence, as the reference's records showed them,
    (record, 2, 1 + outcome). They are large: predictions that move share them, and `of_records` has them as they are now.
    """
    of_trees: Floats
    """Predictions of trees by the records of other folds at all cells of reference and file, (1 + outcome, fold, cell): 0
    for coordinates of main effects, and (1 + outcome, 0) without trees."""
    ends: Floats
    """Lowest and highest value of outcomes that have no other in the reference, (2, outcome); NaN for others."""
    values: Floats
    """Expected values of these outcomes of reference records under the law, (record, outcome), or (0, 0)."""
    proportional: NDArray[np.bool_]
    """Marks outcomes whose values change in proportion (`ReferenceSample`), (outcome,)."""
    origin: Floats
    """What outcomes drift relatively to, (outcome,)."""
    deviation: Floats
    """Standard deviations of outcomes of all records where a cell's reference records are all alike, otherwise 0, (cell,
    outcome)."""
    scaled: Floats | float = 1.0
    """Factors of `at_reference` since, (2, 1 + outcome); those of means are about `origin`."""
    moved: bool = False
    """True if records in cells of the file have moved to `means` and `spread` of these cells."""
    law: LawInCells | None = None
    """Records of one law for all cells, if cells differ in shares of records with an amount."""
    worth: Floats | None = None
    """Numbers of the file's records that reference records stand for, relative to each other, (record,); None if all stand
    for the same number."""
    adds_weight: bool = False
    """True where numbers of records are secret: a record then adds its predicted weight beside its residual."""

    @property
    def subtracted(self) -> Floats:
        """Weights about which contributions are taken, (cell,): predicted ones, or 0 where they would tell numbers."""
        return self.means[:, 0] * (1.0 - self.adds_weight)

    @property
    def without_factors(self) -> Prediction:
        """The prediction with variances of shared errors alone."""
        return replace(self, loadings=tuple(load.without_factors for load in self.loadings))

    @property
    def bare(self) -> Prediction:
        """The prediction for the file's records alone, without errors and reference records."""
        return replace(
            self.without_factors,
            residuals=Residuals(self.residuals.values[:0]),
            places=self.places[:0],
            at_reference=np.zeros((0, 2, self.means.shape[1])),
            of_trees=self.of_trees[:, :0],
            values=self.values[:0],
            worth=None,
        )

    @property
    def weights_known(self) -> bool:
        """True if weights are public: they have no residuals, and nothing is measured for them."""
        return not self.spread[:, 0].any()

    @property
    def by_values(self) -> Floats:
        """1 for the weight and outcomes whose values drift, 0 for those of two values, (1 + outcome,)."""
        return np.concatenate([[1.0], np.isnan(self.ends[0])])

    @property
    def drifting(self) -> Floats:
        """What a relative drift of 1 adds to a record's residuals, (cell, 1 + outcome); 0 for public weights.

        Outcomes' drift is relative to their means, from `origin`, and their spread.
        """
        weight, outcomes = self.means[:, :1], self.means[:, 1:] - self.origin
        of_outcomes = np.hypot(weight * outcomes, self.with_room(LEAST_SPREAD).spread[:, 1:])
        return np.column_stack([weight * (not self.weights_known), of_outcomes])

    def with_room(self, part: float = ROOM) -> Prediction:
        """The prediction whose outcomes spread by this part of `deviation` at least."""
        spread = self.spread.copy()
        spread[:, 1:] = np.maximum(spread[:, 1:], part * self.means[:, :1] * self.deviation)
        return replace(self, spread=spread)

    def rescaled(self, factors: Floats) -> Prediction:
        """The prediction after a common drift: weights times the first factor, outcomes from `origin` times the others."""
        scale = np.concatenate([factors[:1], factors[:1] * factors[1:]])
        scaled = self.scaled * np.stack([factors, scale])
        means, deviation = self._from_origin(self.means, factors), self.deviation * factors[1:]
        moved = replace(self, means=means, spread=self.spread * scale, deviation=deviation, scaled=scaled)
        if not len(self.values):
            return moved
        records = np.arange(len(self.places))
        return moved.with_values(self.of_records(records)[:, 0], moved.of_records(records)[:, 0])

    @property
    def weights_of_records(self) -> tuple[Floats, Floats]:
        """Predicted weights and weights of reference records, (record,)."""
        means, spread = self.of_records(np.arange(len(self.places))).transpose(1, 0, 2)
        return means[:, 0], np.maximum(means[:, 0] + self.residuals.values[:, 0] * spread[:, 0], 0.0)

    def of_records(self, records: Ints) -> Floats:
        """`means` and `spread` at these reference records, (record, 2, 1 + outcome)."""
        values, (of_means, of_spread) = self.at_reference[records], np.broadcast_to(self.scaled, (2, self.means.shape[1]))
        values[:, 0] = self._from_origin(values[:, 0], of_means)
        values[:, 1] *= of_spread
        if self.moved:
            place = self.places[records]
            inside = place >= 0
            values[inside] = np.stack([self.means, self.spread], axis=1)[place[inside]]
        return values

    def _from_origin(self, means: Floats, factors: Floats) -> Floats:
        origin = np.concatenate([[0.0], self.origin])
        return np.asarray(origin + (means - origin) * factors)

    def with_inequality(self, inequality: float) -> Prediction:
        """The prediction where residuals are those of more unequal weights, or of less unequal ones below 0 (`inequality`).

        Records keep their outcomes, and the mean weight.
        """
        if inequality == 0.0:
            return self
        values, (predicted, weight) = self.residuals.values, self.weights_of_records
        factor = powers_of_ratios(weight, predicted, inequality)
        factor *= weight.sum() / (weight * factor).sum()
        changed = values * factor[:, None]
        # Residuals in standard deviations of what they were.
        moved = np.divide(
            weight * factor - predicted, weight - predicted, out=np.ones_like(weight), where=weight != predicted
        )
        changed[:, 0] = values[:, 0] * moved
        then, now = ((part**2).mean(axis=0) for part in (values, changed))
        scale = np.sqrt(np.divide(now, then, out=np.ones_like(now), where=(then > 0.0) & (now > 0.0)))
        of_spread = np.broadcast_to(self.scaled, (2, len(scale))) * np.stack([np.ones_like(scale), scale])
        return replace(self, residuals=Residuals(changed / scale), spread=self.spread * scale, scaled=of_spread)

    def with_values(self, before: Floats, after: Floats) -> Prediction:
        """The prediction after means of reference records' base cells, (record, 1 + outcome), have moved.

        An outcome of two values moves by the probability of its highest one.
        """
        if not len(self.values):
            return self
        low, high = self.ends
        then, now = np.clip(before[:, 1:], low, high), np.clip(after[:, 1:], low, high)
        rise, fall = (
            quotient_or(0.0, change, room)
            for change, room in ((np.maximum(now - then, 0.0), high - then), (np.maximum(then - now, 0.0), then - low))
        )
        return replace(self, values=self.values + rise * (high - self.values) - fall * (self.values - low))

    def weighing(self, weight: Floats) -> Prediction:
        """The prediction with other public weights, (cell,)."""
        scale = (weight / self.means[:, 0])[:, None]
        return replace(self, means=np.column_stack([weight, self.means[:, 1:]]), spread=self.spread * scale)

    def within(self, cells: int) -> Prediction:
        """The prediction at the first so many cells."""
        return replace(
            self,
            means=self.means[:cells],
            spread=self.spread[:cells],
            loadings=tuple(load.of_cells(np.arange(cells)) for load in self.loadings),
            alone=self.alone[:cells],
            deviation=self.deviation[:cells],
            law=None if self.law is None else self.law.of_cells(cells),
            places=np.where(self.places < cells, self.places, np.int32(-1)),
        )

    def with_new_records(self, law: Prediction, spread: Floats) -> Floats:
        """Standard deviations of records' residuals, (cell, 1 + outcome), given `spread` without the cell's new records.

        A cell has some where the `law` has a mean of more than `MOST_RISE` times the predicted one. They vary as the
        law says; where reference records are all alike, they vary as all records do.
        """
        rise = np.where(self.proportional, law.means[:, 1:] - MOST_RISE * np.maximum(self.means[:, 1:], 0.0), 0.0)
        added = law.means[:, :1] * np.sqrt(np.clip(rise, 0.0, self.deviation) * self.deviation)
        varying = np.where(rise > 0.0, np.maximum(spread[:, 1:], law.spread[:, 1:]), spread[:, 1:])
        return np.column_stack([spread[:, 0], np.hypot(varying, added)])

    def shifted(self, residuals: Floats, lowest: Floats, highest: Floats) -> Prediction:
        """The prediction after a record's residuals have had these means, (cell, 1 + outcome), within public bounds.

        The spread of weights moves with them. That of outcomes moves with outcomes whose values change in proportion.
        """
        before, least = self.means, np.maximum(lowest[0], LEAST_SHARE * self.means[:, 0])
        weight = np.clip(before[:, 0] + residuals[:, 0], least, highest[0])
        outcomes = np.clip(before[:, 1:] + residuals[:, 1:] / weight[:, None], lowest[1:], highest[1:])
        scale = np.ones_like(before)
        scale[:, 0] = weight / before[:, 0]
        proportional, (low, high) = self.proportional & (before[:, 1:] > 0.0), self.ends
        ratio = np.where(proportional, outcomes / np.where(proportional, before[:, 1:], 1.0), 1.0)
        # Shares of a value vary as those of Bernoulli trials do.
        then, now = ((values - low) * (high - values) for values in (before[:, 1:], outcomes))
        of_shares = np.sqrt(quotient_or(1.0, np.maximum(now, 0.0), then))
        scale[:, 1:] = np.clip(np.where(np.isnan(low), ratio, of_shares), 0.5, MOST_SPREAD)
        scale[:, 1:] *= scale[:, :1]
        means, spread = np.column_stack([weight, outcomes]), self.spread * scale
        moved = replace(self, means=means, spread=spread, moved=True)
        if not len(self.values):
            return moved
        inside, then = self.places >= 0, before[self.places]
        return moved.with_values(then, np.where(inside[:, None], means[self.places], then))


def powers_of_ratios(weight: Floats, predicted: Floats, inequality: float) -> Floats:
    """Factors of weights that make them more unequal by this (`inequality`), up to a constant."""
    ratio = weight / np.maximum(predicted, 1e-300)
    return np.asarray(np.where(ratio > SMALLEST, ratio, 1.0) ** np.expm1(inequality))


def of_one_law(
    sample: ReferenceSample,
    means: Floats,
    proportional: NDArray[np.bool_],
    weights_known: bool = False,
    rarer: Floats | None = None,
    origin: Floats | float = 0.0,
) -> Prediction:
    """One law for all cells, that of the sample, about `means` (cell, 1 + outcome) of weight and outcomes. Outcomes drift
    relatively to `origin`, (outcome,), or to 0 or a cell's mean that are nearer to 0.

    Spreads go with the mean weight, and with means of `proportional` outcomes (outcome,), whose values change so; that
    of rare values goes with the root of their mean, unless shares of records with an amount are known: `rarer` are these
    over the law's, (cell, outcome). Weights are public if `weights_known`.
    """
    records, mean, ones = len(sample.weight), max(float(sample.weight.mean()), 1e-300), np.ones(len(means))
    outcomes = np.average(sample.outcomes, weights=np.maximum(sample.weight, 1e-300), axis=0)
    relative = sample.weight[:, None] / mean * np.column_stack([np.ones(records), sample.outcomes - outcomes])
    relative[:, 0] -= 1.0
    spread = np.sqrt((relative**2).mean(axis=0))
    if not weights_known:
        spread[0] = max(spread[0], SMALLEST)
    residuals = relative / np.where(spread > 0.0, spread, 1.0)
    scaling = proportional & (outcomes > 0.0)
    ratio = np.where(scaling & (means[:, 1:] > 0.0), means[:, 1:] / np.where(scaling, outcomes, 1.0), 1.0)
    growth = np.where(ratio < 1.0, np.sqrt(np.maximum(ratio, SMALLEST)), ratio)
    scales = means[:, :1] * spread * np.column_stack([ones, growth])
    law = None
    if rarer is not None:
        shares = np.where(scaling, rarer, 1.0)
        size = ratio / shares
        in_law = np.column_stack([means[:, 0], means[:, 1:] / shares])
        law = LawInCells(in_law, means[:, :1] * spread * np.column_stack([ones, size]), sample.outcomes > 0.0, shares)
        squares = np.zeros_like(size)
        for worth, marked in ((shares, law.some), (law.others, ~law.some)):
            heavy = np.where(marked, (sample.weight[:, None] / mean) ** 2, 0.0)
            one, two = (heavy * sample.outcomes).mean(axis=0), (heavy * sample.outcomes**2).mean(axis=0)
            squares += worth * (size**2 * two - 2.0 * means[:, 1:] * size * one + means[:, 1:] ** 2 * heavy.mean(axis=0))
        exact = means[:, :1] * np.sqrt(np.maximum(squares, 0.0))
        scales[:, 1:] = np.where(scaling, exact, scales[:, 1:])
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.nan_to_num(np.corrcoef(residuals, rowvar=False).reshape(len(spread), len(spread)))
    np.fill_diagonal(correlation, 1.0)
    typical = np.stack([means.mean(axis=0), scales.mean(axis=0)])
    none = tuple(Loadings.none(len(means)) for _ in spread)
    nowhere = np.full(records, -1, dtype=np.int32)
    return Prediction(
        *(means, scales, none, np.zeros_like(means), correlation, Residuals(residuals), nowhere),
        np.tile(typical, (records, 1, 1)),
        np.zeros((len(spread), 0)),
        np.full((2, len(spread) - 1), np.nan),
        np.zeros((0, 0)),
        proportional,
        np.clip(origin, np.minimum(means[:, 1:].max(axis=0), 0.0), np.maximum(means[:, 1:].min(axis=0), 0.0)),
        np.zeros_like(means[:, 1:]),
        law=law,
    )
