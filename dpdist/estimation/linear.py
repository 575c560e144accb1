"""Statistics as functions of sums, with each unit's linearised contribution and the variances that follow.

A unit is a record, or a crosstab row with its expectations. A statistic is a sum N, a ratio N/D of sums, a quantile, or a
difference of two of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import scipy

from dpdist.core.records import TOTAL, Cells, Floats, Ints, quotient
from dpdist.estimation.estimators import Stage, stratified_variance
from dpdist.job import Statistic

ENTRIES = 4_000_000
"""Largest number of values, over units and draws, that are in memory at a time."""

Below = Callable[[int, Ints, Floats], Floats]
"""Takes the number of an outcome and pairs of a unit and a value. Gives the unit's weight with the outcome at or below the
value, (draw, pair)."""


@dataclass(frozen=True)
class Units:
    """Units with their weights (draw, unit), the products of outcomes with weights, and numbers of repetitions (unit,).

    `products` has one array (draw, unit) for each outcome.
    """

    times: Floats
    weight: Floats
    products: Sequence[Floats]
    below: Below
    outcomes: Sequence[Floats] | None = None
    """Outcomes by record; None if units are crosstab rows."""

    @classmethod
    def of_records(cls, weight: Floats, outcomes: Sequence[Floats]) -> Self:
        """Records as units, with their weights and outcomes, (record,) each."""

        def below(outcome: int, record: Ints, value: Floats) -> Floats:
            return np.asarray((weight[record] * (outcomes[outcome][record] <= value))[None])

        products = [(weight * values)[None] for values in outcomes]
        return cls(np.ones(len(weight)), weight[None], products, below, outcomes)


# The linearised form of a ratio is Σ (ν − (N/D) δ)/D over units, where a unit adds ν to N and δ to D. For a difference of
# two cells, it is the form of one cell minus the form of the other. So the covariance of two cells with common units is
# included (Woodruff 1971; Särndal, Swensson & Wretman 1992, §5.5).
class Sum(NamedTuple):
    """A sum over the units of cells: of `values` (draw, unit), or of the weight with an outcome of at most `cut` (cell,).

    `inside` is the 0/1 matrix (cell, unit).
    """

    inside: scipy.sparse.csr_array
    values: Floats
    outcome: int = 0
    cut: Floats | None = None


def total_of(of: Sum, units: Units) -> Floats:
    """The sum in every cell, (draw, cell)."""
    if of.cut is None:
        return np.asarray((of.inside @ (units.times * of.values).T).T)
    return below_of(of.inside, units, of.outcome, of.cut)


def unit_contributions(of: Sum, units: Units) -> scipy.sparse.csr_array:
    """The contribution of one unit, without its repetitions, to the sum under the first draw, (cell, unit)."""
    contribution = of.inside.copy()
    if of.cut is None:
        contribution.data = of.values[0, contribution.indices]
    else:
        contribution.data = units.below(
            of.outcome, contribution.indices.astype(np.int64), np.repeat(of.cut, np.diff(contribution.indptr))
        )[0]
    return contribution


def below_of(inside: scipy.sparse.csr_array, units: Units, outcome: int, cut: Floats) -> Floats:
    """The weight with an outcome of at most the cell's `cut`, (draw, cell), computed in batches of cells."""
    draws, sizes = len(units.weight), np.diff(inside.indptr)
    weight_below = np.zeros((draws, len(cut)))
    batch = np.cumsum(sizes * draws) // ENTRIES
    for number in np.unique(batch):
        members = np.flatnonzero(batch == number)
        part = inside if len(members) == len(cut) else scipy.sparse.csr_array(inside[members])
        row, value = part.indices.astype(np.int64), np.repeat(cut[members], np.diff(part.indptr))
        weights = units.times[row] * units.below(outcome, row, value)
        ends = np.concatenate([np.zeros((draws, 1)), np.cumsum(weights, axis=1)], axis=1)
        weight_below[:, members] = np.diff(ends[:, part.indptr], axis=1)
    return weight_below


HALVINGS = 52
"""Number of bisection steps in the search for a quantile."""
ROUNDING = 1e-12
"""Relative rounding error allowed when a share of the weight is compared with a level, or with 0 and 1."""
OF_RECORDS = 0.95
"""Confidence level of the interval that gives the standard error of a quantile of records, as in R."""
LARGEST_VALUE = 1e300
"""Absolute value at which the search for limits of an unbounded outcome stops."""


class Ends(NamedTuple):
    """Limits of a quantile, its standard error, and the slope of the distribution function between them, (cell,) each."""

    lower: Floats
    upper: Floats
    error: Floats
    slope: Floats


def woodruff(quantile: Callable[[Floats], Floats], share: Floats, error: Floats, df: Floats | float, level: float) -> Ends:
    """Confidence limits of a quantile at a confidence level, from the share of weight at or below it and its standard
    error, (cell,) each.

    `quantile` is a function that gives the quantiles at other shares, (cell,). The standard error is the half width over
    the t quantile (Woodruff 1952; R's `svyquantile`). All is NaN if the standard error of the share is unknown, or a limit.
    """
    critical = scipy.special.stdtrit(np.where(np.asarray(df) > 0, df, np.nan), 0.5 + level / 2.0)
    lower, upper = (quantile(share + sign * np.nan_to_num(critical * error)) for sign in (-1.0, 1.0))
    finite = np.isfinite(critical * error) & np.isfinite(lower) & np.isfinite(upper)
    lower, upper = (np.where(finite, limit, np.nan) for limit in (lower, upper))
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = (upper - lower) / (2.0 * critical)
        return Ends(lower, upper, reach, error / reach)


def quantiles_of(inside: scipy.sparse.csr_array, values: Floats, weight: Floats) -> Callable[[Floats], Floats]:
    """The function from shares to quantiles of cells' records, (cell,): the smallest value with at least that share of
    the cell's weight at or below it.

    `inside` is the 0/1 matrix (cell, record). A quantile is NaN in a cell without weight, and at shares beyond 0 and 1.
    """
    sorted_cells = list[tuple[Floats, Floats]]()
    for cell in range(inside.shape[0]):
        rows = inside.indices[inside.indptr[cell] : inside.indptr[cell + 1]]
        rows = rows[weight[rows] > 0]
        rows = rows[np.argsort(values[rows], kind="stable")]
        sorted_cells.append((values[rows], np.cumsum(weight[rows])))

    def quantile(share: Floats) -> Floats:
        values_at = np.full(len(sorted_cells), np.nan)
        for cell, (ordered, reached) in enumerate(sorted_cells):
            if len(ordered) and -ROUNDING <= share[cell] <= 1.0 + ROUNDING:
                position = int(np.searchsorted(reached, share[cell] * reached[-1] * (1.0 - ROUNDING)))
                values_at[cell] = ordered[min(position, len(ordered) - 1)]
        return values_at

    return quantile


def quantiles(cells: Cells, units: Units, outcome: int, level: Floats, bounds: tuple[float, float]) -> Floats:
    """Quantiles under the first draw, (cell,): the smallest value that has at least the share `level` of the cell's weight
    at or below it.

    It is NaN for a cell without weight; levels outside (0, 1) give the outcome's bounds.
    """
    weight = total_of(Sum(cells.membership, units.weight), units)[0]
    if units.outcomes is not None:
        value = quantiles_of(cells.membership, units.outcomes[outcome], units.weight[0])(level)
        estimates = np.where(level < -ROUNDING, bounds[0], np.where(level > 1.0 + ROUNDING, bounds[1], value))
        return np.where(weight > 0, estimates, np.nan)
    low, value = (np.full(len(cells), end) for end in _ends(cells, units, outcome, level, bounds))
    middle = np.clip(0.0, low, value)  # a step at 0, which many records may have, is found exactly
    for _ in range(HALVINGS + 1):
        reached = below_of(cells.membership, units, outcome, middle)[0] >= level * weight * (1.0 - ROUNDING)
        low, value = np.where(reached, low, middle), np.where(reached, middle, value)
        middle = (low + value) / 2.0
    estimates = np.where(level <= 0, bounds[0], np.where(level >= 1, bounds[1], value))
    return np.where(weight > 0, estimates, np.nan)


def _ends(cells: Cells, units: Units, outcome: int, level: Floats, bounds: tuple[float, float]) -> tuple[float, float]:
    """Finite limits around every quantile: the outcome's bounds, or ± powers of 2 for an outcome without bounds."""
    low, high = bounds
    size = 1.0
    while not np.isfinite([low, high]).all() and size < LARGEST_VALUE:
        weight = total_of(Sum(cells.membership, units.weight), units)[0]
        under, over = (below_of(cells.membership, units, outcome, np.full(len(cells), end))[0] for end in (-size, size))
        inside = (level <= 0) | (level >= 1) | ((under < level * weight) & (over >= level * weight)) | ~(weight > 0)
        if inside.all():
            break
        size *= 2.0
    return (low if np.isfinite(low) else -size), (high if np.isfinite(high) else size)


@dataclass(frozen=True)
class StatisticFigures:
    """One statistic in all cells; `cut` (cell,) are the values for a distribution function, if any."""

    statistic: Statistic
    cells: Cells
    outcomes: tuple[str, ...]
    cut: Floats | None = None
    slope: Floats | None = None
    """The slope of the distribution function at a quantile, (cell,).

    Dividing an error of a share by it gives the quantile's error.
    """

    @property
    def base(self) -> Statistic:
        """The statistic itself, or the one whose difference between cells is wanted."""
        return self.statistic.of or self.statistic

    def of(self, units: Units) -> Floats:
        """Values of the statistic, (draw, cell); for a quantile with a slope, of its linearised form about 0."""
        above, below = self._sums(units)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = total_of(above, units)
            if below is not None:
                values = values / total_of(below, units)
            if self.base.kind.complement(self.base):
                values = 1.0 - values
            if self.slope is not None:
                values = -(values - (self.base.level_of_quantile or 0.0)) / self.slope
        return values if self.statistic.of is None else self.less(values)

    def shares(self, units: Units) -> scipy.sparse.csr_array:
        """The contribution of one unit, without its repetitions, to the linearised form under the first draw, (cell,
        unit).
        """
        above, below = self._sums(units)
        with np.errstate(divide="ignore", invalid="ignore"):
            contribution = unit_contributions(above, units)
            if below is not None:
                total = total_of(below, units)[0]
                ratio, inverse = np.nan_to_num([total_of(above, units)[0] / total, 1.0 / total], posinf=0.0, neginf=0.0)
                contribution = scipy.sparse.diags_array(inverse) @ (
                    contribution - scipy.sparse.diags_array(ratio) @ unit_contributions(below, units)
                )
            if self.base.kind.complement(self.base):
                contribution = -contribution
            if self.slope is not None:
                contribution = (
                    scipy.sparse.diags_array(-np.nan_to_num(1.0 / self.slope, posinf=0.0, neginf=0.0)) @ contribution
                )
        contribution = scipy.sparse.csr_array(contribution)
        return (
            contribution if self.statistic.of is None else scipy.sparse.csr_array(contribution - contribution[self.origin])
        )

    def _sums(self, units: Units) -> tuple[Sum, Sum | None]:
        return self.base.kind.sums(self.base, _CellSums(self, units))

    def quantiles(self, units: Units, level: Floats | float, bounds: tuple[float, float], integers: bool) -> Floats:
        """Quantiles of the outcome under the first draw, (cell,); `level` is one for all cells, or (cell,)."""
        levels = np.broadcast_to(np.asarray(level, dtype=np.float64), (len(self.cells),))
        outcome = self.outcomes.index(self.base.variable or "")
        values = quantiles(self.cells, units, outcome, levels, bounds)
        return np.asarray(np.rint(values)) if integers else values

    def of_records(
        self,
        units: Units,
        domain: tuple[tuple[float, float], bool] | None,
        variance: Callable[[StatisticFigures], Floats],
        df: Floats,
    ) -> tuple[Floats, Floats]:
        """Value and sampling variance of the statistic over records, (cell,) each.

        `domain` has the outcome's bounds, and whether the outcome is in whole numbers; only quantiles need `domain`.
        `variance` computes the variance of a linearised form, with `df` degrees of freedom (cell,).
        """
        level = self.base.level_of_quantile
        if level is None:
            return self.of(units)[0], variance(self)
        assert domain is not None
        cut = self.quantiles(units, level, *domain)
        shares = replace(self, statistic=self.base, cut=cut)
        error = np.sqrt(variance(shares))
        ends = woodruff(lambda share: self.quantiles(units, share, *domain), shares.of(units)[0], error, df, OF_RECORDS)
        return self.quantile_from(cut, error, ends.error, variance)

    def quantile_from(
        self, cut: Floats, of_share: Floats, error: Floats, variance: Callable[[StatisticFigures], Floats]
    ) -> tuple[Floats, Floats]:
        """Value and variance of a quantile or of a difference of quantiles, (cell,) each.

        `cut` are the quantiles, `error` their standard errors, and `of_share` those of the shares below them.
        """
        if self.statistic.of is None:
            return cut, error**2
        linear = replace(self, cut=cut, slope=quotient(of_share, error))
        value = linear.less(cut[None])[0]
        finite = np.isfinite(value) & np.isfinite(error) & np.isfinite(error[self.origin])
        return value, np.where(finite, variance(linear), np.nan)

    @property
    def origin(self) -> Ints:
        return compared_with(self.statistic, self.cells.by, self.cells.labels)

    def less(self, figures: Floats) -> Floats:
        """Differences from each cell's comparison cell; NaN for that cell itself."""
        origin = self.origin
        with np.errstate(invalid="ignore"):  # ratios to 0
            return np.where(origin == np.arange(len(self.cells)), np.nan, figures - figures[:, origin])


@dataclass(frozen=True)
class _CellSums:
    """The sums of which statistics are ratios (`job.statistics.kind.Sums`)."""

    figures: StatisticFigures
    units: Units

    @property
    def weight(self) -> Sum:
        return Sum(self.figures.cells.membership, self.units.weight)

    def product(self, outcome: str) -> Sum:
        return Sum(self.figures.cells.membership, self.units.products[self.figures.outcomes.index(outcome)])

    def below(self, outcome: str) -> Sum:
        figures = self.figures
        return Sum(figures.cells.membership, self.units.weight, figures.outcomes.index(outcome), figures.cut)

    def across(self, columns: Sequence[str], outcome: str | None = None) -> Sum:
        weight, products = self.units.weight, self.units.products
        values = weight if outcome is None else products[self.figures.outcomes.index(outcome)]
        return Sum(across(self.figures.cells, columns), values)


def compared_with(statistic: Statistic, by: Sequence[str], labels: Sequence[tuple[str, ...]]) -> Ints:
    """The position of every cell's comparison cell, (cell,)."""
    place, number = by.index(statistic.column or ""), {label: k for k, label in enumerate(labels)}
    return np.array([number[(*label[:place], str(statistic.level), *label[place + 1 :])] for label in labels])


def figures_of(statistic: Statistic, cells: Cells, outcomes: tuple[str, ...]) -> StatisticFigures:
    """The figures of a statistic in all cells, before they are computed.

    A proportion is the share of values above a limit, one limit for all cells.
    """
    above = (statistic.of or statistic).above
    return StatisticFigures(statistic, cells, outcomes, None if above is None else np.full(len(cells), above))


def across(cells: Cells, columns: Sequence[str]) -> scipy.sparse.csr_array:
    """Marks the crosstab rows of the larger cell around each cell, (cell, row): the total over the given columns."""
    places = {cells.by.index(name) for name in columns}
    rest = [tuple(level for k, level in enumerate(label) if k not in places) for label in cells.labels]
    is_base_cell = [all(label[k] != TOTAL for k in places) for label in cells.labels]
    number = {key: k for k, key in enumerate(dict.fromkeys(rest))}
    group = np.array([number[key] for key in rest])
    base = np.flatnonzero(is_base_cell)
    membership = (
        scipy.sparse.csr_array((np.ones(len(base)), (group[base], base)), shape=(len(number), len(cells)))
        @ cells.membership
    )
    return scipy.sparse.csr_array(scipy.sparse.csr_array(membership)[group])


def variance(
    shares: scipy.sparse.csr_array,
    times: Floats,
    stratum: Ints,
    stage: Stage,
    calibrated: tuple[Floats, Floats] | None = None,
) -> Floats:
    """Variance (cell,) of a sum over units, where unit i was drawn `times[i]` times from its design stratum.

    `shares` (cell, unit) is the contribution of one draw of a unit. `calibrated` has the margins of raked weights,
    (margin, unit), and the weights (unit,). With it, the variance is that of residuals from a regression on the
    margins.
    """
    strata = len(stage.size)
    into = scipy.sparse.csr_array((times, (np.arange(len(times)), stratum)), shape=(len(times), strata))
    pairs = np.arange(shares.shape[0] * strata)
    if calibrated is None:
        squares = shares.copy()
        squares.data = squares.data**2
        total, square = ((summed @ into).toarray().reshape(-1) for summed in (shares, squares))
    else:
        residuals, dense = _residuals(shares, times, *calibrated), into.toarray()
        total, square = (residuals @ dense).reshape(-1), (residuals**2 @ dense).reshape(-1)
    return stratified_variance(total, square, pairs // strata, pairs % strata, stage, shares.shape[0])


def _residuals(shares: scipy.sparse.csr_array, times: Floats, margins: Floats, weight: Floats) -> Floats:
    gram = np.linalg.pinv((margins * times * weight) @ margins.T)
    slopes = np.asarray(shares @ (times[:, None] * margins.T)) @ gram
    return np.asarray(shares.toarray() - slopes @ (margins * weight))


SMALLEST_SHARE = 1e-12
"""An eigenvalue below this share of the largest one is set to 0. Rounding makes such eigenvalues in a matrix without full
rank."""


def symmetric_root(covariance: Floats) -> Floats:
    """R (…, k, k) with R = R' and RR = covariance (…, k, k), which is symmetric and has no eigenvalue below 0."""
    # Eigenvectors times the roots of their eigenvalues are a root, too. But their signs, and their directions where
    # eigenvalues are alike, depend on the last digits of the matrix. The same normal draws would differ by processor.
    values, vectors = np.linalg.eigh(covariance)
    eigenvalues = np.where(values > SMALLEST_SHARE * values[..., -1:], np.maximum(values, 0.0), 0.0)
    return np.asarray((vectors * np.sqrt(eigenvalues)[..., None, :]) @ vectors.swapaxes(-1, -2))
