"""For `publish.tables`: intervals of figures released under noise, and any figure's error by noise alone.

Under public bounds, a variance has two parts: the noise, which is simulated again, and the sample's composition over
cells. There are no standard errors if the noise scale follows from the file's own, confidential sensitivities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpdist.core.digests import digest
from dpdist.core.records import Cells, Floats
from dpdist.estimation.estimators import STATISTICS, Interval, PsuSums, counts_and_means, t_interval
from dpdist.job import StatisticName, Table
from dpdist.models.protocol import DRAWS, Draws, NoisedFigures, Resampled
from dpdist.publish.released import ReleasedObject, plain_effects
from dpdist.publish.standard_errors import Spreads, VarianceParts, noise_variances, normal_variance, spreads

COMPOSED = 100
"""Number of simulated noises over which the excess of the composition's variance is averaged."""


@dataclass(frozen=True)
class NoisedTables:
    """A release of whole tables: its parameters, also under simulated noise, fitted once for all tables.

    `again` is None if the noise scale is confidential.
    """

    released: ReleasedObject
    model: NoisedFigures
    theta: Draws
    again: Draws | None

    @classmethod
    def of(cls, released: ReleasedObject, model: NoisedFigures) -> NoisedTables:
        theta = released.theta(model, 0, 0)
        if not model.public_noise:
            return cls(released, model, model.fitted(theta) if model.consistency else theta, None)
        again = model.noised_again(theta, 0, DRAWS, released.seed.generator("precision noise"))
        return cls(released, model, model.fitted(theta), model.fitted(again))

    def intervals(self, table: Table, cells: Cells) -> list[Interval]:
        """Intervals of counts, means and totals of a table, (cell,) each; NaN for statistics that it does not have."""
        nothing, df = np.full(len(cells), np.nan), np.full(len(cells), np.inf)
        simulated = self.again is not None
        variances = (
            [parts.total for parts in self.variance_parts(table, cells)] if simulated else [nothing] * len(STATISTICS)
        )
        return [t_interval(*pair, df) for pair in zip(self.points(table), variances, strict=True)]

    def points(self, table: Table) -> list[Floats]:
        """Counts, means and totals of a table as published, (cell,) each; NaN for statistics that it does not have."""
        points = self.model.figures(self.theta, table.name)
        nothing = np.full_like(next(iter(points.values()))[0], np.nan)
        return [points[name][0] if name in points else nothing for name in STATISTICS]

    def noise(self, table: Table) -> dict[StatisticName, Floats]:
        """Variances by noise alone of the table's figures, (cell,) each; none if the noise scale is confidential."""
        if self.again is None:
            return {}
        return {name: normal_variance(drawn) for name, drawn in self.model.figures(self.again, table.name).items()}

    def variance_parts(self, table: Table, cells: Cells) -> list[VarianceParts]:
        """Variances of counts, means and totals due to the sample's composition and to the noise, simulated again.

        Noise makes E(w|x) differ between rows, which raises the composition's variance. This excess is estimated by
        adding the noise a second time, and then subtracted.
        """
        assert self.again is not None
        released, noise = self.released, self.noise(table)
        once = _composition(released, cells, *(values[0] for values in self.model.expect(self.theta)))
        pairs = (values[:COMPOSED] for values in self.model.expect(self.again))
        twice = np.array([_composition(released, cells, a, b) for a, b in zip(*pairs, strict=True)])
        finite = np.isfinite(twice)
        added = np.where(finite, twice, 0.0).sum(axis=0) / np.maximum(finite.sum(axis=0), 1) - once
        composed = np.maximum(0.0, once - added)
        effects = plain_effects(released.design_effects, cells, released.job.outcomes[0])
        parts = zip(STATISTICS, effects, composed, strict=True)
        return [
            VarianceParts(effect * variance, noise.get(name, np.full(len(cells), np.nan)))
            for name, effect, variance in parts
        ]


def _composition(released: ReleasedObject, cells: Cells, weight: Floats, outcome: Floats) -> Floats:
    """Variances due to the composition of the sample, (statistic, cell), for E(w|x) and E(wy|x) of the crosstab's rows."""
    crosstab, n, a, b = released.crosstab, released.crosstab.count.astype(float), weight, outcome
    stage = released.stage
    statistics = counts_and_means(PsuSums(n * a, n * b, n * a * a, n * a * b, n * b * b), crosstab, cells, stage)
    return np.array([statistic.variance for statistic in statistics])


@dataclass(frozen=True, eq=False)
class _ReadRelease:
    """A release. A verdict and the custodian's page, which follows it, read it anew."""

    released: ReleasedObject
    key: str

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ReadRelease) and other.key == self.key


@lru_cache(maxsize=1)
def _simulated(release: _ReadRelease) -> list[Spreads] | None:
    return spreads(release.released, lambda _: None, noise_alone=True)


@dataclass(frozen=True)
class NoiseErrors:
    """Standard errors by noise alone, from simulated spreads by outcome; None if noise cannot be simulated."""

    released: ReleasedObject
    drawn: Mapping[str, Spreads] | None
    noised: NoisedTables | None = None
    """Tables whose figures were released themselves."""

    @classmethod
    def of(cls, released: ReleasedObject) -> NoiseErrors:
        """Simulates the noise again, as post-processing.

        None for a fit with searched privacy weights, whose noise cannot be separated from its sampling error.
        """
        model = released.model(0)
        if isinstance(model, NoisedFigures):
            return cls(released, None, NoisedTables.of(released, model))
        if released.job.mechanism.clamps or not isinstance(model, Resampled):
            return cls(released, None)
        simulated = _simulated(_ReadRelease(released, digest((released.seed.hex(), released.job.model_dump_json()))))
        if simulated is None or any(
            outcome_spreads.recounts is not None for outcome_spreads in simulated
        ):  # `laws` do not include noise on counts
            return cls(released, None)
        return cls(released, dict(zip(released.job.outcomes, simulated, strict=True)))

    def errors(self, table: Table, cells: Cells, outcome: str) -> dict[StatisticName, Floats]:
        """Standard errors of counts, means and totals by noise alone, (cell,) each; NaN if they are not known."""
        unknown = dict.fromkeys(STATISTICS, np.full(len(cells), np.nan))
        if self.noised is not None:
            return unknown | {name: np.sqrt(of_noise) for name, of_noise in self.noised.noise(table).items()}
        if self.drawn is None:
            return unknown
        alone = noise_variances(self.released, cells, self.drawn[outcome])
        return {name: np.sqrt(variance) for name, variance in zip(STATISTICS, alone, strict=True)}
