"""For `reference_tables.query`: learns under ε which columns explain the weight, and typical weights at their levels.

Histograms then count weights relative to typical weights. So cells of small and of large weights can share a histogram,
and each has limits of its own scale. The job need not name a column.

A position says where a weight lies between its public bounds, from −½ to ½, in bins that are even in logarithms. The
total of all positions is released first. Then the set of columns is chosen whose levels differ most in position. Sums
by level of these columns follow. Noisy level means are shrunk towards each other, by the part of their variance that
noise explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpdist.core.records import UNIT, Codes, Floats
from dpdist.estimation.small_area import shrunk
from dpdist.job import Job
from dpdist.mechanisms.reference_tables.histograms import Histograms, SizedCells
from dpdist.mechanisms.reference_tables.sensitivity import shares_of_histograms, typical_weights
from dpdist.privacy.queries import NoisyQuery

MOST_CHOSEN = 2
"""Largest number of columns that are chosen."""
BY_CHANCE = 0.2
"""Assumed standard deviation of a position within a level, for what chance adds to a score."""


@dataclass(frozen=True)
class TypicalWeights:
    """Candidate sets of columns; the statistics are sums of positions by cell, (cell,), in units of 1/UNIT."""

    histograms: Histograms
    """The histograms of weights as they are."""
    candidates: tuple[Codes, ...]
    """The level of every cell in each set of columns, (cell,)."""
    total: NoisyQuery
    choice: NoisyQuery
    by_level: NoisyQuery

    @classmethod
    def build(cls, job: Job, model: SizedCells) -> TypicalWeights | Histograms:
        """The candidates; the histograms at once where public sizes leave nothing to choose."""
        before, left = shares_of_histograms(job)
        histograms = Histograms.build(job, model, left)
        levels = _levels(model.codes) if all(before) else []
        if len(levels) < 2:  # with the noise of other strata: a proof record lists one scale for all
            return histograms
        return cls(histograms, tuple(levels), *typical_weights(job))

    @property
    def model(self) -> SizedCells:
        return self.histograms.model

    @property
    def _last(self) -> int:
        return max(len(self.histograms.bins[0].left) - 1, 1)

    def positions(self, weight: Floats) -> Floats:
        """Every record's position, in whole units of 1/UNIT, (record,)."""
        return np.asarray(np.rint(UNIT * (self.histograms.bins[0].number(weight) / self._last - 0.5)))

    def scores(self, sums: Floats, noisy_total: float) -> Floats:
        """How far the levels of each candidate differ, (candidate,), in whole units, from sums (cell,).

        `noisy_total` is the released total. The expected contribution of chance and noise is subtracted from a score.
        """
        count, values = np.rint(self.model.count), []
        middle = np.rint(noisy_total / count.sum())
        for level in self.candidates:
            size = np.bincount(level, weights=count)
            added = UNIT * BY_CHANCE * np.sqrt(size).sum() + self.by_level.scale_as_laplace * len(size)
            values.append(float(np.abs(np.bincount(level, weights=sums) - size * middle).sum()) - np.rint(added))
        return np.array(values)

    def level_sums(self, sums: Floats, chosen: int) -> Floats:
        """Sums by level of the chosen columns, (level,)."""
        return np.asarray(np.bincount(self.candidates[chosen], weights=sums), dtype=np.float64)

    def relative(self, noisy: Floats, chosen: int) -> Histograms:
        """Histograms of relative weights, from noisy sums by level of the chosen columns."""
        level, bins = self.candidates[chosen], self.histograms.bins[0]
        size = np.maximum(np.bincount(level, weights=self.model.count), 1.0)
        variance = self.by_level.variance / UNIT**2
        means = np.clip(noisy / UNIT / size, -0.5, 0.5)  # positions have no others; noise on few records has
        made = shrunk(means, np.zeros(len(size)), variance / size**2)
        a_bin = self._last * np.log(bins.right[-2] / bins.left[-2])
        log_size = a_bin * (made.values - np.average(made.values, weights=size))
        error = a_bin * np.sqrt(made.kept * variance) / size
        return self.histograms.relative_to(np.exp(log_size)[level], error[level])

    def recalled(self, typical: Floats, error: Floats) -> Histograms:
        """The histograms of a release with these typical weights, (cell,), and errors of their logarithms."""
        return self.histograms.relative_to(typical, error)


def _levels(codes: Codes) -> list[Codes]:
    """The level of every cell, (cell,), for each set of columns of `codes` (cell, column) with several levels.

    The first set is empty: all weights are alike.
    """
    levels, columns = [np.zeros(len(codes), dtype=np.int32)], range(codes.shape[1])
    for size in range(1, MOST_CHOSEN + 1):
        for chosen in combinations(columns, size):
            levels.append(np.unique(codes[:, list(chosen)], axis=0, return_inverse=True)[1].reshape(-1).astype(np.int32))
    return [level for k, level in enumerate(levels) if not any((level == other).all() for other in levels[:k])]
