"""Bins at orders of an earlier release's points, for histograms that bring its shapes up to date.

The points are public, and so are edges; cells have edges of their own and share a group's counts. A record enters one bin
of each of h histograms, in its own group only, whatever its values: counts and their noise are those of
dpdist.privacy.reference_bins, h/ε and twice that under substitution, and so is the composition with the table that follows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.records import Codes, Floats, Ints

ORDERS = np.array([*(np.arange(1, 16) / 16), 0.97, 0.99])
"""Of inner edges; bins below and above all points are the first and the last."""
BEYOND = 2.0
"""Largest value in the last bin, in those of the largest point; without a sign: half the points' range farther."""


class Orders(NamedTuple):
    """Bins (left, right] of one variable in one cell: `edges` between them, `points` in order, the outermost places."""

    edges: Floats
    points: Floats
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Floats, low: float, top: float) -> Orders:
        """From a cell's points and the variable's public bounds."""
        points = np.sort(values)
        first, last = float(points[0]), float(points[-1])
        inner = np.quantile(points, ORDERS, method="inverted_cdf")
        edges = np.concatenate([[np.nextafter(first, -np.inf)], inner, [last]])
        farther = (last - first) / 2.0
        ends = (first / BEYOND, last * BEYOND) if low >= 0.0 else (first - farther, last + farther)
        return cls(edges, points, max(low, ends[0]), min(top, ends[1]))

    @property
    def share(self) -> Floats:
        """Of the points in every bin, (bin,)."""
        number = np.searchsorted(self.edges, self.points, side="left")
        return np.bincount(number, minlength=len(self.edges) + 1) / len(self.points)

    @property
    def places(self) -> Floats:
        """The middle of every bin, (bin,): by points, or by its edges where it has none."""
        bins = range(len(self.edges) + 1)
        return np.array([float(self._within(number, np.array([0.5]))[0]) for number in bins])

    def _within(self, number: int, part: Floats) -> Floats:
        """Values at parts of one bin, in (0, 1): between its points, or even where it has none."""
        own = self.points[np.searchsorted(self.edges, self.points, side="left") == number]
        if len(own):
            return np.asarray(np.interp(part * len(own) - 0.5, np.arange(len(own)), own))
        ends = np.concatenate([[self.lowest], self.edges, [self.highest]])[[number, number + 1]]
        return np.asarray(np.clip(ends[0] + part * (ends[1] - ends[0]), self.lowest, self.highest))

    def relocated(self, values: Floats, share: Floats) -> Floats:
        """The values that these ones' orders have under other shares of the bins (bin,); at the points' own, themselves."""
        rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        order, upper = (rank + 0.5) / len(values), np.cumsum(share)
        bins = np.minimum(np.searchsorted(upper, order), len(share) - 1)
        found = np.empty(len(values))
        for number in np.unique(bins).tolist():
            own = bins == number
            part = 1.0 - (upper[number] - order[own]) / share[number]
            found[own] = self._within(number, np.clip(part, 0.0, 1.0))
        return found


def numbers(edges: Floats, cell: Codes | Ints, values: Floats) -> Ints:
    """Bin of every record by the edges of its cell, `edges` (cell, edge)."""
    found = np.zeros(len(values), dtype=np.int64)
    for column in edges.T:
        found += values > column[cell]
    return found
