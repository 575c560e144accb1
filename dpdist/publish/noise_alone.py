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
from dpdist.publish.standard_errors import Resampled, Spreads, noise_variances, normal_variance, spreads


@dataclass(frozen=True)
class NoiseAlone:
    """A release, and its simulated spreads by outcome; None where noise cannot be simulated."""

    release: ReleasedObject
    drawn: Mapping[str, Spreads] | None

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
        return cls(release, dict(zip(release.job.outcomes, found, strict=True)))

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
        outcomes = self.release.job.outcomes
        alone = noise_variances(self.release, cells, self.drawn[outcome], outcomes.index(outcome))
        return {name: np.sqrt(variance) for name, variance in zip(STATISTICS, alone, strict=True)}
