"""What a study of strict tables with a reference may say: law, drift, size and ε, against the truth (METHODS §7b, §8)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dpdist.job import Budget, Frozen, Name, Synthesis
from dpdist.studies.settings import Study
from dpdist.studies.tabulated import STATISTICS

YARDSTICK = "direct"
UNPROTECTED = (YARDSTICK, "reference_only", "laplace_composed")
"""What every case has beside the study's arms."""


class ReferredCase(Frozen):
    """A simulated survey of doctorates and an earlier one, a new population and sample of both in every replicate.

    The earlier one has salaries' `sd` of .4, a `gap` of 1, `noise_sd` of .4 and no `growth`, which is that of salaries and
    of the population alike.
    """

    name: Name
    population: int = Field(gt=0)
    sample: int = Field(gt=0)
    law: Literal["lognormal", "top_coded"] = "lognormal"
    growth: float = Field(default=0.0, gt=-1)
    sd: float = Field(default=0.4, gt=0)
    noise_sd: float = Field(default=0.4, ge=0)
    gap: float = Field(default=1.0, ge=0)
    replicates: int | None = Field(default=None, ge=1, description="at most, of this case")

    @property
    def n(self) -> int:
        return self.sample


class ReferredArm(Frozen):
    """A strict mechanism, tabulated from its released parameters."""

    label: Name
    mechanism: Literal["sanitized_statistics", "reference_tables"]
    adjacency: Literal["zero_out", "substitution"] = "zero_out"
    synthesis: Synthesis = "fbs"
    shrinkage: bool = True

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.mechanism == "reference_tables" and self.synthesis != "fbs":
            raise ValueError("reference_tables synthesises nothing: leave synthesis out")
        return self


class Referring(Study):
    """RMSE over the direct estimate's, bias and coverage of 90 % intervals, by cell of field × sex with margins."""

    kind: Literal["strict_tables"]
    cases: tuple[ReferredCase, ...] = Field(min_length=1)
    mechanisms: tuple[ReferredArm, ...] = Field(min_length=1)
    epsilons: tuple[Budget, ...] = Field(min_length=1)

    @property
    def labels(self) -> tuple[str, ...]:
        return (*UNPROTECTED, *(arm.label for arm in self.mechanisms))

    @property
    def case_names(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases)

    @property
    def asked(self) -> tuple[str, ...]:
        return tuple(f"{one}_{what}" for what in ("ratio_direct", "bias_direct", "coverage") for one in STATISTICS)

    def replicates_of(self, case: int) -> int:
        return min(self.replicates, self.cases[case].replicates or self.replicates)
