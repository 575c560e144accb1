"""Public model of weights and outcomes: E(w|x) and E_w(y|x) by base cell, with its own errors, from reference records.

A learner predicts first: main effects by a penalised log-linear fit, which keeps the reference's totals by level, or
boosted trees on top of them; of an outcome of both signs, gains and losses apart. Random effects of cells of tables and
of pairs of columns, and of base cells, shrink what it leaves (best linear unbiased prediction). Variance components
solve the moment equations of products of residuals of two distinct records (MINQUE(0), non-negative). So the
prediction is between main effects and the reference's own cells, and states its error. Residuals of reference records
are leave-one-out: their record's own influence is taken out exactly, as in any linear smoother.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Codes, Floats, Ints
from dpdist.mechanisms.tables.learners import MAIN_EFFECTS, TREES, Learner, deviance
from dpdist.mechanisms.tables.main_effects import RIDGE, ReferenceCells, ReferenceSample
from dpdist.mechanisms.tables.prediction import LEAST_SHARE, SMALLEST, Prediction, Residuals
from dpdist.mechanisms.tables.random_effects import (
    MOST_INFLUENCE,
    Loadings,
    components,
    corrected,
    effects_of,
    least_components,
)

BINS = 12
"""Number of bins of predictions by which the spread of residuals is learned."""
POWERS = np.linspace(-2.0, 2.0, 17)
"""Powers of a prediction that its residuals' mean square may be proportional to: 1 for counts, 2 for sizes."""
FEWEST_OF_CHOICE = 4
"""Smallest number of reference records of which each half has two, and predicts the other."""
LEAST_BETTER = 1e-6
"""Smallest part of what records by other folds leave that a fit of gains and losses must explain to be used."""
NOTHING_LEFT = 0.1
"""Residuals in spreads, on average, of a value that columns decide."""
SAME_VALUE, FEWEST_OF_ONE, HARDLY = 0.95, 20, 0.05
"""Records of a level or of a table's cell are all alike if this share of them, and so many at least, have one value, and if
their standard deviation is below this part of that of all records."""
FROM_ORIGIN, OF_RANGE = 3.0, 0.25
"""Largest distance of the mean of all records from the origin of relative drift: the larger one of so many standard
deviations of records, and this part of an outcome's public range.
"""


class Spread(NamedTuple):
    """Standard deviation of residuals as a function of a prediction, interpolated between bins."""

    centres: Floats
    value: Floats

    @classmethod
    def of(cls, prediction: Floats, squares: Floats) -> Spread:
        """From squared residuals in units of what they are relative to."""
        ends = np.unique(np.quantile(prediction, np.linspace(0.0, 1.0, BINS + 1)))
        place = np.clip(np.searchsorted(ends, prediction, side="right") - 1, 0, max(len(ends) - 2, 0))
        number = np.bincount(place, minlength=1)
        centres: Floats = np.bincount(place, weights=prediction) / np.maximum(number, 1)
        total: Floats = np.bincount(place, weights=squares).astype(np.float64)
        occupied = number > 0
        number, centres, total = number[occupied], centres[occupied], total[occupied]
        # Bins of few records are mixed with the law of all bins, as if this were another 10 records.
        return cls(centres, np.sqrt((total + 10.0 * _power_law(centres, number, total)) / (number + 10.0)))

    def __call__(self, prediction: Floats) -> Floats:
        return np.interp(prediction, self.centres, self.value)


def _power_law(centres: Floats, number: Ints, total: Floats) -> Floats:
    """Mean squares of bins, (bin,), that are a power of the prediction: the likeliest one of `POWERS` for squares in
    proportion to a chi-squared variable.
    """
    size = np.log(np.maximum(np.abs(centres) / max(float(np.abs(centres).max()), 1e-300), SMALLEST))
    powers = np.exp(POWERS[:, None] * size)
    law = powers * (total / powers).sum(axis=1, keepdims=True) / number.sum()
    loss = (number * np.log(np.maximum(law, 1e-300)) + total / np.maximum(law, 1e-300)).sum(axis=1)
    return np.asarray(law[loss.argmin()])


class _Fit(NamedTuple):
    """A learner's means of weights or of an outcome within public bounds, (cell,), and those by other folds, (record,).

    `size` (cell,) and `size_by_others` (record,) are mean distances from the value about which effects multiply.
    Spreads and errors go with them.
    """

    means: Floats
    of_others: Floats
    size: Floats
    size_by_others: Floats
    error: Floats | None = None
    of_trees: Floats | None = None
    """Means of trees by other folds, (fold, cell)."""

    @classmethod
    def of(
        cls,
        cells: ReferenceCells,
        counts: Floats,
        totals: Floats,
        ends: tuple[float, float],
        learner: Learner,
        fold: Codes,
    ) -> _Fit:
        """Of totals that are never negative, within `ends`."""
        fitted = learner.fit(cells, counts, totals, fold)
        means, of_others = np.clip(fitted.means, *ends), np.clip(fitted.of_others, *ends)[fold, cells.place]
        of_trees = fitted.of_others if fitted.crossed else None
        return cls(means, of_others, means, of_others, fitted.error, of_trees)

    def less(self, losses: _Fit) -> _Fit:
        errors = [error for error in (self.error, losses.error) if error is not None]
        return _Fit(
            *(self.means - losses.means, self.of_others - losses.of_others),
            *(self.size + losses.size, self.size_by_others + losses.size_by_others),
            np.sqrt(np.square(errors).sum(axis=0)) if errors else None,
        )


def _fit(
    cells: ReferenceCells,
    weight: Floats,
    outcome: Floats | None,
    bounds: tuple[float, float],
    learner: Learner,
    fold: Codes,
) -> _Fit:
    """Fit of weights if there is no outcome, or of an outcome: of what is above its lowest value, or of gains less that of
    losses, whichever leaves less of records by other folds.
    """
    low, high = bounds
    if outcome is None:
        least = max(low, SMALLEST * max(float(weight.mean()), 1e-300))
        return _Fit.of(cells, np.ones(len(weight)), weight, (least, max(least, high)), learner, fold)
    above = _Fit.of(cells, weight, weight * (outcome - low), (0.0, high - low), learner, fold)
    above = above._replace(means=above.means + low, of_others=above.of_others + low)
    if above.of_trees is not None or not low < 0.0 < high:
        return above
    # Where firms differ in size, so do their gains and losses: effects of columns multiply both.
    gains, losses = (
        _Fit.of(cells, weight, weight * np.maximum(sign * outcome, 0.0), (0.0, end), learner, fold)
        for sign, end in ((1.0, high), (-1.0, -low))
    )
    signed = gains.less(losses)
    squares = [(weight * (outcome - fit.of_others)) ** 2 for fit in (above, signed)]
    scale = np.maximum(Spread.of(signed.size_by_others, np.add(*squares))(signed.size_by_others) ** 2, 1e-300)
    of_above, of_signed = (float(np.log1p(square / scale).sum()) for square in squares)
    # Where one cross decides all fits, they differ by rounding.
    return signed if of_signed < (1.0 - LEAST_BETTER) * of_above else above


class _Coordinate(NamedTuple):
    """Prediction of weights or of an outcome at all cells, and leave-one-out residuals of records in spreads."""

    means: Floats
    spread: Floats
    loading: Loadings
    alone: Floats
    without: Floats
    """Predictions for every reference record without its own influence, (record,)."""
    spreads: Floats
    """`spread` at these predictions, (record,)."""
    residuals: Floats
    """What these predictions leave, over these spreads, (record,)."""
    of_trees: Floats | None = None
    """Predictions of trees by the records of other folds, (fold, cell)."""


def _coordinate(
    cells: ReferenceCells,
    weight: Floats,
    outcome: Floats | None,
    of_weight: _Coordinate | None,
    bounds: tuple[float, float],
    learner: Learner,
) -> _Coordinate:
    """Prediction of weights if there is no outcome, or of an outcome given `of_weight`, the prediction of weights."""
    (low, high), predicted = bounds, None if of_weight is None else of_weight.means
    place, folds = cells.place, learner.folds
    half, fold = _halves_and_folds(len(place), folds)
    fit = _fit(cells, weight, outcome, bounds, learner, fold)
    base, of_others, crossed = fit.means, fit.of_others, fit.of_trees is not None
    at_records = of_others if crossed else base[place]
    relative_to = base if predicted is None else predicted

    def remainder(means: Floats) -> Floats:
        """What predictions leave of every record, relative to its predicted weight."""
        return (weight - means if outcome is None else weight * (outcome - means)) / relative_to[place]

    # What a fit to other folds leaves has no sums that cancel, and so shows the fit's errors: a level without a yes has
    # none in its own fit.
    left_by_others = remainder(of_others)
    unit = _units(cells, fit, left_by_others)
    z = remainder(at_records) / unit[place]
    variance = _components_of_folds(cells, left_by_others / unit[place], fold, folds)
    # Totals are fitted, so that heavy cells' records count most in the error of all cells.
    with_records = len(cells.size)
    weights, spreads_of = cells.size * relative_to[:with_records], unit[:with_records]
    level = float(np.sqrt((weights * relative_to[:with_records] * spreads_of**2).sum()) / weights.sum())
    single = [int(index.max()) + 1 for index in cells.families[: cells.columns]]
    least_of_levels = 2.0 * level**2 / float(cells.size @ spreads_of**2 / len(place)) * np.array(single)
    variance[: len(single)] = np.maximum(variance[: len(single)], least_of_levels)
    of_cells = cells.added(z) / cells.size, cells.size, cells.families
    followed = np.zeros_like(variance)
    if crossed:
        # Fits to other folds follow what they share with a record: residuals of all folds together show less of errors.
        joint_variance = components(*of_cells[:2], cells.added(z**2), [index[:with_records] for index in cells.families])
        followed[len(single) :] = np.maximum(variance - joint_variance, 0.0)[len(single) :]
        variance = variance - followed
    variance = least_components(*of_cells, len(single), variance)

    shift, *_, influence = effects_of(*of_cells, variance, len(base))
    # The fit has found effects of levels, with nothing but the ridge to hold them: a level of few records errs most.
    of_levels = np.maximum(variance[: cells.columns], 1.0 / RIDGE)
    of_level = level if outcome is None else level * _over_their_mean(fit.size, weights)
    errors = effects_of(*of_cells, np.concatenate([of_levels, variance[cells.columns :]]), len(base), of_level / unit)
    effects = errors._replace(shift=shift, influence=influence)
    step, least_mean = unit, np.full(len(base), low)
    if outcome is None:
        step, least_mean = unit * base, np.maximum(low, LEAST_SHARE * base)
    ratio = np.ones(len(place)) if of_weight is None else weight / of_weight.means[place]
    # Where a yes is rare, outcomes of one variance leave many small residuals and a few large ones.
    usual = np.ones(len(place)) if outcome is None else Spread.of(fit.size[place], np.abs(z))(fit.size[place]) ** 2
    usual = np.maximum(usual, SMALLEST)
    size = (relative_to * unit)[place]
    effects, variances = corrected(effects, z, ratio, size, usual, place, half, cells.interactions, cells.families)
    effects = effects.erring(cells.families, followed)
    means = np.clip(base + step * effects.shift, least_mean, high)
    # A record's own influence is in no part of what it shows: neither in the prediction nor in the spread there.
    own_part = np.minimum(effects.influence[place], MOST_INFLUENCE)
    own_influence = own_part / (1.0 - own_part) * (z - ratio * effects.shift[place])
    without = np.clip(at_records + step[place] * (effects.shift[place] - own_influence), least_mean[place], high)
    deviation = np.sqrt(variances)
    remaining = weight - without if outcome is None else weight * (outcome - without)
    shared, alone, unit = effects.loading.scaled(1.0 / deviation), effects.alone / deviation, unit * deviation
    if outcome is None:
        # Errors of effects are relative to what was fitted, and no smaller where effects have lowered it.
        ratio_to_fit = np.maximum(base / means, 1.0)
        shared, alone = shared.scaled(ratio_to_fit), alone * ratio_to_fit
    if fit.error is not None:
        # What no record of a cross shows is known as well as one record of this error would show it.
        unit = np.maximum(unit, fit.error / (means if outcome is None else 1.0))
        alone = np.where(fit.error > 0.0, 1.0, alone)
    spread, spreads = (
        (unit * means, unit[place] * without)
        if of_weight is None
        else (unit * of_weight.means, unit[place] * of_weight.without)
    )
    return _Coordinate(means, spread, shared, alone, without, spreads, remaining / spreads, fit.of_trees)


def _over_their_mean(means: Floats, weights: Floats) -> Floats:
    """Means over their mean by the `weights` of the first cells, (cell,). A fit of logarithms errs in this proportion."""
    means = np.maximum(means, 1e-300)
    return np.asarray(means / np.average(means[: len(weights)], weights=weights))


def _halves_and_folds(records: int, folds: int) -> tuple[Codes, Codes]:
    """The half and the fold of every record, (record,)."""
    order = np.random.default_rng(0).permutation(records).astype(np.int32)
    return order % np.int32(2), order % np.int32(folds)


def _units(cells: ReferenceCells, fit: _Fit, raw: Floats) -> Floats:
    """Standard deviations of records about a fit's means, (cell,), from what means by other folds leave of records, `raw`
    (record,).
    """
    place, least = cells.place, SMALLEST * np.maximum(np.abs(fit.means), 1e-12)
    unit = np.maximum(Spread.of(fit.size_by_others, raw**2)(fit.size), least)
    # Levels whose records vary less or more than others of the same prediction: some are constant.
    squares = (raw / unit[place]) ** 2
    heaviness = float((squares**2).mean() / max(float(squares.mean()) ** 2, 1e-300))
    of_levels = cells.fitted(cells.size, cells.added(squares), max(heaviness, 1.0))
    return np.asarray(np.maximum(unit * np.sqrt(of_levels), least))


def _components_of_folds(cells: ReferenceCells, z: Floats, fold: Codes, folds: int) -> Floats:
    """Variance components by family, from residuals of records by cell and fold."""
    with_records, group = len(cells.size), np.int32(folds) * cells.place + fold
    count = np.bincount(group, minlength=folds * with_records).astype(np.float64)
    nonempty = np.flatnonzero(count)
    sums, squares = (
        np.bincount(group, weights=values, minlength=folds * with_records)[nonempty].astype(np.float64)
        for values in (z, z**2)
    )
    of_folds = [
        (np.repeat(index[:with_records], folds) * folds + np.tile(np.arange(folds), with_records))[nonempty]
        for index in cells.families
    ]
    return components(sums / count[nonempty], count[nonempty], squares, of_folds)


def _known(cells: ReferenceCells, weight: Floats, of_file: Floats) -> _Coordinate:
    """Public weights of records and of base cells, which leave no residuals."""
    number = cells.design.shape[0]
    means, none = np.empty(number), np.zeros(number)
    means[cells.place], means[cells.of_file] = weight, of_file
    of_records = np.zeros(len(weight))
    return _Coordinate(means, none, Loadings.none(number), none, weight, of_records, of_records)


def predict(
    reference: ReferenceSample,
    cells: Ints,
    sizes: Sequence[int],
    tables: Sequence[Sequence[int]],
    lowest: Floats,
    highest: Floats,
    weight: Floats | None = None,
    learners: Sequence[Learner] | None = None,
) -> Prediction:
    """Fit to the reference and predict at base cells of the file.

    `cells` (cell, column) are the file's codes, `tables` positions of columns by measured table, `lowest` and `highest`
    public bounds of weight and outcomes, (1 + outcome,). `weight` (cell,) are public weights, which reference records then
    have as well. `learners` are those of weight and outcomes, main effects if there are none.
    """
    all_cells = ReferenceCells.of(reference, cells, sizes, tables)
    of_weights, *of_outcomes = learners or [MAIN_EFFECTS] * len(lowest)
    ends = list(zip(lowest.tolist(), highest.tolist(), strict=True))
    if weight is None:
        of_weight = _coordinate(all_cells, reference.weight, None, None, ends[0], of_weights)
    else:
        of_weight = _known(all_cells, reference.weight, weight)
    coordinates = [of_weight] + [
        _coordinate(all_cells, reference.weight, outcome, of_weight, bounds, learner)
        for outcome, bounds, learner in zip(reference.outcomes.T, ends[1:], of_outcomes, strict=True)
    ]
    z = np.column_stack([coordinate.residuals for coordinate in coordinates])
    # The spread is that of residuals about the final prediction.
    scale = np.sqrt((z**2).mean(axis=0))
    # Where nothing is left, it stays the smallest one, and what correlates is rounding.
    nothing = scale < NOTHING_LEFT
    scale[nothing] = 1.0
    z /= scale
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.nan_to_num(np.corrcoef(z, rowvar=False).reshape(z.shape[1], z.shape[1]))
    correlation[nothing] = correlation[:, nothing] = 0.0
    np.fill_diagonal(correlation, 1.0)
    means = np.column_stack([coordinate.means for coordinate in coordinates])
    spread = np.column_stack([coordinate.spread for coordinate in coordinates]) * scale
    at_reference = np.empty((len(z), 2, len(scale)))
    for k, coordinate in enumerate(coordinates):
        at_reference[:, 0, k], at_reference[:, 1, k] = coordinate.without, coordinate.spreads * scale[k]
    shape = next((coordinate.of_trees.shape for coordinate in coordinates if coordinate.of_trees is not None), (0,))
    back = np.full(len(means), -1, dtype=np.int32)
    back[all_cells.of_file] = np.arange(len(cells), dtype=np.int32)
    two_values, values = _of_two_values(reference.outcomes, lowest[1:], highest[1:])
    origin, deviation = origin_and_deviation(reference, means[:, 1:], lowest[1:], highest[1:], OF_RANGE)
    # A cell's few records may be alike by chance where those of its levels are not.
    constant = _hardly_varying(reference, all_cells, deviation) & (spread[:, 1:] < HARDLY * deviation * means[:, :1])
    return Prediction(
        *(means[all_cells.of_file], spread[all_cells.of_file]),
        tuple(
            coordinate.loading.of_cells(all_cells.of_file).scaled(np.full(len(cells), 1.0 / by))
            for coordinate, by in zip(coordinates, scale, strict=True)
        ),
        np.column_stack([coordinate.alone for coordinate in coordinates])[all_cells.of_file] / scale,
        *(correlation, Residuals(z)),
        back[all_cells.place],
        at_reference,
        np.array([np.zeros(shape) if coordinate.of_trees is None else coordinate.of_trees for coordinate in coordinates]),
        *(two_values, values),
        reference.proportional,
        np.where(np.isnan(two_values[0]), origin, 0.0),
        (deviation * constant)[all_cells.of_file],
    )


def _hardly_varying(sample: ReferenceSample, cells: ReferenceCells, deviation: Floats) -> NDArray[np.bool_]:
    """Whether reference records of a level, or of a cell of a table or of two columns, are all alike, in every cell of
    reference and file, (cell, outcome).
    """
    constant, with_records = np.zeros((len(cells.codes), len(deviation)), dtype=bool), len(cells.size)
    for k, values in enumerate((sample.outcomes - sample.outcomes.mean(axis=0)).T):
        of_cells = cells.size, cells.added(values), cells.added(values**2)
        for group in cells.families:
            number, total, square = (np.bincount(group[:with_records], weights=part) for part in of_cells)
            variance = (square - total**2 / np.maximum(number, 1.0)) / np.maximum(number, 1.0)
            close = np.flatnonzero((number >= FEWEST_OF_ONE) & (variance < (HARDLY * deviation[k]) ** 2))
            if not len(close):
                continue
            of_record = group[cells.place]
            inside = np.flatnonzero(np.isin(of_record, close))
            ordered = inside[np.argsort(of_record[inside], kind="stable")]
            each = np.split(values[ordered], np.cumsum(number[close]).astype(int)[:-1])
            same = [(part == np.median(part)).mean() >= SAME_VALUE for part in each]
            constant[np.isin(group, close[same]), k] = True
    return constant


def origin_and_deviation(
    sample: ReferenceSample, means: Floats, lowest: Floats, highest: Floats, of_range: float
) -> tuple[Floats, Floats]:
    """What outcomes drift relatively to: 0, or a value nearer to records that lie far from 0, as years do; and standard
    deviations of all records, (outcome,) each.

    Far is more than `FROM_ORIGIN` standard deviations and `of_range` of the public range. All predicted `means` (cell,
    outcome) lie on one side. So figures hardly depend on where such an outcome's scale begins.
    """
    weight = np.maximum(sample.weight, 1e-300)
    mean = np.average(sample.outcomes, weights=weight, axis=0)
    spread = np.sqrt(np.average((sample.outcomes - mean) ** 2, weights=weight, axis=0))
    far = np.maximum(FROM_ORIGIN * spread, of_range * (highest - lowest))
    # From 0 no further than to the nearest cell.
    near = np.where(mean > 0.0, np.maximum(means.min(axis=0), 0.0), np.minimum(means.max(axis=0), 0.0))
    origin = np.sign(mean) * np.minimum(np.maximum(np.abs(mean) - far, 0.0), np.abs(near))
    # Where all are alike, half a record more lies at the other end of the public range.
    one_other = (highest - lowest) * np.sqrt(0.5 / (len(weight) + 1.0))
    return origin + 0.0, np.where(np.ptp(sample.outcomes, axis=0) > 0.0, spread, one_other)


def _of_two_values(outcomes: Floats, lowest: Floats, highest: Floats) -> tuple[Floats, Floats]:
    """`ends` and `values` of a prediction before any drift."""
    low, high = outcomes == lowest, outcomes == highest
    only = (low | high).all(axis=0) & low.any(axis=0) & high.any(axis=0)
    ends = np.where(only, np.stack([lowest, highest]), np.nan)
    return ends, np.where(only, outcomes, np.nan) if only.any() else np.zeros((0, 0))


def learners_of(
    name: str,
    reference: ReferenceSample,
    sizes: Sequence[int],
    tables: Sequence[Sequence[int]],
    lowest: Floats,
    highest: Floats,
    weights_known: bool,
) -> Sequence[Learner]:
    """Learners of weight and outcomes by the job's name for them; `best` are those of the least cross-fitted deviance.

    Other arguments are those of `predict`; weights are public if `weights_known`.
    """
    if name != "best" or len(reference.weight) < FEWEST_OF_CHOICE:
        return [TREES if name == "trees" else MAIN_EFFECTS] * len(lowest)
    members: tuple[Learner, ...] = (MAIN_EFFECTS, TREES)
    of_members = [
        deviances([member] * len(lowest), reference, sizes, tables, lowest, highest, weights_known) for member in members
    ]
    return [members[int(np.argmin(losses))] for losses in np.transpose(of_members)]


def deviances(
    learners: Sequence[Learner],
    reference: ReferenceSample,
    sizes: Sequence[int],
    tables: Sequence[Sequence[int]],
    lowest: Floats,
    highest: Floats,
    weights_known: bool,
) -> Floats:
    """Cross-fitted Poisson deviances of weights, and of outcomes above their lowest value by weight, (1 + outcome,).

    Each half of the records is predicted by the other. A prediction counts as `LEAST_SHARE` of the mean at least: one of 0
    would make the deviance infinite.
    """
    codes, cross = np.unique(reference.codes, axis=0, return_inverse=True)
    place = reference.of_records(cross.reshape(-1))
    half, total = np.random.default_rng(0).permutation(len(place)) % 2, np.zeros(len(lowest))
    weight = np.zeros(len(codes))
    weight[place] = reference.weight
    for side in (0, 1):
        fitted, test = half != side, half == side
        records = reference.weight[fitted], reference.outcomes[fitted], place[fitted].astype(np.int32)
        sample, cells = ReferenceSample(codes, *records), codes.astype(np.int64)
        fit = predict(sample, cells, sizes, tables, lowest, highest, weight if weights_known else None, learners)
        means, of_records = fit.means[place[test]], reference.weight[test]
        for j in range(int(weights_known), len(lowest)):
            low = lowest[j] if j else 0.0
            count = of_records if j else np.ones(len(of_records))
            values = count * (reference.outcomes[test, j - 1] - low) if j else of_records
            least = LEAST_SHARE * values.sum() / max(float(count.sum()), 1e-300)
            total[j] += deviance(count, values, np.maximum(means[:, j] - low, least))
    return total
