"""What a job may say: frozen, validated once; inside dpdist nothing is checked again.

Public domains and bounds are stated here and never inferred from the confidential file.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from dpdist.records import TOTAL, Level

Family = Literal[
    "lognormal",
    "beta",
    "beta_regression",
    "poisson",
    "negative_binomial",
    "poisson_regression",
    "bernoulli",
    "histogram",
    "user",
]
Synthesis = Literal["fbs", "fbp"]
MechanismName = Literal["weighted", "unweighted", "weighted_e", "censor_w", "censor_uw", "perturbed_histogram"]
WeightRule = Literal["none", "linear", "inverse", "scalar", "fixed_point", "cluster"]
Fallback = Literal["refuse", "pool", "proper_prior"]
Adjacency = Literal["zero_out", "add_remove", "substitution"]
Comparator = Literal["laplace", "laplace_composed"]
SamplerName = Literal["exact", "grid", "stan"]
Toolchain = Literal["auto", "cmdstan", "embedded"]
ExecutorName = Literal["serial", "dask"]
StatisticName = Literal["count", "mean"]
Rule = Literal["error", "drop"]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]


def _exact(value: Any) -> Any:
    """Exact fraction from a decimal text, a ratio or a number as written."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Fraction):
        raise ValueError('a number in quotes is expected, for example "10.8" or "1/3"')
    try:
        fraction = Fraction(str(value).strip())
    except (ValueError, ZeroDivisionError):
        raise ValueError('a number in quotes is expected, for example "10.8" or "1/3"') from None
    if fraction <= 0:
        raise ValueError("a budget must be greater than 0")
    if not Fraction(1, 10**9) <= fraction <= 10**9:
        raise ValueError("a budget must be between 1e-9 and 1e9")
    return fraction


def budget_text(value: Fraction) -> str:
    """Exact text: a decimal where it terminates, else a ratio."""
    try:
        decimal = Decimal(value.numerator) / Decimal(value.denominator)
    except InvalidOperation:  # pragma: no cover - absurdly long fractions only
        return str(value)
    return str(decimal) if Fraction(decimal) == value else str(value)


Budget = Annotated[
    Fraction,
    BeforeValidator(_exact),
    PlainSerializer(budget_text),
    WithJsonSchema({"type": ["string", "number"], "description": "exact, greater than 0; write it in quotes"}),
]


def _level(value: Any) -> Any:
    if not isinstance(value, str | int | bool):
        raise ValueError("a level is text, a whole number or a truth value: quote it")
    return value


PublicLevel = Annotated[Level, BeforeValidator(_level)]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Simulate(Frozen):
    kind: Literal["doctorates"]
    population: int = Field(gt=0)
    sample: int = Field(gt=0)
    seed: int = Field(ge=0)
    sd: float = Field(default=0.4, gt=0, description="sd of log outcome within a group")
    noise_sd: float = Field(default=0.4, ge=0, description="sd of log inclusion probability given the outcome")

    @model_validator(mode="after")
    def _sample_from_population(self) -> Self:
        if self.sample > self.population:
            raise ValueError("sample must not exceed population")
        return self


class Input(Frozen):
    """The confidential microdata: a Parquet or CSV file, or a simulated survey."""

    path: str | None = None
    simulate: Simulate | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path is not None and self.simulate is not None:
            raise ValueError("give either path or simulate, not both")
        return self


class Column(Frozen):
    """Public domain of a column, and what happens to values that a model cannot take."""

    levels: tuple[PublicLevel, ...] | None = None
    bounds: tuple[float, float] | None = None
    missing: Rule = "error"
    zeros: Rule = "error"
    outside: Literal["error", "clip"] = "error"
    whole: bool = Field(default=False, description="whole numbers only")

    @model_validator(mode="after")
    def _domain(self) -> Self:
        if (self.levels is None) == (self.bounds is None):
            raise ValueError("give levels (a category) or bounds (a number), one of them")
        if self.levels is not None and (not self.levels or len(set(map(str, self.levels))) != len(self.levels)):
            raise ValueError("levels must be a list of different values")
        if self.levels is not None and len(set(map(type, self.levels))) > 1:
            raise ValueError("levels must be of one type: quote them all")
        if self.levels is not None and TOTAL in map(str, self.levels):
            raise ValueError(f"'{TOTAL}' names the margins of tables: rename the level")
        if self.bounds is not None and not self.bounds[0] < self.bounds[1]:
            raise ValueError("bounds must be [lower, upper] with lower < upper")
        if self.levels is not None and (self.zeros, self.outside, self.whole) != ("error", "error", False):
            raise ValueError("zeros, outside and whole are rules for a column with bounds")
        return self


class Keep(Frozen):
    """A public filter: records whose column holds one of these values belong to the universe."""

    column: str
    keep: tuple[PublicLevel, ...] = Field(min_length=1)


class Survey(Frozen):
    """The design; without a weight column every record counts as one."""

    weight: str | None = None
    design_strata: tuple[str, ...] = ()
    psu: str | None = None
    replicate_weights: None = None
    population: int | None = Field(default=None, gt=0, description="public population size, for proportional weights")


class Prior(Frozen):
    """Prior of (B, Σ): `improper` |Σ|^(−(d+1)/2), or `proper`, a weak conjugate prior worth `records` records."""

    name: Literal["improper", "proper"] = "improper"
    records: float = Field(default=4.0, gt=2.0)
    log_sd: float = Field(default=0.5, gt=0)
    location: dict[str, float] = Field(default_factory=dict, description="public guess of typical values, by column")

    @field_validator("location")
    @classmethod
    def _positive(cls, value: dict[str, float]) -> dict[str, float]:
        if any(v <= 0 for v in value.values()):
            raise ValueError("locations must be greater than 0")
        return value


class Program(Frozen):
    """A user's Stan program, as read from the file that the job names."""

    name: str
    text: str


class Model(Frozen):
    """The model of a stratum; `program` to `log_lik` are those of a user's Stan program."""

    family: Family
    outcome: str
    predictors: tuple[str, ...] = ()
    synthesis: Synthesis = "fbs"
    population_weights: Literal["inverse_inclusion", "proportional"] = "inverse_inclusion"
    prior: Prior = Prior()
    program: Annotated[Program, WithJsonSchema({"type": "string", "description": "path of a Stan program"})] | None = None
    parameters: dict[str, tuple[str | int, ...]] = Field(
        default_factory=dict, description="parameters to keep and release; their dims: a predictor's levels, or a size"
    )
    data: dict[str, Any] = Field(default_factory=dict, description="public constants handed to the program")
    log_lik: str | None = Field(
        default=None, description="module:function or entry point; unset: log_lik in the program's generated quantities"
    )


class Weights(Frozen):
    """A weight rule and its constants; `c` unset means: tuned until the bound meets the target."""

    rule: WeightRule
    c: float | None = Field(default=None, gt=0)
    g: float = Field(default=0.0, ge=0, le=1)
    reweight: float | None = Field(default=None, gt=0, le=1, description="k of the re-weighting step")
    scale: float = Field(default=1.0, gt=0)
    shift: float = 0.0
    radius: float = Field(default=0.2, gt=0, lt=1, description="of cluster, as a share of the outcome")


def _rule(value: Any) -> Any:
    return {"rule": value} if isinstance(value, str) else value


FIXED_WEIGHTS: tuple[MechanismName, ...] = ("weighted_e", "censor_w")
"""Mechanisms whose weights follow from the rule's own constants: what they leave over the target is cut off ([G])."""
STRICT: tuple[MechanismName, ...] = ("censor_uw", "perturbed_histogram")
"""Mechanisms whose bound holds for every file."""
CLAMPED: tuple[MechanismName, ...] = ("censor_w", "censor_uw")
"""Mechanisms that draw from ∏ exp(clamp(α(f − g), ±M))."""
NOISY: tuple[MechanismName, ...] = ("perturbed_histogram",)
"""Mechanisms that release sums under noise: they have no posterior, no draws and no sampler."""


class Mechanism(Frozen):
    """A mechanism and its constants; what is left out of `weights` is the mechanism's own."""

    name: MechanismName
    weights: Annotated[Weights, BeforeValidator(_rule)] = Weights(rule="none")
    fallback: Fallback = "refuse"
    bins: int | None = Field(
        default=None, ge=1, le=10_000, description="of a perturbed histogram; unset: ln n, rounded up, of the mean stratum"
    )

    @model_validator(mode="before")
    @classmethod
    def _own_weights(cls, said: Any) -> Any:
        """[G] weights by LW with c = 1; in Censor_w they are re-weighted by k = .95, which it leaves out (METHODS §4)."""
        if not isinstance(said, dict) or not isinstance(name := said.get("name"), str):
            return said
        weights = _rule(said.get("weights", _DEFAULT_RULES.get(name, "none")))
        if name in FIXED_WEIGHTS and isinstance(weights, dict):
            own = {"c": 1.0, "reweight": 0.95} if name == "censor_w" else {"c": 1.0}
            weights = weights | {key: value for key, value in own.items() if weights.get(key) is None}
        return said | {"weights": weights}


_DEFAULT_RULES = {"weighted": "fixed_point", "weighted_e": "linear", "censor_w": "linear"}


class ReleaseBudget(Frozen):
    """The whole release's budget: epsilon is what all synthetic sets together may cost."""

    epsilon: Budget
    adjacency: Adjacency = "zero_out"


class Sampler(Frozen):
    """How posteriors are sampled; chains, warmup, adapt_delta, attempts and toolchain are Stan's."""

    name: SamplerName = "exact"
    draws: int = Field(default=1000, ge=100, description="draws of a chain; exact and grid have one chain")
    chains: int = Field(default=4, ge=1, le=64)
    warmup: int = Field(default=1000, ge=50)
    adapt_delta: float = Field(default=0.9, gt=0, lt=1)
    attempts: int = Field(default=2, ge=1, le=10, description="fits tried, with seeds of their own, before a stratum fails")
    toolchain: Toolchain = "auto"

    @property
    def number_of_chains(self) -> int:
        return self.chains if self.name == "stan" else 1

    @property
    def total(self) -> int:
        """S: the draws that bounds are taken over."""
        return self.number_of_chains * self.draws


class Statistic(Frozen):
    name: StatisticName
    variable: str | None = None

    @property
    def text(self) -> str:
        return self.name if self.variable is None else f"{self.name} of {self.variable}"


def _statistic(value: Any) -> Any:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and len(value) == 1 and "name" not in value:
        ((name, variable),) = value.items()
        return {"name": name, "variable": variable}
    return value


def _statistic_text(value: Statistic) -> Any:
    return value.name if value.variable is None else {value.name: value.variable}


class Table(Frozen):
    name: Name
    by: tuple[str, ...] = ()
    margins: bool = True
    statistics: tuple[Annotated[Statistic, BeforeValidator(_statistic), PlainSerializer(_statistic_text)], ...] = Field(
        min_length=1
    )


class Diagnostics(Frozen):
    """What is done where a fit by Markov chains misses a threshold; decided before the run."""

    policy: Literal["fail", "warn"] = "warn"
    rhat: float = Field(default=1.05, gt=1, description="largest rank-normalised R-hat")
    ess: float = Field(default=100.0, ge=0, description="smallest bulk or tail effective sample size")
    ebfmi: float = Field(default=0.2, ge=0, description="smallest E-BFMI of a chain")
    divergences: float = Field(default=0.01, ge=0, le=1, description="largest share of draws")
    treedepth_hits: float = Field(default=0.05, ge=0, le=1, description="largest share of draws")


class Record(Frozen):
    log_lik: Literal["always", "never", "auto"] = "auto"


class Runtime(Frozen):
    executor: ExecutorName = "serial"
    workers: int = Field(default=1, ge=1)
    memory_per_worker: ByteSize = ByteSize(2 * 2**30)
    on_failure: Literal["stop", "report"] = "stop"
    stall_timeout: float = Field(default=1800.0, gt=0, description="seconds without a finished task before a run is ended")
    scheduler: str | None = Field(default=None, description="tls://host:port, tcp://host:port, or config")
    tls: str | None = Field(default=None, description="folder with ca.crt, tls.crt and tls.key")
    start_timeout: float = Field(default=60.0, gt=0, description="seconds for a scheduler and a first worker to answer")
    allow_plain: bool = Field(default=False, description="let a tcp:// scheduler beyond this machine see tasks and results")


class Job(Frozen):
    """A release: data, design, model, mechanism, budget, tables."""

    dataset: Name
    period: Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, int) else v)]
    input: Input = Input()
    columns: dict[str, Column]
    universe: tuple[Keep, ...] = ()
    survey: Survey = Survey()
    strata: tuple[str, ...] = ()
    model: Model
    mechanism: Mechanism
    budget: ReleaseBudget
    synthetic_sets: int = Field(default=1, ge=1)
    reference: None = None
    sampler: Sampler = Sampler()
    diagnostics: Diagnostics = Diagnostics()
    tables: tuple[Table, ...] = Field(min_length=1)
    compare: tuple[Comparator, ...] = ()
    record: Record = Record()
    runtime: Runtime = Runtime()

    @property
    def categories(self) -> tuple[str, ...]:
        """Columns of the public frame, each once: strata, predictors, design strata, table columns."""
        by = [name for table in self.tables for name in table.by]
        return tuple(dict.fromkeys([*self.strata, *self.model.predictors, *self.survey.design_strata, *by]))

    @property
    def outcome(self) -> Column:
        return self.columns[self.model.outcome]

    @property
    def components(self) -> tuple[str, ...]:
        """Columns that are modelled: the outcome, and the weight where there is one."""
        return tuple(name for name in (self.model.outcome, self.survey.weight) if name is not None)

    @property
    def epsilon_per_set(self) -> Fraction:
        return self.budget.epsilon / self.synthetic_sets

    @property
    def outcome_dependent_rules(self) -> tuple[str, ...]:
        """Rules that drop records by their outcome: the number left is then no longer a public fact."""
        column, name = self.outcome, self.model.outcome
        return tuple(f"{name}: {what} dropped" for what in ("missing", "zeros") if getattr(column, what) == "drop")

    @cached_property
    def public(self) -> dict[str, Any]:
        """The job as published: without input, runtime, recording and comparators."""
        return self.model_dump(mode="json", exclude={"input", "runtime", "record", "compare"})

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result, by dotted key (runtime and paths do not decide it)."""
        return dict(_flat(self.model_dump(mode="json", exclude={"runtime": True, "input": {"path"}}), ()))


def _flat(said: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    inner = said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else None
    if inner is None or not said:
        yield ".".join(path), said
    else:
        for name, value in inner:
            yield from _flat(value, (*path, str(name)))
