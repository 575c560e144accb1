"""Families of likelihoods, and sections on how a job is fitted and run: `model`, `sampler`, `diagnostics`, `runtime`.

A new family is a name in `Family`, a line in `FAMILIES` and in `PLACES`, and a file in dpdist/models. A plug-in's
family is an entry point.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, ByteSize, Field, WithJsonSchema, field_validator

from dpdist.core.plugins import FAMILIES as GROUP, MemberName, Members
from dpdist.core.records import Floats
from dpdist.job.values import ExecutorName, Frozen, SamplerName, Synthesis, Toolchain, at_most


class Prior(Frozen):
    """Prior of coefficients B and covariance Σ: `improper` |Σ|^(−(d+1)/2) for d components, or a weak `proper` one."""

    name: Literal["improper", "proper"] = Field(default="improper", description="flat (improper), or weak and proper")
    records: float = Field(default=4.0, gt=2.0, description="weight of the proper prior, in records")
    log_sd: float = Field(default=0.5, gt=0, description="prior standard deviation of logarithms within a cell")
    location: dict[str, float] = Field(default_factory=dict, description="public guess of typical values, by column")

    @field_validator("location")
    @classmethod
    def _positive(cls, value: dict[str, float]) -> dict[str, float]:
        if any(v <= 0 for v in value.values()):
            raise ValueError("locations must be greater than 0")
        return value


class Program(Frozen):
    """A user's Stan program: the name of the file that the job names, and its text."""

    name: str
    text: str


def _outcomes(value: Any) -> Any:
    names = value if isinstance(value, list | tuple) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("a column's name is expected, or a list of names, as in [salary, hours]")
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


Outcome = Annotated[str | tuple[str, ...], BeforeValidator(_outcomes)]
"""The name of one column, or of several."""


class Model(Frozen):
    """The likelihood of a stratum's records.

    `program`, `parameters`, `data` and `log_lik` are for a user's Stan program.
    """

    family: FamilyName = Field(description="distribution of a record, given its predictors")
    predictors: tuple[str, ...] = Field(
        default=(), description="categorical columns on which the distribution depends, within a stratum"
    )
    synthesis: Synthesis = Field(
        default="fbs", description="for lognormal: synthetic records as in the sample (fbs), or as in the population (fbp)"
    )
    population_weights: Literal["inverse_inclusion", "proportional"] = Field(
        default="inverse_inclusion", description="weights under fbp: the inverse of the inclusion probability, or N/n"
    )
    synthetic_weights: Literal["drawn", "expected"] = Field(
        default="drawn", description="weights under fbs: drawn, or their expectation E(w|y*, x), which varies less"
    )
    prior: Prior = Field(default=Prior(), description="prior of the lognormal family")
    program: Annotated[Program, WithJsonSchema({"type": "string"})] | None = Field(
        default=None, description="path of the Stan program of family user, in the job file's folder"
    )
    parameters: dict[str, tuple[str | int, ...]] = Field(
        default_factory=dict, description="parameters to release, with their dimensions: a predictor or an entry of sizes"
    )
    data: dict[str, Any] = Field(default_factory=dict, description="public constants for the program")
    log_lik: str | None = Field(
        default=None, description="module:function or entry point; unset: log_lik in the program's generated quantities"
    )


class Sampler(Frozen):
    """How posteriors are sampled. `chains`, `warmup`, `adapt_delta`, `attempts` and `toolchain` apply to Stan only."""

    name: SamplerName = Field(
        default="auto", description="auto: exact if family and mechanism support it, else grid, else stan"
    )
    draws: Annotated[
        int,
        at_most(1_000_000, "number of draws; bounds are the largest values over draws, and grow slowly with their number"),
    ] = Field(default=1000, ge=100, description="draws of a chain; exact and grid have one chain")
    chains: int = Field(default=4, ge=1, le=64, description="number of Markov chains in a fit")
    warmup: Annotated[
        int, at_most(1_000_000, "adaptation draws of a chain; one that has not converged by then needs another model")
    ] = Field(default=1000, ge=50, description="adaptation draws of a chain, which are discarded")
    adapt_delta: float = Field(default=0.9, gt=0, lt=1, description="Stan's target acceptance rate; nearer 1 is slower")
    attempts: int = Field(default=2, ge=1, le=10, description="fits tried before a stratum fails, each with its own seed")
    toolchain: Toolchain = Field(
        default="auto", description="compiler: CmdStan, the wheel httpstan, or whichever is installed"
    )

    @property
    def number_of_chains(self) -> int:
        return self.chains if self.name == "stan" else 1

    @property
    def total(self) -> int:
        """S, the number of posterior draws for bounds."""
        return self.number_of_chains * self.draws


class Diagnostics(Frozen):
    """Limits on diagnostics of Markov chains, and the consequence of exceeding one, decided before the run."""

    policy: Literal["fail", "warn"] = Field(default="warn", description="refuse the fit, or release it and state the fault")
    rhat: float = Field(default=1.05, gt=1, description="largest rank-normalised R-hat")
    ess: float = Field(default=100.0, ge=0, description="smallest bulk or tail effective sample size")
    ebfmi: float = Field(default=0.2, ge=0, description="smallest E-BFMI of a chain")
    divergences: float = Field(default=0.01, ge=0, le=1, description="largest share of draws that diverge")
    treedepth_hits: float = Field(default=0.05, ge=0, le=1, description="largest share of draws at full tree depth")


class Record(Frozen):
    log_lik: Literal["always", "never", "auto"] = Field(
        default="auto",
        description="whether to keep the log likelihood of every record and draw; auto: if it fits into 4 GiB",
    )


class Runtime(Frozen):
    executor: ExecutorName = Field(default="serial", description="one process (serial), or workers of Dask (dask)")
    workers: Annotated[int, Field(ge=1), at_most(1_000, "each is a process that needs memory_per_worker")] = Field(
        default=1, description="processes that dask starts on this machine"
    )
    memory_per_worker: ByteSize = Field(
        default=ByteSize(2 * 2**30),
        description="memory of a worker, as in 2GiB; a job whose largest task needs more is refused",
    )
    on_failure: Literal["stop", "report"] = Field(
        default="stop", description="if a task fails: end at once, or let other tasks finish first"
    )
    stall_timeout: float = Field(default=1800.0, gt=0, description="seconds without progress after which a run ends")
    scheduler: str | None = Field(
        default=None,
        description="address as tls://host:port or tcp://host:port, or `config` to use Dask's configuration",
    )
    tls: str | None = Field(default=None, description="folder with ca.crt, tls.crt and tls.key")
    start_timeout: float = Field(default=60.0, gt=0, description="seconds to wait for a scheduler and its first worker")
    allow_plain: bool = Field(default=False, description="permit an unencrypted (tcp://) scheduler on another machine")


Family = Literal[
    "lognormal",
    "beta",
    "beta_regression",
    "poisson",
    "negative_binomial",
    "negative_binomial_mixture",
    "poisson_regression",
    "bernoulli",
    "scores",
    "user",
]


@dataclass(frozen=True)
class Support:
    """Values that an outcome can have: an interval, without its ends if `open`, and only whole numbers if `integer`."""

    text: str
    low: float = -np.inf
    high: float = np.inf
    open: bool = False
    integer: bool = False

    def inside(self, values: Floats) -> NDArray[np.bool_]:
        """True if a value lies in the interval, (record,)."""
        if self.open:
            return (values > self.low) & (values < self.high)
        return (values >= self.low) & (values <= self.high)

    def takes(self, values: Floats) -> NDArray[np.bool_]:
        """True if a value lies in the interval and is whole where it must be, (record,)."""
        return self.inside(values) & (not self.integer or values == np.rint(values))


@dataclass(frozen=True)
class FamilyFacts:
    """Facts about a family.

    `weight` says whether it models the sampling weight. True: always; False: never; None: if the job has a weight.

    `samplers` are the ways to sample its posterior. `auto` takes the first possible one: a clamped posterior excludes
    `exact`, because it has no closed form. `density` is a text for the statement on what the likelihood is a density
    of. `law` names a parametric law that real files may violate; empty if there is none.
    """

    density: str
    support: Support
    weight: bool | None
    predictors: bool
    samplers: tuple[SamplerName, ...] = ()
    law: str = ""
    logs: bool = False
    """True if the family models logarithms."""
    synthesis: bool = False
    """True if a job can choose the law of its synthetic records: the sample's (fbs) or the population's (fbp)."""
    on_reference: bool = False
    """True if the family uses the reference's distributions."""
    program: bool = False
    """True for a user's Stan program."""


POSITIVE = Support("values above 0", low=0.0, open=True)
UNIT = Support("values above 0 and below 1", low=0.0, high=1.0, open=True)
COUNT = Support("whole numbers of at least 0", low=0.0, integer=True)
BINARY = Support("0 or 1", low=0.0, high=1.0, integer=True)


def families_for(values: Collection[float]) -> str:
    """Names of the families that allow these values, as text; bounded supports come first."""
    supports = {name: FAMILIES[name].support for name in get_args(Family)}
    fit = [(name, support) for name, support in supports.items() if all(support.takes(np.array(list(values), dtype=float)))]
    return ", ".join(name for name, _ in sorted(fit, key=lambda member: not np.isfinite(member[1].high)))


FAMILIES: dict[Family, FamilyFacts] = {
    "lognormal": FamilyFacts(
        "normal density of (log {outcome}, log {weight})",
        *(POSITIVE, True, True),
        ("exact", "stan"),
        "lognormal",
        logs=True,
        synthesis=True,
    ),
    "beta": FamilyFacts("beta density of {outcome}", UNIT, False, False, ("grid", "stan"), "beta"),
    "beta_regression": FamilyFacts("beta density of {outcome}", UNIT, False, True, ("stan",), "beta"),
    "poisson": FamilyFacts("Poisson probability of {outcome}", COUNT, False, False, ("exact", "stan"), "Poisson"),
    "negative_binomial": FamilyFacts(
        "negative binomial probability of {outcome}", COUNT, False, False, ("grid", "stan"), "negative binomial"
    ),
    "negative_binomial_mixture": FamilyFacts(
        "probability of {outcome} under a mixture of two negative binomial distributions with the same mean",
        *(COUNT, False, False),
        ("stan",),
        "mixed negative binomial",
    ),
    "poisson_regression": FamilyFacts("Poisson probability of {outcome}", COUNT, False, True, ("stan",), "Poisson"),
    "bernoulli": FamilyFacts("probability of {outcome}", BINARY, False, False, ("exact", "stan")),
    "scores": FamilyFacts(
        "normal density of two scores, that of {weight} and that of {outcome} given {weight}, divided by their density "
        "under the reference's own fit (the reference's distributions define scores)",
        *(Support("numbers"), True, True, ("exact",)),
        on_reference=True,
    ),
    "user": FamilyFacts(
        "density that the user's program gives as log_lik",
        Support("numbers"),
        None,
        True,
        ("stan",),
        "user-defined",
        program=True,
    ),
}
SAMPLERS: dict[str, tuple[SamplerName, ...]] = {name: facts.samplers for name, facts in FAMILIES.items()}
"""The samplers for each family's posterior."""
PLACES = {
    "lognormal": "dpdist.models.lognormal.model:Lognormal",
    "beta": "dpdist.models.beta:Beta",
    "beta_regression": "dpdist.models.beta:BetaRegression",
    "poisson": "dpdist.models.negative_binomial:Poisson",
    "negative_binomial": "dpdist.models.negative_binomial:NegativeBinomial",
    "negative_binomial_mixture": "dpdist.models.negative_binomial:NegativeBinomialMixture",
    "poisson_regression": "dpdist.models.negative_binomial:PoissonRegression",
    "bernoulli": "dpdist.models.beta:Bernoulli",
    "scores": "dpdist.models.copula.model:Scores",
    "user": "dpdist.models.user:User",
}
"""Places of dpdist's model classes by family; a plug-in's place is its entry point."""
METHODS = ("build", "parameters", "statistics", "log_lik", "extremes", "simulate", "expect", "until")
"""What the model of a plug-in's family must have, beside the method of its sampler."""
DRAWING = {"exact": "draw", "grid": "draw_on_grid"}
"""The method that each allowed sampler of a plug-in's family needs."""


def _fault(name: str, member: Any) -> str:
    if name in PLACES:
        return ""
    facts = getattr(member, "facts", None)
    if not isinstance(member, type) or not isinstance(facts, FamilyFacts):
        return "is not a class with `facts`: write facts: ClassVar[FamilyFacts]"
    if not facts.samplers or not set(facts.samplers) <= DRAWING.keys():
        return f"has samplers that a plug-in cannot have: state one or more of {', '.join(DRAWING)} in its facts"
    if facts.weight or facts.predictors or facts.logs or facts.synthesis or facts.on_reference or facts.program:
        return "models more than the outcome, which a plug-in cannot do: state weight=False, predictors=False"
    methods = (*METHODS, *(DRAWING[sampler] for sampler in facts.samplers))
    if lacking := [method for method in methods if not hasattr(member, method)]:
        return f"has no {', '.join(lacking)}: write what is missing in {member.__name__}"
    return ""


MODELS: Members[Any] = Members(GROUP, PLACES, _fault)
"""Classes of models by the family's name."""
FamilyName = Annotated[str, MemberName("family", MODELS)]
"""The family of a job: one of `Family`, or a plug-in's."""


def facts_of(family: str) -> FamilyFacts:
    """The facts of a family by name, dpdist's or a plug-in's. Raises `KeyError` for an unknown name."""
    if family in PLACES:
        return {str(name): facts for name, facts in FAMILIES.items()}[family]
    facts: FamilyFacts = MODELS.plugged_in(family)[1].facts
    return facts


def samplers_of(family: str) -> tuple[SamplerName, ...]:
    """The samplers of a family's posterior; empty for a mechanism's statistics."""
    try:
        return facts_of(family).samplers
    except KeyError:
        return ()


def parametric(family: str) -> bool:
    """True for a parametric law whose posterior needs no Markov chains, so that fitting is fast."""
    samplers = samplers_of(family)
    return bool(samplers) and bool(facts_of(family).law) and any(name != "stan" for name in samplers)
