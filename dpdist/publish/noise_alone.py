"""Computes standard errors due to noise alone, given the sample, for mechanisms whose noise can be simulated again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import STATISTICS
from dpdist.job import StatisticName, Table
from dpdist.models.outputs import NoisedFigures
from dpdist.publish.noisy_figures import NoisedTables
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import Resampled, Spreads, noise_variances, spreads


@dataclass(frozen=True)
class NoiseAlone:
    """A release, and its simulated spreads by outcome; None where noise cannot be simulated."""

    release: ReleasedObject
    drawn: Mapping[str, Spreads] | None
    noised: NoisedTables | None = None
    """Tables whose figures were released themselves."""

    @classmethod
    def of(cls, release: ReleasedObject) -> NoiseAlone:
        """Simulates the noise again, as post-processing.

        A fit with searched privacy weights gets None, because its noise cannot be separated from its sampling error.
        """
        model = release.model(0)
        if isinstance(model, NoisedFigures):
            return cls(release, None, NoisedTables.of(release, model))
        if release.job.mechanism.clamps or not isinstance(model, Resampled):
            return cls(release, None)
        found = spreads(release, lambda _: None)
        if found is None or any(each.recounts is not None for each in found):  # `laws` do not include noise on counts
            return cls(release, None)
        return cls(release, dict(zip(release.job.outcomes, found, strict=True)))

    def errors(self, table: Table, cells: Cells, outcome: str) -> dict[StatisticName, Floats]:
        """Standard errors of counts, means and totals by noise alone, (cell,) each; NaN where they are not known."""
        unknown = dict.fromkeys(STATISTICS, np.full(len(cells), np.nan))
        if self.noised is not None:
            return unknown | {name: np.sqrt(each) for name, each in self.noised.noise(table).items()}
        if self.drawn is None:
            return unknown
        outcomes = self.release.job.outcomes
        alone = noise_variances(self.release, cells, self.drawn[outcome], outcomes.index(outcome))
        return {name: np.sqrt(variance) for name, variance in zip(STATISTICS, alone, strict=True)}
