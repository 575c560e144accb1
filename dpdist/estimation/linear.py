"""Figures of cells as functions of sums, each with what every unit adds to its linearised form, of any statistic.

A unit is a row of the frame with its expectations, or a record. A statistic is a sum N, a ratio N/D of sums, a quantile, or
a difference of two of these. A ratio's linearised form is Σ (ν − (N/D) δ)/D over units that add ν to N and δ to D; a
difference's is that of one cell less that of the other. So sums that both cells share enter with their covariance
(Woodruff 1971; Särndal, Swensson & Wretman 1992, §5.5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.special import stdtrit

from dpdist.core.records import TOTAL, Floats, Ints
from dpdist.core.table_cells import Cells
from dpdist.estimation.variance import Stage, stratified
from dpdist.job import Statistic

ENTRIES = 4_000_000
"""Values of units in cells, over draws, that are held at a time."""
NOMINAL = 0.95
"""One-sided level of a quantile's limits."""
HALVINGS = 52
ROUNDING = 1e-12
LARGEST_VALUE = 1e300

Below = Callable[[int, Ints, Floats], Floats]
"""Of an outcome by its number: what pairs of a unit and a value add of weight at or below the value, (draw, pair)."""


@dataclass(frozen=True)
class Units:
    """Weights (draw, unit) and products of the outcomes with them, under `times` (unit,) of each."""

    times: Floats
    weight: Floats
    products: Sequence[Floats]
    below: Below | None = None
    outcomes: Sequence[Floats] | None = None
    """Of records."""


class Sum(NamedTuple):
    """A sum over the units of cells: `values` (draw, unit), or the weight at or below `cut` (cell,) of an outcome."""

    inside: csr_array
    values: Floats
    outcome: int = 0
    cut: Floats | None = None


@dataclass(frozen=True)
class Figures:
    """One statistic in all cells; `cut` (cell,) are the values that a distribution is asked at, where it is."""

    statistic: Statistic
    cells: Cells
    outcomes: tuple[str, ...]
    cut: Floats | None = None
    slope: Floats | None = None
    """Of a quantile: the distribution function's, by which its errors become the quantile's, (cell,)."""

    @property
    def base(self) -> Statistic:
        return self.statistic.of or self.statistic

    def of(self, units: Units) -> Floats:
        """The statistic, (draw, cell); of a quantile its linearised form about 0."""
        above, below = self._sums(units)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = _total(above, units)
            if below is not None:
                found = found / _total(below, units)
            if self.base.name == "proportion" and self.base.above is not None:
                found = 1.0 - found
            if self.slope is not None:
                found = -(found - (self.base.level_of_quantile or 0.0)) / self.slope
        return found if self.statistic.of is None else self.less(found)

    def shares(self, units: Units) -> csr_array:
        """What a unit adds to the linearised form, once, under the first draw, (cell, unit)."""
        above, below = self._sums(units)
        with np.errstate(divide="ignore", invalid="ignore"):
            made = _each(above, units)
            if below is not None:
                total = _total(below, units)[0]
                ratio = np.nan_to_num(_total(above, units)[0] / total)
                made = diags_array(np.nan_to_num(1.0 / total)) @ (made - diags_array(ratio) @ _each(below, units))
            if self.base.name == "proportion" and self.base.above is not None:
                made = -made
            if self.slope is not None:
                made = diags_array(-np.nan_to_num(1.0 / self.slope)) @ made
        made = csr_array(made)
        return made if self.statistic.of is None else csr_array(made - made[self.origin])

    def _sums(self, units: Units) -> tuple[Sum, Sum | None]:
        statistic, inside = self.base, self.cells.membership
        weight = Sum(inside, units.weight)
        if statistic.name == "count":
            return weight, None
        if statistic.name == "share":
            return weight, Sum(across(self.cells, statistic.across), units.weight)
        assert statistic.variable is not None
        outcome = self.outcomes.index(statistic.variable)
        product = Sum(inside, units.products[outcome])
        if statistic.name == "total":
            return product, None
        if statistic.over is not None:
            return product, Sum(inside, units.products[self.outcomes.index(statistic.over)])
        return (Sum(inside, units.weight, outcome, self.cut) if statistic.of_shape else product), weight

    def quantiles(self, units: Units, level: Floats | float, bounds: tuple[float, float], whole: bool) -> Floats:
        """The outcome's quantiles at a level (cell,), under the first draw, (cell,)."""
        levels = np.broadcast_to(np.asarray(level, dtype=np.float64), (len(self.cells),))
        outcome = self.outcomes.index(self.base.variable or "")
        found = quantiles(self.cells, units, outcome, levels, bounds)
        return np.asarray(np.rint(found)) if whole else found

    def of_records(
        self, units: Units, domain: tuple[tuple[float, float], bool] | None, variance: Callable[[Figures], Floats]
    ) -> tuple[Floats, Floats]:
        """Value and sampling variance over records, (cell,) each; `domain` has the outcome's bounds, and whether it is of
        whole numbers; `variance` is that of a figure's linearised form."""
        level = self.base.level_of_quantile
        if level is None:
            return self.of(units)[0], variance(self)
        assert domain is not None
        at = self.quantiles(units, level, *domain)
        error = np.sqrt(variance(replace(self, statistic=self.base, cut=at)))
        ends = woodruff(lambda share: self.quantiles(units, share, *domain), level, error, np.inf)
        linear = replace(self, cut=at, slope=ends.slope)
        value = at if self.statistic.of is None else linear.less(at[None])[0]
        return value, np.where(np.isfinite(ends.error), variance(linear), np.nan)

    @property
    def origin(self) -> Ints:
        """The cell that every cell is compared with, (cell,)."""
        place, number = (
            self.cells.by.index(self.statistic.column or ""),
            {label: k for k, label in enumerate(self.cells.labels)},
        )
        level = str(self.statistic.level)
        return np.array([number[(*label[:place], level, *label[place + 1 :])] for label in self.cells.labels])

    def less(self, figures: Floats) -> Floats:
        """Differences; none of a cell from itself."""
        origin = self.origin
        return np.where(origin == np.arange(len(self.cells)), np.nan, figures - figures[:, origin])


def asked(statistic: Statistic, cells: Cells, outcomes: tuple[str, ...]) -> Figures:
    """Of a statistic; a proportion asks the distribution at one value in all cells."""
    above = (statistic.of or statistic).above
    return Figures(statistic, cells, outcomes, None if above is None else np.full(len(cells), above))


class Ends(NamedTuple):
    """Limits of a quantile, its standard error, and the slope of the distribution function between them, (cell,) each."""

    lower: Floats
    upper: Floats
    error: Floats
    slope: Floats


def woodruff(quantile: Callable[[Floats], Floats], level: float, error: Floats, df: float) -> Ends:
    """From the standard error (cell,) of the share of weight below a quantile; `quantile` gives those of other levels.

    NaN where that error is not known, or where the limits leave an outcome without bounds.
    """
    critical = float(stdtrit(df, NOMINAL))
    lower, upper = (quantile(level + sign * critical * np.nan_to_num(error)) for sign in (-1.0, 1.0))
    known = np.isfinite(error) & np.isfinite(lower) & np.isfinite(upper)
    lower, upper = (np.where(known, each, np.nan) for each in (lower, upper))
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = (upper - lower) / (2.0 * critical)
        return Ends(lower, upper, reach, error / reach)


def across(cells: Cells, columns: Sequence[str]) -> csr_array:
    """The 0/1 matrix (cell, frame row) of what all levels of some columns hold, the others' as in the cell."""
    places = {cells.by.index(name) for name in columns}
    rest = [tuple(level for k, level in enumerate(label) if k not in places) for label in cells.labels]
    whole = [all(label[k] != TOTAL for k in places) for label in cells.labels]
    number = {each: k for k, each in enumerate(dict.fromkeys(rest))}
    group = np.array([number[each] for each in rest])
    base = np.flatnonzero(whole)
    held = csr_array((np.ones(len(base)), (group[base], base)), shape=(len(number), len(cells))) @ cells.membership
    return csr_array(csr_array(held)[group])


def _total(of: Sum, units: Units) -> Floats:
    """(draw, cell)."""
    if of.cut is None:
        return np.asarray((of.inside @ (units.times * of.values).T).T)
    return _below(of.inside, units, of.outcome, of.cut)


def _each(of: Sum, units: Units) -> csr_array:
    """What a unit adds once, under the first draw, (cell, unit)."""
    made = of.inside.copy()
    if of.cut is None:
        made.data = of.values[0, made.indices]
    else:
        assert units.below is not None
        made.data = units.below(of.outcome, made.indices.astype(np.int64), np.repeat(of.cut, np.diff(made.indptr)))[0]
    return made


def _below(inside: csr_array, units: Units, outcome: int, cut: Floats) -> Floats:
    """Weight at or below `cut` (cell,), (draw, cell); cells by the batch."""
    assert units.below is not None
    draws, sizes = len(units.weight), np.diff(inside.indptr)
    found = np.zeros((draws, len(cut)))
    batch = np.cumsum(sizes * draws) // ENTRIES
    for number in np.unique(batch):
        own = np.flatnonzero(batch == number)
        part = csr_array(inside[own])
        row, value = part.indices.astype(np.int64), np.repeat(cut[own], np.diff(part.indptr))
        each = units.times[row] * units.below(outcome, row, value)
        ends = np.concatenate([np.zeros((draws, 1)), np.cumsum(each, axis=1)], axis=1)
        found[:, own] = np.diff(ends[:, part.indptr], axis=1)
    return found


def quantiles(cells: Cells, units: Units, outcome: int, level: Floats, bounds: tuple[float, float]) -> Floats:
    """The least value with at least a share `level` (cell,) of the weight at or below it, (cell,), under the first draw.

    NaN in a cell without weight; a share of 0 or 1 and more has the bounds themselves.
    """
    weight = _total(Sum(cells.membership, units.weight), units)[0]
    found = _sorted(cells, units, outcome, level) if units.outcomes is not None else np.empty(0)
    if units.outcomes is None:
        low, found = (np.full(len(cells), end) for end in _ends(cells, units, outcome, level, bounds))
        for _ in range(HALVINGS):
            middle = (low + found) / 2.0
            reached = _below(cells.membership, units, outcome, middle)[0] >= level * weight * (1.0 - ROUNDING)
            low, found = np.where(reached, low, middle), np.where(reached, middle, found)
    held = np.where(level <= 0, bounds[0], np.where(level >= 1, bounds[1], found))
    return np.where(weight > 0, held, np.nan)


def _sorted(cells: Cells, units: Units, outcome: int, level: Floats) -> Floats:
    """Quantiles of records, (cell,)."""
    assert units.outcomes is not None
    values, weight, inside = units.outcomes[outcome], units.weight[0], cells.membership
    found = np.full(len(cells), np.nan)
    for cell in range(len(cells)):
        own = inside.indices[inside.indptr[cell] : inside.indptr[cell + 1]]
        if len(own):
            own = own[np.argsort(values[own], kind="stable")]
            reached = np.cumsum(weight[own])
            at = np.searchsorted(reached, level[cell] * reached[-1] * (1.0 - ROUNDING))
            found[cell] = values[own[min(int(at), len(own) - 1)]]
    return found


def _ends(cells: Cells, one: Units, outcome: int, level: Floats, bounds: tuple[float, float]) -> tuple[float, float]:
    """Finite ends that hold every quantile: the bounds, or powers of 2 where there are none."""
    low, high = bounds
    size = 1.0
    while not np.isfinite([low, high]).all() and size < LARGEST_VALUE:
        weight = _total(Sum(cells.membership, one.weight), one)[0]
        under, over = (_below(cells.membership, one, outcome, np.full(len(cells), end))[0] for end in (-size, size))
        inside = (level <= 0) | (level >= 1) | ((under < level * weight) & (over >= level * weight)) | ~(weight > 0)
        if inside.all():
            break
        size *= 2.0
    return (low if np.isfinite(low) else -size), (high if np.isfinite(high) else size)


def variance(
    shares: csr_array, times: Floats, stratum: Ints, stage: Stage, calibrated: tuple[Floats, Floats] | None = None
) -> Floats:
    """Variance (cell,) of Σ over units, each drawn `times` from its design stratum; `shares` is (cell, unit).

    `calibrated`: the margins that weights were raked to, (margin, unit), and the weights (unit,); the variance is then of
    the residuals from a regression on them.
    """
    strata = len(stage.size)
    into = csr_array((times, (np.arange(len(times)), stratum)), shape=(len(times), strata))
    pairs = np.arange(shares.shape[0] * strata)
    if calibrated is None:
        squares = shares.copy()
        squares.data = squares.data**2
        total, square = ((each @ into).toarray().reshape(-1) for each in (shares, squares))
    else:
        left, dense = _residuals(shares, times, *calibrated), into.toarray()
        total, square = (left @ dense).reshape(-1), (left**2 @ dense).reshape(-1)
    return stratified(total, square, pairs // strata, pairs % strata, stage, shares.shape[0])


def _residuals(shares: csr_array, times: Floats, margins: Floats, weight: Floats) -> Floats:
    """(cell, unit)."""
    gram = np.linalg.pinv((margins * times * weight) @ margins.T)
    slopes = np.asarray(shares @ (times[:, None] * margins.T)) @ gram
    return np.asarray(shares.toarray() - slopes @ (margins * weight))
