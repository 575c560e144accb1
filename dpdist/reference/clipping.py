"""For all of `reference`: a cell's reference records, and their clipped statistics under given limits (METHODS §7b).

A record with weight w and outcome y has v = min(w, U)/U and c = clip((y − μ)/R, −1, 1); the statistics are the means of v
and vc. The current file is modelled as the reference with weights times exp(s) and outcomes times exp(g). Two-valued
outcomes, and outcomes that may be negative, are shifted by g units instead. Nothing here uses a current outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import NamedTuple, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats

MISFIT = 0.5
"""Standard deviation of a histogram's error beyond the limits, relative to its shape there."""
EDGE = 1e-9
"""Relative distance within which a weight counts as being at a cap, and an outcome at the end of a clipping interval."""
DRIFT = 1.1
"""The planned drift of shape is this power, applied to weights and outcomes."""
AT_THE_BOUND = 0.2
"""If this share of weights reaches the public upper bound, counts are too low for publication."""
LARGEST_LOG_SCALE = 3.0
"""Largest |s| and |g|; for a shift, g is in units of `Cell.unit`."""
BISECTIONS = 50
"""Number of steps of a bisection."""
NEAR, NEAR_STEPS = 1e-14, 46
"""Precision of a first search for a root, and the number of halvings it saves."""
AT_A_TIME = 1_000_000
"""Largest number of clipped values (records × scales) in memory at a time."""
FLAT = 1e-9
"""Slopes and shares below this count as 0."""


class Blur(NamedTuple):
    """Noise of the histograms behind a cell's points: values of bins, and covariances of their shares."""

    weight: Floats
    of_weight: Floats
    outcome: Floats
    of_outcome: Floats


class Slopes(NamedTuple):
    """Effects of reference records and of noise on the log scales (s, g) that are solved from clipped statistics.

    `influence` (record, 2) is each record's influence, centred. `inverse` (2, 2) converts errors of the mean statistics
    to errors of (s, g).
    """

    influence: Floats
    inverse: Floats


@dataclass(frozen=True)
class Cell:
    """The reference records of one cell, or points in place of them.

    - `low`, `top`: the outcome's public bounds.
    - `scaled`: outcomes are multiplied, not shifted.
    - `records`: the number of records behind the cell's means.
    - `weighted`: False without a weight column; every weight then stays 1.
    - `blur`: the histograms' noise, if the points come from noisy histograms.
    - `borrowed`: the share of points that come from similar cells.
    - `unlike`: the standard deviation of those cells' log mean outcome about this cell's (small-area borrowing).
    - `similar`: weights and outcomes of similar cells, relative to their cells' means.
    - `shrunk_within`: cells with the same number are shrunk towards each other; −1: not shrunk.
    - `group`: cells of one group share their histograms.
    - `at_bound`: the share of the group's weights at or beyond their public upper bound. It is 0 if it may be mere noise,
      NaN if noise could also hide a share of AT_THE_BOUND.
    """

    weight: Floats
    outcome: Floats
    low: float
    top: float
    scaled: bool
    records: int
    weighted: bool = True
    blur: Blur | None = None
    borrowed: float = 0.0
    unlike: float = 0.0
    similar: tuple[Floats, Floats] | None = None
    shrunk_within: int = 0
    group: int = 0
    at_bound: float = 0.0

    @classmethod
    def of(cls, weight: Floats, outcome: Floats, bounds: tuple[float, float], weighted: bool = True) -> Self:
        positive = bounds[0] >= 0.0 and bool((outcome > 0).any())
        return cls(weight, outcome, *bounds, positive and len(np.unique(outcome)) > 2, len(weight), weighted)

    def with_borrowed(self, weight: Floats, outcome: Floats) -> Self:
        """The cell with other points instead of its records, scaled to its means.

        A point's `weight` and `outcome` are relative to the means of its original cell.
        """
        return replace(self, weight=weight * self.mean_weight, outcome=np.minimum(outcome * self.mean, self.top))

    @cached_property
    def as_similar(self) -> Cell:
        """The cell with the points of similar cells at its means; itself without similar cells."""
        if self.similar is None:
            return self
        weight, outcome = self.similar
        if self.scaled:
            return self.with_borrowed(weight, outcome)
        # Outcomes that are shifted have no common shape: the cell's values are repeated.
        return replace(self, weight=weight * self.mean_weight, outcome=np.resize(self.outcome, len(weight)))

    def under(self, s: float, g: float) -> Self:
        """The cell with log scales s and g applied to its points."""
        return replace(self, weight=self.weight * np.exp(s), outcome=self.moved(g))

    @cached_property
    def two_valued(self) -> bool:
        """True if outcomes are only at the two public bounds, so that their mean is a share."""
        values = np.unique(self.outcome)
        return bool(np.isin(values, (self.low, self.top)).all()) and (len(values) == 2 or self.top - self.low == 1.0)

    @property
    def mean_weight(self) -> float:
        return float(self.weight.mean())

    @property
    def mean(self) -> float:
        return float(np.average(self.outcome, weights=self.weight))

    @cached_property
    def unit(self) -> float:
        """The unit of a shift: one standard deviation of the outcome in the reference.

        For a two-valued outcome, the change of the mean if log odds change by 1.
        """
        variance, width = float(np.average((self.outcome - self.mean) ** 2, weights=self.weight)), self.top - self.low
        if self.two_valued:
            return variance / width if variance > FLAT * width**2 else width
        return float(variance**0.5) if variance**0.5 > 1e-6 * width else width

    @property
    def farthest(self) -> float:
        """Largest |g|."""
        return (self.top - self.low) / self.unit if self.two_valued else LARGEST_LOG_SCALE

    @cached_property
    def movable(self) -> tuple[float, float]:
        """Weighted shares of the records that a shift can move down (two-valued: those at the top) and up (at the
        bottom).
        """
        if not self.two_valued:
            return 1.0, 1.0
        upper = float(np.average(self.outcome == self.top, weights=self.weight))
        return upper, 1.0 - upper

    def moved(self, g: float) -> Floats:
        """Outcomes under log scale g, within the public bounds; a shift changes the mean by g units."""
        return self.moving(self.outcome, g)

    def moving(self, outcome: Floats, g: float) -> Floats:
        share = self.movable[int(g > 0)] or 1.0
        moved: Floats = outcome * np.exp(g) if self.scaled else outcome + g * self.unit / share
        return np.clip(moved, self.low, self.top)

    def mean_at(self, g: float) -> float:
        return float(np.clip(np.average(self.moved(g), weights=self.weight), self.low, self.top))

    @property
    def rate(self) -> Floats:
        """The derivative of every record's outcome by g at g = 0, (record,)."""
        inside = (self.outcome < self.top) if self.scaled else np.ones(len(self.outcome), dtype=bool)
        return inside * (self.outcome if self.scaled else np.full(len(self.outcome), self.unit))

    @property
    def mean_rate(self) -> float:
        return float(np.average(self.rate, weights=self.weight))

    def growth(self, g: float) -> float:
        """Factor by which deviations of outcomes grow under log scale g; 1 for a shift. Top-coded records do not grow."""
        if not self.scaled or self.mean_rate <= 0.0:
            return 1.0
        inside = self.outcome * np.exp(g) < self.top
        return float(np.average(inside * self.outcome, weights=self.weight) * np.exp(g) / self.mean_rate)

    @property
    def effective_size(self) -> float:
        """Number of records with an equally precise mean outcome, if there were no histograms' noise.

        It is below `records` if this noise is comparable to the sampling error of the mean outcome.
        """
        if self.blur is None:
            return float(self.records)
        direct, noisy = self.direct_influence()[:, 1].var() / self.records, self.blur.outcome - self.mean
        return float(self.records / (1.0 + noisy @ self.blur.of_outcome @ noisy / max(direct, 1e-12)))

    @property
    def of_unlikeness(self) -> float:
        """Variance of the mean outcome by differences between this cell and those from which it borrows."""
        return (self.borrowed * self.unlike * self.mean_rate) ** 2

    def direct_influence(self) -> Floats:
        """Influence of each record on (log mean weight, mean outcome), (record, 2)."""
        share = self.weight / self.mean_weight
        return np.column_stack([share - 1.0, share * (self.outcome - self.mean)])

    def drifted(self) -> tuple[Floats, Floats]:
        """Weights and outcomes after the planned drift of shape; their means stay."""
        heavier = self.weight**DRIFT
        heavier = heavier * self.mean_weight / heavier.mean()
        if not self.scaled:
            return heavier, np.clip(self.mean + DRIFT * (self.outcome - self.mean), self.low, self.top)
        wider = self.outcome**DRIFT
        return heavier, np.minimum(wider * self.mean / np.average(wider, weights=self.weight), self.top)

    def transported(self, mean_weight: float, mean: float, points: int) -> tuple[Floats, Floats]:
        """At most `points` weights and outcomes of this shape with the given means, as a later period's reference."""
        if self.two_valued:
            weight, outcome = self._with_share((mean - self.low) / (self.top - self.low), points)
        else:
            weight, outcome = condensed(self.weight, self.outcome, points)
            few = replace(self, weight=weight, outcome=outcome)
            outcome = few.moved(bisect(lambda g: few.mean_at(g) - mean))
        return weight * (mean_weight / weight.mean()), outcome

    def _with_share(self, share: float, points: int) -> tuple[Floats, Floats]:
        """Weights and outcomes of records at the two bounds, with this weighted share at the upper bound."""
        upper = self.outcome == self.top
        groups = [self.weight[rows] if self.weight[rows].any() else self.weight for rows in (upper, ~upper)]
        share = min(1.0, max(0.0, share))
        odds = share * groups[1].mean(), (1.0 - share) * groups[0].mean()
        above = round(points * odds[0] / (odds[0] + odds[1]))
        weights = [
            np.quantile(group, (np.arange(size) + 0.5) / size) if size else np.empty(0)
            for group, size in zip(groups, (above, points - above), strict=True)
        ]
        return np.concatenate(weights), np.repeat([self.top, self.low], [above, points - above])

    @property
    def curved(self) -> bool:
        """True for multiplied outcomes, whose clipped mean changes ever less as g falls."""
        return self.scaled

    @property
    def shape(self) -> Cell:
        """The cell to which log scales are applied: here, the cell itself."""
        return self

    def statistics(self, s: float, g: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """Means of v and of vc under log scales s and g."""
        centre, cap, reach = limits
        v = np.minimum(self.weight * np.exp(s), cap) / cap
        return float(v.mean()), float((v * np.clip((self.moved(g) - centre) / reach, -1.0, 1.0)).mean())

    def products(self, s: float, g: Floats, limits: tuple[float, float, float]) -> tuple[Floats, Floats]:
        """Mean vc under log scale s and each g, (scale,), with its derivatives by mean v along s.

        Outcomes must be multiplied, not shifted.
        """
        centre, cap, reach = limits
        v = np.minimum(self.weight * np.exp(s), cap) / cap
        moving, made = below(v, 1.0), list[Floats]()
        slope = max(float((v * moving).mean()), FLAT)
        for some in np.array_split(np.exp(g)[:, None], ceil(len(g) * len(v) / AT_A_TIME)):
            outcome = np.clip(self.outcome * some, self.low, self.top)
            product = v * np.clip((outcome - centre) / reach, -1.0, 1.0)
            along = (product * moving).mean(axis=1) / slope if self.weighted else np.zeros(len(some))
            made.append(np.array([product.mean(axis=1), along]))
        return tuple(np.concatenate(made, axis=1))

    def slopes(self, limits: tuple[float, float, float]) -> Slopes:
        """Influence of records and errors on the log scales, at s = g = 0."""
        centre, cap, reach = limits
        v = np.minimum(self.weight, cap) / cap
        c = np.clip((self.outcome - centre) / reach, -1.0, 1.0)
        moving, within = below(self.weight, cap), self.within(centre, reach)
        jacobian = np.array(
            [[(v * moving).mean(), 0.0], [(v * c * moving).mean(), (v * within * self.rate / reach).mean()]]
        )
        pairs = np.column_stack([v, v * c])
        np.fill_diagonal(jacobian, np.maximum(np.diag(jacobian), FLAT))
        inverse = np.linalg.inv(jacobian)
        if not self.weighted:
            inverse[:, 0] = 0.0
        return Slopes((pairs - pairs.mean(axis=0)) @ inverse.T, inverse)

    def within(self, centre: Floats | float, half: Floats | float, rows: slice = slice(None)) -> NDArray[np.bool_]:
        """Marks outcomes whose clipped value depends on g; at an interval's end only those with two values do."""
        inside: NDArray[np.bool_] = (
            np.abs(self.outcome[rows] - centre) <= (1.0 + EDGE if self.two_valued else 1.0 - EDGE) * half
        )
        return inside

    def blurred(self, limits: tuple[float, float, float]) -> Floats:
        """Variances of (log mean weight, mean outcome) by noise of the tails' histograms, (2,)."""
        if self.blur is None:
            return np.zeros(2)
        centre, cap, reach = limits
        inverse = self.slopes(limits).inverse
        of_weight = self.blur.weight / self.mean_weight - inverse[0, 0] * np.minimum(self.blur.weight, cap) / cap
        share = np.minimum(self.weight, cap).mean() / cap
        clipped = share * np.clip((self.blur.outcome - centre) / reach, -1.0, 1.0)
        of_outcome = self.blur.outcome - self.mean - self.mean_rate * inverse[1, 1] * clipped
        noise = np.array([of_weight @ self.blur.of_weight @ of_weight, of_outcome @ self.blur.of_outcome @ of_outcome])
        return np.asarray(np.maximum(noise, 0.0))

    def misfit(self, scales: tuple[float, float], limits: tuple[float, float, float]) -> Floats:
        """Standard deviations of (log mean weight, mean outcome) if tails differ from their histograms, (2,).

        The part beyond the limits is computed for two shapes, the group's and the one at the cell's log scales; the
        larger is used.
        """
        if self.blur is None:
            return np.zeros(2)
        centre, cap, reach = limits
        shares = []
        for s, outcome in ((0.0, self.outcome), (scales[0], self.moved(scales[1]))):
            weight = self.weight * np.exp(s)
            shares.append(
                [1.0 - np.minimum(weight, cap).sum() / weight.sum(), float(cut_off(outcome, weight, centre, reach))]
            )
        return np.asarray(MISFIT * np.max(shares, axis=0))

    def solve(self, v: float, q: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """The log scales (s, g) under which the reference has the mean statistics v and q = mean vc.

        They are limited to ±LARGEST_LOG_SCALE, except g of a two-valued outcome.
        """
        s = self.solve_weight(v, limits[1]) if self.weighted else 0.0
        return s, self.solve_outcome(s, q, limits)

    def solve_weight(self, v: float, cap: float) -> float:
        return float(self.solve_weights(np.array([v]), cap)[0])

    def solve_weights(self, v: Floats, cap: Floats | float) -> Floats:
        """The log scales s for mean statistics v: (value,) for one cap, (cap, value) for caps (cap, 1)."""
        means, scales = self._weight_curve
        log_scale = np.log(np.interp(v, means, scales)) + np.log(cap)
        log_scale = np.where(v >= means[-1], LARGEST_LOG_SCALE, np.where(v <= 0.0, -LARGEST_LOG_SCALE, log_scale))
        return np.asarray(np.clip(log_scale, -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE))

    def mean_v(self, scales: Floats, cap: float) -> Floats:
        """Mean v under log scales s, (scale,)."""
        means, factors = self._weight_curve
        return np.asarray(np.interp(np.exp(scales) / cap, factors, means))

    @cached_property
    def _weight_curve(self) -> tuple[Floats, Floats]:
        """Means of min(weight × scale, 1), and the scales at which records reach 1; mean v is linear between these."""
        heaviest = np.sort(self.weight)[::-1]
        scales = 1.0 / heaviest
        left = heaviest.sum() - np.cumsum(heaviest)
        means = (np.arange(1, len(heaviest) + 1) + scales * left) / len(heaviest)
        means[-1] = 1.0
        return np.append(1e-300, means), np.append(1e-300, scales)

    def solve_outcome(self, s: float, q: float, limits: tuple[float, float, float]) -> float:
        """The log scale g, given s, under which the reference has the mean statistic q = mean vc."""
        if self.two_valued:
            return self._solve_share(s, q, limits)
        return bisect(lambda g: self.statistics(s, g, limits)[1] - q)

    def _solve_share(self, s: float, q: float, limits: tuple[float, float, float]) -> float:
        """The shift g of a two-valued outcome, continued linearly if the share would leave [0, 1]."""
        # This keeps the size of noise beyond a bound. Otherwise shrinkage would treat that noise as drift.
        now, (down, up), whole = self.statistics(s, 0.0, limits)[1], self.movable, (self.top - self.low) / self.unit
        end = whole * (up if (q > now and up > FLAT) or down <= FLAT else -down)
        return (q - now) * end / (self.statistics(s, end, limits)[1] - now)


def below(weight: Floats | float, cap: Floats | float) -> NDArray[np.bool_]:
    """Marks weights below a cap, by more than rounding: many equal weights may lie at it."""
    return np.asarray(np.asarray(weight) < (1.0 - EDGE) * np.asarray(cap), dtype=np.bool_)


def condensed(weight: Floats, outcome: Floats, points: int) -> tuple[Floats, Floats]:
    """At most `points` records in place of the given ones: means of neighbours in order of weight, then of outcome."""
    if len(weight) <= points:
        return weight, outcome
    blocks = np.array_split(np.argsort(weight, kind="stable"), round(points**0.5))
    ordered = np.concatenate([block[np.argsort(outcome[block], kind="stable")] for block in blocks])
    starts = np.linspace(0, len(weight), points, endpoint=False).astype(np.int64)
    held = np.add.reduceat(weight[ordered], starts)
    total = np.add.reduceat((weight * outcome)[ordered], starts)
    size = np.diff(np.append(starts, len(weight)))
    return held / size, np.divide(total, held, out=np.zeros(points), where=held > 0)


def bisect(rising: Callable[[float], float]) -> float:
    """The root of a rising function between ±LARGEST_LOG_SCALE, as the middle of the last of BISECTIONS halved
    intervals.

    A shorter search first locates the root. Halvings begin at a small interval around this root if the function changes
    its sign there, else at the whole interval. The result is the same as from the whole interval.
    """
    low, high, left = -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE, BISECTIONS
    try:
        place = scipy.optimize.brentq(rising, low, high, xtol=NEAR, rtol=NEAR)
    except ValueError:  # both ends have one sign
        place = low if rising(low) >= 0 else high
    width = (high - low) / 2.0**NEAR_STEPS
    start = low + min(max(ceil((place - low) / width) - 1, 0), 2**NEAR_STEPS - 1) * width
    if (start == low or rising(start) < 0) and (start + width == high or rising(start + width) >= 0):
        low, high, left = start, start + width, BISECTIONS - NEAR_STEPS
    for _ in range(left):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2.0


def cut_off(outcome: Floats, weight: Floats, centre: Floats | float, half_width: Floats | float) -> Floats:
    """What clipping removes from a mean: the root of the squared parts below and above the interval.

    Intervals (interval, 1) give (interval,).
    """
    sides = (np.maximum(centre - half_width - outcome, 0.0), np.maximum(outcome - centre - half_width, 0.0))
    return np.asarray(np.hypot(*(np.average(side, axis=-1, weights=weight) for side in sides)))
