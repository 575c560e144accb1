"""The log-linear prediction from noisy sums where there is no reference: effects of levels and of tables' cells.

E(w|x) is m exp(Σ β) over the effects of x, and E_w(y|x) likewise; outcomes of either sign have effects that add, in
standard deviations. Effects are normal, with a variance by family: a column's levels, or a table's cells. Their posterior
is that of a normal law about the mode (Gauss and Newton), and variances are those that it has in the mean, with one effect
of `TYPICAL` size more. The law within cells is the law of all, whose logarithms lose the part of their variance that the
effects have. So cells of small weights have small limits, though the law of all has large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, Self

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints, quotient_or
from dpdist.mechanisms.tables.bins import paired
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.prediction import Prediction, of_one_law
from dpdist.mechanisms.tables.random_effects import Loadings

TYPICAL = 0.3
"""Size of a log effect before its family is seen."""
WHOLE = 0.5
"""The same of the effect that all cells share: how well noisy counts tell the mean."""
ROUNDS = 12
"""Steps of Gauss and Newton, each with other variances of effects."""
LARGEST_STEP = 1.5
"""Largest change of a log mean in a step."""
FARTHEST = 12.0
"""Largest log effect of a cell."""
MOST_EFFECTS = 1_200
"""Largest number of effects: those of most records."""
LEAST_MEAN = 0.2
"""Smallest mean of values, and of their powers, over that of sizes, that powers may keep."""
LEAST_PART = 0.01
"""Smallest part of the variance of logarithms that is within cells."""
NOT_EXACT = 1e-12
"""Least relative squared error of sums."""
FEW = 0.02
"""Share of records without an amount up to which no score tells them apart."""
LEAST_SHARE = 1e-4
"""Smallest share of records with an amount, or without one."""
MOST_WITHIN = 0.95
"""Largest correlation of weights and outcomes within cells."""


class Families(NamedTuple):
    """Effects by cell, (cell, effect), that of all first, and the family of every effect; that of all is 0."""

    design: scipy.sparse.csr_array
    family: Ints

    @classmethod
    def of(cls, indices: Sequence[Ints | Codes], count: Floats) -> Families:
        """`indices` are the levels of every column and the cells of every table, by base cell."""
        sums = [np.bincount(index, weights=count) for index in indices]
        least = np.sort(np.concatenate([np.zeros(1), *sums]))[-MOST_EFFECTS:][0]
        blocks, families = [scipy.sparse.csr_array(np.ones((len(count), 1)))], [np.zeros(1, dtype=np.int64)]
        for number, (index, records) in enumerate(zip(indices, sums, strict=True), start=1):
            chosen = np.flatnonzero(records >= least)
            block = scipy.sparse.csr_array((np.ones(len(index)), (np.arange(len(index)), index)))
            blocks.append(block.tocsc()[:, chosen].tocsr())
            families.append(np.full(len(chosen), number))
        return cls(scipy.sparse.hstack(blocks).tocsr(), np.concatenate(families))


class CoordinateSums(NamedTuple):
    """Noisy sums of one coordinate about a prediction, (row,), of the cells of `adding` (row, cell)."""

    adding: scipy.sparse.csr_array
    observed: Floats
    error: Floats
    """Variances of noise and of clipped parts, (row,)."""


class Response(Protocol):
    """What effects of cells, (cell,), let expect of cells' sums, its derivative, and the variance by the sample of records,
    (cell,) each.
    """

    def __call__(self, effects: Floats) -> tuple[Floats, Floats, Floats]: ...


class SumsAboutPrediction(NamedTuple):
    """The response of residual sums: `base` (cell,) is what a relative effect of 1 adds, and `scatter` (cell,) the sampling
    variance without effects. Effects multiply if `scaling`; otherwise they add.
    """

    base: Floats
    scatter: Floats
    scaling: bool

    def __call__(self, effects: Floats) -> tuple[Floats, Floats, Floats]:
        shift, slope = (np.expm1(effects), np.exp(effects)) if self.scaling else (effects, np.ones_like(effects))
        return self.base * shift, self.base * slope, self.scatter * slope**2


class Effects(NamedTuple):
    """Posterior of effects: of cells together, (cell,), and the root of the covariance of all effects, (effect, effect)."""

    of_cells: Floats
    root: Floats

    def errors(self, design: scipy.sparse.csr_array) -> Loadings:
        """Errors of the effects of cells that they share."""
        variance = np.asarray((design @ self.root) ** 2).sum(axis=1)
        return Loadings(design, np.zeros(0), self.root, variance)

    @classmethod
    def of(cls, families: Families, sums: CoordinateSums, response: Response, error_of_all: float = WHOLE) -> Effects:
        """`error_of_all` is the size of the effect that all cells share: how well noisy counts tell the mean."""
        design, family = families
        beta = np.zeros(design.shape[1])
        variance = np.full(int(family.max()) + 1, TYPICAL**2)
        variance[0] = error_of_all**2

        def of_cells(effects: Floats) -> Floats:
            return np.asarray(np.clip(design @ effects, -FARTHEST, FARTHEST))

        for _ in range(ROUNDS):
            expected, slope, scatter = response(of_cells(beta))
            worth = 1.0 / (sums.error + sums.adding @ scatter)
            precision = 1.0 / variance[family]
            jacobian = (sums.adding @ scipy.sparse.diags_array(slope) @ design).toarray()
            missed = sums.observed - sums.adding @ expected
            information = jacobian.T @ (worth[:, None] * jacobian) + np.diag(precision)
            root = scipy.linalg.cholesky(information, lower=True)
            step = scipy.linalg.cho_solve((root, True), jacobian.T @ (worth * missed) - precision * beta)
            step *= min(1.0, LARGEST_STEP / max(float(np.abs(design @ step).max()), 1e-300))
            loss = _loss(missed, worth, precision, beta)
            while True:
                later = sums.observed - sums.adding @ response(of_cells(beta + step))[0]
                if _loss(later, worth, precision, beta + step) <= loss or np.abs(step).max() < 1e-9:
                    break
                step *= 0.5
            beta = beta + step
            half = scipy.linalg.solve_triangular(root, np.eye(len(beta)), lower=True)
            squares = np.bincount(family, weights=beta**2 + (half**2).sum(axis=0))
            variance[1:] = ((squares + TYPICAL**2) / (np.bincount(family) + 1.0))[1:]
        return cls(of_cells(beta), half.T)


def multiplying(prediction: Prediction, k: int) -> bool:
    """True if effects multiply an outcome's mean, of coordinate `k`; otherwise they add to it."""
    return bool(prediction.proportional[k - 1] and prediction.means[0, k] > 0.0)


def _loss(missed: Floats, worth: Floats, precision: Floats, beta: Floats) -> float:
    return float(missed**2 @ worth + beta**2 @ precision)


def drawn_together(values: Floats, part: float, scaling: bool) -> Floats:
    """Values with this part of the variance of their sizes' logarithms, or of their distances. The mean stays."""
    mean, root = float(values.mean()), np.sqrt(part)
    near = np.sign(values) * np.abs(values) ** root
    # Sizes cannot keep a mean that gains and losses leave near 0.
    if not scaling or any(each.mean() < LEAST_MEAN * np.abs(each).mean() for each in (values, near)):
        return np.asarray(mean + root * (values - mean))
    return np.asarray(near * (mean / max(float(near.mean()), 1e-300)))


def within_cells(values: Floats, effects: Floats, count: Floats, scaling: bool) -> float:
    """The part of the variance of values' logarithms, or of the values, that effects of cells leave."""
    sample = np.log(values[values > 0.0]) if scaling else values
    between = float(np.average((effects - np.average(effects, weights=count)) ** 2, weights=count))
    total = float(sample.var()) if len(sample) else 0.0
    return float(np.clip(1.0 - between / total, LEAST_PART, 1.0)) if total > 0.0 else 1.0


def _correlation_within(weight: Floats, outcome: Floats, scaling: bool, between: float, part: float) -> float:
    """Correlation of logarithms of weights with those of outcomes, or with outcomes, within cells: of what pairs have in
    common without what effects of cells have, `between`, over the geometric mean `part` of variances within cells.
    """
    some = (weight > 0.0) & ((outcome > 0.0) | (not scaling))
    if not some.any():
        return 0.0
    sizes = np.log(weight[some]), np.log(outcome[some]) if scaling else outcome[some]
    largest, covariance = part * float(sizes[0].std() * sizes[1].std()), float(np.cov(*sizes, ddof=0)[0, 1])
    return float(np.clip((covariance - between) / largest, -MOST_WITHIN, MOST_WITHIN)) if largest > 0.0 else 0.0


class NoisyCellSums(NamedTuple):
    """Noisy residual sums of rows that add up cells: means about which outcomes were taken (row, outcome), sums about a
    prediction, and variances of their errors, (row, 1 + outcome). `adding` is (row, cell).
    """

    adding: scipy.sparse.csr_array
    about: Floats
    observed: Floats
    error: Floats


class PredictionBySums(NamedTuple):
    """A prediction by sums, and others about the same means with other laws that noisy counts may have meant."""

    prediction: Prediction
    by_law: tuple[Prediction, ...]

    @classmethod
    def of(
        cls,
        law: ReferenceSample,
        laws: Sequence[ReferenceSample],
        before: Prediction,
        count: Floats,
        estimates: Sequence[CoordinateEstimate],
    ) -> Self:
        """From estimates of all coordinates. `laws` are further laws; `before` is the same for all cells."""
        known = before.weights_known
        means, scaling = np.column_stack([each.means for each in estimates]), [each.multiplying for each in estimates]
        between = [
            0.0 if known else float(np.cov(estimates[0].effects, each.effects, aweights=count, ddof=0)[0, 1])
            for each in estimates[1:]
        ]

        def within(sample: ReferenceSample) -> Prediction:
            values = [sample.weight, *sample.outcomes.T]
            # Laws of other variances leave other parts of them within cells.
            parts = [each.within(column, count) for each, column in zip(estimates, values, strict=True)]
            in_order = [np.sort(drawn_together(*each)) for each in zip(values, parts, scaling, strict=True)]
            roots = np.sqrt(parts[0] * np.array(parts[1:]))
            correlations = [
                0.0 if known else _correlation_within(sample.weight, *each)
                for each in zip(sample.outcomes.T, scaling[1:], between, roots, strict=True)
            ]
            weight, *outcomes = paired(in_order, np.array(correlations), np.random.default_rng(0))
            paired_sample = ReferenceSample(sample.codes, weight, np.column_stack(outcomes))
            rarer = [
                each.rarer(column) for each, column in zip(estimates[1:], outcomes, strict=True) if each.share is not None
            ]
            shares = np.column_stack(rarer) if rarer else None
            return of_one_law(paired_sample, means, before.proportional, known, shares, before.origin)

        after = within(law)
        unit = np.column_stack([np.ones(len(count)), *np.broadcast_to(means[:, :1], means[:, 1:].shape).T])
        shared = tuple(
            each.errors.scaled(quotient_or(0.0, by, spread))
            for each, by, spread in zip(estimates, unit.T, after.spread.T, strict=True)
        )
        by_law = tuple(replace(within(sample), loadings=shared) for sample in laws)
        return cls(replace(after, loadings=shared), by_law)


class CoordinateEstimate(NamedTuple):
    """What sums show of a coordinate: `means` (cell,), effects on logarithms of sizes, or on values unless they multiply,
    (cell,), and errors of means.
    """

    means: Floats
    effects: Floats
    errors: Loadings
    multiplying: bool = True
    share: Floats | None = None
    """The share of records that have an amount, (cell,), if scores show it."""

    def rarer(self, values: Floats) -> Floats:
        """This share over that of a law's values, (cell,); 1 unless effects multiply."""
        assert self.share is not None
        if not self.multiplying:
            return np.ones_like(self.share)
        return self.share / float(np.clip((values > 0.0).mean(), LEAST_SHARE, 1.0))

    @classmethod
    def known(cls, means: Floats) -> Self:
        """Public weights."""
        return cls(means, np.zeros(len(means)), Loadings.none(len(means)))

    def within(self, values: Floats, count: Floats) -> float:
        """The part of the variance of a law's values that is within cells."""
        number = count if self.share is None or not self.multiplying else count * self.share
        return within_cells(values, self.effects, number, self.multiplying)


def predicted_by_sums(
    law: ReferenceSample,
    before: Prediction,
    families: Families,
    count: Floats,
    lowest: Floats,
    highest: Floats,
    measured: NoisyCellSums,
    laws: Sequence[ReferenceSample] = (),
) -> PredictionBySums:
    """The prediction after residual sums, with its errors.

    `measured` are about the prediction `before`, which is the same for all cells.
    """
    adding, about, observed, error = measured
    means, estimates = before.means.copy(), list[CoordinateEstimate]()

    def fitted(observed: Floats, error: Floats, base: Floats, scatter: Floats, scaling: bool) -> Effects:
        # Covariances of sums without any error are singular.
        sums = CoordinateSums(adding, observed, error + NOT_EXACT * (adding @ base) ** 2)
        return Effects.of(families, sums, SumsAboutPrediction(base, scatter, scaling))

    if before.weights_known:
        estimates.append(CoordinateEstimate.known(means[:, 0]))
    else:
        base, scatter = count * means[:, 0], count * before.spread[:, 0] ** 2
        effects = fitted(observed[:, 0], error[:, 0], base, scatter, True)
        means[:, 0] = np.clip(means[:, 0] * np.exp(effects.of_cells), max(lowest[0], 1e-300), highest[0])
        estimates.append(
            CoordinateEstimate(means[:, 0], effects.of_cells, effects.errors(families.design).scaled(means[:, 0]))
        )
    growth = means[:, 0] / before.means[:, 0]
    for k in range(1, means.shape[1]):
        predicted, scaling = before.means[:, k], multiplying(before, k)
        unit = predicted if scaling else np.full(len(count), float(law.outcomes[:, k - 1].std()) or 1.0)
        heavier = adding @ (count * (means[:, 0] - before.means[:, 0]))
        lean = (predicted[0] - about[:, k - 1]) * heavier
        base, scatter = count * means[:, 0] * unit, count * (growth * before.spread[:, k]) ** 2
        effects = fitted(observed[:, k] - lean, error[:, k], base, scatter, scaling)
        moved = predicted * np.exp(effects.of_cells) if scaling else predicted + unit * effects.of_cells
        moved = np.clip(moved, lowest[k], highest[k])
        step, errors = np.ones(len(count)) if scaling else unit, effects.errors(families.design)
        estimates.append(
            CoordinateEstimate(moved, step * effects.of_cells, errors.scaled(moved if scaling else unit), scaling)
        )
    return PredictionBySums.of(law, laws, before, count, estimates)
