"""Section `model` of a job, for `job.whole`: family, predictors, synthesis, prior, a user's Stan program."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator

from dpdist.job.families import FamilyName
from dpdist.job.values import Frozen, Synthesis


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
