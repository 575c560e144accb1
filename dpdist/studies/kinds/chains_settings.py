"""Settings of a study of chains, in which each release of reference_tables is the reference of the next."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dpdist.job import Budget, Frozen, Name, budget_text
from dpdist.studies.kinds.surveys import EARLIER, OfSurveys, SurveyCase
from dpdist.studies.kinds.tables_settings import STATISTICS, sizes_of

UNCHAINED = ("direct", "laplace_composed")
"""Labels that every case has in addition to the study's arms."""


class ChainCase(SurveyCase):
    """A survey in every period. The first, period 0, is public: it is the reference of the first release.

    The shape of the law changes by equal steps from the first period to the last. `growth` is the relative change of
    salaries and population in one period.
    """

    periods: int = Field(default=16, ge=2, le=99)

    def survey(self, period: int) -> dict[str, Any]:
        """Arguments that simulate a period's survey, without a seed."""
        part, grown = period / self.periods, (1.0 + self.growth) ** period
        shape = {name: first + part * (getattr(self, name) - first) for name, first in EARLIER.items()}
        size = {"population": round(self.population * grown), "sample": self.sample}
        return {"kind": "doctorates", **size, "law": self.law, "growth": grown - 1.0, **shape}


class ChainArm(Frozen):
    """A chain in which every `refresh`-th release spends a `share` of its ε on new histograms for its reference.

    With `renewed`, the reference of each release is the previous period's file, as if it were public. Then no shape passes
    from release to release.
    """

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
        """Settings of the histograms for the reference of a period; empty in periods without histograms."""
        if self.refresh is None or period % self.refresh:
            return {}
        return {"histogram": {"epsilon": budget_text(self.share * Fraction(epsilon))}}


class ChainStudy(OfSurveys):
    """Study of |error| in direct standard errors; for counts also in standard errors given the cells' sizes.

    Measures are the median and the maximum over 27 cells, and the coverage of nominal 90 % intervals. They are computed by
    period, for the whole chain, and for its last quarter.
    """

    kind: Literal["chain"]
    cases: tuple[ChainCase, ...] = Field(min_length=1)
    mechanisms: tuple[ChainArm, ...] = Field(min_length=1)

    @property
    def labels(self) -> tuple[str, ...]:
        return (*UNCHAINED, *(arm.label for arm in self.mechanisms))

    @property
    def asked(self) -> tuple[str, ...]:
        each = [f"{name}_{what}" for name in STATISTICS for what in (*sizes_of(name), "coverage")]
        return (*(name for one in each for name in (one, late(one))), "chain_epsilon")


def late(measure: str) -> str:
    """Name of the measure that is a mean over the last quarter of a chain."""
    statistic, what = measure.split("_", 1)
    return f"{statistic}_late_{what}"


def in_period(measure: str, period: int) -> str:
    return f"{measure} in period {period:02d}"
