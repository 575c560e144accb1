"""Protocols of models, one capability each: families and mechanisms implement them, `engine` and `publish` ask.

A model is frozen, picklable and public: it is built from the job and the crosstab, never from records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Crosstab, Floats, Ints
from dpdist.job import Program


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

    def one(self, draw: int) -> Draws:
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

    def from_stan(self, drawn: Mapping[str, Floats]) -> Mapping[str, Floats]:
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
    named = ((p, described[p.name]["values"]) for p in parameters)
    return Draws({p.name: np.array(values, dtype=float).reshape(1, *p.shape) for p, values in named})


def nested(values: Floats) -> Any:
    """The array as nested lists of numbers, with null for NaN."""
    nullable: Any = np.asarray(values, dtype=object)
    nullable[np.isnan(values)] = None
    return nullable.tolist()
