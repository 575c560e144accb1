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
    "cell_sums",
    "reference_cells",
    "user",
]
Synthesis = Literal["fbs", "fbp"]
MechanismName = Literal[
    "weighted",
    "unweighted",
    "weighted_e",
    "censor_w",
    "censor_uw",
    "centred",
    "perturbed_histogram",
    "laplace_strict",
    "reference_tables",
]
WeightRule = Literal["none", "linear", "inverse", "scalar", "fixed_point", "cluster"]
Fallback = Literal["refuse", "pool", "proper_prior"]
Adjacency = Literal["zero_out", "add_remove", "substitution"]
Comparator = Literal["laplace", "laplace_composed", "laplace_consistent", "laplace_finest", "reference_only"]
SamplerName = Literal["exact", "grid", "stan"]
Toolchain = Literal["auto", "cmdstan", "embedded"]
ExecutorName = Literal["serial", "dask"]
StatisticName = Literal["count", "mean", "total"]
Measure = Literal["max_ecdf", "avg_ecdf", "mean", "median"]
Rule = Literal["error", "drop"]
Lonely = Literal["error", "certainty", "average", "centred"]
ReplicateKind = Literal["brr", "fay", "jackknife", "bootstrap", "successive_difference"]

Period = Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, int) else v)]
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
    noise: Literal["normal", "lognormal"] = Field(
        default="normal", description="law of what is added to log inclusion probability; lognormal is exp of the normal"
    )

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
    codes: dict[str, float] | None = Field(
        default=None, min_length=2, description='numbers that the texts of the file stand for, as in {"No": 0, "Yes": 1}'
    )

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
        if self.codes is not None and (self.levels is not None or self.outside != "error"):
            raise ValueError("codes are of a column with bounds, and none lies outside")
        low, high = self.bounds or (0.0, 0.0)
        if outside := [text for text, code in (self.codes or {}).items() if not low <= code <= high]:
            raise ValueError(f"the code of '{outside[0]}' lies outside the bounds")
        return self


class Keep(Frozen):
    """A public filter: records whose column holds one of these values belong to the universe."""

    column: str
    keep: tuple[PublicLevel, ...] = Field(min_length=1)


class ReplicateWeights(Frozen):
    """Columns `prefix`1 … `prefix``number` of replicate weights: V = scale Σ factor_r (θ_r − θ̂)².

    The kind gives the scale: brr 1/R, fay 1/(R(1−k)²), jackknife (R−1)/R, bootstrap 1/R, successive_difference 4/R.
    """

    kind: ReplicateKind
    prefix: str = Field(min_length=1)
    number: int = Field(ge=2, le=10_000)
    fay: float | None = Field(
        default=None, gt=0, lt=1, description="k of kind fay, which keeps k of a dropped half's weight"
    )
    scale: float | None = Field(default=None, gt=0, description="in place of the kind's own")
    factors: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(
        default=None, description="one a replicate; for a stratified jackknife (n_h − 1)/n_h, with scale: 1"
    )
    centre: Literal["estimate", "mean"] = Field(
        default="estimate", description="θ̂ is the estimate, or the replicates' mean"
    )
    df: float | None = Field(default=None, gt=0, description="degrees of freedom; unset: number − 1")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.fay is not None) != (self.kind == "fay"):
            raise ValueError("fay: k goes with kind: fay, and only with it")
        if self.kind in ("brr", "fay") and self.number % 4:
            raise ValueError("balanced repeated replication has a multiple of 4 replicates")
        if self.factors is not None and len(self.factors) != self.number:
            raise ValueError("factors must be as many as replicates")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{r}" for r in range(1, self.number + 1))

    @property
    def overall(self) -> float:
        """The scale as stated, or the kind's own."""
        r = float(self.number)
        own = {"jackknife": (r - 1.0) / r, "successive_difference": 4.0 / r}
        return self.scale if self.scale is not None else own.get(self.kind, 1.0 / (r * (1.0 - (self.fay or 0.0)) ** 2))


def _stages(value: Any) -> Any:
    return (value,) if isinstance(value, str) else () if value is None else value


class Survey(Frozen):
    """The design; without a weight column every record counts as one.

    `fpc` names columns with the size of the population that a stratum's units were sampled from: PSUs (records where there
    are none), and, where records were sampled within PSUs too, a second column with the PSU's size.
    """

    weight: str | None = None
    design_strata: tuple[str, ...] = ()
    psu: str | None = None
    fpc: Annotated[tuple[str, ...], BeforeValidator(_stages), Field(max_length=2)] = ()
    lonely_psu: Lonely = "error"
    replicate_weights: ReplicateWeights | None = None

    @property
    def lonely_record(self) -> Lonely:
        """The rule for a design stratum of one synthetic record: as stated, and none has an error of its own otherwise."""
        return "certainty" if self.lonely_psu == "error" else self.lonely_psu

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


def _outcomes(value: Any) -> Any:
    names = value if isinstance(value, list | tuple) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("a column's name is expected, or a list of names, as in [salary, hours]")
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


class Model(Frozen):
    """The model of a stratum; `program` to `log_lik` are those of a user's Stan program."""

    family: Family
    outcome: Annotated[
        str | tuple[str, ...],
        BeforeValidator(_outcomes),
        Field(description="a column; or several, as in [salary, hours], that the lognormal model takes together"),
    ]
    predictors: tuple[str, ...] = ()
    synthesis: Synthesis = "fbs"
    population_weights: Literal["inverse_inclusion", "proportional"] = "inverse_inclusion"
    synthetic_weights: Literal["drawn", "expected"] = Field(
        default="drawn", description="of fbs: w* as drawn, or its expectation E(w|y*, x), which has less noise"
    )
    prior: Prior = Prior()
    program: Annotated[Program, WithJsonSchema({"type": "string", "description": "path of a Stan program"})] | None = None
    parameters: dict[str, tuple[str | int, ...]] = Field(
        default_factory=dict, description="parameters to keep and release; their dims: a predictor's levels, or a size"
    )
    data: dict[str, Any] = Field(default_factory=dict, description="public constants handed to the program")
    log_lik: str | None = Field(
        default=None, description="module:function or entry point; unset: log_lik in the program's generated quantities"
    )

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Every outcome's column, in order."""
        return (self.outcome,) if isinstance(self.outcome, str) else self.outcome


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


RuleOrName = Annotated[Weights, BeforeValidator(_rule)]
FIXED_WEIGHTS: tuple[MechanismName, ...] = ("weighted_e", "censor_w")
"""Mechanisms whose weights follow from the rule's own constants: what they leave over the target is cut off ([G])."""
CLAMPED: tuple[MechanismName, ...] = ("censor_w", "censor_uw", "centred")
"""Mechanisms that draw from ∏ exp(clamp(α(f − g), ±M))."""
NOISY: tuple[MechanismName, ...] = ("perturbed_histogram", "laplace_strict", "reference_tables")
"""Mechanisms that release sums under noise: they have no posterior, no draws and no sampler."""
REFERRING: tuple[MechanismName, ...] = ("centred", "reference_tables", "censor_w", "weighted", "weighted_e")
"""Mechanisms for which a reference fixes something; the first two cannot do without."""
LARGEST_DRIFT = 0.66
"""Of the current file's law from the reference's, in sd of a record: beyond it no κ serves (METHODS §4b)."""


class Mechanism(Frozen):
    """A mechanism and its constants; what is left out of `weights` is the mechanism's own."""

    name: MechanismName
    weights: RuleOrName = Weights(rule="none")
    fallback: Fallback = "refuse"
    bins: int | None = Field(
        default=None, ge=1, le=10_000, description="of a perturbed histogram; unset: ln n, rounded up, of the mean stratum"
    )
    drift: float = Field(
        default=0.25, ge=0, le=LARGEST_DRIFT, description="planned, of centred, from the reference: in sd of a record"
    )
    shrinkage: bool = Field(
        default=True, description="of reference_tables: cells towards each other, as far as noise moved them"
    )
    aim: float = Field(
        default=0.6,
        gt=0,
        le=1,
        description="share of Δ* that weights aim at on a reference; the rest is for drift",
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


class Reference(Frozen):
    """Records that the job declares public: an earlier period's file, or another, of the same columns and design."""

    path: str | None = None
    period: Period | None = None
    provenance: str | None = Field(default=None, max_length=500, description="where it comes from and why it is public")


_CALIBRATION_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "a file that `dpdist calibrate` wrote"}},
}


class Calibration(Frozen):
    """A mechanism's constants, tuned on a reference period by `dpdist calibrate` for this job's later periods."""

    dataset: Name
    period: Period = Field(description="of the reference that the constants were tuned on")
    columns: dict[str, Column]
    universe: tuple[Keep, ...]
    survey: Survey
    strata: tuple[str, ...]
    model: Model
    mechanism: Mechanism
    budget: ReleaseBudget
    synthetic_sets: int
    referring: bool = Field(description="whether weights are fixed on a reference")
    bound: float = Field(description="M of a clamp, or Δ* of a set")
    measure: Measure
    loss: float
    tried: int
    reference: dict[str, str | int | None] = Field(description="checksums, records and provenance of what was tuned on")
    sha256: str = Field(default="", description="of the file, as found by the job that names it")

    @property
    def public(self) -> dict[str, Any]:
        """What a release says of it; its mechanism is the job's."""
        return self.model_dump(mode="json", include={"period", "measure", "loss", "tried", "reference", "sha256"})


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


class Rake(Frozen):
    """Public totals that synthetic weights are raked to: one a combination of levels, written "biology / male"."""

    by: tuple[str, ...] = Field(min_length=1)
    totals: dict[str, Annotated[float, Field(gt=0)]]


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
    period: Period
    input: Input = Input()
    columns: dict[str, Column]
    universe: tuple[Keep, ...] = ()
    survey: Survey = Survey()
    strata: tuple[str, ...] = ()
    model: Model
    mechanism: Mechanism
    budget: ReleaseBudget
    synthetic_sets: int = Field(default=1, ge=1)
    reference: Reference | None = None
    calibration: Annotated[Calibration, WithJsonSchema(_CALIBRATION_SCHEMA)] | None = None
    sampler: Sampler = Sampler()
    diagnostics: Diagnostics = Diagnostics()
    tables: tuple[Table, ...] = Field(min_length=1)
    rake: tuple[Rake, ...] = ()
    compare: tuple[Comparator, ...] = ()
    record: Record = Record()
    runtime: Runtime = Runtime()

    @property
    def categories(self) -> tuple[str, ...]:
        """Columns of the public frame, each once: strata, predictors, design strata, columns of tables and rakes."""
        by = [name for table in self.tables for name in table.by] + [name for rake in self.rake for name in rake.by]
        return tuple(dict.fromkeys([*self.strata, *self.model.predictors, *self.survey.design_strata, *by]))

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """Columns of the tables: what they cross to is a finest cell."""
        return tuple(dict.fromkeys(name for table in self.tables for name in table.by))

    @property
    def referred_columns(self) -> tuple[str, ...]:
        """Columns whose combinations a reference must have records of."""
        cells = self.cell_columns if self.mechanism.name == "reference_tables" else ()
        return tuple(dict.fromkeys([*self.strata, *self.model.predictors, *cells]))

    @property
    def outcome(self) -> Column:
        """The column of the first outcome: the only one of every family but lognormal."""
        return self.columns[self.model.outcomes[0]]

    @property
    def outcome_columns(self) -> dict[str, Column]:
        """The column of every outcome, by name."""
        return {name: self.columns[name] for name in self.model.outcomes}

    @property
    def components(self) -> tuple[str, ...]:
        """Columns that are modelled: the outcomes, and the weight where there is one."""
        return tuple(name for name in (*self.model.outcomes, self.survey.weight) if name is not None)

    @property
    def epsilon_per_set(self) -> Fraction:
        return self.budget.epsilon / self.synthetic_sets

    @property
    def strict(self) -> bool:
        """True if the bound holds for every file: fixed bins, or a clamp and no weight learned on the file itself."""
        name = self.mechanism.name
        return name in ("censor_uw", "centred", *NOISY) or (name == "censor_w" and self.reference is not None)

    @property
    def frozen(self) -> bool:
        """True if a record's privacy weight is fixed by the reference: a function of the record, whatever the file."""
        return self.reference is not None and self.mechanism.name not in ("centred", "reference_tables")

    @property
    def outcome_dependent_rules(self) -> tuple[str, ...]:
        """Rules that drop records by their outcome: the number left is then no longer a public fact."""
        return tuple(
            f"{name}: {what} dropped"
            for name, column in self.outcome_columns.items()
            for what in ("missing", "zeros")
            if getattr(column, what) == "drop"
        )

    @cached_property
    def public(self) -> dict[str, Any]:
        """The job as published: without input, runtime, recording, comparators and paths."""
        return self.model_dump(
            mode="json", exclude={"input": True, "runtime": True, "record": True, "compare": True, "reference": {"path"}}
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result, by dotted key (runtime and paths do not decide it)."""
        return dict(
            _flat(self.model_dump(mode="json", exclude={"runtime": True, "input": {"path"}, "reference": {"path"}}), ())
        )


def _flat(said: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    inner = said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else None
    if inner is None or not said:
        yield ".".join(path), said
    else:
        for name, value in inner:
            yield from _flat(value, (*path, str(name)))
