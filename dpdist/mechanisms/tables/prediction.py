"""Public model of weights and outcomes: E(w|x) and E_w(y|x) by base cell, with its own errors, from reference records.

Main effects come from a penalised log-linear fit, which keeps the reference's totals by level. Random effects of cells
of tables and of pairs of columns, and of base cells, shrink what main effects leave (best linear unbiased prediction).
Variance components solve the moment equations of products of residuals of two distinct records (MINQUE(0), non-
negative). So the prediction is between main effects and the reference's own cells, and states its error. Residuals of
reference records are leave-one-out: their record's own influence is taken out exactly, as in any linear smoother.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.tables.conjugate import solved

MOST_STEPS = 30
"""Largest number of Fisher scoring steps."""
RIDGE = 0.25
"""Prior precision of log effects of levels, in records' information at a relative variance of 1."""
BINS = 12
"""Number of bins of predictions by which the spread of residuals is learned."""
MOST_EFFECTS = 2_500
"""Largest number of random effects of pairs of columns that no table needs."""
MOST_OF_TABLES, LEAST_OF_TABLES = 4_000, 600
"""Numbers of random effects of columns and tables in a file of few cells, and in one of many."""
ENTRIES = 60_000_000
"""Largest number of cells times effects above the least, and of cells times pairs of families of effects."""
LEAST_FAMILIES = 12
MOST_LEVELS = 800
"""Largest number of coefficients that a dense system solves."""
ROUNDS = 3
"""Rounds of the moment equations of variance components."""
LEAST_SHARE = 0.1
"""Smallest predicted weight, relative to that of main effects."""
MOST_INFLUENCE = 0.99
"""Largest influence of a record on its own prediction that is taken out."""
LEAST_OWN = 1e-4
"""Smallest variance of a record about its cell's mean, relative to that of records of the same prediction."""
SMALLEST = 1e-6
"""Smallest relative spread of residuals."""


class ReferenceSample(NamedTuple):
    """Records of the reference: codes (record, column), weight (record,), outcomes (record, outcome)."""

    codes: Ints
    weight: Floats
    outcomes: Floats


@dataclass(frozen=True, eq=False)
class Loadings:
    """Errors that cells share: factors of their covariance, (cell, effect), kept as a sparse `design` times a root.

    The root of the effects' covariance is diagonal for the first effects, `lone`, and dense for others, (effect, other). So
    a family of many effects that exclude each other, such as a column of many levels, is as cheap as its cells.
    """

    design: scipy.sparse.csr_array
    lone: Floats
    root: Floats
    variance: Floats
    """Variances of the errors, (cell,)."""

    @classmethod
    def none(cls, cells: int) -> Loadings:
        return cls(scipy.sparse.csr_array((cells, 0)), np.zeros(0), np.zeros((0, 0)), np.zeros(cells))

    @classmethod
    def of_precision(
        cls, design: scipy.sparse.csr_array, first: Floats, across: scipy.sparse.csr_array, others: Floats
    ) -> Loadings:
        """From the effects' precision: its diagonal for the `first` ones, (first,), (first, other), and (other, other)."""
        slope = scipy.sparse.diags_array(1.0 / first) @ across
        triangle = scipy.linalg.cholesky(others - (across.T @ slope).toarray(), lower=True)
        lower = scipy.linalg.solve_triangular(triangle, np.eye(len(others)), lower=True).T
        lone, root = 1.0 / np.sqrt(first), np.concatenate([-(slope @ lower), lower])
        variance = np.asarray(design[:, : len(first)].power(2) @ lone**2)
        at_once = max(ENTRIES // 20 // max(root.shape[1], 1), 1)
        for start in range(0, design.shape[0], at_once):
            variance[start : start + at_once] += ((design[start : start + at_once] @ root) ** 2).sum(axis=1)
        return cls(design, lone, root, variance)

    @property
    def shape(self) -> tuple[int, int]:
        return self.design.shape[0], len(self.lone) + self.root.shape[1]

    def covariance(self, right: Floats) -> Floats:
        """The covariance of the effects times values, (effect,)."""
        image: Floats = self.root @ (self.root.T @ right)
        image[: len(self.lone)] += self.lone**2 * right[: len(self.lone)]
        return image

    def scaled(self, by: Floats) -> Loadings:
        """Errors times factors, (cell,)."""
        return replace(self, design=(scipy.sparse.diags_array(by) @ self.design).tocsr(), variance=self.variance * by**2)

    def of_cells(self, cells: Ints) -> Loadings:
        return replace(self, design=self.design[cells], variance=self.variance[cells])

    def beside(self, other: Loadings) -> Loadings:
        """Sums of these errors and of the others, which are independent."""
        first, second = len(self.lone), len(other.lone)
        blocks = [self.design[:, :first], other.design[:, :second], self.design[:, first:], other.design[:, second:]]
        roots = [np.split(one.root, [len(one.lone)]) for one in (self, other)]
        parts = [scipy.linalg.block_diag(*pair) for pair in zip(*roots, strict=True)]
        lone = np.concatenate([self.lone, other.lone])
        return Loadings(scipy.sparse.hstack(blocks).tocsr(), lone, np.concatenate(parts), self.variance + other.variance)

    def __matmul__(self, effects: Floats) -> Floats:
        """Errors of cells from independent standard effects, (effect,) or (effect, draw)."""
        image = self.root @ effects[len(self.lone) :]
        image[: len(self.lone)] += (self.lone * effects[: len(self.lone)].T).T
        return np.asarray(self.design @ image)

    def back(self, values: Floats) -> Floats:
        """The transposed factors times values of cells, (cell,) or (cell, draw)."""
        image = self.design.T @ values
        return np.concatenate([(self.lone * image[: len(self.lone)].T).T, self.root.T @ image])

    def rows(self, adding: scipy.sparse.csr_array) -> Floats:
        """Factors of sums over cells, (row, effect)."""
        image = (adding @ self.design).toarray()
        return np.concatenate([image[:, : len(self.lone)] * self.lone, image @ self.root], axis=1)


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
    residuals: Floats
    """Leave-one-out residuals of reference records in standard deviations, (record, 1 + outcome)."""
    places: Ints
    """The base cell of every reference record, -1 if the file has none such."""
    at_reference: Floats
    """`means` and `spread` at every reference record without its own influence, (record, 2, 1 + outcome)."""
    adds_weight: bool = False
    """True where numbers of records are secret: a record then adds its predicted weight beside its residual."""

    @property
    def subtracted(self) -> Floats:
        """Weights about which contributions are taken, (cell,): predicted ones, or 0 where they would tell numbers."""
        return self.means[:, 0] * (1.0 - self.adds_weight)

    @property
    def weights_known(self) -> bool:
        """True if weights are public: they have no residuals, and nothing is measured for them."""
        return not self.spread[:, 0].any()

    @property
    def drifting(self) -> Floats:
        """What a relative drift of 1 adds to a record's residuals, (cell, 1 + outcome); 0 for public weights.

        Outcomes' drift is relative to their means and their spread.
        """
        weight, outcomes = self.means[:, :1], self.means[:, 1:]
        of_outcomes = weight * np.hypot(outcomes, self.spread[:, 1:] / np.maximum(weight, 1e-300))
        return np.column_stack([weight * (not self.weights_known), of_outcomes])

    def rescaled(self, factors: Floats) -> Prediction:
        """The prediction after a common drift: weights times the first factor, outcomes times the others."""
        scale = np.concatenate([factors[:1], factors[:1] * factors[1:]])
        at_reference = self.at_reference * np.stack([factors, scale])
        return replace(self, means=self.means * factors, spread=self.spread * scale, at_reference=at_reference)

    def within(self, cells: int) -> Prediction:
        """The prediction at the first so many cells."""
        return replace(
            self,
            means=self.means[:cells],
            spread=self.spread[:cells],
            loadings=tuple(one.of_cells(np.arange(cells)) for one in self.loadings),
            alone=self.alone[:cells],
            places=np.where(self.places < cells, self.places, -1),
        )

    def shifted(self, residuals: Floats, lowest: Floats, highest: Floats) -> Prediction:
        """The prediction after a record's residuals have had these means, (cell, 1 + outcome), within public bounds.

        The spread of weights moves with them. That of outcomes moves with outcomes that are never negative.
        """
        before, least = self.means, np.maximum(lowest[0], LEAST_SHARE * self.means[:, 0])
        weight = np.clip(before[:, 0] + residuals[:, 0], least, highest[0])
        outcomes = np.clip(before[:, 1:] + residuals[:, 1:] / weight[:, None], lowest[1:], highest[1:])
        scale = np.ones_like(before)
        scale[:, 0] = weight / before[:, 0]
        rising = (lowest[1:] >= 0.0) & (before[:, 1:] > 0.0)
        scale[:, 1:] = np.where(rising, np.clip(outcomes / np.where(rising, before[:, 1:], 1.0), 0.5, 2.0), 1.0)
        scale[:, 1:] *= scale[:, :1]
        means, spread = np.column_stack([weight, outcomes]), self.spread * scale
        inside = self.places >= 0
        at_reference = self.at_reference.copy()
        at_reference[inside] = np.stack([means, spread], axis=1)[self.places[inside]]
        return replace(self, means=means, spread=spread, at_reference=at_reference)


def of_one_law(sample: ReferenceSample, means: Floats, lowest: Floats, known: bool = False) -> Prediction:
    """One law for all cells, that of the sample, about `means` (cell, 1 + outcome) of weight and outcomes.

    Spreads go with the mean weight, and with means of outcomes that are never negative by their bounds `lowest` (1 +
    outcome,); that of rare values goes with the root of their mean. Weights are public if `known`.
    """
    records, mean = len(sample.weight), max(float(sample.weight.mean()), 1e-300)
    outcomes = np.average(sample.outcomes, weights=np.maximum(sample.weight, 1e-300), axis=0)
    relative = sample.weight[:, None] / mean * np.column_stack([np.ones(records), sample.outcomes - outcomes])
    relative[:, 0] -= 1.0
    spread = np.sqrt((relative**2).mean(axis=0))
    if not known:
        spread[0] = max(spread[0], SMALLEST)
    residuals = relative / np.where(spread > 0.0, spread, 1.0)
    rising = (lowest[1:] >= 0.0) & (outcomes > 0.0)
    ratio = np.where(rising, means[:, 1:] / np.where(rising, outcomes, 1.0), 1.0)
    growth = np.where(ratio < 1.0, np.sqrt(np.maximum(ratio, SMALLEST)), ratio)
    scales = means[:, :1] * spread * np.column_stack([np.ones(len(means)), growth])
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.nan_to_num(np.corrcoef(residuals, rowvar=False).reshape(len(spread), len(spread)))
    np.fill_diagonal(correlation, 1.0)
    typical = np.stack([means.mean(axis=0), scales.mean(axis=0)])
    none = tuple(Loadings.none(len(means)) for _ in spread)
    nowhere = np.full(records, -1)
    return Prediction(
        *(means, scales, none, np.zeros_like(means), correlation, residuals, nowhere, np.tile(typical, (records, 1, 1)))
    )


def log_linear(design: scipy.sparse.csr_array, size: Floats, total: Floats, variance: float = 1.0) -> Floats:
    """Coefficients β of E(total) = size exp(design β): Poisson scores with a ridge on all but the first column.

    `variance` is a record's, in units of its squared mean: what varies more shows less of effects.
    """
    mean = total.sum() / max(size.sum(), 1e-300)
    beta = np.zeros(design.shape[1])
    if mean <= 0.0:
        beta[0] = -np.inf
        return beta
    beta[0], scale = np.log(mean), 1.0 / (mean * variance)
    ridge = np.full(design.shape[1], RIDGE)
    ridge[0] = 1e-9
    start = beta.copy()

    def objective(coefficients: Floats) -> float:
        eta = design @ coefficients
        return float(scale * (size @ np.exp(eta) - total @ eta) + 0.5 * ridge @ (coefficients - start) ** 2)

    value = objective(beta)
    for _ in range(MOST_STEPS):
        fitted = size * np.exp(design @ beta)
        score = scale * (design.T @ (total - fitted)) - ridge * (beta - start)
        information = scale * (design.T @ scipy.sparse.diags_array(fitted) @ design) + scipy.sparse.diags_array(ridge)
        step = _newton(information.tocsr(), score)
        step *= min(1.0, 5.0 / max(np.abs(step).max(), 1e-300))
        while (next_value := objective(beta + step)) > value + 1e-12 * abs(value) and np.abs(step).max() > 1e-10:
            step *= 0.5
        beta = beta + step
        if value - next_value < 1e-10 * (1.0 + abs(value)):
            break
        value = next_value
    return beta


def _newton(information: scipy.sparse.csr_array, score: Floats) -> Floats:
    if len(score) <= MOST_LEVELS:
        return np.asarray(scipy.linalg.solve(information.toarray(), score, assume_a="pos"))
    return solved(lambda x: information @ x, information.diagonal(), score)


def one_hot(codes: Ints, sizes: Sequence[int]) -> scipy.sparse.csr_array:
    """An intercept, and an indicator of every level of every column, (row, 1 + levels)."""
    rows, starts = len(codes), 1 + np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(int)
    columns = np.column_stack([np.zeros(rows, dtype=int), codes + starts[None]]) if len(sizes) else np.zeros((rows, 1), int)
    width = columns.shape[1]
    pointer = np.arange(0, rows * width + 1, width)
    return scipy.sparse.csr_array((np.ones(rows * width), columns.ravel(), pointer), shape=(rows, 1 + int(sum(sizes))))


class Spread(NamedTuple):
    """Standard deviation of residuals as a function of a prediction, interpolated in logarithms between bins."""

    centres: Floats
    value: Floats

    @classmethod
    def of(cls, prediction: Floats, squares: Floats) -> Spread:
        """From squared residuals in units of what they are relative to."""
        ends = np.unique(np.quantile(prediction, np.linspace(0.0, 1.0, BINS + 1)))
        place = np.clip(np.searchsorted(ends, prediction, side="right") - 1, 0, max(len(ends) - 2, 0))
        number = np.bincount(place, minlength=1)
        whole = squares.mean()
        # Bins of few records are mixed with all records, as if these were another 10.
        mean = (np.bincount(place, weights=squares) + 10.0 * whole) / (number + 10.0)
        centres = np.bincount(place, weights=prediction) / np.maximum(number, 1)
        used = number > 0
        return cls(centres[used], np.sqrt(mean[used]))

    def __call__(self, prediction: Floats) -> Floats:
        return np.interp(prediction, self.centres, self.value)


def most_effects(cells: int) -> int:
    """Largest number of effects of columns and tables without the family of most effects, in a file of so many cells."""
    return int(np.clip(ENTRIES // max(cells, 1), LEAST_OF_TABLES, MOST_OF_TABLES))


def families(tables: Sequence[Sequence[int]], codes: Ints) -> list[Ints]:
    """Cells of columns, tables and pairs of columns, each as an index over all rows of `codes`.

    In a file of many cells, those of tables and pairs with most effects are left out.
    """
    rows, columns = codes.shape
    levels = [int(column.max(initial=0)) + 1 for column in codes.T]
    most = most_effects(rows)
    number = max(LEAST_FAMILIES, int(np.sqrt(ENTRIES / max(rows, 1))))

    def few_first(sets: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return sorted(sets, key=lambda by: math.prod(levels[column] for column in by))

    single = [(k,) for k in range(columns)]
    wanted = dict.fromkeys([*few_first(single), *few_first({tuple(sorted(set(by))) for by in tables}.difference(single))])
    kept, effects, largest = list[Ints](), 0, 0
    for by in wanted:
        if (0 < len(by) < columns or columns == 1) and len(kept) < number:
            index = cell_index(codes[:, list(by)])
            cells = int(index.max()) + 1
            # The family of most effects has a diagonal precision of its own.
            if effects + cells - max(largest, cells) <= most:
                kept.append(index)
                effects, largest = effects + cells, max(largest, cells)
            elif len(by) > 1:
                break
    others = few_first(set(combinations(range(columns), 2)).difference(wanted))
    for by in others if columns > 2 else ():
        index = cell_index(codes[:, list(by)])
        effects += int(index.max()) + 1
        if effects > min(MOST_EFFECTS, most) or len(kept) >= number:
            break
        kept.append(index)
    return kept


def cell_index(codes: Ints) -> Ints:
    """Numbers of the distinct rows, (row,)."""
    if codes.shape[1] == 0:
        return np.zeros(len(codes), dtype=np.int64)
    key = np.zeros(len(codes), dtype=np.int64)
    for column in codes.T:
        key = np.unique(key * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1].reshape(-1)
    return key


def components(mean: Floats, size: Floats, squares: Floats, index: Sequence[Ints], distinct: float = 1.0) -> Floats:
    """Variance components by family, in units of a record's residual variance, from residuals by group of records.

    `mean` and `squares` are mean residuals and sums of squared residuals, `size` numbers of records, (group,). The last
    component is that of groups. Products within a cell count by the precision of the cell's mean, learned in a first round.
    `distinct` is 1 if products are of two records, and 0 for Poisson counts, whose squares are their numbers.
    """
    every = [*index, np.arange(len(mean))]
    numbers = [np.bincount(family, weights=size) for family in every]
    totals = [np.bincount(family, weights=mean * size) for family in every]
    own_squares = [np.bincount(family, weights=squares) for family in every]
    crossings = {}
    for j, family in enumerate(every):
        for k, other in enumerate(every):
            if k <= j:
                both, first = np.unique(family * (int(other.max()) + 1) + other, return_inverse=True, return_index=True)[1:]
                shared = np.bincount(first.reshape(-1), weights=size)
                crossings[j, k] = shared * shared - distinct * shared, family[both], other[both]
    variance = np.full(len(every), 0.01)
    for _ in range(ROUNDS):
        worth = [1.0 / (1.0 + number * tau) ** 2 for number, tau in zip(numbers, variance, strict=True)]
        left, right = np.zeros((len(every), len(every))), np.zeros(len(every))
        for j, (number, total, square) in enumerate(zip(numbers, totals, own_squares, strict=True)):
            right[j] = worth[j] @ (total * total - square)
            scale = 1.0 / np.sqrt(max(float(worth[j] ** 2 @ (number * number - distinct * number)), 1e-300))
            for k in range(len(every)):
                pairs, a, b = crossings[max(j, k), min(j, k)]
                left[j, k] = worth[j][a if j >= k else b] @ pairs
            left[j], right[j] = left[j] * scale, right[j] * scale
        variance = scipy.optimize.nnls(left, right)[0]
    return variance


class Effects(NamedTuple):
    """Posterior of random effects of one coordinate, at all cells, in spreads."""

    shift: Floats
    """Posterior means, (cell,)."""
    loading: Loadings
    """Errors that cells share."""
    alone: Floats
    """Standard deviations of errors that no other cell shares, (cell,)."""
    influence: Floats
    """Influence of one reference record on its own prediction, of cells with records."""


def effects_of(
    mean: Floats, size: Floats, index: Sequence[Ints], variance: Floats, rows: int, level: Floats | None = None
) -> Effects:
    """Best linear unbiased prediction at `rows` cells, the first of which have records with these means and sizes.

    `index` are families' cells of all rows; `level` (cell,) is the error of the level of all cells, if that is fitted.
    """
    used = [(cells, tau) for cells, tau in zip(index, np.sqrt(variance[:-1]), strict=True) if tau > 0.0]
    base, with_records = float(variance[-1]), len(mean)
    # The family of most effects is the first: alone, its precision is diagonal.
    used.sort(key=lambda family: -int(family[0].max()))
    blocks = [
        scipy.sparse.csr_array((np.full(rows, tau), (np.arange(rows), cells)), shape=(rows, int(cells.max()) + 1))
        for cells, tau in used
    ]
    design = scipy.sparse.hstack([scipy.sparse.csr_array((rows, 0)), *blocks]).tocsr()
    occurs = np.flatnonzero(np.bincount(design[:with_records].indices, minlength=design.shape[1]))
    first = int(np.count_nonzero(occurs < blocks[0].shape[1])) if len(occurs) > LEAST_OF_TABLES else 0
    design_seen = design[:, occurs]
    total = np.asarray(design.power(2).sum(axis=1)).ravel()
    unseen = np.maximum(total - np.asarray(design_seen.power(2).sum(axis=1)).ravel(), 0.0)
    within = 1.0 / (1.0 / size + base)
    records = design_seen[:with_records]
    one, others = records[:, :first], records[:, first:]
    weighted = scipy.sparse.diags_array(within) @ others
    loading = Loadings.of_precision(
        *(design_seen, 1.0 + one.power(2).T @ within, (one.T @ weighted).tocsr()),
        np.eye(others.shape[1]) + (others.T @ weighted).toarray(),
    )
    shift = np.asarray(design_seen @ loading.covariance(np.asarray(records.T @ (within * mean))))
    shrinkage = base / (base + 1.0 / size)
    shift[:with_records] += shrinkage * (mean - shift[:with_records])
    from_records = np.zeros(rows)
    from_records[:with_records] = shrinkage
    influence = (shrinkage + (1.0 - shrinkage) * loading.variance[:with_records] * within) / size
    alone = np.sqrt(base * (1.0 - from_records) + unseen)
    if level is not None:
        common = Loadings(scipy.sparse.csr_array(level[:, None]), np.zeros(0), np.ones((1, 1)), level**2)
        loading = loading.beside(common)
    return Effects(shift, loading.scaled(1.0 - from_records), alone, influence)


def own_variances(residuals: Floats, place: Ints, index: Sequence[Ints], cells: int) -> Floats:
    """Variances of records about their cells' means, of all cells, from residuals of records in these cells.

    Every family of cells has factors in turn: logarithms of cells' mean sizes of residuals, each with the credibility of
    its number of records, for the spread of true logarithms that means of both halves of records show together. A few
    large residuals hide a cell's scale in mean squares, but not in mean sizes.
    """
    size, scale = np.abs(residuals), np.ones(cells)
    least, half = np.sqrt(LEAST_OWN), np.arange(len(size)) % 2 == 0
    for family in index:
        cell, ratio, count = family[place], size / scale[place], int(family.max()) + 1
        centre = max(float(ratio.mean()), 1e-300)
        uncertain = float(((ratio / centre - 1.0) ** 2).mean())
        parts = [_log_sizes(cell[some], ratio[some] / centre, count, least) for some in (half, ~half)]
        (of_one, first), (of_other, second) = parts
        number = np.where((first > 0.0) & (second > 0.0), first + second, 0.0)
        held = max(float(number.sum()), 1e-300)
        apart = [of_half - float(number @ of_half) / held for of_half in (of_one, of_other)]
        between = float(number @ (apart[0] * apart[1])) / held
        if between > 0.0:
            logs, records = _log_sizes(cell, ratio / centre, count, least)
            trust = between * records / (between * records + uncertain)
            scale = np.maximum(scale * np.exp(trust * logs)[family], least)
    # Squares in units of these scales are as large as they are on average.
    within = float(((size / scale[place]) ** 2).mean())
    return np.maximum(within * scale**2, LEAST_OWN)


def _log_sizes(cell: Ints, size: Floats, cells: int, least: float) -> tuple[Floats, Floats]:
    """Logarithms of cells' mean sizes, 0 without a record, and numbers of records."""
    number = np.bincount(cell, minlength=cells).astype(np.float64)
    mean = np.bincount(cell, weights=size, minlength=cells) / np.maximum(number, 1.0)
    return np.where(number > 0.0, np.log(np.maximum(mean, least)), 0.0), number


def corrected(
    effects: Effects, z: Floats, ratio: Floats, place: Ints, half: Ints, tables: Sequence[Ints], index: Sequence[Ints]
) -> tuple[Effects, Floats]:
    """Effects after what they leave of cells whose records vary little, and records' variances about cells' means, (cell,).

    One variance for all records shrinks such cells too much. By table, that of fewest cells first, a cell's mean remainder
    counts by the precision that its own records show, if means of both halves of records agree. An effect moves a record's
    residual `z` by its `ratio`, (record,): that of its weight to the predicted one.
    """
    shift, loading, alone, influence = effects
    for family in tables:
        cell, count = family[place], int(family.max()) + 1
        remainder = z - ratio * shift[place]
        of_halves = [_precise(cell[some], remainder[some], ratio[some], count) for some in (half == 0, half == 1)]
        between = _between(*of_halves)
        if between > 0.0:
            mean, error = _precise(cell, remainder, ratio, count)
            trust = between / (between + error)
            shift = shift + (trust * mean)[family]
            deviation = np.where(trust > 0.0, trust * np.sqrt(np.minimum(error, 1e300)), 0.0)
            block = (deviation[family], (np.arange(len(family)), family))
            noise = scipy.sparse.csr_array(block, shape=(len(family), count))
            of_cells = Loadings(noise, np.ones(count), np.zeros((count, 0)), deviation[family] ** 2)
            loading = loading.scaled(np.sqrt(1.0 - trust**2)[family]).beside(of_cells)
            number = np.maximum(np.bincount(cell, minlength=count), 1)
            influence = influence + (1.0 - influence) * (trust / number)[family][: len(influence)]
            # A mean over several cells mends the errors of each by its part of the records.
            part = np.bincount(place, minlength=len(family)) / number[family]
            alone = alone * np.sqrt(1.0 - part * (trust**2)[family])
    left = (z - ratio * shift[place]) / (1.0 - np.minimum(influence[place], MOST_INFLUENCE))
    return Effects(shift, loading, alone, influence), own_variances(left, place, index, len(shift))


def _precise(cell: Ints, remainder: Floats, ratio: Floats, cells: int) -> tuple[Floats, Floats]:
    """Means of cells, and their variances by what records differ from them; infinite without a record."""
    number = np.bincount(cell, minlength=cells).astype(np.float64)
    total = np.bincount(cell, weights=ratio, minlength=cells)
    present = total > 0.0
    total = np.where(present, total, 1.0)
    mean = np.bincount(cell, weights=remainder, minlength=cells) / total
    of_record = number[cell]
    about = (remainder - ratio * mean[cell]) * np.sqrt(of_record / np.maximum(of_record - 1.0, 1.0))
    own = own_variances(np.where(of_record > 1.0, about, remainder), cell, [np.arange(cells)], cells)
    return mean, np.where(present, own * number / total**2, np.inf)


def _between(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> float:
    """The variance of true means, by products of those of both halves, in which precise cells count most.

    A half's precision goes with its mean where laws are skewed, but not with the other half's.
    """
    errors = np.stack([one[1], other[1]])
    both = np.isfinite(errors).all(axis=0)
    product, errors, between = (one[0] * other[0])[both], errors[:, both], 0.0
    for _ in range(ROUNDS):
        worth = (1.0 / np.maximum(between + errors, 1e-12) ** 2).sum(axis=0)
        between = max(float(worth @ product) / max(float(worth.sum()), 1e-300), 0.0)
    return between


class _Cells(NamedTuple):
    """Cells of reference and file, those with reference records first, with the place of each record and base cell."""

    place: Ints
    """The cell of every reference record."""
    of_file: Ints
    """The cell of every base cell of the file."""
    size: Floats
    """Numbers of reference records, of cells that have any."""
    design: scipy.sparse.csr_array
    families: list[Ints]
    """Cells of columns first, then of tables and pairs of columns."""
    tables: list[Ints]
    """Cells of every table, that of fewest cells first."""
    columns: int

    @classmethod
    def of(cls, records: Ints, cells: Ints, sizes: Sequence[int], tables: Sequence[Sequence[int]]) -> _Cells:
        every, inverse = np.unique(np.concatenate([records, cells]), axis=0, return_inverse=True)
        place, of_file = np.split(inverse.reshape(-1), [len(records)])
        number = np.bincount(place, minlength=len(every))
        order = np.argsort(number == 0, kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        size = number[order][: int((number > 0).sum())].astype(np.float64)
        every = every[order]
        of_tables = sorted(
            (cell_index(every[:, list(by)]) for by in {tuple(by) for by in tables}), key=lambda cell: int(cell.max())
        )
        design, index = one_hot(every, sizes), families(tables, every)
        return cls(rank[place], rank[of_file], size, design, index, of_tables, every.shape[1])

    def added(self, values: Floats) -> Floats:
        """Sums of records' values by cell with records, (cell,)."""
        return np.bincount(self.place, weights=values, minlength=len(self.size)).astype(np.float64)

    def fitted(self, counts: Floats, totals: Floats, variance: float = 1.0) -> Floats:
        """Log-linear fit of records' totals to their counts, at all cells; records that count 0 are left out."""
        beta = log_linear(self.design[: len(self.size)], self.added(counts), self.added(totals), variance)
        return np.asarray(np.exp(self.design @ beta))


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


def _coordinate(
    cells: _Cells, weight: Floats, outcome: Floats | None, given: _Coordinate | None, bounds: tuple[float, float]
) -> _Coordinate:
    """Prediction of weights if there is no outcome, or of an outcome `given` the prediction of weights."""
    (low, high), predicted = bounds, None if given is None else given.means
    place, half = cells.place, np.random.default_rng(0).permutation(len(cells.place)) % 2

    def fit(rows: Floats) -> Floats:
        if outcome is None:
            coordinates = np.clip(cells.fitted(rows, rows * weight), low, high)
            return np.maximum(coordinates, SMALLEST * max(float(weight.mean()), 1e-300))
        return np.clip(cells.fitted(rows * weight, rows * weight * (outcome - low)) + low, low, high)

    base = fit(np.ones(len(place)))
    relative_to = base if predicted is None else predicted

    def remainder(means: Floats) -> Floats:
        """What a prediction leaves of every record, relative to its predicted weight."""
        of_record = weight - means[place] if outcome is None else weight * (outcome - means[place])
        return of_record / relative_to[place]

    raw = remainder(base)
    least = SMALLEST * np.maximum(np.abs(base), 1e-12)
    unit = np.maximum(Spread.of(base[place], raw**2)(base), least)
    # Levels whose records vary less or more than others of the same prediction: some are constant.
    squares = (raw / unit[place]) ** 2
    heaviness = float((squares**2).mean() / max(float(squares.mean()) ** 2, 1e-300))
    unit = np.maximum(unit * np.sqrt(cells.fitted(np.ones(len(place)), squares, max(heaviness, 1.0))), least)
    # What a fit to the other half leaves has no sums that cancel, and so shows the fit's errors.
    others = [remainder(fit((half != side).astype(np.float64))) for side in (0, 1)]
    crossed = np.where(half == 0, *others) / unit[place]
    with_records, group = len(cells.size), 2 * place + half
    count = np.bincount(group, minlength=2 * with_records).astype(np.float64)
    some = np.flatnonzero(count)
    mean = (np.bincount(group, weights=crossed, minlength=2 * with_records)[some] / count[some]).astype(np.float64)
    squares = np.bincount(group, weights=crossed**2, minlength=2 * with_records)[some].astype(np.float64)
    of_halves = [(np.repeat(index[:with_records], 2) * 2 + np.tile([0, 1], with_records))[some] for index in cells.families]
    variance = components(mean, count[some], squares, of_halves)
    # Totals are fitted, so that heavy cells' records count most in the error of all cells.
    held, spreads_of = cells.size * relative_to[:with_records], unit[:with_records]
    level = float(np.sqrt((held * relative_to[:with_records] * spreads_of**2).sum()) / held.sum())
    single = [int(index.max()) + 1 for index in cells.families[: cells.columns]]
    least_of_levels = 2.0 * level**2 / float(cells.size @ spreads_of**2 / len(place)) * np.array(single)
    variance[: len(single)] = np.maximum(variance[: len(single)], least_of_levels)
    z = raw / unit[place]

    def effects_under(variance: Floats) -> Effects:
        return effects_of(cells.added(z) / cells.size, cells.size, cells.families, variance, len(base), level / unit)

    effects = effects_under(variance)
    # The fit has found effects of levels, with nothing but the ridge to hold them: a level of few records errs most.
    of_levels = np.maximum(variance[: cells.columns], 1.0 / RIDGE)
    errors = effects_under(np.concatenate([of_levels, variance[cells.columns :]]))
    effects = effects._replace(loading=errors.loading, alone=errors.alone)
    step, least_mean = unit, np.full(len(base), low)
    if outcome is None:
        step, least_mean = unit * base, np.maximum(low, LEAST_SHARE * base)
    ratio = np.ones(len(place)) if given is None else weight / given.means[place]
    effects, own = corrected(effects, z, ratio, place, half, cells.tables, cells.families)
    means = np.clip(base + step * effects.shift, least_mean, high)
    # A record's own influence is in no part of what it shows: neither in the prediction nor in the spread there.
    own_part = np.minimum(effects.influence[place], MOST_INFLUENCE)
    moved = own_part / (1.0 - own_part) * (z - ratio * effects.shift[place])
    without = np.clip(base[place] + step[place] * (effects.shift[place] - moved), least_mean[place], high)
    deviation = np.sqrt(own)
    remaining = weight - without if outcome is None else weight * (outcome - without)
    unit = unit * deviation
    spread, spreads = (
        (unit * means, unit[place] * without) if given is None else (unit * given.means, unit[place] * given.without)
    )
    shared, alone = effects.loading.scaled(1.0 / deviation), effects.alone / deviation
    return _Coordinate(means, spread, shared, alone, without, spreads, remaining / spreads)


def _known(cells: _Cells, weight: Floats, of_file: Floats) -> _Coordinate:
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
) -> Prediction:
    """Fit to the reference and predict at base cells of the file.

    `cells` (cell, column) are the file's codes, `tables` positions of columns by measured table, `lowest` and `highest`
    public bounds of weight and outcomes, (1 + outcome,). `weight` (cell,) are public weights, which reference records then
    have as well.
    """
    every = _Cells.of(reference.codes, cells, sizes, tables)
    ends = list(zip(lowest.tolist(), highest.tolist(), strict=True))
    if weight is None:
        of_weight = _coordinate(every, reference.weight, None, None, ends[0])
    else:
        of_weight = _known(every, reference.weight, weight)
    coordinates = [of_weight] + [
        _coordinate(every, reference.weight, outcome, of_weight, bounds)
        for outcome, bounds in zip(reference.outcomes.T, ends[1:], strict=True)
    ]
    z = np.column_stack([one.residuals for one in coordinates])
    # The spread is that of residuals about the final prediction.
    scale = np.sqrt((z**2).mean(axis=0))
    scale[scale <= 0.0] = 1.0
    z = z / scale
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.nan_to_num(np.corrcoef(z, rowvar=False).reshape(z.shape[1], z.shape[1]))
    np.fill_diagonal(correlation, 1.0)
    means, spread, spreads = (
        np.column_stack([one.means for one in coordinates]),
        np.column_stack([one.spread for one in coordinates]) * scale,
        np.column_stack([one.spreads for one in coordinates]) * scale,
    )
    back = np.full(len(means), -1)
    back[every.of_file] = np.arange(len(cells))
    return Prediction(
        *(means[every.of_file], spread[every.of_file]),
        tuple(
            one.loading.of_cells(every.of_file).scaled(np.full(len(cells), 1.0 / by))
            for one, by in zip(coordinates, scale, strict=True)
        ),
        np.column_stack([one.alone for one in coordinates])[every.of_file] / scale,
        *(correlation, z, back[every.place]),
        np.stack([np.column_stack([one.without for one in coordinates]), spreads], axis=1),
    )
