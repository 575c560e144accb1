"""Random effects of cells: best linear unbiased prediction, and the errors that cells share.

Effects of cells of tables, of pairs of columns and of base cells shrink what a fit of main effects leaves. Variance
components solve the moment equations of products of residuals of two distinct records (MINQUE(0), non-negative). Cells
whose records hardly vary count by the precision of their own records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Codes, Floats, Indices, Ints

MOST_EFFECTS = 2_500
"""Largest number of random effects of pairs of columns that no table needs."""
MOST_OF_TABLES, LEAST_OF_TABLES = 4_000, 600
"""Numbers of random effects of columns and tables in a file of few cells, and in one of many."""
ENTRIES = 60_000_000
"""Largest number of cells times effects above the least, and of cells times pairs of families of effects."""
LEAST_FAMILIES = 12
ROUNDS = 3
"""Rounds of the moment equations of variance components."""
MOST_INFLUENCE = 0.99
"""Largest influence of a record on its own prediction that is taken out."""
MOST_CHOOSING = 200_000
"""Records, spread over the file, that say which crosses of columns show effects: what few records do not show may be many
errors of a cell of many.
"""
MOST_CROSSES, MOST_CROSSED = 100, 10_000
"""Numbers of crosses of columns that are looked at, and of cells that one may have."""
MOST_CHOSEN = 12_000
"""Largest number of effects of the crosses that are chosen."""
LEAST_GAIN, CERTAIN = 1e-3, 20.0
"""Log likelihoods that a cross of columns has to add: to a record on average, or to all that choose if that is less."""
STEPS = 60
"""Largest number of steps that find the variance of cells' means."""
NOT_SHRUNK = 4.0
"""Variance of cells' means, in residual variances of a record, that hardly shrinks them."""
ROUNDING = 1e-12
"""Variance of cells' mean sizes of residuals, in squares of their mean, below which it is rounding."""
LEAST_OWN = 1e-4
"""Smallest variance of a record about its cell's mean, relative to that of records of the same prediction."""
Half: TypeAlias = slice | NDArray[np.bool_]
"""Where the records of one half are."""


@dataclass(frozen=True, eq=False)
class Loadings:
    """Errors that cells share: factors of their covariance, (cell, effect), kept as a sparse `design` times a root, and
    times a `scale` of cells.

    The root of the effects' covariance is diagonal for the first effects, `lone`, and dense for others, (effect, other). So
    a family of many effects that exclude each other, such as a column of many levels, is as cheap as its cells.
    """

    design: scipy.sparse.csr_array
    lone: Floats
    root: Floats
    variance: Floats
    """Variances of the errors, (cell,)."""
    scale: Floats | None = None
    """Factors of the design, (cell,), none for 1: several predictions share one design, which is large."""

    @classmethod
    def none(cls, cells: int) -> Loadings:
        return cls(scipy.sparse.csr_array((cells, 0)), np.zeros(0), np.zeros((0, 0)), np.zeros(cells))

    @classmethod
    def of_precision(
        cls, design: scipy.sparse.csr_array, first: Floats, across: scipy.sparse.csr_array, rest: Floats
    ) -> Loadings:
        """From the effects' precision: its diagonal for the `first` ones, (first,), (first, other), and (other, other)."""
        slope = scipy.sparse.diags_array(1.0 / first) @ across
        triangle = scipy.linalg.cholesky(rest - (across.T @ slope).toarray(), lower=True)
        lower = scipy.linalg.solve_triangular(triangle, np.eye(len(rest)), lower=True).T
        lone, root = 1.0 / np.sqrt(first), np.concatenate([-(slope @ lower), lower])
        variance = np.asarray(design[:, : len(first)].power(2) @ lone**2)
        at_once = max(ENTRIES // 20 // max(root.shape[1], 1), 1)
        for start in range(0, design.shape[0], at_once):
            variance[start : start + at_once] += ((design[start : start + at_once] @ root) ** 2).sum(axis=1)
        return cls(design, lone, root, variance)

    @property
    def without_factors(self) -> Loadings:
        """The errors' variances alone."""
        return replace(Loadings.none(len(self.variance)), variance=self.variance)

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
        return replace(self, scale=by if self.scale is None else self.scale * by, variance=self.variance * by**2)

    def _times_scale(self, values: Floats) -> Floats:
        """Values of cells, (cell,) or (cell, draw), times `scale`."""
        return values if self.scale is None else (values.T * self.scale).T

    def of_cells(self, cells: Indices) -> Loadings:
        if len(cells) == len(self.variance) and np.array_equal(cells, np.arange(len(cells))):
            return self
        scale = None if self.scale is None else self.scale[cells]
        return replace(self, design=self.design[cells], variance=self.variance[cells], scale=scale)

    def plus(self, other: Loadings) -> Loadings:
        """Sums of these errors and of the others, which are independent."""
        designs = [
            each.design if each.scale is None else (scipy.sparse.diags_array(each.scale) @ each.design).tocsr()
            for each in (self, other)
        ]
        ends = len(self.lone), len(other.lone)
        blocks = [design[:, :end] for design, end in zip(designs, ends, strict=True)]
        blocks += [design[:, end:] for design, end in zip(designs, ends, strict=True)]
        roots = [np.split(loadings.root, [len(loadings.lone)]) for loadings in (self, other)]
        parts = [scipy.linalg.block_diag(*pair) for pair in zip(*roots, strict=True)]
        lone = np.concatenate([self.lone, other.lone])
        return Loadings(scipy.sparse.hstack(blocks).tocsr(), lone, np.concatenate(parts), self.variance + other.variance)

    def __matmul__(self, effects: Floats) -> Floats:
        """Errors of cells from independent standard effects, (effect,) or (effect, draw)."""
        image = self.root @ effects[len(self.lone) :]
        image[: len(self.lone)] += (self.lone * effects[: len(self.lone)].T).T
        return np.asarray(self._times_scale(self.design @ image))

    def back(self, values: Floats) -> Floats:
        """The transposed factors times values of cells, (cell,) or (cell, draw)."""
        image = self.design.T @ self._times_scale(values)
        return np.concatenate([(self.lone * image[: len(self.lone)].T).T, self.root.T @ image])

    def rows(self, adding: scipy.sparse.csr_array) -> Floats:
        """Factors of sums over cells, (row, effect)."""
        adding = adding if self.scale is None else adding @ scipy.sparse.diags_array(self.scale)
        image = (adding @ self.design).toarray()
        return np.concatenate([image[:, : len(self.lone)] * self.lone, image @ self.root], axis=1)


def most_effects(cells: int) -> int:
    """Largest number of effects of columns and tables without the family of most effects, in a file of so many cells."""
    return int(np.clip(ENTRIES // max(cells, 1), LEAST_OF_TABLES, MOST_OF_TABLES))


def families(tables: Sequence[Sequence[int]], codes: Ints) -> list[Codes]:
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
    sets = dict.fromkeys([*few_first(single), *few_first({tuple(sorted(set(by))) for by in tables}.difference(single))])
    indices, effects, largest = list[Codes](), 0, 0
    for by in sets:
        if (0 < len(by) < columns or columns == 1) and len(indices) < number:
            index = cell_index(codes[:, list(by)])
            cells = int(index.max()) + 1
            # The family of most effects has a diagonal precision of its own.
            if effects + cells - max(largest, cells) <= most:
                indices.append(index)
                effects, largest = effects + cells, max(largest, cells)
            elif len(by) > 1:
                break
    further_pairs = few_first(set(combinations(range(columns), 2)).difference(sets))
    for by in further_pairs if columns > 2 else ():
        index = cell_index(codes[:, list(by)])
        effects += int(index.max()) + 1
        if effects > min(MOST_EFFECTS, most) or len(indices) >= number:
            break
        indices.append(index)
    return indices


def interactions(codes: Ints, records: int) -> list[Codes]:
    """Cells of up to three columns, each as an index over all rows of `codes`, those of fewest cells first.

    A cross has `MOST_OF_TABLES` cells at most, and a cell two of the `records` or more on average.
    """
    levels = [int(column.max(initial=0)) + 1 for column in codes.T]
    number = {
        by: math.prod(levels[k] for k in by) for size in (1, 2, 3) for by in combinations(range(codes.shape[1]), size)
    }
    sets = [by for by in sorted(number, key=number.__getitem__) if len(by) < codes.shape[1] and number[by] <= MOST_CROSSED]
    most = min(records // 2, MOST_OF_TABLES)
    indices = [cell for by in sets[:MOST_CROSSES] if int((cell := cell_index(codes[:, list(by)])).max()) < most]
    return sorted(indices, key=lambda cell: int(cell.max()))


def cell_index(codes: Ints) -> Codes:
    """Numbers of the distinct rows, (row,)."""
    if codes.shape[1] == 0:
        return np.zeros(len(codes), dtype=np.int32)
    key = np.zeros(len(codes), dtype=np.int64)
    for column in codes.T:
        key = np.unique(key * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1].reshape(-1)
    return key.astype(np.int32)


def components(mean: Floats, size: Floats, squares: Floats, index: Sequence[Indices], distinct: float = 1.0) -> Floats:
    """Variance components by family, in units of a record's residual variance, from residuals by group of records.

    `mean` and `squares` are mean residuals and sums of squared residuals, `size` numbers of records, (group,). The last
    component is that of groups. Products within a cell count by the precision of the cell's mean, learned in a first round.
    `distinct` is 1 if products are of two records, and 0 for Poisson counts, whose squares are their numbers.
    """
    all_families = [*index, np.arange(len(mean))]
    numbers = [np.bincount(family, weights=size) for family in all_families]
    totals = [np.bincount(family, weights=mean * size) for family in all_families]
    own_squares = [np.bincount(family, weights=squares) for family in all_families]
    crossings = dict[tuple[int, int], Floats]()
    for j, family in enumerate(all_families):
        for k, other in enumerate(all_families[: j + 1]):
            both, first = np.unique(family * (int(other.max()) + 1) + other, return_inverse=True, return_index=True)[1:]
            shared = np.bincount(first.reshape(-1), weights=size)
            pairs = shared * shared - distinct * shared
            for key, cell in (((j, k), family), ((k, j), other)):
                crossings[key] = np.bincount(cell[both], weights=pairs).astype(np.float64, copy=False)
    variance = np.full(len(all_families), 0.01)
    for _ in range(ROUNDS):
        worth = [1.0 / (1.0 + number * tau) ** 2 for number, tau in zip(numbers, variance, strict=True)]
        left, right = np.zeros((len(all_families), len(all_families))), np.zeros(len(all_families))
        for j, (number, total, square) in enumerate(zip(numbers, totals, own_squares, strict=True)):
            right[j] = worth[j] @ (total * total - square)
            scale = 1.0 / np.sqrt(max(float(worth[j] ** 2 @ (number * number - distinct * number)), 1e-300))
            left[j] = [worth[j] @ crossings[j, k] for k in range(len(all_families))]
            left[j], right[j] = left[j] * scale, right[j] * scale
        variance = scipy.optimize.nnls(left, right)[0]
    return variance


class RandomEffects(NamedTuple):
    """Posterior of random effects of one coordinate, at all cells, in spreads."""

    shift: Floats
    """Posterior means, (cell,)."""
    loading: Loadings
    """Errors that cells share."""
    alone: Floats
    """Standard deviations of errors that no other cell shares, (cell,)."""
    influence: Floats
    """Influence of one reference record on its own prediction, of cells with records."""

    def erring(self, index: Sequence[Indices], variance: Floats) -> RandomEffects:
        """The same with further errors of families' cells, of these variances; the last is that of cells themselves."""
        loading = self.loading
        for family, of_family in zip(index, variance[:-1].tolist(), strict=True):
            if of_family > 0.0:
                rows, count = np.arange(len(family)), int(family.max()) + 1
                design = scipy.sparse.csr_array((np.full(len(rows), np.sqrt(of_family)), (rows, family)))
                variances = np.full(len(rows), of_family)
                loading = loading.plus(Loadings(design, np.ones(count), np.zeros((count, 0)), variances))
        return self._replace(loading=loading, alone=np.hypot(self.alone, np.sqrt(variance[-1])))


def effects_of(
    mean: Floats, size: Floats, index: Sequence[Indices], variance: Floats, rows: int, level: Floats | None = None
) -> RandomEffects:
    """Best linear unbiased prediction at `rows` cells, the first of which have records with these means and sizes.

    `index` are families' cells of all rows; `level` (cell,) is the error of the level of all cells, if that is fitted.
    """
    components = [(cells, tau) for cells, tau in zip(index, np.sqrt(variance[:-1]), strict=True) if tau > 0.0]
    base, with_records = float(variance[-1]), len(mean)
    # The family of most effects is the first: alone, its precision is diagonal.
    components.sort(key=lambda family: -int(family[0].max()))
    design_seen, first, unseen = _design(components, rows, with_records)
    within = 1.0 / (1.0 / size + base)
    records = design_seen[:with_records]
    head, tail = records[:, :first], records[:, first:]
    weighted = scipy.sparse.diags_array(within) @ tail
    loading = Loadings.of_precision(
        *(design_seen, 1.0 + head.power(2).T @ within, (head.T @ weighted).tocsr()),
        np.eye(tail.shape[1]) + (tail.T @ weighted).toarray(),
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
        loading = loading.plus(common)
    return RandomEffects(shift, loading.scaled(1.0 - from_records), alone, influence)


def _design(
    components: Sequence[tuple[Indices, float]], rows: int, with_records: int
) -> tuple[scipy.sparse.csr_array, int, Floats]:
    """Effects that the first `with_records` cells show, (cell, effect), the number of those of the first family, and the
    variance of effects that they do not show, (cell,).
    """
    positions = np.arange(rows, dtype=np.int32)
    blocks = [
        scipy.sparse.csr_array(
            (np.full(rows, tau), (positions, cells.astype(np.int32))), shape=(rows, int(cells.max()) + 1)
        )
        for cells, tau in components
    ]
    levels = blocks[0].shape[1] if blocks else 0
    design = scipy.sparse.hstack([scipy.sparse.csr_array((rows, 0)), *blocks]).tocsr()
    del blocks  # as large as the design
    occurs = np.flatnonzero(np.bincount(design[:with_records].indices, minlength=design.shape[1]))
    first = int(np.count_nonzero(occurs < levels)) if len(occurs) > LEAST_OF_TABLES else 0
    total, design = np.asarray(design.power(2).sum(axis=1)).ravel(), design[:, occurs]
    return design, first, np.maximum(total - np.asarray(design.power(2).sum(axis=1)).ravel(), 0.0)


def least_components(mean: Floats, size: Floats, index: Sequence[Indices], columns: int, variance: Floats) -> Floats:
    """Variance components at which no crossed family is farther from its records than their errors let expect.

    A family of few cells shows its variance badly; one that is too small leaves its cells any number of errors off. So the
    variance is at least that of James and Stein: squared means over their variances sum to the degrees of freedom less 2,
    or cells are not shrunk. Arguments are those of `effects_of`; the first families are `columns`, whose means a fit keeps.
    """
    index, variance = [family[: len(mean)] for family in index], variance.copy()
    freedom = [_freedom(family, index[:columns]) for family in index]
    for _ in range(ROUNDS):
        remainder = size * (mean - effects_of(mean, size, index, variance, len(mean)).shift)
        before = variance.copy()
        for k, family in list(enumerate(index))[columns:]:
            number = np.bincount(family, weights=size)
            number, total = number[number > 0.0], np.bincount(family, weights=remainder)[number > 0.0]
            # A mean that effects of this variance have shrunk was so much larger.
            mean_squares = total / number * (1.0 + variance[k] * number)
            variance[k] = max(variance[k], _of_means(mean_squares, 1.0 / number, freedom[k] - 2))
        if (variance <= 1.1 * before).all():
            break
    return variance


def _freedom(family: Indices, columns: Sequence[Indices]) -> int:
    """The number of a family's cells, less the parameters of the columns that it crosses."""
    cells = len(np.unique(family))
    within = [column for column in columns if len(np.unique(family * np.int64(column.max() + 1) + column)) == cells]
    return cells - 1 - sum(len(np.unique(column)) - 1 for column in within)


def _of_means(mean: Floats, error: Floats, aim: int) -> float:
    """The variance of true means at which Σ mean² / (variance + error) is `aim`; 0 if it is below."""
    if aim <= 0:
        return NOT_SHRUNK
    variance = 0.0
    for _ in range(STEPS):
        over = float((mean**2 / (variance + error)).sum()) - aim
        if over <= 1e-6 * aim:
            break
        # Newton's steps from below never pass the root of a convex function.
        variance += over / float((mean**2 / (variance + error) ** 2).sum())
    return variance


def own_variances(residuals: Floats, usual: Floats, place: Indices, index: Sequence[Indices], cells: int) -> Floats:
    """Variances of records about their cells' means, of all cells, from residuals of records in these cells.

    `usual` are mean sizes of residuals of one variance, (record,): those of a yes or no are small where one is rare.

    Every family of cells has factors in turn: cells' mean sizes of residuals, each with the credibility of its number of
    records, for the spread of true mean sizes that both halves of records show together. A few large residuals hide a
    cell's scale in mean squares, but not in mean sizes. Logarithms of mean sizes would be -∞ where all of a few records say
    no. Residuals of each half are about its own mean: about a common one, both halves of such a cell would agree by chance.
    """
    scale, least, half = np.ones(cells), np.sqrt(LEAST_OWN), np.arange(len(residuals)) % 2 == 0
    for family in index:
        cell, ratio, count = family[place], residuals / (usual * scale[place]), int(family.max()) + 1
        ratio /= max(float(np.abs(ratio).mean()), 1e-300)
        of_halves = [_mean_sizes(cell[side], _about_means(cell[side], ratio[side], count), count) for side in (half, ~half)]
        (_, first), (_, second) = of_halves
        both = np.flatnonzero((first > 1.0) & (second > 1.0))
        number, records = (first + second)[both], max(float((first + second)[both].sum()), 1e-300)
        left, right = [mean[both] - float(number @ mean[both]) / records for mean, _ in of_halves]
        between = float(number @ (left * right)) / records
        # About their own mean, sizes vary together: at a true share of .2, mean sizes of yes or no have four times the
        # variance that independent sizes would have.
        apart = float(number @ (1.0 / first[both] + 1.0 / second[both]))
        uncertain = float(number @ (left - right) ** 2) / max(apart, 1e-300)
        if between > ROUNDING:
            mean, of_cell = _mean_sizes(cell, ratio, count)
            trust = between * of_cell / (between * of_cell + uncertain + 1e-300)
            scale = np.maximum(scale * (1.0 + trust * (mean - 1.0))[family], least)
    # Squares in units of these scales are as large as they are on average.
    within = float(((residuals / scale[place]) ** 2).mean())
    return np.maximum(within * scale**2, LEAST_OWN)


def _about_means(cell: Indices, residuals: Floats, cells: int) -> Floats:
    """Residuals about cells' means, as large as those about true means; 0 for the only record of a cell."""
    number = np.bincount(cell, minlength=cells).astype(np.float64)
    mean = np.bincount(cell, weights=residuals, minlength=cells) / np.maximum(number, 1.0)
    return (residuals - mean[cell]) * np.sqrt(number / np.maximum(number - 1.0, 1.0))[cell]


def _mean_sizes(cell: Indices, residuals: Floats, cells: int) -> tuple[Floats, Floats]:
    """Cells' mean sizes of residuals, 0 without a record, and numbers of records."""
    number = np.bincount(cell, minlength=cells).astype(np.float64)
    return np.bincount(cell, weights=np.abs(residuals), minlength=cells) / np.maximum(number, 1.0), number


def corrected(
    effects: RandomEffects,
    z: Floats,
    ratio: Floats,
    size: Floats,
    usual: Floats,
    place: Indices,
    half: Indices,
    interaction_cells: Sequence[Indices],
    index: Sequence[Indices],
) -> tuple[RandomEffects, Floats]:
    """Effects after what they leave of cells whose records vary little, and records' variances about cells' means, (cell,).

    One variance for all records shrinks such cells too much. By cross of columns, the one first whose means of one half of
    the records explain most of the other half, a cell's mean remainder counts by the precision that its own records show.
    Cells themselves come last. An effect moves a record's residual `z` by its `ratio`, (record,): that of its weight to the
    predicted one. `size` (record,) is what a residual of 1 adds to the total, and `usual` (record,) the mean size of
    residuals at its prediction.
    """
    shift, loading, alone, influence = effects
    sample = np.arange(0, len(z), -(-len(z) // MOST_CHOOSING))
    sample = np.concatenate([sample[half[sample] == side] for side in (0, 1)])
    first_half = int(np.count_nonzero(half[sample] == 0))
    sides, of_sample = (slice(first_half), slice(first_half, None)), place[sample]
    ratio_and_usual = ratio[sample], usual[sample]
    least, chosen = min(LEAST_GAIN, CERTAIN / len(sample)), 0
    candidates, gains = list(interaction_cells), np.full(len(interaction_cells), np.inf)
    while True:
        remainder, current = z - ratio * shift[place], np.zeros(len(candidates), dtype=bool)
        sampled = remainder[sample]
        while candidates and not current[first := int(gains.argmax())]:
            # Gains fall as others are chosen, so that most need not be found again.
            gains[first] = _explained(candidates[first][of_sample], sampled, *ratio_and_usual, sides)
            current[first] = True
        more = bool(candidates) and gains[first] > least and chosen + int(candidates[first].max()) < MOST_CHOSEN
        family = candidates.pop(first) if more else np.arange(len(shift), dtype=np.int32)
        cell, count = family[place], int(family.max()) + 1
        chosen += count
        between = _between(*_of_halves(cell, remainder, ratio, usual, (half == 0, half == 1), count))
        cell_means = _Means.of(cell, remainder, ratio, usual, count)
        trust, number = between / (between + cell_means.error + 1e-300), np.maximum(cell_means.number, 1.0)
        shift, variance = shift + (trust * cell_means.mean)[family], trust * (1.0 - trust) * between
        influence = influence + (1.0 - influence) * (trust / number)[family][: len(influence)]
        loading = loading.scaled(np.sqrt(1.0 - trust**2)[family])
        # A mean over several cells mends the errors of each by its part of the records.
        part = np.bincount(place, minlength=len(family)) / number[family]
        alone = alone * np.sqrt(np.maximum(1.0 - part * (trust**2)[family], 0.0))
        if not more:
            alone = np.hypot(alone, np.sqrt(variance))
            break
        gains = np.delete(gains, first)
        block = (np.sqrt(variance)[family], (np.arange(len(family), dtype=np.int32), family))
        noise = scipy.sparse.csr_array(block, shape=(len(family), count))
        loading = loading.plus(Loadings(noise, np.ones(count), np.zeros((count, 0)), variance[family]))
    residuals = (z - ratio * shift[place]) / (1.0 - np.minimum(influence[place], MOST_INFLUENCE))
    variances = own_variances(residuals, usual, place, index, len(shift))
    # Where laws are skewed, precision goes with small means. So the total is fitted again, by the cells that show least.
    shift = (
        shift + float(size @ (z - ratio * shift[place])) / max(float(size @ (ratio * variances[place])), 1e-300) * variances
    )
    return RandomEffects(shift, loading, alone, influence), variances


class _Means(NamedTuple):
    """Cells' mean remainders by some of the records, (cell,) each."""

    mean: Floats
    variance: Floats
    """Variances of a record about its cell's mean, by what records differ from it; infinite without a record."""
    total: Floats
    """Sums of records' ratios."""
    number: Floats

    @classmethod
    def of(cls, cell: Indices, remainder: Floats, ratio: Floats, usual: Floats, cells: int) -> _Means:
        number = np.bincount(cell, minlength=cells).astype(np.float64)
        total = np.bincount(cell, weights=ratio, minlength=cells)
        present = total > 0.0
        mean = np.bincount(cell, weights=remainder, minlength=cells) / np.where(present, total, 1.0)
        of_record = number[cell]
        about = (remainder - ratio * mean[cell]) * np.sqrt(of_record / np.maximum(of_record - 1.0, 1.0))
        variance = own_variances(np.where(of_record > 1.0, about, remainder), usual, cell, [np.arange(cells)], cells)
        return cls(mean, np.where(present, variance, np.inf), total.astype(np.float64), number)

    @property
    def error(self) -> Floats:
        """Variances of means, (cell,)."""
        return np.asarray(self.variance * np.maximum(self.number, 1.0) / np.where(self.total > 0.0, self.total, 1.0) ** 2)


def _of_halves(
    cell: Indices, remainder: Floats, ratio: Floats, usual: Floats, halves: Sequence[Half], cells: int
) -> list[_Means]:
    return [_Means.of(cell[side], remainder[side], ratio[side], usual[side], cells) for side in halves]


def _explained(cell: Indices, remainder: Floats, ratio: Floats, usual: Floats, halves: Sequence[Half]) -> float:
    """Log likelihood that effects by one half of the records add for a record of the other half, on average.

    The law has heavy tails and the cells' scales by the first half: cells of small errors count as much as others.
    """
    cells = int(cell.max(initial=0)) + 1
    of_halves = _of_halves(cell, remainder, ratio, usual, halves, cells)
    between, gain = _between(*of_halves), 0.0
    for side, opposite in zip(halves, reversed(of_halves), strict=True):
        effect = between / (between + opposite.error + 1e-300) * opposite.mean
        before, variance = remainder[side], opposite.variance[cell[side]]
        after = before - ratio[side] * effect[cell[side]]
        gain += float((np.log1p(before**2 / variance) - np.log1p(after**2 / variance)).sum())
    return gain / len(cell)


def _between(left: _Means, right: _Means) -> float:
    """The variance of true means, by products of those of both halves, in which precise cells count most.

    A half's precision goes with its mean where laws are skewed, but not with the other half's.
    """
    errors = np.stack([left.error, right.error])
    both = np.isfinite(errors).all(axis=0)
    product, errors, between = (left.mean * right.mean)[both], errors[:, both], 0.0
    for _ in range(ROUNDS):
        worth = (1.0 / np.maximum(between + errors, 1e-12) ** 2).sum(axis=0)
        between = max(float(worth @ product) / max(float(worth.sum()), 1e-300), 0.0)
    return between
