"""Sections on how a job is fitted and run: `model`, `sampler`, `diagnostics`, `record` and `runtime`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field, WithJsonSchema, field_validator

from dpdist.job.families import FamilyName
from dpdist.job.values import ExecutorName, Frozen, SamplerName, Synthesis, Toolchain, at_most


class Prior(Frozen):
    """Prior of coefficients B and covariance Σ: `improper` |Σ|^(−(d+1)/2) for d components, or a weak `proper` one.

    The proper prior is conjugate. It is worth as much as `records` records.
    """

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

    family: FamilyName = Field(description="law of a record, given its predictors")
    predictors: tuple[str, ...] = Field(
        default=(), description="categorical columns that the law depends on, within a stratum"
    )
    synthesis: Synthesis = Field(
        default="fbs", description="synthetic records of lognormal: as in the sample (fbs), or as in the population (fbp)"
    )
    population_weights: Literal["inverse_inclusion", "proportional"] = Field(
        default="inverse_inclusion", description="weights of fbp: 1 over the inclusion probability, or N/n"
    )
    synthetic_weights: Literal["drawn", "expected"] = Field(
        default="drawn", description="weights of fbs: drawn, or their expectation E(w|y*, x), which has less noise"
    )
    prior: Prior = Field(default=Prior(), description="of the lognormal family")
    program: Annotated[Program, WithJsonSchema({"type": "string"})] | None = Field(
        default=None, description="path of the Stan program of family user, in the job file's folder"
    )
    parameters: dict[str, tuple[str | int, ...]] = Field(
        default_factory=dict, description="parameters to release, with their dimensions: a predictor or a size"
    )
    data: dict[str, Any] = Field(default_factory=dict, description="public constants for the program")
    log_lik: str | None = Field(
        default=None, description="module:function or entry point; unset: log_lik in the program's generated quantities"
    )

    def is_of(self, family: str) -> bool:
        """True if the likelihood is of this family."""
        return self.family == family


class Sampler(Frozen):
    """How posteriors are sampled. `chains`, `warmup`, `adapt_delta`, `attempts` and `toolchain` apply to Stan only."""

    name: SamplerName = Field(
        default="auto", description="auto: exact where family and mechanism have it, else grid, else stan"
    )
    draws: Annotated[int, at_most(1_000_000, "bounds are taken over draws, and grow slowly with their number")] = Field(
        default=1000, ge=100, description="draws of a chain; exact and grid have one chain"
    )
    chains: int = Field(default=4, ge=1, le=64, description="Markov chains of a fit")
    warmup: Annotated[int, at_most(1_000_000, "a chain that has not settled by then needs another model")] = Field(
        default=1000, ge=50, description="adaptation draws of a chain, which are discarded"
    )
    adapt_delta: float = Field(default=0.9, gt=0, lt=1, description="Stan's target acceptance rate; nearer 1 is slower")
    attempts: int = Field(default=2, ge=1, le=10, description="fits tried before a stratum fails, each with its own seed")
    toolchain: Toolchain = Field(default="auto", description="compiler: CmdStan, the wheel httpstan, or what is installed")

    @property
    def number_of_chains(self) -> int:
        return self.chains if self.name == "stan" else 1

    @property
    def total(self) -> int:
        """S, the number of posterior draws for bounds."""
        return self.number_of_chains * self.draws


class Diagnostics(Frozen):
    """Limits on diagnostics of Markov chains, and the consequence of exceeding one, decided before the run."""

    policy: Literal["fail", "warn"] = Field(default="warn", description="refuse the fit, or release it and say so")
    rhat: float = Field(default=1.05, gt=1, description="largest rank-normalised R-hat")
    ess: float = Field(default=100.0, ge=0, description="smallest bulk or tail effective sample size")
    ebfmi: float = Field(default=0.2, ge=0, description="smallest E-BFMI of a chain")
    divergences: float = Field(default=0.01, ge=0, le=1, description="largest share of draws that diverge")
    treedepth_hits: float = Field(default=0.05, ge=0, le=1, description="largest share of draws at full tree depth")


class Record(Frozen):
    log_lik: Literal["always", "never", "auto"] = Field(
        default="auto", description="keep the log likelihood of every record and draw; auto: if it fits into 4 GiB"
    )


class Runtime(Frozen):
    executor: ExecutorName = Field(default="serial", description="one process (serial), or workers of Dask (dask)")
    workers: Annotated[int, Field(ge=1), at_most(1_000, "each is a process that needs memory_per_worker")] = Field(
        default=1, description="processes that dask starts on this machine"
    )
    memory_per_worker: ByteSize = Field(
        default=ByteSize(2 * 2**30), description="memory, as in 2GiB; a job whose largest task needs more is refused"
    )
    on_failure: Literal["stop", "report"] = Field(
        default="stop", description="if a task fails: end at once, or let the others finish first"
    )
    stall_timeout: float = Field(default=1800.0, gt=0, description="seconds without progress after which a run ends")
    scheduler: str | None = Field(default=None, description="tls://host:port, tcp://host:port, or config")
    tls: str | None = Field(default=None, description="folder with ca.crt, tls.crt and tls.key")
    start_timeout: float = Field(default=60.0, gt=0, description="seconds to wait for a scheduler and a first worker")
    allow_plain: bool = Field(default=False, description="permit an unencrypted (tcp://) scheduler on another machine")
