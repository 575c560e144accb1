"""A cell's shape in the reference: the weights and outcomes of its records, and how they change under log scales.

A cell's current file is modelled as its reference with weights multiplied by exp(s) and outcomes by exp(g). Outcomes that
may be negative, or have two values only, are shifted by g units instead (METHODS §7b).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from dpdist.core.records import Floats

DRIFT = 1.1
"""The planned drift of shape: weights and outcomes are raised to this power."""
LARGEST_LOG_SCALE = 3.0
"""Largest |s| and |g|; for a shift, g is in units of `Shape.unit`."""
BISECTIONS = 50
"""Number of steps of a bisection."""
FLAT = 1e-9
"""Slopes and shares below this count as 0."""


class Blur(NamedTuple):
    """Noise of the histograms from which a cell's records were made: the bins' values, and the covariances of their shares.

    The histograms are of the current file. So such a cell has the tails of the current records, up to noise.
    """

    weight: Floats
    of_weight: Floats
    outcome: Floats
    of_outcome: Floats


@dataclass(frozen=True)
class Shape:
    """The reference records of one cell, or points in place of them.

    - `low`, `top`: the outcome's public bounds.
    - `scaled`: outcomes are multiplied, not shifted.
    - `records`: the number of records that its means are based on.
    - `weighted`: False without a weight column; every weight then stays 1.
    - `blur`: the histograms' noise, if the points come from noisy histograms.
    - `borrowed`: the share of points that come from similar cells.
    - `unlike`: the standard deviation of their log mean outcome about the cell's own (small-area borrowing).
    - `shrunk_within`: cells with the same number here are shrunk towards each other.
    - `group`: cells of one group share their histograms.
    - `at_bound`: the share of the group's weights at or beyond their public upper bound. It is 0 if noise may have made it,
      and NaN if noise could also hide a share of AT_THE_BOUND.
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
    shrunk_within: int = 0
    group: int = 0
    at_bound: float = 0.0

    @classmethod
    def of(cls, weight: Floats, outcome: Floats, bounds: tuple[float, float], weighted: bool = True) -> Self:
        positive = bounds[0] >= 0.0 and bool((outcome > 0).any())
        return cls(weight, outcome, *bounds, positive and len(np.unique(outcome)) > 2, len(weight), weighted)

    def with_borrowed(self, weight: Floats, outcome: Floats) -> Self:
        """The shape with other points in place of the cell's records, scaled to the cell's means.

        `weight` and `outcome` are those of the points, relative to the means of the cells that they come from.
        """
        return replace(self, weight=weight * self.mean_weight, outcome=np.minimum(outcome * self.mean, self.top))

    def under(self, s: float, g: float) -> Self:
        """The shape with log scales s and g applied to its points."""
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

        For an outcome of two values, it is the change of the mean when the log odds of the share change by 1.
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
        """Weighted shares of the records that a shift can move down, and up.

        For an outcome of two values, only the records at the other bound move.
        """
        if not self.two_valued:
            return 1.0, 1.0
        upper = float(np.average(self.outcome == self.top, weights=self.weight))
        return upper, 1.0 - upper

    def moved(self, g: float) -> Floats:
        """Outcomes under log scale g, within the public bounds; outcomes that are shifted change their mean by g units."""
        return self.moving(self.outcome, g)

    def moving(self, outcome: Floats, g: float) -> Floats:
        """The same change applied to other outcomes, (record,)."""
        share = self.movable[int(g > 0)] or 1.0
        moved: Floats = outcome * np.exp(g) if self.scaled else outcome + g * self.unit / share
        return np.clip(moved, self.low, self.top)

    def mean_at(self, g: float) -> float:
        """The mean outcome under log scale g."""
        return float(np.clip(np.average(self.moved(g), weights=self.weight), self.low, self.top))

    @property
    def rate(self) -> Floats:
        """The derivative of every record's outcome by g at g = 0, (record,)."""
        inside = (self.outcome < self.top) if self.scaled else np.ones(len(self.outcome), dtype=bool)
        return inside * (self.outcome if self.scaled else np.full(len(self.outcome), self.unit))

    @property
    def mean_rate(self) -> float:
        """The derivative of the mean outcome by g at g = 0."""
        return float(np.average(self.rate, weights=self.weight))

    def growth(self, g: float) -> float:
        """Factor by which deviations of outcomes grow under log scale g; 1 for a shift. Top-coded records do not grow."""
        if not self.scaled or self.mean_rate <= 0.0:
            return 1.0
        inside = self.outcome * np.exp(g) < self.top
        return float(np.average(inside * self.outcome, weights=self.weight) * np.exp(g) / self.mean_rate)

    @property
    def effective_size(self) -> float:
        """Number of records that the shape is worth.

        It is below `records` where the noise of histograms is comparable to the sampling error of the mean outcome.
        """
        if self.blur is None:
            return float(self.records)
        direct, noisy = self.direct_influence()[:, 1].var() / self.records, self.blur.outcome - self.mean
        return float(self.records / (1.0 + noisy @ self.blur.of_outcome @ noisy / max(direct, 1e-12)))

    @property
    def of_unlikeness(self) -> float:
        """Variance of the mean outcome due to differences between this cell and those from which it borrows."""
        return (self.borrowed * self.unlike * self.mean_rate) ** 2

    def direct_influence(self) -> Floats:
        """Influence of each record on (log mean weight, mean outcome), (record, 2)."""
        share = self.weight / self.mean_weight
        return np.column_stack([share - 1.0, share * (self.outcome - self.mean)])

    def drifted(self) -> tuple[Floats, Floats]:
        """Weights and outcomes after the planned drift of shape, with the same means."""
        heavier = self.weight**DRIFT
        heavier = heavier * self.mean_weight / heavier.mean()
        if not self.scaled:
            return heavier, np.clip(self.mean + DRIFT * (self.outcome - self.mean), self.low, self.top)
        wider = self.outcome**DRIFT
        return heavier, np.minimum(wider * self.mean / np.average(wider, weights=self.weight), self.top)

    def transported(self, mean_weight: float, mean: float, points: int) -> tuple[Floats, Floats]:
        """Weights and outcomes of this shape with the given means, at most `points`, as a reference for a later period."""
        if self.two_valued:
            weight, outcome = self._with_share((mean - self.low) / (self.top - self.low), points)
        else:
            weight, outcome = condensed(self.weight, self.outcome, points)
            few = replace(self, weight=weight, outcome=outcome)
            outcome = few.moved(bisect(lambda g: few.mean_at(g) - mean))
        return weight * (mean_weight / weight.mean()), outcome

    def _with_share(self, share: float, points: int) -> tuple[Floats, Floats]:
        """Weights and outcomes of records at the two bounds, such that the weighted share at the upper bound is `share`."""
        upper = self.outcome == self.top
        groups = [self.weight[own] if self.weight[own].any() else self.weight for own in (upper, ~upper)]
        share = min(1.0, max(0.0, share))
        odds = share * groups[1].mean(), (1.0 - share) * groups[0].mean()
        above = round(points * odds[0] / (odds[0] + odds[1]))
        weights = [
            np.quantile(group, (np.arange(size) + 0.5) / size) if size else np.empty(0)
            for group, size in zip(groups, (above, points - above), strict=True)
        ]
        return np.concatenate(weights), np.repeat([self.top, self.low], [above, points - above])


def condensed(weight: Floats, outcome: Floats, points: int) -> tuple[Floats, Floats]:
    """At most `points` records in place of these; each is the mean of neighbours in order of weight, then of outcome."""
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
    """The root of a rising function between ±LARGEST_LOG_SCALE."""
    low, high = -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2.0
