"""What a study of chains may say: releases of reference_tables, each fixed on the one before, of a survey that changes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dpdist.job import Budget, Frozen, Name, budget_text
from dpdist.studies.settings import Study
from dpdist.studies.tabulated import STATISTICS

UNCHAINED = ("direct", "laplace_composed")
"""What every case has beside the study's arms."""
SIZES = ("median", "max")


class ChainCase(Frozen):
    """A simulated survey of doctorates, a new population and sample in every period and replicate.

    The first one, of period 0, is public and fixes the first release; it has salaries' `sd` of .4, a `gap` of 1 and
    `noise_sd` of .4, which change by as much every period to what they are in the last; `growth` of salaries and of the
    population is a period's.
    """

    name: Name
    population: int = Field(gt=0)
    sample: int = Field(gt=0)
    periods: int = Field(default=16, ge=2, le=99)
    law: Literal["lognormal", "top_coded"] = "lognormal"
    growth: float = Field(default=0.0, gt=-1)
    sd: float = Field(default=0.4, gt=0)
    noise_sd: float = Field(default=0.4, ge=0)
    gap: float = Field(default=1.0, ge=0)
    replicates: int | None = Field(default=None, ge=1, description="at most, of this case")

    @property
    def n(self) -> int:
        return self.sample

    def said(self, period: int) -> dict[str, Any]:
        """What simulates a period's survey, but for its seed."""
        part, grown = period / self.periods, (1.0 + self.growth) ** period
        shape = {"sd": 0.4 + part * (self.sd - 0.4), "noise_sd": 0.4 + part * (self.noise_sd - 0.4)}
        shape["gap"] = 1.0 + part * (self.gap - 1.0)
        size = {"population": round(self.population * grown), "sample": self.sample}
        return {"kind": "doctorates", **size, "law": self.law, "growth": grown - 1.0, **shape}


class ChainArm(Frozen):
    """A chain of which every `refresh`-th release spends a `share` of its ε on histograms; or, with `renewed`, releases of
    which each is fixed on the period before's file, as if that were public: no shape is carried on."""

    label: Name
    refresh: int | None = Field(default=None, ge=1)
    share: Budget = Fraction(3, 10)
    renewed: bool = False
    adjacency: Literal["zero_out", "substitution"] = "zero_out"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.share >= 1:
            raise ValueError("share is a share, below 1, of a refreshed release's ε")
        if self.renewed and self.refresh is not None:
            raise ValueError("releases fixed on files have nothing to refresh: leave refresh out")
        return self

    def histogram(self, period: int, epsilon: str) -> dict[str, Any]:
        """What the period's reference says of histograms."""
        if self.refresh is None or period % self.refresh:
            return {}
        return {"histogram": {"epsilon": budget_text(self.share * Fraction(epsilon))}}


class Chaining(Study):
    """|error| in direct standard errors, median and largest over 27 cells, and coverage of nominal 90 % intervals: by
    period, over the whole chain, and of the last quarter of it."""

    kind: Literal["chain"]
    cases: tuple[ChainCase, ...] = Field(min_length=1)
    mechanisms: tuple[ChainArm, ...] = Field(min_length=1)
    epsilons: tuple[Budget, ...] = Field(min_length=1)

    @property
    def labels(self) -> tuple[str, ...]:
        return (*UNCHAINED, *(arm.label for arm in self.mechanisms))

    @property
    def case_names(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases)

    @property
    def asked(self) -> tuple[str, ...]:
        each = [f"{name}_{what}" for name in STATISTICS for what in (*SIZES, "coverage")]
        return (*(name for one in each for name in (one, late(one))), "chain_epsilon")

    def replicates_of(self, case: int) -> int:
        return min(self.replicates, self.cases[case].replicates or self.replicates)


def late(measure: str) -> str:
    """The name of a measure's mean over the last quarter of a chain."""
    statistic, what = measure.split("_", 1)
    return f"{statistic}_late_{what}"


def in_period(measure: str, period: int) -> str:
    return f"{measure} in period {period:02d}"
