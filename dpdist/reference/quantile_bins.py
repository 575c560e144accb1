"""For `reference_tables.histograms`: bins at an earlier release's quantiles; noisy histograms update its shapes.

The points are public, and so are the edges. Cells of a group have different edges, but common counts. So a histogram
shows the current distribution relative to the earlier one (Handcock and Morris 1999). First, one scale and one spread
are fitted to a group's noisy shares, so that tails move as well. Then shares are moved towards the noisy shares
(`towards`). Each point takes the value of its quantile level under the new shares. Ranks stay, and with them the
dependence of weight and outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Codes, Floats, Ints

ORDERS = np.array([0.03, *(np.arange(1, 16) / 16), 0.97, 0.99])
"""Quantile levels of the inner edges; the first bin lies below all points, and the last above."""
BEYOND = 2.0
"""Outermost ends: the last point times this factor, and the first divided by it.

If values may be negative, the ends are half of the points' range further out.
"""


class QuantileLevels(NamedTuple):
    """Bins (left, right] of one variable in one cell: `edges` between bins, `points` in rising order, and public bounds."""

    edges: Floats
    points: Floats
    low: float
    top: float

    @classmethod
    def of(cls, values: Floats, low: float, top: float) -> QuantileLevels:
        """Bins from a cell's points and the variable's public bounds."""
        points = np.sort(values)
        inner = np.quantile(points, ORDERS, method="inverted_cdf")
        return cls(np.concatenate([[np.nextafter(points[0], -np.inf)], inner, points[-1:]]), points, low, top)

    @property
    def share(self) -> Floats:
        """Share of the points in every bin, (bin,)."""
        upper = np.searchsorted(self.points, self.edges, side="right") / len(self.points)
        return np.diff(upper, prepend=0.0, append=1.0)

    def under(self, shift: float, stretch: float) -> QuantileLevels:
        """The same bins, with the points moved to another scale and spread."""
        return self._replace(points=np.sort(self.moved(self.points, shift, stretch)))

    def moved(self, values: Floats, shift: float, stretch: float) -> Floats:
        """Values moved to another scale and spread about the points' median.

        If no value can be negative, `shift` changes the log scale and `stretch` the log spread. Zeros and values at the
        upper bound stay. Otherwise, a shift is in halves of the points' range.
        """
        if (shift, stretch) == (0.0, 0.0):
            return values
        if self.low < 0.0:
            middle, half = float(np.median(self.points)), float(self.points[-1] - self.points[0]) / 2.0
            moved = middle + shift * half + np.exp(stretch) * (values - middle)
            return np.asarray(np.clip(moved, self.low, self.top))
        positive = self.points[self.points > 0]
        middle = float(np.median(positive)) if len(positive) else 1.0
        moved = middle * np.exp(shift) * (values / middle) ** np.exp(stretch)
        return np.asarray(np.where(values >= self.top, values, np.clip(moved, self.low, self.top)))

    def transported(self, values: Floats, share: Floats) -> Floats:
        """Values at the same quantile levels under other shares of the bins, `share` (bin,)."""
        rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        order, upper = (rank + 0.5) / len(values), np.cumsum(share)
        bins = np.minimum(np.searchsorted(upper, order), len(share) - 1)
        moved = np.empty(len(values))
        for number in np.unique(bins).tolist():
            rows = bins == number
            part = 1.0 - (upper[number] - order[rows]) / share[number]
            moved[rows] = self._within(number, np.clip(part, 0.0, 1.0))
        return moved

    def _within(self, number: int, part: Floats) -> Floats:
        """Values at positions in (0, 1) within one bin: between the bin's points, or uniform if there are none."""
        points = self.points[np.searchsorted(self.edges, self.points, side="left") == number]
        if len(points):
            return np.asarray(np.interp(part * len(points) - 0.5, np.arange(len(points)), points))
        first, last = self.edges[0], self.edges[-1]
        outer = [first / BEYOND, last * BEYOND] if self.low >= 0 else [1.5 * first - last / 2, 1.5 * last - first / 2]
        left, right = np.concatenate([outer[:1], self.edges, outer[1:]])[[number, number + 1]]
        return np.asarray(np.clip(left + part * (right - left), self.low, self.top))


def numbers(edges: Floats, cell: Codes | Ints, values: Floats) -> Ints:
    """The bin of every record by the edges of its cell; `edges` is (cell, edge)."""
    number = np.zeros(len(values), dtype=np.int64)
    for column in edges.T:
        number += values > column[cell]
    return number


SEARCH_STEPS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
"""Step sizes of log scale and log spread in the search for their fit."""
LARGEST_LOG_CHANGE = 1.0
"""Largest change of log scale, and of log spread."""


class Shares(NamedTuple):
    """A group's shares of bins before and after the update, (bin,), with figures on their precision.

    `way` is the mean fraction of the distance from old to noisy shares that was moved. `drift` is A, which includes
    sampling of the earlier shape. `noise` is the error of the new shares by noise and sampling.
    """

    before: Floats
    after: Floats
    way: float
    drift: float
    noise: float

    def records(self, before: float) -> int:
        """Effective number of records of the updated shape, if the earlier shape had `before`.

        It follows from the error of the shares about the population's shares.
        """
        return max(1, round(1.0 / ((1.0 - self.way) ** 2 * max(1.0 / before, self.drift) + self.noise)))


class Moved(NamedTuple):
    """Changes of a group's points: of log scale, of log spread, and then of the bins' shares."""

    shift: float
    stretch: float
    shares: Shares


def transported(levels: QuantileLevels, values: Floats, moved: Moved) -> Floats:
    """A cell's values after the update; its shares change as its group's shares do."""
    fitted, (_, _, group) = levels.under(moved.shift, moved.stretch), moved
    fitted_share = fitted.share
    share = group.after * np.divide(fitted_share, group.before, out=np.ones_like(fitted_share), where=group.before > 0)
    return fitted.transported(levels.moved(values, moved.shift, moved.stretch), share / share.sum())


def nearest(loss: Callable[[float, float], float]) -> tuple[float, float]:
    """The log scale and log spread with the least loss, searched from 0 in SEARCH_STEPS."""
    place, best = (0.0, 0.0), loss(0.0, 0.0)
    for step in SEARCH_STEPS:
        nearer = True
        while nearer:
            nearer = False
            for moves in product((-step, 0.0, step), repeat=2):
                tried = (place[0] + moves[0], place[1] + moves[1])
                if max(map(abs, tried)) <= LARGEST_LOG_CHANGE and (value := loss(*tried)) < best:
                    place, best, nearer = tried, value, True
    return place


def towards(before: Floats, noisy: Floats, n: float, variance: float) -> Shares:
    """Shares between `before` and the noisy shares of n records, whose noise has `variance`.

    A share q has the prior variance A q, where moments give A: the variation beyond noise and sampling. It moves by A
    q/(A q + q/n + s²) of the distance, with s² its noise variance.
    """
    seen, noise = noisy / n, variance / n**2
    room = 1.0 - float((before**2).sum())
    excess = float(((seen - before) ** 2).sum()) - len(seen) * noise - room / n
    drift = max(0.0, excess / max(room, 1.0 / n))
    likely = np.maximum(before, 1.0 / n)
    rate = drift * likely / (drift * likely + likely / n + noise)
    share = np.maximum(before + rate * (seen - before), 0.0)
    if not share.any():  # noise has taken every count to 0 or below
        share = before
    error = float((rate**2 * (likely / n + noise)).sum())
    return Shares(before, share / share.sum(), float(before @ rate), drift, error)
