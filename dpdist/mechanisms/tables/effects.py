"""The log-linear prediction from first noisy sums where there is no reference: effects of levels and of tables' cells.

E(w|x) is m exp(Σ β) over the effects of x, and E_w(y|x) likewise; outcomes of either sign have effects that add, in
standard deviations. Effects are normal, with a variance by family: a column's levels, or a table's cells. Their posterior
is that of a normal law about the mode (Gauss and Newton), and variances are those that it has in the mean, with one effect
of `TYPICAL` size more. The law within cells is the law of all, whose logarithms lose the part of their variance that the
effects have. So cells of small weights have small limits, though the law of all has large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints
from dpdist.mechanisms.tables.bins import paired
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.prediction import Prediction, of_one_law
from dpdist.mechanisms.tables.random_effects import Loadings

TYPICAL = 0.5
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
LEAST_PART = 0.1
"""Smallest part of the variance of logarithms that is within cells."""
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


class Effects(NamedTuple):
    """Posterior of effects: of cells together, (cell,), and the root of the covariance of all effects, (effect, effect)."""

    of_cells: Floats
    root: Floats

    @classmethod
    def of(cls, families: Families, sums: CoordinateSums, base: Floats, scatter: Floats, scaling: bool) -> Effects:
        """`base` (cell,) is what a relative effect of 1 adds, and `scatter` (cell,) the sampling variance without effects.

        Effects multiply if `scaling`; otherwise they add.
        """
        design, family = families
        beta = np.zeros(design.shape[1])
        variance = np.full(int(family.max()) + 1, TYPICAL**2)
        variance[0] = WHOLE**2

        def of_cells(effects: Floats) -> Floats:
            return np.asarray(np.clip(design @ effects, -FARTHEST, FARTHEST))

        def response(eta: Floats) -> tuple[Floats, Floats]:
            return (np.expm1(eta), np.exp(eta)) if scaling else (eta, np.ones_like(eta))

        for _ in range(ROUNDS):
            shift, slope = response(of_cells(beta))
            worth = 1.0 / (sums.error + sums.adding @ (scatter * slope**2) + 1e-12 * (sums.adding @ base) ** 2)
            precision = 1.0 / variance[family]
            jacobian = (sums.adding @ scipy.sparse.diags_array(base * slope) @ design).toarray()
            missed = sums.observed - sums.adding @ (base * shift)
            information = jacobian.T @ (worth[:, None] * jacobian) + np.diag(precision)
            root = scipy.linalg.cholesky(information, lower=True)
            step = scipy.linalg.cho_solve((root, True), jacobian.T @ (worth * missed) - precision * beta)
            step *= min(1.0, LARGEST_STEP / max(float(np.abs(design @ step).max()), 1e-300))
            loss = _loss(missed, worth, precision, beta)
            while True:
                later = sums.observed - sums.adding @ (base * response(of_cells(beta + step))[0])
                if _loss(later, worth, precision, beta + step) <= loss or np.abs(step).max() < 1e-9:
                    break
                step *= 0.5
            beta = beta + step
            half = scipy.linalg.solve_triangular(root, np.eye(len(beta)), lower=True)
            squares = np.bincount(family, weights=beta**2 + (half**2).sum(axis=0))
            variance[1:] = ((squares + TYPICAL**2) / (np.bincount(family) + 1.0))[1:]
        return cls(of_cells(beta), half.T)


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


def _within(values: Floats, effects: Floats, count: Floats, scaling: bool) -> float:
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
    """A prediction by first sums, and others about the same means with other laws that noisy counts may have meant."""

    prediction: Prediction
    by_law: tuple[Prediction, ...]


def predicted_by_sums(
    law: ReferenceSample,
    before: Prediction,
    families: Families,
    count: Floats,
    lowest: Floats,
    highest: Floats,
    measured: NoisyCellSums,
    weights_known: bool,
    laws: Sequence[ReferenceSample] = (),
) -> PredictionBySums:
    """The prediction after first sums, with its errors. `laws` are further laws.

    `measured` are about the prediction `before`, which is the same for all cells. Weights are public if `weights_known`.
    """
    cells, (adding, about, observed, error) = np.arange(len(count)), measured
    means, parts = before.means.copy(), [1.0]
    by_coordinate, scaled, of_sizes = list[Effects | None]([None]), [True], [np.zeros(len(count))]
    if not weights_known:
        base = count * means[:, 0]
        of_weight = Effects.of(
            families, CoordinateSums(adding, observed[:, 0], error[:, 0]), base, count * before.spread[:, 0] ** 2, True
        )
        means[:, 0] = np.clip(means[:, 0] * np.exp(of_weight.of_cells), max(lowest[0], 1e-300), highest[0])
        by_coordinate[0], parts[0] = of_weight, _within(law.weight, of_weight.of_cells, count, True)
        of_sizes[0] = of_weight.of_cells
    growth = means[:, 0] / before.means[:, 0]
    for k in range(1, means.shape[1]):
        predicted, scaling = before.means[:, k], bool(before.rising[k - 1] and before.means[0, k] > 0.0)
        unit = predicted if scaling else np.full(len(cells), float(law.outcomes[:, k - 1].std()) or 1.0)
        heavier = adding @ (count * (means[:, 0] - before.means[:, 0]))
        lean = (predicted[0] - about[:, k - 1]) * heavier
        sums = CoordinateSums(adding, observed[:, k] - lean, error[:, k])
        effects = Effects.of(
            families, sums, count * means[:, 0] * unit, count * (growth * before.spread[:, k]) ** 2, scaling
        )
        values = predicted * np.exp(effects.of_cells) if scaling else predicted + unit * effects.of_cells
        means[:, k] = np.clip(values, lowest[k], highest[k])
        of_sizes.append(effects.of_cells if scaling else unit * effects.of_cells)
        parts.append(_within(law.outcomes[:, k - 1], of_sizes[k], count, scaling))
        by_coordinate.append(effects)
        scaled.append(scaling)

    between = [
        0.0 if weights_known else float(np.cov(of_sizes[0], size, aweights=count, ddof=0)[0, 1]) for size in of_sizes[1:]
    ]

    def within(sample: ReferenceSample) -> Prediction:
        columns = [sample.weight, *sample.outcomes.T]
        in_order = [np.sort(drawn_together(*each)) for each in zip(columns, parts, scaled, strict=True)]
        correlations = [
            0.0 if weights_known else _correlation_within(sample.weight, *each)
            for each in zip(sample.outcomes.T, scaled[1:], between, np.sqrt(parts[0] * np.array(parts[1:])), strict=True)
        ]
        weight, *outcomes = paired(in_order, np.array(correlations), np.random.default_rng(0))
        paired_sample = ReferenceSample(sample.codes, weight, np.column_stack(outcomes))
        return of_one_law(paired_sample, means, before.rising, weights_known)

    after = within(law)
    loadings = [
        Loadings.none(len(cells)) if fit is None else _loadings(families.design, fit.root, after, j, scaled[j], before)
        for j, fit in enumerate(by_coordinate)
    ]
    shared = tuple(loadings)
    return PredictionBySums(
        replace(after, loadings=shared), tuple(replace(within(sample), loadings=shared) for sample in laws)
    )


def _loadings(
    design: scipy.sparse.csr_array, root: Floats, after: Prediction, j: int, scaling: bool, before: Prediction
) -> Loadings:
    """Errors of a coordinate by effects, in spreads of a record's residual."""
    variance = np.asarray((design @ root) ** 2).sum(axis=1)
    weight = after.means[:, 0] if j else 1.0
    size = after.means[:, j] if scaling else before.spread[:, j] / before.means[:, 0]
    spread = after.spread[:, j]
    by = np.divide(weight * size, spread, out=np.zeros_like(spread), where=spread > 0.0)
    return Loadings(design, np.zeros(0), root, variance).scaled(by)
