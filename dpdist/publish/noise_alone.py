"""Computes standard errors due to noise alone, given the sample, for mechanisms whose noise can be simulated again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import STATISTICS
from dpdist.job import StatisticName, Table
from dpdist.mechanisms.laplace_tables.release import NoisyTables
from dpdist.publish.refit import DRAWS
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import Resampled, Spread, cell_estimates, normal_variance, spreads

NOISED = 2
"""Position in `Spreads.laws` of the released parameters under simulated noise."""


@dataclass(frozen=True)
class NoiseAlone:
    """A release, and its expectations under simulated noise by outcome; None where noise cannot be simulated."""

    release: ReleasedObject
    drawn: Mapping[str, Spread] | None

    @classmethod
    def of(cls, release: ReleasedObject) -> NoiseAlone:
        """Simulates the noise again, as post-processing.

        A fit with searched privacy weights gets None, because its noise cannot be separated from its sampling error.
        """
        model = release.model(0)
        if release.job.mechanism.clamps or not isinstance(model, Resampled):
            return cls(release, None)
        found = spreads(release, lambda _: None)
        if found is None or any(each.recounts is not None for each in found):  # `laws` do not include noise on counts
            return cls(release, None)
        return cls(release, {name: each.laws[NOISED] for name, each in zip(release.job.outcomes, found, strict=True)})

    def errors(self, table: Table, cells: Cells, outcome: str) -> dict[StatisticName, Floats]:
        """Standard errors of counts, means and totals by noise alone, (cell,) each; NaN where they are not known."""
        unknown = dict.fromkeys(STATISTICS, np.full(len(cells), np.nan))
        model = self.release.model(0)
        if isinstance(model, NoisyTables):
            if model.bounds is None:
                return unknown
            theta = self.release.theta(model, 0, 0)
            again = model.noised_again(theta, 0, DRAWS, self.release.seed.generator("precision noise"))
            noisy = model.figures(again, table.name)
            return unknown | {name: np.sqrt(normal_variance(each)) for name, each in noisy.items()}
        if self.drawn is None:
            return unknown
        n, spread = self.release.frame.count.astype(float), self.drawn[outcome]
        noises = self.release.job.mechanism.noises(self.release.job)
        figures = zip(STATISTICS, cell_estimates(cells, n, spread.weight, spread.product), strict=True)
        return {name: np.sqrt(normal_variance(each) / noises) for name, each in figures}
