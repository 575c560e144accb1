"""Job section of `modips`: the law, and how noise is applied."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import exp, log
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dpdist.job import Contradiction, Guarantee, JobView, broken, budget_text
from dpdist.job.mechanism import Noisy, declared, levels_between, without_distinct_levels

Law = Literal["normal", "lognormal", "bernoulli", "multinomial"]
"""Laws whose sufficient statistics get noise."""
Sanitization = Literal["conjoint", "individual"]
Truncation = Literal["clamped", "bounded", "renormalised"]
MOST_LEVELS = 1_000
RULES = Path(__file__).with_name("rules.txt")
WIDEST = 1e30
"""Largest absolute public bound of a normal or lognormal law; for the lognormal law, also the bounds' largest ratio."""


class Modips(Noisy):
    """Noisy sufficient statistics of a law, and synthetic sets from its posterior given these."""

    name: Literal["modips"] = Field(description="noisy sufficient statistics of a distribution, and draws given them")
    law: Law = Field(description="distribution of the outcome within a cell")
    location: Literal["cells", "main_effects"] = Field(
        default="cells",
        description="normal and lognormal distributions: a mean for every cell, or a regression on table columns",
    )
    variance: float | None = Field(
        default=None, gt=0, description="public variance of a normal distribution, so that only means cost budget"
    )
    sanitization: Sanitization = Field(
        default="conjoint", description="noise with the same scale on all statistics, or an equal part of ε for each kind"
    )
    truncation: Truncation = Field(
        default="clamped",
        description="noisy sums beyond their domain: set to its end (clamped), or drawn from the truncated distribution "
        "with a larger scale (bounded); renormalised costs more than ε and is refused",
    )
    nested: Annotated[int, Field(ge=1, le=1_000)] = Field(
        default=1, description="synthetic sets from one sanitization, which share its part of ε"
    )
    statistics: ClassVar[str | None] = "sufficient"
    tabulates: ClassVar[bool] = True

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    @classmethod
    def rehearsed(cls, job: JobView) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields every law that the outcomes' public bounds allow. The job's checks refuse any other law."""
        columns = [job.columns[name] for name in declared(job)]
        coded = all(column.codes is not None or column.whole for column in columns)
        for law in ("bernoulli", "multinomial") if coded else ("normal", "lognormal"):
            yield law, {"law": law}

    @property
    def counted(self) -> bool:
        """True if the law is one of levels."""
        return self.law in ("bernoulli", "multinomial")

    @property
    def draws_within_domain(self) -> bool:
        return self.truncation == "bounded" and not self.counted

    def against_noisy_crosstab(self, job: JobView) -> str:
        if self.truncation != "bounded":
            return ""
        return "the truncated noise (bounded) needs the domain of each sum, which does not follow from noisy sample counts"

    def epsilon(self, job: JobView) -> Fraction:
        """The ε of one sanitization, from which `nested` synthetic sets follow."""
        return job.epsilon_per_set * self.nested

    def noises(self, job: JobView) -> int:
        return job.synthetic_sets // self.nested

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        left_over = job.synthetic_sets % self.nested
        yield from broken("modips", job, RULES, left_over=left_over, cost=lambda: self._cost(job))
        for outcome in declared(job):
            yield from self._of_values(job, outcome)

    def _of_values(self, job: JobView, outcome: str) -> Iterator[Contradiction]:
        """The law's conditions on the outcome's values and public bounds."""
        if self.counted:
            yield from without_distinct_levels(job, outcome, f"'{self.law}'")
        column = job.columns[outcome]
        (low, high), levels = column.bounds or (1.0, 1.0), levels_between(column)
        facts = {
            "low": low,
            "wide": max(abs(low), abs(high)) > WIDEST or (self.law == "lognormal" and high > WIDEST * low > 0.0),
            "widest": WIDEST,
            "other_values": column.bounds not in (None, (0.0, 1.0)),
            "levels": f"{levels:,}",
            "too_many": levels > MOST_LEVELS,
            "most": f"{MOST_LEVELS:,}",
        }
        yield from broken("values", job, RULES, name=outcome, **facts)

    def _cost(self, job: JobView) -> str:
        """A text on the loss of noise of scale Δ/ε that is truncated to a wide domain, with the sensitivity Δ."""
        epsilon = float(self.epsilon(job))
        cost, epsilon_text = epsilon + log(2.0 - exp(-epsilon)), budget_text(self.epsilon(job))
        fault = "noise with the scale Δ/ε, renormalised to a domain, costs"
        return f"{fault} up to {cost:.4g} per sanitization, and not ε = {epsilon_text}"
