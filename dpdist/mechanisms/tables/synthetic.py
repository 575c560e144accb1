"""Synthetic records and distributions: public donor records, moved to estimated means.

First, one common scale moves outcomes of all cells, so that donors have the tables' grand mean. This removes drift
between periods. The remaining differences are mostly sampling error and noise. Exponentially tilted weights of the donors
remove them. All of this is post-processing of the released object, which includes the donors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints, quotient_or, rows_of_groups
from dpdist.core.sharing import share_out
from dpdist.estimation.donors import Donors, DonorsByCell
from dpdist.mechanisms.tables.calibration import Domain, agree
from dpdist.models.protocol import Draws, ReleaseView
from dpdist.models.public_model import PublicModel

# Moving a reference's shape to released means would move its round values too. But people round to the same
# values each year.
# So ties are first spread evenly, which removes them. A quantile of the spread shape is then replaced by the value
# of equal rank in all of the reference's records. Quantiles and monotone maps commute. Limits of intervals are mapped in
# the same way, in discrete steps. All of this is post-processing.
SPREAD = 0.15
"""Standard deviation of the logarithms over which a tie is spread."""
COPIES, MOST_COPIES = 15, 300_000
"""Number of values for one point, and approximate largest number of values in all."""
TIES, TIED = 0.002, 5
"""Smallest share and smallest number of records for a value to count as a heap."""
HEAPED = 0.3
"""An outcome counts as heaped if this share of records is on round values other than 0 and the ends."""
ROUNDING = 1e-9
"""Relative rounding error of a rank."""


def is_heaped(values: Floats) -> bool:
    """Whether an outcome's answers, (record,), are heaped. A two-valued outcome is not."""
    distinct, number = np.unique(values, return_counts=True)
    inner = np.isin(distinct, (0.0, values.min(), values.max()), invert=True)
    rounded_values = inner & (number >= max(TIED, TIES * len(values)))
    return bool(number[rounded_values].sum() >= HEAPED * len(values))


def spread(weight: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Weights and values, (copy,), of points whose ties are spread evenly; a value of 0 stays."""
    copies = int(np.clip(MOST_COPIES // max(len(values), 1), 3, COPIES))
    steps = np.exp(SPREAD * scipy.special.ndtri((np.arange(copies) + 0.5) / copies))
    return np.repeat(weight / copies, copies), (values[:, None] * steps).ravel()


@dataclass(frozen=True)
class RoundedValues:
    """The ranks of spread values, and of answers as they are: values in rising order, and shares of weight up to each."""

    smooth: Floats
    smooth_rank: Floats
    answer: Floats
    rank: Floats

    @classmethod
    def of(cls, weight: Floats, values: Floats) -> Self | None:
        """The round values of a reference's records, (record,); None if answers are not heaped."""
        if not len(values) or not is_heaped(values):
            return None
        answer, place = np.unique(values, return_inverse=True)
        rank = np.cumsum(np.bincount(place, weights=weight))
        copied, smooth = spread(weight, values)
        order = np.argsort(smooth, kind="stable")
        ranks = np.cumsum(copied[order])
        return cls(smooth[order], ranks / ranks[-1], answer, rank / rank[-1])

    def answers(self, value: Floats) -> Floats:
        """The answers with the ranks of these spread values, of any shape; NaN stays."""
        rank = np.interp(value, self.smooth, self.smooth_rank)
        place = np.searchsorted(self.rank, np.nan_to_num(rank) * (1.0 - ROUNDING))
        return np.where(np.isnan(value), np.nan, self.answer[np.minimum(place, len(self.answer) - 1)])


CELLS_OF_PART = 2_048
"""Base cells whose donors are moved to estimates by one worker at a time."""


@dataclass(frozen=True)
class DonorCells(PublicModel):
    """Base cells of a stratum, (cell,), with public sizes and the outcomes' public bounds.

    Their released parameter `means` has mean weight and mean outcomes, (cell, 1 + outcome).
    """

    labels: tuple[str, ...]
    outcomes: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    """Public bounds of every outcome."""
    columns: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    """Names of the levels of every column."""
    codes: Codes
    """Levels of the tables' columns in every cell, (cell, column)."""
    count: Floats
    """Sample records of every cell, public; 1 in every cell if they are secret."""

    if TYPE_CHECKING:  # fields of `ResidualCells`, whose order is part of stored checksums

        @property
        def weighted(self) -> bool: ...

        @property
        def one_weight(self) -> bool: ...

    @property
    def first(self) -> list[int]:
        """The first crosstab row of every cell."""
        return [int(row) for row in np.unique(self.design.pattern, return_index=True)[1]]


class Drawn(NamedTuple):
    """A stratum's cells, its donors after the common scale, and the domain in which every outcome's values may move."""

    cells: DonorCells
    donors: DonorsByCell
    domains: tuple[Domain, ...]

    @classmethod
    def of(cls, release: ReleaseView, cells: DonorCells, stratum: int, by_law: Donors | None) -> Drawn:
        """The cells with the reference's records as donors, or with those of a law that noisy counts give."""
        donors = by_law or release.donors[release.crosstab.stratum_labels[stratum]]
        columns = release.job.outcome_columns.values()
        domains = tuple(
            Domain.of(values, bounds, column.whole_numbers or (by_law is not None and _on(values, bounds)))
            for values, bounds, column in zip(donors.outcomes.T, cells.bounds, columns, strict=True)
        )
        means = release.theta(cells, stratum, 0)["means"][0]
        scaled = _at_the_common_scale(donors, cells.count * means[:, 0], means[:, 1:], domains)
        return cls(cells, scaled.by_cell(cells.codes), domains)

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats, Ints]:
        """Outcomes and weights whose means are their cells' released means, and the positions of their donors."""
        cell, means, donors = self.cells.pattern(crosstab_row), theta["means"][0], self.donors.records
        weight, outcomes = np.empty(len(crosstab_row)), np.empty((len(crosstab_row), len(self.domains)))
        donor = np.empty(len(crosstab_row), dtype=np.int64)
        present, number = np.unique(cell, return_inverse=True)
        groups = rows_of_groups(number, len(present))
        for k, rows in zip(present.tolist(), groups, strict=True):
            donor[rows] = self.donors.draw(k, len(rows), rng)
        parts = [slice(start, start + CELLS_OF_PART) for start in range(0, len(present), CELLS_OF_PART)]
        agreeing = _Agreeing(self.domains, self.cells.weighted and not self.cells.one_weight)
        pieces = [
            [(donors.weight[donor[rows]], donors.outcomes[donor[rows]], means[k]) for k, rows in zip(of, at, strict=True)]
            for of, at in ((present[part].tolist(), groups[part]) for part in parts)
        ]
        for part, agreed in zip(parts, share_out(agreeing, pieces), strict=True):
            for rows, (of_cell, values) in zip(groups[part], agreed, strict=True):
                weight[rows], outcomes[rows] = of_cell, values
        if self.cells.one_weight:
            weight[:] = means[cell, 0]
        return outcomes if outcomes.shape[1] > 1 else outcomes[:, 0], weight, donor


@dataclass(frozen=True)
class _Agreeing:
    """Work on cells: donors' weights and outcomes, and the released means (1 + outcome,), of each."""

    domains: tuple[Domain, ...]
    weighted: bool

    def __call__(self, cells: Sequence[tuple[Floats, Floats, Floats]]) -> list[tuple[Floats, Floats]]:
        return [
            agree(weight, outcomes, float(means[0]), means[1:], self.domains, self.weighted)
            for weight, outcomes, means in cells
        ]


def _on(values: Floats, bounds: tuple[float, float]) -> bool:
    """True if all values of an outcome are at its public bounds, as for a yes-or-no outcome."""
    return bool(np.isin(values, bounds).all())


def _at_the_common_scale(donors: Donors, counts: Floats, means: Floats, domains: tuple[Domain, ...]) -> Donors:
    """Moves outcomes of all cells by one scale, so that donors have the grand mean of the released table.

    `counts` are released counts (cell,), to which donors are weighted; `means` are released means (cell, outcome).
    Values at atoms do not move, and round figures stay round. If no scale gives the mean, the outcome does not change.
    """
    donor_weight = np.bincount(donors.cell, weights=donors.weight, minlength=len(counts))
    present = donor_weight > 0
    if not counts[present].any():  # noise so large that all released counts are 0
        return donors
    weight = donors.weight * quotient_or(0.0, counts, donor_weight)[donors.cell]
    aims = np.average(means[present], weights=counts[present], axis=0)
    outcomes = []
    for values, aim, domain in zip(donors.outcomes.T, aims, domains, strict=True):
        scaled = domain.scaled(values, weight, float(aim))
        outcomes.append(values if scaled is None else domain.rounded(scaled, values))
    return replace(donors, outcomes=np.column_stack(outcomes))


FARTHEST = 8.0
"""Factor by which amounts of donors from other cells move at most: ratios of means near 0 are not known well."""
STEP = 0.05
"""Step of the numerical derivative of a distribution function, as a share of the mean or of the standard deviation."""
MOST_SHARES = 1_000_000
"""Shares that are computed together."""


def rounded_values_of(release: ReleaseView) -> list[RoundedValues | None]:
    """Rounded values of every outcome in the released records of the reference; empty without such records."""
    donors = list(release.donors.values())
    if not donors:
        return []
    weight = np.concatenate([part.weight for part in donors])
    return [RoundedValues.of(weight, values) for values in np.concatenate([part.outcomes for part in donors]).T]


@dataclass(frozen=True)
class OfDonors:
    """The distributions of base cells' donors, moved to the estimated means, and linear in errors of these.

    A base cell of few records may have an error as large as its estimate. In a table's cell, such errors of several base
    cells cancel, but only if shares are linear in them.
    """

    cells: DonorCells
    points: Sequence[Sequence[Floats]]
    """The points (weight, outcome) of every outcome and cell, (point, 2) each."""
    records: Floats
    """Number of records that a cell's points represent, (cell,)."""
    theta: Draws
    """The released parameters."""
    without: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    """True where all donors have 0 and those of a wider group have amounts, (outcome, cell). Points are these amounts, and
    the estimated mean says how many records have one."""
    rounded_values: Sequence[RoundedValues | None] = ()
    """Rounded values of every outcome in the reference's records; None if these are not released."""

    @classmethod
    def of_cells(cls, release: ReleaseView, cells: DonorCells, stratum: int, predicted: Floats) -> Self:
        """The distributions of a release with donors. `predicted` are means of outcomes, (cell, outcome).

        Amounts of donors from other cells are moved by predicted means: a group has the spread between its cells, too.
        """
        donors = release.donors[release.crosstab.stratum_labels[stratum]].by_cell(cells.codes)
        members = [donors.of_cell(cell) for cell in range(len(cells.codes))]
        weight, home = donors.records.weight, donors.records.cell
        points, without = list[list[Floats]](), np.zeros((len(cells.outcomes), len(members)), dtype=np.bool_)
        for outcome, (values, bounds) in enumerate(zip(donors.records.outcomes.T, cells.bounds, strict=True)):
            of_cells = list(members)
            if bounds[0] >= 0.0:
                none = np.array([k for k, index in enumerate(members) if not values[index].any()], dtype=np.int64)
                for k, amounts in zip(none.tolist(), donors.amounts_near(outcome, none), strict=True):
                    without[outcome, k] = len(amounts) > 0
                    of_cells[k] = amounts if len(amounts) else of_cells[k]
            level = predicted[:, outcome]
            if bounds[0] < 0.0 or _on(values, bounds):
                level = np.ones(len(members))
            level = np.where(level > 0.0, level, np.nan)
            at = [_at_cell(k, values[of], home[of], level, bounds[1]) for k, of in enumerate(of_cells)]
            points.append([np.column_stack([weight[of], moved]) for of, moved in zip(of_cells, at, strict=True)])
        records = np.array([len(index) for index in members], dtype=np.float64)
        return cls(cells, points, records, release.theta(cells, stratum, 0), without, rounded_values_of(release))

    def answers(self, value: Floats, outcome: int) -> Floats:
        """Answers with the ranks of the given quantiles of the spread distribution, of any shape."""
        rounded_values = self.rounded_values[outcome] if self.rounded_values else None
        return value if rounded_values is None else rounded_values.answers(value)

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of the weight with an outcome of at most `value`, for pairs of a crosstab row and a value, (draw, pair)."""
        cell, released = self.cells.design.pattern[row].astype(np.int64), self.theta["means"][0, :, 1 + outcome]
        centre = self._until(cell, released, value, outcome)
        if "products" not in theta.values:
            return centre
        size = self._released_sizes[outcome]
        above, below = (self._until(cell, released + step * size, value, outcome) for step in (STEP, -STEP))
        size = size[cell]
        slope = quotient_or(0.0, above - below, 2.0 * STEP * size)
        weight, product = theta["weights"][:, cell], theta["products"][:, cell, outcome]
        change = np.divide(product, weight, out=np.zeros_like(product), where=weight != 0.0) - released[cell]
        shape = theta["shape"][:, cell] * self.errors(cell, value, outcome) if "shape" in theta.values else 0.0
        return np.asarray(centre + slope * change + shape)

    def _until(self, cell: Ints, means: Floats, value: Floats, outcome: int) -> Floats:
        """The same under means of cells, (cell,); (1, pair)."""
        shares = np.empty((1, len(cell)))
        for start in range(0, len(cell), MOST_SHARES):
            block = slice(start, start + MOST_SHARES)
            shares[:, block] = self._moved(cell[block], means[cell[block]][None], value[block], outcome)
        low, top = self.cells.bounds[outcome]
        return np.where(value >= top, 1.0, np.where(value < low, 0.0, np.clip(shares, 0.0, 1.0)))

    def _moved(self, cell: Ints, mean: Floats, value: Floats, outcome: int) -> Floats:
        """Shares of the weight at or below the values, after the points' move to other means; (draw, pair)."""
        before = self._means[outcome, cell]
        to = np.where(self.without[outcome, cell], np.maximum(mean, before), mean)
        ratio = quotient_or(1.0, before, to)
        scaled = np.where(to > 0, value * ratio, np.inf)  # a mean of nothing has no outcome above 0
        position = np.where(self._scaled(cell, outcome), scaled, value + before - to)
        above = self._with_amount(cell, mean, outcome) * (1.0 - self._steps[outcome].until(cell, position))
        return np.asarray(1.0 - above)

    def _with_amount(self, cell: Ints, mean: Floats, outcome: int) -> Floats:
        """Shares of records that have an amount, in the shape of `mean`; 1 where the cell's own donors have amounts."""
        few, amount = self.without[outcome, cell], self._means[outcome, cell]
        return np.where(few, np.clip(mean / np.where(few, amount, 1.0), 0.0, 1.0), 1.0)

    def _scaled(self, cell: Ints, outcome: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether a move to another mean scales a cell's outcomes, (pair,); if not, it adds."""
        return np.asarray((self.cells.bounds[outcome][0] >= 0) & (self._means[outcome, cell] > 0))

    def errors(self, cell: Ints, value: Floats, outcome: int) -> Floats:
        """Standard deviations of the points' shares at or below each value, given the mean, (pair,)."""
        steps, size, scaled = self._steps[outcome], self.sizes[outcome, cell], self._scaled(cell, outcome)
        share = steps.until(cell, value)
        ends = [np.where(scaled, value / (1.0 + step), value - step * size) for step in (STEP, -STEP)]
        slope = (steps.until(cell, ends[1]) - steps.until(cell, ends[0])) / (2.0 * STEP)
        points, running, means = self._squares[outcome]
        reached, first = points.place(cell, value), points.begin[cell]
        below = np.where(reached > first, running[:, reached - 1], 0.0) / (points.begin[cell + 1] - first)
        square = below[0] * (1.0 - 2.0 * share) + 2.0 * slope * below[1]
        square += share**2 * means[0, cell] - 2.0 * share * slope * means[1, cell] + slope**2 * means[2, cell]
        of_points = np.where(size > 0.0, np.sqrt(np.maximum(square, 0.0)), 0.0) / np.sqrt(self.records[cell])
        mean = np.maximum(self.theta["means"][0, cell, 1 + outcome], 0.0)
        return np.asarray(self._with_amount(cell, mean, outcome) * of_points)

    @cached_property
    def _steps(self) -> list[_Steps]:
        """Distribution functions by outcome, with ties spread where answers are heaped."""
        rounded_values = self.rounded_values or [None] * len(self.points)
        return [
            _Steps.of([points if of_outcome is None else np.column_stack(spread(*points.T)) for points in cells])
            for of_outcome, cells in zip(rounded_values, self.points, strict=True)
        ]

    @cached_property
    def _means(self) -> Floats:
        """Mean outcomes of the points, (outcome, cell)."""
        means = [[np.average(points[:, 1], weights=points[:, 0]) for points in cells] for cells in self.points]
        return np.array(means, dtype=np.float64)

    @cached_property
    def sizes(self) -> Floats:
        """Means of outcomes that a move to another mean scales, otherwise their standard deviations, (outcome, cell)."""
        sizes = self._means.copy()
        for outcome, cells in enumerate(self.points):
            for k in np.flatnonzero(~self._scaled(np.arange(len(cells)), outcome)).tolist():
                points = cells[k]
                weight = points[:, 0] / points[:, 0].mean()
                sizes[outcome, k] = np.sqrt(np.average((points[:, 1] - sizes[outcome, k]) ** 2, weights=weight))
        return sizes

    @cached_property
    def _released_sizes(self) -> Floats:
        """`sizes` after the move: released means of outcomes that a move scales, which may be far below the donors'."""
        cells = np.arange(len(self.records))
        scaled = np.array([self._scaled(cells, outcome) for outcome in range(len(self.points))])
        return np.where(scaled, np.maximum(self.theta["means"][0, :, 1:].T, 0.0), self.sizes)

    @cached_property
    def _squares(self) -> list[tuple[_Steps, Floats, Floats]]:
        """By outcome: the points in order, running sums of (v², v² u) over a cell's points, (2, point), and means of
        (v², v² u, v² u²), (3, cell).

        v is a weight over the cell's mean weight. u is an outcome's distance from the mean, over the cell's size.
        """
        squares = []
        for cells, means, sizes in zip(self.points, self._means, self.sizes, strict=True):
            running, moments = [], []
            for points, mean, size in zip(cells, means, sizes, strict=True):
                weight, outcome = points[np.argsort(points[:, 1], kind="stable")].T
                square = (weight / weight.mean()) ** 2
                u = (outcome - mean) / size if size > 0.0 else np.zeros(len(outcome))
                running.append(np.cumsum([square, square * u], axis=1))
                moments.append([square.mean(), (square * u).mean(), (square * u**2).mean()])
            squares.append((_Steps.of(cells), np.concatenate(running, axis=1), np.array(moments).T))
        return squares


def _at_cell(cell: int, values: Floats, home: Ints, level: Floats, top: float) -> Floats:
    """Outcomes of donors from the cells `home`, (donor,), moved by the ratio of a cell's level to theirs, (cell,), at most
    to `top`. Where a level is NaN they do not move.
    """
    ratio = np.nan_to_num(level[cell] / level[home], nan=1.0)
    return np.asarray(np.minimum(values * np.clip(ratio, 1.0 / FARTHEST, FARTHEST), top))


@dataclass(frozen=True)
class _Steps:
    """Distribution functions of cells with steps: all outcomes, in rising order within a cell, the share of the cell's
    weight up to each, and where each cell begins, (cell + 1,).
    """

    outcome: Floats
    share: Floats
    begin: Ints

    @classmethod
    def of(cls, cells: Sequence[Floats]) -> Self:
        parts = []
        for points in cells:
            order = np.argsort(points[:, 1], kind="stable")
            weight = np.cumsum(points[order, 0])
            parts.append((points[order, 1], weight / weight[-1]))
        outcome, share = map(np.concatenate, zip(*parts, strict=True))
        return cls(outcome, share, np.cumsum([0, *map(len, cells)]))

    def until(self, cell: Ints, value: Floats) -> Floats:
        """The share of each cell's weight at or below a value; cells (pair,), values (pair,) or (draw, pair)."""
        place = self.place(cell, value)
        return np.where(place > self.begin[cell], self.share[place - 1], 0.0)

    def place(self, cell: Ints, value: Floats) -> Ints:
        """The position after a cell's last outcome at or below a value, in the shape of the values."""
        low, high = (np.broadcast_to(ends, value.shape) for ends in (self.begin[cell], self.begin[cell + 1]))
        while (open_ := low < high).any():
            middle = (low + high) // 2
            below = open_ & ~(self.outcome[np.minimum(middle, len(self.outcome) - 1)] > value)
            low, high = np.where(below, middle + 1, low), np.where(open_ & ~below, middle, high)
        return np.asarray(low)
