"""Settings of simulated surveys of doctorates, and of the earlier survey that serves as reference: size, law, drift."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpdist.job import Budget, Frozen, Name
from dpdist.studies.settings import Study

EARLIER = {"sd": 0.4, "noise_sd": 0.4, "gap": 1.0}
"""The law of the earlier survey: sd of log salaries, sd of the noise in log sizes, and relative gap between the sexes."""


class SurveyCase(Frozen):
    """A simulated survey and an earlier one, with a new population and new samples in every replicate.

    Salaries have the standard deviation `sd` in logarithms, and `gap` times the built-in gap between the sexes. `growth` is
    the relative change of salaries and of the population since the earlier survey. In the earlier survey, `sd`, `noise_sd`
    and `gap` have the values of `EARLIER`.
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
        """A description for the page. The text `every` follows the growth in it, for example " a period"."""
        law = "lognormal salaries" if self.law == "lognormal" else "left-skewed, rounded, top-coded salaries"
        drift = [f"salaries and population {100 * self.growth:+.0f} %{every}"] if self.growth else []
        ends = [(name, first, getattr(self, name)) for name, first in EARLIER.items()]
        drift += [f"{name} {first:g} → {last:g}" for name, first, last in ends if first != last]
        return f"n = {self.sample:,} of {self.population:,}, {law}, {', '.join(drift) or 'no drift'}"


class OfSurveys(Study):
    """A study whose cases are simulated surveys of doctorates."""

    cases: tuple[SurveyCase, ...] = Field(min_length=1)
    epsilons: tuple[Budget, ...] = Field(min_length=1)

    def replicates_of(self, case: int) -> int:
        return min(self.replicates, self.cases[case].replicates or self.replicates)
