"""Bins at quantiles of an earlier release's points, for histograms that update its shapes.

The points are public, and so are the edges. Cells of a group have different edges, but share their counts. A record
enters one bin of each of h histograms, and only histograms of its cell's group, whatever its values. So noise has the scale
h/ε as in `histogram_bins`, and 2h/ε under substitution. As in `histogram_bins`, the cost is added to that of the table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.core.records import Codes, Floats, Ints

ORDERS = np.array([0.03, *(np.arange(1, 16) / 16), 0.97, 0.99])
"""Quantile levels of the inner edges; the first bin lies below all points, and the last above."""
BEYOND = 2.0
"""Ends of the outermost bins: the last point times this, and the first divided by it.

Where values may be negative, the ends are half of the points' range away from these points.
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

        `shift` is a change of log scale, and `stretch` one of log spread, where no value can be negative; zeros and
        values at the upper bound then stay. Otherwise a shift is in halves of the points' range.
        """
        if (shift, stretch) == (0.0, 0.0):
            return values
        if self.low < 0.0:
            middle, half = float(np.median(self.points)), float(self.points[-1] - self.points[0]) / 2.0
            found = middle + shift * half + np.exp(stretch) * (values - middle)
            return np.asarray(np.clip(found, self.low, self.top))
        positive = self.points[self.points > 0]
        middle = float(np.median(positive)) if len(positive) else 1.0
        found = middle * np.exp(shift) * (values / middle) ** np.exp(stretch)
        return np.asarray(np.where(values >= self.top, values, np.clip(found, self.low, self.top)))

    def transported(self, values: Floats, share: Floats) -> Floats:
        """Values at the same quantile levels under other shares of the bins, `share` (bin,).

        Under the points' own shares, they are the values themselves.
        """
        rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        order, upper = (rank + 0.5) / len(values), np.cumsum(share)
        bins = np.minimum(np.searchsorted(upper, order), len(share) - 1)
        found = np.empty(len(values))
        for number in np.unique(bins).tolist():
            own = bins == number
            part = 1.0 - (upper[number] - order[own]) / share[number]
            found[own] = self._within(number, np.clip(part, 0.0, 1.0))
        return found

    def _within(self, number: int, part: Floats) -> Floats:
        """Values at positions in (0, 1) within one bin: between its points, or uniform where it has none."""
        own = self.points[np.searchsorted(self.edges, self.points, side="left") == number]
        if len(own):
            return np.asarray(np.interp(part * len(own) - 0.5, np.arange(len(own)), own))
        first, last = self.edges[0], self.edges[-1]
        outer = [first / BEYOND, last * BEYOND] if self.low >= 0 else [1.5 * first - last / 2, 1.5 * last - first / 2]
        left, right = np.concatenate([outer[:1], self.edges, outer[1:]])[[number, number + 1]]
        return np.asarray(np.clip(left + part * (right - left), self.low, self.top))


def numbers(edges: Floats, cell: Codes | Ints, values: Floats) -> Ints:
    """The bin of every record by the edges of its cell; `edges` is (cell, edge)."""
    found = np.zeros(len(values), dtype=np.int64)
    for column in edges.T:
        found += values > column[cell]
    return found
