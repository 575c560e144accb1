"""Public bins of weights and outcomes for noisy histograms, and the noise that these need (METHODS §5b, §7b).

The histograms serve in place of a reference. Groups of cells share histograms; the groups partition the cells and follow
from public sizes. A record enters the histograms of its cell's group only. There it is in one bin of the weight's
histogram, if there are weights, and in one bin of every outcome's histogram: of h histograms in all. If it is switched
off, h counts change by 1. So discrete Laplace noise of scale h/ε on every count costs ε. If it is exchanged for another,
2h counts change, and the scale is 2h/ε. Values are clipped to the bounds, so the file need not satisfy them.

The table that follows uses the rest of the budget. The table costs no more than this rest, *whatever* the histograms are.
So histograms and table together cost the sum (adaptive composition). Everything computed from them is post-processing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.job import Adjacency, Job
from dpdist.privacy.queries import Moved, NoisyQuery

A_DECADE, DECADES = 10, 4
"""Number of bins for a factor of ten, and number of factors of ten below the largest value."""
FEW_VALUES = 40
"""An outcome in whole numbers with at most this many values has a bin for each value."""


class Bins(NamedTuple):
    """Intervals (left, right] in order, (bin,) each. A bin with left = right holds a single value.

    With `atoms`, the first and the last bin are such bins: the public bounds. All values beyond a bound lie there.
    """

    left: Floats
    right: Floats

    @classmethod
    def within(cls, low: float, high: float, whole: bool = False, atoms: tuple[bool, bool] = (True, True)) -> Bins:
        """Bins between public bounds; `atoms` if many records may lie on the lower and on the upper bound."""
        if whole and high - low < FEW_VALUES:
            values = np.arange(np.ceil(low), np.floor(high) + 1.0)
            return cls(values, values)
        inner = [_scale(low, high), -_scale(-high, -low), np.zeros(1 if low < 0 < high else 0)]
        edges = np.unique(np.concatenate([[low, high], *inner]))
        edges = np.concatenate([np.repeat(low, int(atoms[0])), edges, np.repeat(high, int(atoms[1]))])
        return cls(edges[:-1], edges[1:])

    @property
    def ends(self) -> Bins:
        """The first and the last bin alone, which hold the public bounds."""
        return Bins(self.left[[0, -1]], self.right[[0, -1]])

    def number(self, values: Floats) -> Ints:
        """The bin of every value, from 0; values are clipped to the bounds."""
        clipped = np.clip(values, self.left[0], self.right[-1])
        if (self.left == self.right).all():
            return np.asarray(np.rint(clipped - self.left[0]), dtype=np.int64)
        inner = np.searchsorted(self.right, clipped, side="left")
        top = np.where(self.left == self.right, self.left, np.inf)
        found = np.where(clipped >= top[-1], len(self.left) - 1, inner)
        return np.asarray(np.minimum(found, len(self.left) - 1), dtype=np.int64)

    def at(self, number: Ints, share: Floats) -> Floats:
        """The values at positions `share`, from 0 to 1, within bins `number`.

        In a bin that neither holds nor touches 0, positions are even in the logarithm. In other bins they are even.
        """
        left, right = self.left[number], self.right[number]
        even = left + share * (right - left)
        same_sign = left * right > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(same_sign, left * (right / left) ** share, even)


def _scale(low: float, high: float) -> Floats:
    """Edges above 0, A_DECADE for each factor of ten, from `low` or from DECADES factors of ten below `high`."""
    if high <= 0:
        return np.empty(0)
    lowest = max(low, high * 10.0**-DECADES)
    steps = max(1, round(A_DECADE * np.log10(high / lowest)))
    return np.asarray(lowest * (high / lowest) ** (np.arange(steps) / steps))


def histograms_of(job: Job) -> int:
    """Number of histograms that a record enters: of the weight, and of each outcome.

    Where they update an earlier release, an outcome with two values has none.
    """
    outcomes = job.outcome_columns.values()
    shaped = [column for column in outcomes if not column.two_valued] if job.refreshes else list(outcomes)
    return (job.survey.weight is not None) + len(shaped)


def histogram_counts(number: int, scale: Fraction) -> NoisyQuery:
    """The query for the counts of that many histograms. A record is in one bin of each."""
    return NoisyQuery("counts of histograms", Moved(*map(Fraction, (number, 2 * number, 2 * number))), scale)


def count_scale_of(histograms: int, epsilon: Fraction, adjacency: Adjacency) -> Fraction:
    """Scale of the noise on every count if a record enters this number of histograms."""
    return (2 if adjacency == "substitution" else 1) * histograms / epsilon
