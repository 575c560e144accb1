"""Simulated surveys of doctorates whose tables are released on an earlier survey: how large, of which law, what changed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpdist.job import Budget, Frozen, Name
from dpdist.studies.settings import Study

EARLIER = {"sd": 0.4, "noise_sd": 0.4, "gap": 1.0}
"""The shape of the first survey's law."""


class SurveyCase(Frozen):
    """A simulated survey, a new population and sample in every replicate, and one before it.

    The first has salaries' `sd` of .4, a `gap` of 1, `noise_sd` of .4 and no `growth`, which is that of salaries and of the
    population alike.
    """

    name: Name
    population: int = Field(gt=0)
    sample: int = Field(gt=0)
    law: Literal["lognormal", "top_coded"] = "lognormal"
    growth: float = Field(default=0.0, gt=-1)
    sd: float = Field(default=EARLIER["sd"], gt=0)
    noise_sd: float = Field(default=EARLIER["noise_sd"], ge=0)
    gap: float = Field(default=EARLIER["gap"], ge=0)
    replicates: int | None = Field(default=None, ge=1, description="at most, of this case")

    @property
    def n(self) -> int:
        return self.sample

    def described(self, every: str = "") -> str:
        """For a page; `every` tells how often it grows."""
        law = "lognormal salaries" if self.law == "lognormal" else "left-skewed, rounded, top-coded salaries"
        drift = [f"salaries and population {100 * self.growth:+.0f} %{every}"] if self.growth else []
        ends = [(name, first, getattr(self, name)) for name, first in EARLIER.items()]
        drift += [f"{name} {first:g} → {last:g}" for name, first, last in ends if first != last]
        return f"n = {self.sample:,} of {self.population:,}, {law}, {', '.join(drift) or 'no drift'}"


class OfSurveys(Study):
    """A study whose cases are such surveys."""

    cases: tuple[SurveyCase, ...] = Field(min_length=1)
    epsilons: tuple[Budget, ...] = Field(min_length=1)

    def replicates_of(self, case: int) -> int:
        return min(self.replicates, self.cases[case].replicates or self.replicates)
