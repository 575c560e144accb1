"""A cell as the reference tells it: where to clip, and what clipping loses (METHODS §7b).

All of it follows from the reference's records and from the current file's public size n: no current outcome is used.
The current file is thought of as the reference with weights times s and outcomes times g (plus h, where outcomes can be
negative or are two-valued); clipped statistics tell (s, g), and the reference the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Floats

DRIFT = 1.1
"""Planned drift of shape: weights and outcomes to this power."""
FARTHEST = 3.0
"""Largest |log s| and |log g|; of a shift, in the outcome's reference deviations."""
MISFIT = 0.5
"""Deviation of what lies beyond the limits from what a shape made of histograms tells of it, as a part of the latter."""
STEPS = 50
FLAT = 1e-9
EDGE = 1e-9
"""Part of its reach by which an outcome is at the end of a window."""


class Blur(NamedTuple):
    """Noise of the histograms that a cell's records were made of: where the bins lie, and the covariance of their shares.

    Such a cell is the current file's own: its tails are those of the same records, but for the noise.
    """

    weight: Floats
    of_weight: Floats
    outcome: Floats
    of_outcome: Floats


class Slopes(NamedTuple):
    """Influence of reference records on (log s, log g) through clipped statistics, and what noise on these does.

    `influence` (record, 2), centred; `inverse` (2, 2) takes errors of the mean statistics to those of (log s, log g).
    """

    influence: Floats
    inverse: Floats


@dataclass(frozen=True)
class Cell:
    """Reference records of one cell, or others in their place; `records` is how many its means stand on.

    `low` and `top` are the outcome's public bounds; `scaled` if outcomes are multiplied, not shifted; without a weight
    column (`weighted` False) every weight is 1 for good. A share `borrowed` of its points is of cells like it; `unlike` is
    the deviation, from the cell's own, of the log mean outcome that these have (small-area borrowing). Cells of one number
    `shrunk_within` are shrunk towards each other; those of one `group` share their histograms.
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

    @classmethod
    def of(cls, weight: Floats, outcome: Floats, bounds: tuple[float, float], weighted: bool = True) -> Cell:
        positive = bounds[0] >= 0.0 and bool((outcome > 0).any())
        return cls(weight, outcome, *bounds, positive and len(np.unique(outcome)) > 2, len(weight), weighted)

    def with_borrowed(self, weight: Floats, outcome: Floats) -> Cell:
        """Weights and outcomes relative to their own cells' means in place of this cell's, at its means."""
        return replace(self, weight=weight * self.mean_weight, outcome=np.minimum(outcome * self.mean, self.top))

    def under(self, s: float, g: float) -> Cell:
        return replace(self, weight=self.weight * np.exp(s), outcome=self.moved(g))

    @cached_property
    def two_valued(self) -> bool:
        """True of shares: outcomes are the public bounds and nothing between."""
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
        """Of a shift: a reference deviation of the outcome; of a share's, what it moves by where its log odds do by 1."""
        variance, width = float(np.average((self.outcome - self.mean) ** 2, weights=self.weight)), self.top - self.low
        if self.two_valued:
            return variance / width if variance > FLAT * width**2 else width
        return float(variance**0.5) if variance**0.5 > 1e-6 * width else width

    @property
    def farthest(self) -> float:
        """Largest |g|."""
        return (self.top - self.low) / self.unit if self.two_valued else FARTHEST

    @cached_property
    def movable(self) -> tuple[float, float]:
        """Weighted shares of records that a shift can move down, and up: of a share's only those at the other bound."""
        if not self.two_valued:
            return 1.0, 1.0
        upper = float(np.average(self.outcome == self.top, weights=self.weight))
        return upper, 1.0 - upper

    def moved(self, g: float) -> Floats:
        """Outcomes under log scale g, or shifted so that their mean moves by g units; never beyond the public bounds."""
        return self.moving(self.outcome, g)

    def moving(self, outcome: Floats, g: float) -> Floats:
        """The same of any outcomes, (record,)."""
        share = self.movable[int(g > 0)] or 1.0
        moved: Floats = outcome * np.exp(g) if self.scaled else outcome + g * self.unit / share
        return np.clip(moved, self.low, self.top)

    def mean_at(self, g: float) -> float:
        return float(np.clip(np.average(self.moved(g), weights=self.weight), self.low, self.top))

    @property
    def rate(self) -> Floats:
        """d outcome / d g of every record, (record,)."""
        inside = (self.outcome < self.top) if self.scaled else np.ones(len(self.outcome), dtype=bool)
        return inside * (self.outcome if self.scaled else np.full(len(self.outcome), self.unit))

    @property
    def mean_rate(self) -> float:
        return float(np.average(self.rate, weights=self.weight))

    @property
    def effective_size(self) -> float:
        """Records that its shape stands on, fewer where noise in histograms is as large as their sampling error."""
        if self.blur is None:
            return float(self.records)
        direct, noisy = self.direct_influence()[:, 1].var() / self.records, self.blur.outcome - self.mean
        return float(self.records / (1.0 + noisy @ self.blur.of_outcome @ noisy / max(direct, 1e-12)))

    @property
    def of_unlikeness(self) -> float:
        """Variance of the mean outcome because cells that it borrows of are unlike it."""
        return (self.borrowed * self.unlike * self.mean_rate) ** 2

    def direct_influence(self) -> Floats:
        """Influence of a record on (log mean weight, mean outcome), (record, 2)."""
        share = self.weight / self.mean_weight
        return np.column_stack([share - 1.0, share * (self.outcome - self.mean)])

    def statistics(self, s: float, g: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """Means of v and vc under log scales s and g."""
        centre, cap, reach = limits
        v = np.minimum(self.weight * np.exp(s), cap) / cap
        return float(v.mean()), float((v * np.clip((self.moved(g) - centre) / reach, -1.0, 1.0)).mean())

    def product(self, s: float, g: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """Mean vc under these scales, and its slope by mean v as the weights' scale moves both."""
        centre, cap, reach = limits
        v = np.minimum(self.weight * np.exp(s), cap) / cap
        product, moving = v * np.clip((self.moved(g) - centre) / reach, -1.0, 1.0), v < 1.0
        along = float((product * moving).mean()) / max(float((v * moving).mean()), FLAT) if self.weighted else 0.0
        return float(product.mean()), along

    def slopes(self, limits: tuple[float, float, float]) -> Slopes:
        centre, cap, reach = limits
        v = np.minimum(self.weight, cap) / cap
        c = np.clip((self.outcome - centre) / reach, -1.0, 1.0)
        below, within = self.weight < cap, self.within(centre, reach)
        jacobian = np.array([[(v * below).mean(), 0.0], [(v * c * below).mean(), (v * within * self.rate / reach).mean()]])
        pairs = np.column_stack([v, v * c])
        np.fill_diagonal(jacobian, np.maximum(np.diag(jacobian), FLAT))
        inverse = np.linalg.inv(jacobian)
        if not self.weighted:
            inverse[:, 0] = 0.0
        return Slopes((pairs - pairs.mean(axis=0)) @ inverse.T, inverse)

    def within(self, centre: Floats | float, half: Floats | float) -> NDArray[np.bool_]:
        """Which outcomes move as their scale does, whichever way: those at the end of a window do not, but a share's."""
        inside: NDArray[np.bool_] = np.abs(self.outcome - centre) <= (1.0 + EDGE if self.two_valued else 1.0 - EDGE) * half
        return inside

    def drifted(self) -> tuple[Floats, Floats]:
        """Weights and outcomes of another shape and the same means."""
        heavier = self.weight**DRIFT
        heavier = heavier * self.mean_weight / heavier.mean()
        if not self.scaled:
            return heavier, np.clip(self.mean + DRIFT * (self.outcome - self.mean), self.low, self.top)
        wider = self.outcome**DRIFT
        return heavier, np.minimum(wider * self.mean / np.average(wider, weights=self.weight), self.top)

    def blurred(self, limits: tuple[float, float, float]) -> Floats:
        """Variances of (log mean weight, mean outcome) from noise in the histograms of its tails, (2,)."""
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
        """Deviations of (log mean weight, mean outcome) because its own tails are not its histograms', (2,).

        Of a cell with larger weights or outcomes than its group's more lies beyond the limits: the larger part counts, of
        the group's shape as it is and at the cell's scales.
        """
        if self.blur is None:
            return np.zeros(2)
        centre, cap, reach = limits
        found = []
        for s, outcome in ((0.0, self.outcome), (scales[0], self.moved(scales[1]))):
            weight = self.weight * np.exp(s)
            found.append(
                [1.0 - np.minimum(weight, cap).sum() / weight.sum(), float(cut_off(outcome, weight, centre, reach))]
            )
        return np.asarray(MISFIT * np.max(found, axis=0))

    def transported(self, mean_weight: float, mean: float, points: int) -> tuple[Floats, Floats]:
        """Weights and outcomes of this shape and of these means, at most `points`: a later period's reference."""
        if self.two_valued:
            weight, outcome = self._with_share((mean - self.low) / (self.top - self.low), points)
        else:
            weight, outcome = condensed(self.weight, self.outcome, points)
            few = replace(self, weight=weight, outcome=outcome)
            outcome = few.moved(bisect(lambda g: few.mean_at(g) - mean))
        return weight * (mean_weight / weight.mean()), outcome

    def _with_share(self, share: float, points: int) -> tuple[Floats, Floats]:
        """Weights of those at the upper bound and of the others, in such numbers that the weighted share is `share`."""
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

    def solve(self, v: float, q: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """(log s, log g) under which the reference has these mean statistics, within ±FARTHEST; a share's g without end."""
        s = self.solve_weight(v, limits[1]) if self.weighted else 0.0
        return s, self.solve_outcome(s, q, limits)

    def solve_weight(self, v: float, cap: float) -> float:
        return float(self.solve_weights(np.array([v]), cap)[0])

    def solve_weights(self, v: Floats, cap: float) -> Floats:
        """log s of mean statistics v, (value,): mean v is linear between the scales at which a record reaches the cap."""
        means, scales = self._weight_curve
        log_scale = np.log(np.interp(v, means, scales)) + np.log(cap)
        log_scale = np.where(v >= means[-1], FARTHEST, np.where(v <= 0.0, -FARTHEST, log_scale))
        return np.asarray(np.clip(log_scale, -FARTHEST, FARTHEST))

    @cached_property
    def _weight_curve(self) -> tuple[Floats, Floats]:
        """Means of min(weight × scale, 1), and the scales: 0, and where each record reaches 1."""
        heaviest = np.sort(self.weight)[::-1]
        scales = 1.0 / heaviest
        left = heaviest.sum() - np.cumsum(heaviest)
        means = (np.arange(1, len(heaviest) + 1) + scales * left) / len(heaviest)
        means[-1] = 1.0
        return np.append(1e-300, means), np.append(1e-300, scales)

    def solve_outcome(self, s: float, q: float, limits: tuple[float, float, float]) -> float:
        if self.two_valued:
            return self._solve_share(s, q, limits)
        return bisect(lambda g: self.statistics(s, g, limits)[1] - q)

    def _solve_share(self, s: float, q: float, limits: tuple[float, float, float]) -> float:
        """Along the straight line to the bound, and straight on beyond it: so noise that carries a share over its bound is
        told as far as it goes, and shrinkage does not take it for drift."""
        at, (down, up), whole = self.statistics(s, 0.0, limits)[1], self.movable, (self.top - self.low) / self.unit
        end = whole * (up if (q > at and up > FLAT) or down <= FLAT else -down)
        return (q - at) * end / (self.statistics(s, end, limits)[1] - at)


def condensed(weight: Floats, outcome: Floats, points: int) -> tuple[Floats, Floats]:
    """At most `points` records in place of these, each the mean of as many neighbours, by weight and then by outcome."""
    if len(weight) <= points:
        return weight, outcome
    blocks = np.array_split(np.argsort(weight, kind="stable"), round(points**0.5))
    ordered = np.concatenate([block[np.argsort(outcome[block], kind="stable")] for block in blocks])
    starts = np.linspace(0, len(weight), points, endpoint=False).astype(np.int64)
    held = np.add.reduceat(weight[ordered], starts)
    total = np.add.reduceat((weight * outcome)[ordered], starts)
    size = np.diff(np.append(starts, len(weight)))
    return held / size, np.divide(total, held, out=np.zeros(points), where=held > 0)


def cut_off(outcome: Floats, weight: Floats, centre: Floats | float, half_width: Floats | float) -> Floats:
    """What a window cuts off of a mean, below and above it, as a deviation: neither side makes up for the other. Windows
    (window, 1) give (window,)."""
    sides = (np.maximum(centre - half_width - outcome, 0.0), np.maximum(outcome - centre - half_width, 0.0))
    return np.asarray(np.hypot(*(np.average(side, axis=-1, weights=weight) for side in sides)))


def bisect(rising: Callable[[float], float]) -> float:
    """Where a rising function is 0, within ±FARTHEST."""
    low, high = -FARTHEST, FARTHEST
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2.0
