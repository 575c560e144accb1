"""Learners of the public model: main effects and boosted trees for means by cell of public columns, from reference records.

A learner has folds of records, and predicts the cells of every fold by the records of the others. What a fold's records
leave shows the learner's errors; `prediction` shrinks and states them in the same way for all members. `MainEffects` follow
their own records little, so that residuals are taken from a fit to all. `Trees` follow them closely: they predict by the
mean of their fits, and a record's residual is from the fit without its fold. They multiply main effects, and their number
has the least deviance of the records that a fit lacks: none, if main effects are all that these show.

Grown trees are not released, but their predictions are (`Recalled`). So no reader of a release needs the library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Codes, Floats
from dpdist.core.this_process import single_threaded
from dpdist.mechanisms.tables.main_effects import ReferenceCells

LEARNING_RATE, LEAVES, MOST_TREES = 0.1, 8, 100
"""Part of a tree's values that is added, largest number of its leaves, and of trees."""
LEAST_CELLS = 5
"""Smallest number of cells of a leaf."""
LEAF_PRECISION = 4.0
"""Prior precision of a leaf's log effect."""
MOST_CATEGORIES = 255
"""Largest number of levels whose order means nothing to a tree; columns of more are split in order of their levels."""
MOST_LEFT = 0.1
"""Part of the deviance of main effects that means of a cross leave if they decide values."""
ROUNDING = 1e-9
"""The same if they leave nothing but rounding."""
LEAST_VARIANCE = 1e-6
"""Smallest variance of a total relative to its mean."""


class Fitted(NamedTuple):
    """Mean values by cell, (cell,), and those by the records of other folds, (fold, cell).

    Residuals are taken from the second if they are `crossed`.
    """

    means: Floats
    of_others: Floats
    crossed: bool
    error: Floats | None = None
    """Standard deviations of a record's value where means are not those of a deciding cross, otherwise 0, (cell,)."""


class Learner(Protocol):
    """Fits mean values of all cells to records' counts and totals, (record,) each; `fold` is the fold of every record."""

    @property
    def folds(self) -> int: ...

    def fit(self, cells: ReferenceCells, counts: Floats, totals: Floats, fold: Codes) -> Fitted: ...


@dataclass(frozen=True)
class MainEffects:
    """Penalised log-linear effects of levels; or means by the cross of columns that decides values, where one does.

    Weights of a stratified sample are those of its strata, which no sum of effects of columns can say. A cross decides if
    its means by other folds leave little of what effects leave.
    """

    folds: int = 2

    def fit(self, cells: ReferenceCells, counts: Floats, totals: Floats, fold: Codes) -> Fitted:
        sums = cells.added(counts), cells.added(totals)
        count, total = (
            np.array([cells.added((fold == k) * values) for k in range(self.folds)]) for values in (counts, totals)
        )
        sides = [[np.delete(parts, k, axis=0).sum(axis=0) for parts in (count, total)] for k in range(self.folds)]
        # The prior of effects is in records, whatever unit weights have; what varies more than its mean shows less of them.
        variance = float(counts.mean())
        means = cells.fitted(*sums, variance)
        predicted = np.maximum(counts * means[cells.place], 1e-300)
        dispersion = ((totals - predicted) ** 2 / predicted).mean() / max(float(totals.sum() / counts.sum()), 1e-300)
        if dispersion > variance:
            variance = float(dispersion)
            means = cells.fitted(*sums, variance)
        of_others = np.array([cells.fitted(side[0], side[1], variance) for side in sides])
        some = totals > 0.0
        of_records = 2.0 * float((totals[some] * (np.log(totals[some] / counts[some]) - 1.0)).sum())

        def remaining(predictions: Floats) -> float:
            """The deviance of records, which differ by fold and cell in what predictions say of them."""
            mean = np.maximum(predictions[:, : len(cells.size)], 1e-300)
            return of_records + 2.0 * float((count * mean - total * np.log(mean)).sum())

        def by(cross: Codes) -> Floats:
            pairs = zip(sides, of_others, strict=True)
            return np.array([_by_cross(cross, side, otherwise) for side, otherwise in pairs])

        before = max(remaining(of_others), 0.0)
        # Rounding does not choose among crosses that leave nothing: the first has the fewest cells.
        losses = [max(remaining(by(cross)), ROUNDING * before) for cross in cells.interactions]
        if min(losses, default=before) >= MOST_LEFT * before:
            return Fitted(means, of_others, False)
        # Cells of the cross without a record have main effects, and their errors.
        cross = cells.interactions[int(np.argmin(losses))]
        with_records = np.bincount(cross[: len(cells.size)], minlength=int(cross.max()) + 1) > 0
        expected = counts * np.maximum(of_others[fold, cells.place], 1e-300)
        ratio = totals[counts > 0.0] / expected[counts > 0.0] - 1.0
        error = np.where(with_records[cross], 0.0, means * float(np.sqrt((ratio**2).mean())))
        means = _by_cross(cross, sums, means)
        return Fitted(means, np.array([_by_cross(cross, side, means) for side in sides]), False, error)


def _by_cross(cross: Codes, sums: Sequence[Floats], otherwise: Floats) -> Floats:
    """Means by cells of a cross, (cell,), from `sums` of counts and totals by cell with records, and others where it has no
    record.
    """
    number = int(cross.max()) + 1
    count, total = (
        np.bincount(cross[: len(values)], weights=values, minlength=number).astype(np.float64) for values in sums
    )
    return np.where(count > 0.0, total / np.where(count > 0.0, count, 1.0), 0.0)[cross] + (count <= 0.0)[cross] * otherwise


@dataclass(frozen=True)
class Trees:
    """Boosted trees that multiply main effects, by Poisson deviance."""

    folds: int = 5

    def fit(self, cells: ReferenceCells, counts: Floats, totals: Floats, fold: Codes) -> Fitted:
        codes, with_records = cells.codes.astype(np.float64), len(cells.size)
        grown, losses = [self._grown(cells, counts, totals, fold != k) for k in range(self.folds)], np.zeros(1 + MOST_TREES)
        for k, (base, trees) in enumerate(grown):
            count, total = (cells.added((fold == k) * values) for values in (counts, totals))
            for number, mean in enumerate(_growing(base[:with_records], trees, codes[:with_records])):
                losses[number] += deviance(count, total, mean)
        number = int(np.argmin(losses))
        cross_fits = np.array([next(islice(_growing(base, trees, codes), number, None)) for base, trees in grown])
        return Fitted(cross_fits.mean(axis=0), cross_fits, True)

    def _grown(self, cells: ReferenceCells, counts: Floats, totals: Floats, rows: NDArray[np.bool_]) -> tuple[Floats, Any]:
        """Main effects by some records, (cell,), and trees by the same; None where these have nothing to split."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        mean_count = float(counts.mean())
        counts, totals = rows * counts, rows * totals
        count = cells.added(counts)
        base = cells.fitted(count, cells.added(totals), mean_count)
        expected, predicted = count * base[: len(cells.size)], counts * base[cells.place]
        present = expected > 0.0
        if not present.any() or not cells.columns:
            return base, None
        # Trees count records by what they show of a mean: by its square over a record's variance.
        variance = max(float(((totals - predicted) ** 2).sum() / predicted.sum()), LEAST_VARIANCE * float(predicted.max()))
        trees = HistGradientBoostingRegressor(
            loss="poisson",
            learning_rate=LEARNING_RATE,
            max_iter=MOST_TREES,
            max_leaf_nodes=LEAVES,
            min_samples_leaf=LEAST_CELLS,
            l2_regularization=LEAF_PRECISION,
            categorical_features=[j for j, column in enumerate(cells.codes.T) if column.max() < MOST_CATEGORIES],
            early_stopping=False,
            random_state=0,
        )
        codes, ratio = cells.codes[: len(cells.size)][present], cells.added(totals)[present] / expected[present]
        with single_threaded():
            return base, trees.fit(codes.astype(np.float64), ratio, sample_weight=expected[present] / variance)


def _growing(base: Floats, trees: Any, codes: Floats) -> Iterator[Floats]:
    """Predictions of main effects alone, then after every tree, (cell,) each."""
    yield base
    factors: Iterable[Floats | float] = repeat(1.0, MOST_TREES)
    with single_threaded():
        for factor in factors if trees is None else trees.staged_predict(codes):
            yield base * factor


@dataclass(frozen=True, eq=False)
class Recalled:
    """Predictions that trees of other folds made, (fold, cell), as a release states them."""

    of_others: Floats

    @property
    def folds(self) -> int:
        return len(self.of_others)

    def fit(self, cells: ReferenceCells, counts: Floats, totals: Floats, fold: Codes) -> Fitted:
        if self.of_others.shape[1] != len(cells.codes):
            raise ValueError("predictions of other cells")
        return Fitted(self.of_others.mean(axis=0), self.of_others, True)


def deviance(count: Floats, total: Floats, mean: Floats) -> float:
    """Poisson deviance of totals from `count` times `mean`, which may be 0 where totals are."""
    expected = count * mean
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(total > 0.0, total * np.log(total / expected), 0.0)
    return 2.0 * float((logs - total + expected).sum())


MAIN_EFFECTS, TREES = MainEffects(), Trees()


def recalled(of_others: Floats) -> list[Learner]:
    """Learners by coordinate, from predictions that a release states, (coordinate, fold, cell): 0 where there are none."""
    return [Recalled(predictions) if predictions.any() else MAIN_EFFECTS for predictions in of_others]
