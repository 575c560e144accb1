"""Protocols of models, one capability each: families and mechanisms implement them, `engine` and `publish` ask.

A model is frozen, picklable and public: it is built from the job and the crosstab, never from records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Codes, Crosstab, Floats, Ints
from dpdist.estimation.donors import AbsentRecords, Donors, DonorsByCell, PeriodTotals
from dpdist.job import Job, Program, Statistic, StatisticName
from dpdist.models.copula.reference_summary import Facts
from dpdist.models.synthetic import SyntheticRecords


class Spurious(Exception):
    """Raised if the clamped posterior on the reference's records has its mass at a spurious mode."""


@dataclass(frozen=True, eq=False)
class Clamped:
    """The posterior π(θ) ∏ exp(clamp(α(f − offset), ±clamp)), with f a record's log likelihood and α its privacy weight.

    It has no sufficient statistics, so it holds records. `rows` (record, 5) are crosstab row, outcome, weight, α and offset
    ([G] eq. 3.5–3.6; METHODS §4b).
    """

    rows: Floats
    clamp: float

    @property
    def records(self) -> Records:
        row, n = self.rows[:, 0].astype(np.int32), len(self.rows)
        return Records(np.arange(n), row, self.rows[:, 1], self.rows[:, 2], np.full(n, -1, dtype=np.int32))

    @property
    def alpha(self) -> Floats:
        return self.rows[:, 3]

    @property
    def offset(self) -> Floats:
        return self.rows[:, 4]

    def distinct(self) -> tuple[Clamped, Floats]:
        """The distinct rows with α > 0, and the number of records that each represents."""
        rows, count = np.unique(self.rows[self.alpha > 0], axis=0, return_counts=True)
        return Clamped(rows, self.clamp), count.astype(float)


class Parameter(NamedTuple):
    """An array of parameters: its name, and for every dimension the dimension's name and the names of its entries."""

    name: str
    dims: tuple[tuple[str, tuple[str, ...]], ...] = ()
    units: str = "1"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(entries) for _, entries in self.dims)

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Draws:
    """Posterior draws by parameter name, each (draw, *dims).

    All chains have the same length, and the draws of a chain lie together. An entry that a stratum does not identify is
    NaN, such as the coefficient of a redundant predictor. `diagnostics` are the sampler's figures; they are confidential.
    """

    values: Mapping[str, Floats]
    chains: int = 1
    diagnostics: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def at(self, draw: int) -> Draws:
        return Draws({name: values[draw : draw + 1] for name, values in self.values.items()})


class Extremes(NamedTuple):
    """The largest and smallest log likelihood of each record over draws, (record,) each, rounded outward."""

    highest: Floats
    lowest: Floats

    @property
    def bound(self) -> Floats:
        """The record bound max_s |f_i(θ_s)|, (record,)."""
        return np.maximum(self.highest, -self.lowest)

    @property
    def range(self) -> Floats:
        """The range max_s f_i(θ_s) − min_s f_i(θ_s), (record,)."""
        return self.highest - self.lowest


@runtime_checkable
class Exact(Protocol):
    """A posterior with a closed form, sampled without Markov chains."""

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """Independent posterior draws; raises `Improper` if the posterior does not exist."""
        ...


@runtime_checkable
class Standardised(Protocol):
    """A model whose draws from all posteriors are functions of the same random numbers, which a search draws once."""

    def standard(self, draws: int, rng: np.random.Generator) -> Any: ...

    def draw_from(self, statistics: Floats, standard: Any) -> Draws:
        """`draw` with the random numbers of `standard`."""
        ...


Redraw = Callable[[Floats], Draws]
"""Posterior draws of a search, as a function of statistics; every call has the same random numbers."""


def redrawing(model: Exact, draws: int, stream: Callable[[], np.random.Generator]) -> Redraw:
    """Draws of a search. `stream` gives a generator at the beginning of the search's random numbers."""
    if isinstance(model, Standardised):
        standard, draw_from = model.standard(draws, stream()), model.draw_from
        return lambda statistics: draw_from(statistics, standard)
    return lambda statistics: model.draw(statistics, draws, stream())


class Cost(NamedTuple):
    """What a run takes of a usual machine: processor seconds of all processes, those of them that workers can share, and
    bytes of the largest process."""

    seconds: float
    shared: float
    bytes: int
    solver: str = ""
    """How a system of equations is solved, and its size; empty if there is none."""


@runtime_checkable
class Gridded(Protocol):
    """A posterior of at most three parameters, evaluated on a public dense grid and sampled without Markov chains."""

    def draw_on_grid(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """Independent draws from the posterior restricted to the grid's cells."""
        ...


@runtime_checkable
class Boxed(Protocol):
    """A model of two parameters with a prior on a public box of coordinates, for clamped posteriors on a grid."""

    @property
    def box(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Public ends of both coordinates."""
        ...

    def draws_at(self, coordinates: Floats) -> Draws:
        """Parameters at given coordinates, (point, 2)."""
        ...

    def log_prior(self, coordinates: Floats) -> Floats:
        """Log prior density of the coordinates, (point,), up to a constant."""
        ...

    def tiles(self, draws: Draws, records: Records) -> Iterator[Any]:
        """Log likelihood tile by tile: positions of records, values (record, draw)."""
        ...


@runtime_checkable
class ClampedStan(Protocol):
    """A model whose Stan program takes clamped records."""

    def stan_records(self, records: Records, alpha: Floats, reference: Floats, clamp: float) -> Mapping[str, Any]:
        """Data of records for the program; they enter by exp(clamp(α(f − reference), ±clamp))."""
        ...


@runtime_checkable
class StanData(Protocol):
    """A model that is a Stan program too. So two places state one density: the program and `log_lik`."""

    @property
    def program(self) -> str | Program:
        """Name of a shipped program, or a user's program."""
        ...

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        """Data of the α-weighted records for the program; raises `Improper` if the posterior does not exist."""
        ...

    def from_stan(self, draws: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """The model's parameters from the program's, each (draw, *dims)."""
        ...


@runtime_checkable
class Synthesizer(Protocol):
    """A model that can draw synthetic records."""

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Outcome and weight of one synthetic record for each entry of `crosstab_row`, under the first draw of θ.

        Several outcomes are (record, outcome).
        """
        ...


@runtime_checkable
class Presampled(Protocol):
    """A model whose synthetic records were made at the fit and released with θ."""

    def presampled(self, theta: Draws) -> tuple[Floats, Floats]:
        """Outcome and weight of one synthetic record per sample record of the stratum, in crosstab order."""
        ...


@runtime_checkable
class Expectation(Protocol):
    """A model that gives expected weights and outcomes, from which tables are made."""

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w | x) and E(w y | x) of every crosstab row of the stratum, (draw, row) each."""
        ...


def expected_of(model: object, theta: Draws, outcome: int) -> tuple[Floats, Floats]:
    """E(w | x) and E(w y | x) of an outcome, by its number; models of several outcomes take it as a second argument."""
    assert isinstance(model, Expectation)
    expect: Callable[..., tuple[Floats, Floats]] = model.expect
    return expect(theta) if outcome == 0 else expect(theta, outcome)


@runtime_checkable
class Distributed(Protocol):
    """A model that gives the distribution function of an outcome, for medians, quantiles and proportions."""

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of the weight with an outcome of at most `value`, (draw, pair).

        A pair is a value and a crosstab row, which is counted within the stratum.
        """
        ...


@runtime_checkable
class OfAnswers(Protocol):
    """A distribution whose quantiles are set to values that people report."""

    def answers(self, value: Floats, outcome: int) -> Floats:
        """The reported values with the ranks of these values, of any shape."""
        ...


class StratumModel(Protocol):
    """The public half of a model of one stratum: the form of its parameters, and how they are written."""

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        """One draw as a JSON-ready mapping; `prior` names the stratum's prior."""
        ...

    def recall(self, described: Mapping[str, Any]) -> Draws:
        """The inverse of `describe`."""
        ...

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Names and dimensions of the parameters; they are the same for every stratum of a crosstab."""
        ...

    @property
    def identified(self) -> int:
        """Number of coefficients, for each component, that the stratum's predictors identify."""
        ...

    @property
    def improper(self) -> bool:
        """True if the prior is improper. A fit then needs more than p + 1 records, and outcomes and weights that vary."""
        ...


@runtime_checkable
class Likelihood(StratumModel, Protocol):
    """A model of one stratum with all that a pseudo posterior needs except sampling methods.

    A fit follows from statistics, which are computed block by block; α is a record's privacy weight.
    """

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """Log likelihood log p(record | θ), in natural logarithms, (draw, record)."""
        ...

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        """Extremes over draws, computed in one pass that does not store (draw, record)."""
        ...

    @property
    def combine(self) -> Literal["sum", "concat"]:
        """How statistics of blocks are combined: sums are added, compressed records are concatenated."""
        ...

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        """Statistics of the pseudo likelihood ∏ p(record)^α; a record with α = 0 does not change them."""
        ...


class Builder(Protocol):
    """The class of a model, which builds the model of a stratum."""

    def build(self, job: Any, crosstab: Crosstab, rows: slice, proper: bool = False) -> StratumModel:
        """The model of a stratum's crosstab rows; with `proper` it has the weak proper prior, whatever the job says."""
        ...


class Improper(Exception):
    """The posterior does not exist for these statistics; the message gives the reason in public terms."""


def describe_draws(parameters: Sequence[Parameter], theta: Draws) -> dict[str, Any]:
    """The `values` of every parameter and the names of its entries; null for an entry that the stratum does not
    identify.
    """
    described: dict[str, Any] = {"prior": "proper"}
    for p in parameters:
        described[p.name] = {**{dim: list(entries) for dim, entries in p.dims}, "values": nested(theta[p.name][0])}
    return described


def recall_draws(parameters: Sequence[Parameter], described: Mapping[str, Any]) -> Draws:
    """The inverse of `describe_draws`."""
    arrays = ((p, described[p.name]["values"]) for p in parameters)
    return Draws({p.name: np.array(values, dtype=float).reshape(1, *p.shape) for p, values in arrays})


def nested(values: Floats) -> Any:
    """The array as nested lists of numbers, with null for NaN."""
    nullable: Any = np.asarray(values, dtype=object)
    nullable[np.isnan(values)] = None
    return nullable.tolist()


# Publication asks a model for these outputs, and knows no mechanism; a model implements those it has.
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


class ReferenceRecords(Protocol):
    """What public code may read of the records of a reference, a file that the job declares public; (record,) each."""

    @property
    def row(self) -> Codes: ...

    @property
    def outcome(self) -> Floats: ...

    @property
    def outcomes(self) -> Floats:
        """(record, outcome)"""
        ...

    @property
    def weight(self) -> Floats: ...


@runtime_checkable
class OnDistributions(Likelihood, Protocol):
    """A model of normal scores, which follow from values by a reference's distributions."""

    def within(self, facts: Facts) -> Self:
        """The model with the distributions that a reference fixed."""
        ...

    def summarise(self, records: Records, key: Key) -> Facts:
        """The distributions of a reference's records."""
        ...

    def bias_corrected(self, records: Records) -> Facts:
        """The distributions with a correction of the law's misfit."""
        ...

    def weights_corrected(self, records: Records, alpha: Floats) -> Facts:
        """The distributions with a further correction for privacy weights, (record,)."""
        ...

    def borrowed(self, theta: Draws, records: Records) -> Floats:
        """Covariance of (E(w|x), E(wy|x)) of every crosstab row due to the reference's sampling error, (row, 2, 2)."""
        ...

    def borrowed_shapes(self) -> Iterator[tuple[str, int, Mapping[str, float]]]:
        """The name of every cell, its number of reference records, and their weight by distribution."""
        ...


@runtime_checkable
class FitsOutright(Protocol):
    def law_of(self, records: Records) -> Draws:
        """The law of the records, without noise. Raises `Improper`."""
        ...


class ErrorsOfCells(NamedTuple):
    """Predicted root mean squared errors of a statistic in a table's published cells, in its order, in direct standard
    errors, (cell,).

    NaN if an error is not known. `alone` are the errors of the reference alone, as at ε = 0. `freedom` are degrees of
    freedom of the direct variances.
    """

    table: str
    statistic: Statistic
    error: Floats
    alone: Floats
    freedom: Floats


@runtime_checkable
class PredictsErrors(StratumModel, Protocol):
    """A model that predicts its release's errors from learned facts, before the current file is read.

    Errors of other models are predicted by runs on public records (`quality.predicted`).
    """

    def predicted_errors(self, learned: Any) -> Sequence[ErrorsOfCells]:
        """Predicted errors by table and statistic, margins included, without statistics that the model cannot predict."""
        ...


def facts_of(learned: object) -> Facts | None:
    """The distributions of a score model, if the reference fixed any."""
    return getattr(learned, "facts", None)


def donors_of(learned: object) -> Donors | None:
    """Donors for synthetic records, if the reference has any."""
    return getattr(learned, "donors", None)


def power_of(learned: object) -> float | None:
    """The power of a centred likelihood, if the reference fixed it."""
    return getattr(learned, "power", None)


def fixed_model(model: StratumModel, learned: object) -> StratumModel:
    facts = facts_of(learned)
    return model.within(facts) if isinstance(model, OnDistributions) and facts is not None else model
