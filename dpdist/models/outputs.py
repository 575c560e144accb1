"""Protocols of optional outputs that mechanisms' `post` hands to `publish`: laws, measurements, donors, own tables.

Publication asks a model for these outputs, and knows no mechanism; a model implements those it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Crosstab, Floats, Ints
from dpdist.estimation.donors import AbsentRecords, Donors, DonorsByCell
from dpdist.estimation.history import PeriodTotals
from dpdist.job import Job, StatisticName
from dpdist.models.protocol import Cost, Distributed, Draws, Exact, Expectation, Likelihood, StratumModel, Synthesizer
from dpdist.models.synthetic import SyntheticRecords

DRAWS = 400
"""Number of draws by which the law of a model's estimates is simulated."""
LARGEST = 4_000
"""Number of records to which the synthetic sample of a larger stratum is reduced; its draws are then rescaled.

Every crosstab row keeps its share of these records, but at least SMALLEST, so the sample may be larger.
"""
SMALLEST = 200
"""Smallest number of records that a crosstab row keeps in a reduced sample. A row with fewer keeps all of its records."""

DesignEffectOf = Callable[[frozenset[str], str, str | None], float]
"""The design effect of a statistic, of an outcome or none, in cells that these columns cross."""


class ReleaseView(Protocol):
    """What texts and outputs may read of a release: job, public crosstab, models, and parameters of each set."""

    @property
    def job(self) -> Job: ...

    @property
    def crosstab(self) -> Crosstab: ...

    @property
    def sets(self) -> tuple[Mapping[str, Mapping[str, Any]], ...]: ...

    @property
    def donors(self) -> Mapping[str, Donors]:
        """By stratum, the reference's records from which synthetic records take their values, if any."""
        ...

    @property
    def points(self) -> pa.Table | None:
        """Points that the release passes on to the next one, if it has any."""
        ...

    def model(self, stratum: int) -> StratumModel: ...

    def theta(self, model: StratumModel, stratum: int, set: int) -> Draws: ...


class ModelTable(NamedTuple):
    """A table that a model makes itself: `label` names the column of the rows' texts, `numbers` those of its figures.

    A row has its text under `label`, the levels of its cell by column under "cell", and its figures.
    """

    label: str
    numbers: Sequence[str]
    rows: list[dict[str, Any]]


@runtime_checkable
class CodedRecords(Protocol):
    """A model that distinguishes levels of every column of its records, and sums many tables of them at once."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of levels of every column."""
        ...

    def codes(self, records: Records) -> Ints:
        """The position of the level of every record and column, (record, column)."""
        ...

    def coded(self, columns: Sequence[Floats]) -> Ints:
        """Positions of the levels nearest to the values of columns, which are (record,) each."""
        ...

    def tables_beside(self, job: Job, theta: Draws, effect: DesignEffectOf) -> Mapping[str, ModelTable]:
        """Tables of the stratum by the name of their file. Figures have errors under the design effects."""
        ...

    @property
    def most_sums(self) -> int:
        """The largest number of figures of a pass, or a bound on it. It follows from the job alone."""
        ...


@runtime_checkable
class NoisedFigures(StratumModel, Expectation, Protocol):
    """A model whose published figures have noise of their own, and which has no synthetic records."""

    @property
    def public_noise(self) -> bool:
        """True if the scale of the noise is public, so that the noise can be simulated again."""
        ...

    @property
    def consistency(self) -> bool:
        """True if the published figures of all tables agree."""
        ...

    def fitted(self, theta: Draws) -> Draws:
        """The parameters, with figures of crosstab rows that are nearest to the noisy ones."""
        ...

    def figures(self, theta: Draws, name: str) -> dict[StatisticName, Floats]:
        """Published figures of a table, (draw, cell) each."""
        ...

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The parameters under further noise of the same law."""
        ...

    @property
    def noise_of_count(self) -> tuple[float, float] | None:
        """Standard deviation of the noise of one noisy count, and the largest weight; None if it is confidential."""
        ...


class DonorRecords(Protocol):
    """Synthetic records of a stratum that are copies of donors, moved to released means."""

    @property
    def donors(self) -> DonorsByCell: ...

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats, Ints]:
        """Outcomes, weights, and positions of the donors."""
        ...


@runtime_checkable
class Recentred(Likelihood, Exact, Synthesizer, Expectation, Protocol):
    """A model with a closed-form fit, which can be computed for many redrawn samples at once."""

    def scatter(self, records: SyntheticRecords, alpha: Floats) -> Floats:
        """Covariance of the fit's statistics over samples, (pattern, statistic, statistic).

        The samples have the same x, and a record keeps its privacy weight, `alpha`.
        """
        ...

    def centre(self, statistics: Floats) -> Draws:
        """Posterior centres for several sets of statistics, (set, pattern, statistic); one draw for each set."""
        ...

    def as_sampled(self) -> Self:
        """The model that simulates records like those of the observed sample, whatever synthesis the job chooses."""
        ...


@runtime_checkable
class Resampled(StratumModel, Expectation, Protocol):
    """A model whose released parameters can be simulated directly, for other samples and under other noise."""

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Draws of the parameters over samples, without noise."""
        ...

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Draws of the parameters of the same sample under simulated noise."""
        ...


class DrawnTogether(NamedTuple):
    """Draws of the parameters of two releases under errors that they share, and under each one's own.

    `sampled` is True if those of the earlier release include its sampling error, from which the later one learned.
    """

    later: Draws
    earlier: Draws
    sampled: bool


@runtime_checkable
class LearnsFromRecords(Resampled, Protocol):
    """A model of cells that learns from a reference's records, which are released as donors, and from earlier periods.

    Distributions, synthetic records and sizes of cells follow from the release's donors and sums. It knows how records
    vary within cells, which errors two releases share, and what a run costs, more than its records do.
    """

    def with_donors(self, donors: Donors) -> Self:
        """The model with the reference's records."""
        ...

    def with_absent(self, absent: AbsentRecords) -> Self:
        """The model that also learns from records in crosses of columns that the current file lacks."""
        ...

    def with_history(self, history: Sequence[PeriodTotals]) -> Self:
        """The model that also learns from totals of earlier periods."""
        ...

    def history(self, theta: Draws) -> tuple[PeriodTotals, ...]:
        """Totals from which the next release learns: those that this one learned from, and its own."""
        ...

    def relearned(self, learned: Any) -> Any:
        """What the same model with another budget learned, under this model's budget. Raises `Improper`."""
        ...

    def by_setting(self) -> Mapping[str, Self]:
        """This model under other settings of the mechanism, by key and value."""
        ...

    def donor_records(self, release: ReleaseView, stratum: int) -> DonorRecords: ...

    def distribution(self, release: ReleaseView, stratum: int) -> Distributed: ...

    def sizes_of_rows(self, described: Mapping[str, Any]) -> Ints:
        """The number of sample records of every crosstab row, (row,), from the written parameters."""
        ...

    def unprotected(self, theta: Draws, draws: int, rng: np.random.Generator) -> Draws:
        """What records alone tell of the samples that `resampled` draws with the same generator."""
        ...

    def drawn_with(
        self, theta: Draws, earlier: StratumModel, of_earlier: Draws, draws: int, rng: np.random.Generator
    ) -> DrawnTogether | None:
        """Draws of both; None if no shared error is known."""
        ...

    def cost(self, records: int) -> Cost:
        """The cost of a run, with the number of records of the file and of the reference."""
        ...
