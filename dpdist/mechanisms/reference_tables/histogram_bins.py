"""Public bins of weights and outcomes, and what noisy histograms over them cost (METHODS §5b, §7b).

The groups of cells that share histograms partition the cells and follow from public sizes. A record enters, in its own
group only, one bin of the weight's histogram and one of every outcome's: switched off, h = 1 + K counts change by 1 (K
without a weight), so discrete Laplace noise of scale h/ε on every count costs ε; exchanged for another, 2h counts: scale
2h/ε. The bounds clip: they need not hold in the file. The table that follows, at the rest of the budget, costs its own ε
for *every* value of the histograms, so that both together cost the sum (adaptive composition); all that is made of either
is post-processing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.job import Adjacency

A_DECADE, DECADES = 10, 4
FEW_VALUES = 40
"""Whole-number outcomes with no more values have a bin for each."""


class Bins(NamedTuple):
    """Intervals (left, right] in order, (bin,) each; an outcome's first and last are the public bounds themselves."""

    left: Floats
    right: Floats

    @classmethod
    def within(cls, low: float, high: float, whole: bool = False, atoms: bool = True) -> Bins:
        """Bins between public bounds; `atoms` if many records may lie on these."""
        if whole and high - low < FEW_VALUES:
            values = np.arange(np.ceil(low), np.floor(high) + 1.0)
            return cls(values, values)
        inner = [_scale(low, high), -_scale(-high, -low), np.zeros(1 if low < 0 < high else 0)]
        edges = np.unique(np.concatenate([[low, high], *inner]))
        if atoms:
            edges = np.concatenate([[low], edges, [high]])
        return cls(edges[:-1], edges[1:])

    @property
    def ends(self) -> Bins:
        """The first and the last alone."""
        return Bins(self.left[[0, -1]], self.right[[0, -1]])

    def number(self, values: Floats) -> Ints:
        """Bin of every value, clipped to the bounds."""
        clipped = np.clip(values, self.left[0], self.right[-1])
        if (self.left == self.right).all():
            return np.asarray(np.rint(clipped - self.left[0]), dtype=np.int64)
        inner = np.searchsorted(self.right, clipped, side="left")
        top = np.where(self.left == self.right, self.left, np.inf)
        found = np.where(clipped >= top[-1], len(self.left) - 1, inner)
        return np.asarray(np.minimum(found, len(self.left) - 1), dtype=np.int64)

    def at(self, number: Ints, share: Floats) -> Floats:
        """The value at a share of a bin, bins being even in the logarithm where they do not touch 0."""
        left, right = self.left[number], self.right[number]
        even = left + share * (right - left)
        same_sign = left * right > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(same_sign, left * (right / left) ** share, even)


def _scale(low: float, high: float) -> Floats:
    """Edges above 0, A_DECADE a decade, from `low` or DECADES below `high`."""
    if high <= 0:
        return np.empty(0)
    lowest = max(low, high * 10.0**-DECADES)
    steps = max(1, round(A_DECADE * np.log10(high / lowest)))
    return np.asarray(lowest * (high / lowest) ** (np.arange(steps) / steps))


def count_scale_of(histograms: int, epsilon: Fraction, adjacency: Adjacency) -> Fraction:
    """Scale of the noise on every count of `histograms` that a record enters."""
    return (2 if adjacency == "substitution" else 1) * histograms / epsilon
