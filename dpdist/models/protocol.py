"""Protocols of models, one capability each: families and mechanisms implement them, `engine` and `publish` ask.

A model is frozen, picklable and public: it is built from the job and the crosstab, never from records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Codes, Crosstab, Floats, Ints
from dpdist.estimation.donors import AbsentRecords, Donors, DonorsByCell, PeriodTotals
from dpdist.job import Job, Program, Statistic, StatisticName
from dpdist.models.copula.reference_summary import Facts


class SyntheticRecords(Records):
    """Records that a released model simulated. They are public, unlike all other records."""


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
        row, outcome, weight = self.rows[:, :3].T
        return Records.of_outcomes(outcome, weight, row.astype(np.int32))

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


Redraw = Callable[[Floats], Draws]
"""Posterior draws of a search, as a function of statistics; every call has the same random numbers."""


def redrawing(model: StratumModel, draws: int, stream: Callable[[], np.random.Generator]) -> Redraw:
    """Draws of a search. `stream` gives a generator at the beginning of the search's random numbers."""
    if supports(model, "draw_from"):
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


def expected_of(model: StratumModel, theta: Draws, outcome: int) -> tuple[Floats, Floats]:
    """E(w | x) and E(w y | x) of an outcome, by its number; models of several outcomes take it as a second argument."""
    expect: Callable[..., tuple[Floats, Floats]] = model.expect
    return expect(theta) if outcome == 0 else expect(theta, outcome)


class Distributed(Protocol):
    """Distribution functions of a stratum's outcomes, for medians, quantiles and proportions."""

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of the weight with an outcome of at most `value`, (draw, pair).

        A pair is a value and a crosstab row, which is counted within the stratum.
        """
        ...


class Improper(Exception):
    """The posterior does not exist for these statistics; the message gives the reason in public terms."""


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


class DonorRecords(Protocol):
    """Synthetic records of a stratum that are copies of donors, moved to released means."""

    @property
    def donors(self) -> DonorsByCell: ...

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats, Ints]:
        """Outcomes, weights, and positions of the donors."""
        ...


class DrawnTogether(NamedTuple):
    """Draws of the parameters of two releases under errors that they share, and under each one's own.

    `sampled` is True if those of the earlier release include its sampling error, from which the later one learned.
    """

    later: Draws
    earlier: Draws
    sampled: bool


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


class StratumModel:
    """The public half of a model of one stratum: its parameters, how they are written, and what follows from them.

    All models have `build`, `describe`, `recall`, `parameters`, `identified` and `improper`. They have others if they can
    (`supports`), which are declared for type checkers alone. So a plug-in's model need not derive from this class, and no
    model has methods that only raise.
    """

    combine: ClassVar[Literal["sum", "concat"]] = "sum"
    """How statistics of blocks are combined: sums are added, compressed records are concatenated."""

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        """One draw as a JSON-ready mapping; `prior` names the stratum's prior.

        It has the `values` of every parameter and the names of its entries; null for an entry that the stratum does not
        identify.
        """
        described: dict[str, Any] = {"prior": "proper"}
        for p in self.parameters:
            values: Any = np.asarray(theta[p.name][0], dtype=object)
            values[np.isnan(theta[p.name][0])] = None
            described[p.name] = {**{dim: list(entries) for dim, entries in p.dims}, "values": values.tolist()}
        return described

    def recall(self, described: Mapping[str, Any]) -> Draws:
        """The inverse of `describe`."""
        arrays = ((p, described[p.name]["values"]) for p in self.parameters)
        return Draws({p.name: np.array(values, dtype=float).reshape(1, *p.shape) for p, values in arrays})

    @property
    def improper(self) -> bool:
        """True if the prior is improper. A fit then needs more than p + 1 records, and varying outcomes and weights."""
        return False

    if TYPE_CHECKING:

        @classmethod
        def build(cls, job: Any, crosstab: Crosstab, rows: slice, proper: bool = False) -> Self:
            """The model of a stratum's crosstab rows; with `proper` it has the weak proper prior, whatever the job says."""

        @property
        def parameters(self) -> tuple[Parameter, ...]:
            """Names and dimensions of the parameters; they are the same for every stratum of a crosstab."""

        @property
        def identified(self) -> int:
            """Number of coefficients, for each component, that the stratum's predictors identify."""

        # A likelihood. A fit follows from statistics, which are computed block by block; α is a record's privacy weight.

        def log_lik(self, draws: Draws, records: Records) -> Floats:
            """Log likelihood log p(record | θ), in natural logarithms, (draw, record)."""

        def extremes(self, draws: Draws, records: Records) -> Extremes:
            """Extremes over draws, computed in one pass that does not store (draw, record)."""

        def statistics(self, records: Records, alpha: Floats) -> Floats:
            """Statistics of the pseudo likelihood ∏ p(record)^α; a record with α = 0 does not change them."""

        def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
            """Independent draws from a closed form; raises `Improper` if the posterior does not exist."""

        def standard(self, draws: int, rng: np.random.Generator) -> Any:
            """Random numbers of which draws from all posteriors are functions."""

        def draw_from(self, statistics: Floats, standard: Any) -> Draws:
            """`draw` with the random numbers of `standard`, which a search draws once."""

        def draw_on_grid(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
            """Independent draws from a posterior of at most three parameters, restricted to the cells of a public grid."""

        # Two parameters with a prior on a public box, for clamped posteriors on a grid.

        @property
        def box(self) -> tuple[tuple[float, float], tuple[float, float]]:
            """Public ends of both coordinates."""

        def draws_at(self, coordinates: Floats) -> Draws:
            """Parameters at given coordinates, (point, 2)."""

        def log_prior(self, coordinates: Floats) -> Floats:
            """Log prior density of the coordinates, (point,), up to a constant."""

        def tiles(self, draws: Draws, records: Records) -> Iterator[Any]:
            """Log likelihood tile by tile: positions of records, values (record, draw)."""

        # A Stan program. So two places state one density: the program and `log_lik`.

        @property
        def program(self) -> str | Program:
            """Name of a shipped program, or a user's program."""

        def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
            """Data of the α-weighted records for the program; raises `Improper` if the posterior does not exist."""

        def stan_records(self, records: Records, alpha: Floats, reference: Floats, clamp: float) -> Mapping[str, Any]:
            """Data of records for the program; they enter by exp(clamp(α(f − reference), ±clamp))."""

        def from_stan(self, draws: Mapping[str, Floats]) -> Mapping[str, Floats]:
            """The model's parameters from the program's, each (draw, *dims)."""

        # What tables and synthetic records are made from.

        def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
            """Outcome and weight of one synthetic record for each entry of `crosstab_row`, under the first draw of θ.

            Several outcomes are (record, outcome).
            """

        def presampled(self, theta: Draws) -> tuple[Floats, Floats]:
            """Outcome and weight of one synthetic record per sample record of the stratum, in crosstab order.

            They were made at the fit and released with θ.
            """

        def expect(self, theta: Draws) -> tuple[Floats, Floats]:
            """E(w | x) and E(w y | x) of every crosstab row of the stratum, (draw, row) each."""

        def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
            """As of `Distributed`."""

        # A closed form for many redrawn samples at once (`can_refit`).

        def scatter(self, records: SyntheticRecords, alpha: Floats) -> Floats:
            """Covariance of the fit's statistics over samples, (pattern, statistic, statistic).

            The samples have the same x, and a record keeps its privacy weight, `alpha`.
            """

        def centre(self, statistics: Floats) -> Draws:
            """Posterior centres for several sets of statistics, (set, pattern, statistic); one draw for each set."""

        def as_sampled(self) -> Self:
            """The model that simulates records like those of the observed sample, whatever synthesis the job chooses."""

        def untrimmed(self, theta: Draws, weighted: Draws, unweighted: Draws) -> Draws:
            """θ, moved by the difference of two fits to one synthetic sample: to first order, without privacy weights.

            The difference is the fit without privacy weights, `unweighted`, less the fit with them, `weighted`.
            """

        # Noisy sums, whose parameters can be simulated for other samples and under other noise.

        def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
            """Draws of the parameters over samples, without noise."""

        def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
            """Draws of the parameters of the same sample under simulated noise of the same law."""

        def recounted(self, theta: Draws, counts: Floats) -> Draws:
            """The parameters that the released sums give with other sample counts (draw, row of the stratum)."""

        def averaged(self, draws: Draws) -> Draws:
            """The mean of parameters over simulated noise, in the form of one draw.

            For parameters that noise biases, for example because counts are kept from being negative.
            """

        # Published figures with noise of their own, and no synthetic records.

        @property
        def public_noise(self) -> bool:
            """True if the scale of the noise is public, so that the noise can be simulated again."""

        @property
        def consistency(self) -> bool:
            """True if the published figures of all tables agree."""

        @property
        def noise_of_count(self) -> tuple[float, float] | None:
            """Standard deviation of the noise of one noisy count, and the largest weight; None if it is confidential."""

        def with_rows(self, theta: Draws) -> Draws:
            """The parameters, with figures of crosstab rows that are nearest to the noisy ones."""

        def figures(self, theta: Draws, name: str) -> dict[StatisticName, Floats]:
            """Published figures of a table, (draw, cell) each."""

        # Records in levels of every column, of which many tables are summed at once.

        @property
        def sizes(self) -> tuple[int, ...]:
            """Number of levels of every column."""

        @property
        def most_sums(self) -> int:
            """The largest number of figures of a pass, or a bound on it. It follows from the job alone."""

        def codes_of(self, records: Records) -> Ints:
            """The position of the level of every record and column, (record, column)."""

        def coded(self, columns: Sequence[Floats]) -> Ints:
            """Positions of the levels nearest to the values of columns, which are (record,) each."""

        def tables_beside(self, job: Job, theta: Draws, effect: DesignEffectOf) -> Mapping[str, ModelTable]:
            """Tables of the stratum by the name of their file. Figures have errors under the design effects."""

        # What a reference gives.

        def learned(self, records: ReferenceRecords, copied: pa.Table | None) -> Any:
            """What is learned from a stratum's records in one step, without a fit.
            `copied` holds further columns of the records, for synthetic records to copy.

            Raises `Improper` if the records are insufficient.
            """

        def law_of(self, records: Records) -> Draws:
            """The law of the records, without noise. Raises `Improper`."""

        def predicted_errors(self, learned: Any) -> Sequence[ErrorsOfCells]:
            """Predicted errors by table and statistic, margins included, without statistics that the model cannot predict.

            Errors of other models are predicted by runs on public records (`quality.predicted`).
            """

        # Normal scores, which follow from values by a reference's distributions.

        def within(self, facts: Facts) -> Self:
            """The model with the distributions that a reference fixed."""

        def summarise(self, records: Records, key: Key) -> Facts:
            """The distributions of a reference's records."""

        def bias_corrected(self, records: Records) -> Facts:
            """The distributions with a correction of the law's misfit."""

        def weights_corrected(self, records: Records, alpha: Floats) -> Facts:
            """The distributions with a further correction for privacy weights, (record,)."""

        def borrowed(self, theta: Draws, records: Records) -> Floats:
            """Covariance of (E(w|x), E(wy|x)) of every crosstab row due to the reference's sampling error, (row, 2, 2)."""

        def borrowed_shapes(self) -> Iterator[tuple[str, int, Mapping[str, float]]]:
            """The name of every cell, its number of reference records, and their weight by distribution."""

        # Cells that learn from a reference's records, which are released as donors, and from earlier periods. Their
        # distributions, synthetic records and sizes follow from the release's donors and sums.

        def with_donors(self, donors: Donors) -> Self:
            """The model with the reference's records."""

        def with_absent(self, absent: AbsentRecords) -> Self:
            """The model that also learns from records in crosses of columns that the current file lacks."""

        def with_history(self, history: Sequence[PeriodTotals]) -> Self:
            """The model that also learns from totals of earlier periods."""

        def history(self, theta: Draws) -> tuple[PeriodTotals, ...]:
            """Totals from which the next release learns: those that this one learned from, and its own."""

        def relearned(self, learned: Any) -> Any:
            """What the same model with another budget learned, under this model's budget. Raises `Improper`."""

        def by_setting(self) -> Mapping[str, Self]:
            """This model under other settings of the mechanism, by key and value."""

        def donor_records(self, release: ReleaseView, stratum: int) -> DonorRecords:
            """The synthetic records of a release."""

        def distribution(self, release: ReleaseView, stratum: int) -> Distributed:
            """The distributions of a release; its quantiles are values that people report if it has `answers`."""

        def sizes_of_rows(self, described: Mapping[str, Any]) -> Ints:
            """The number of sample records of every crosstab row, (row,), from the written parameters."""

        def unprotected(self, theta: Draws, draws: int, rng: np.random.Generator) -> Draws:
            """What records alone tell of the samples that `resampled` draws with the same generator."""

        def drawn_with(
            self, theta: Draws, earlier: StratumModel, of_earlier: Draws, draws: int, rng: np.random.Generator
        ) -> DrawnTogether | str:
            """Draws of both; or why no shared error is known."""

        def cost(self, records: int) -> Cost:
            """The cost of a run, with the number of records of the file and of the reference."""


Capability = Literal[
    "averaged",
    "draw",
    "draw_from",
    "draw_on_grid",
    "draws_at",
    "expect",
    "law_of",
    "learned",
    "log_lik",
    "noise_of_count",
    "predicted_errors",
    "presampled",
    "resampled",
    "simulate",
    "tables_beside",
    "until",
    "untrimmed",
    "weights_corrected",
    "with_donors",
]
"""Optional methods by which callers ask what a model can do. A model with one of them has the others of its paragraph that
the same callers need.
"""


def supports(model: object, method: Capability) -> bool:
    """True if a model has an optional method of `StratumModel`."""
    return hasattr(model, method)


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
    """The model with the distributions that the reference fixed, if it uses any."""
    facts = facts_of(learned)
    return model.within(facts) if supports(model, "weights_corrected") and facts is not None else model
