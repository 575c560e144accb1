"""Job section `mechanism` of `laplace` and `laplace_composed`: sensitivities, and whether margins are sums of cells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from dpdist.job import Contradiction, JobView, Noisy, broken
from dpdist.job.mechanism import Sets
from dpdist.job.values import Consistency, Guarantee, Sensitivity, StatisticName

RULES = Path(__file__).with_name("rules.txt")


class WholeTables(Noisy):
    """Figures of whole tables under noise.

    Its two forms, `laplace` and `laplace_composed`, differ only in how ε is shared.
    """

    sensitivity: Sensitivity = Field(
        default="local",
        description=(
            "`local`: sensitivities of this file, without any guarantee; `public`: sensitivities from public bounds"
        ),
    )
    consistency: Consistency = Field(default="none", description="make margins the sums of their cells, at no cost")
    statistics: ClassVar[str | None] = "noisy_tables"
    tabulates: ClassVar[bool] = True
    sets: ClassVar[Sets] = "none"
    gives: ClassVar[frozenset[StatisticName] | None] = frozenset({"count", "mean", "total"})

    def against_noisy_crosstab(self, job: JobView) -> str:
        return "local sensitivities give no guarantee" if self.sensitivity == "local" else ""

    def guarantee(self, job: JobView) -> Guarantee:
        return "none" if self.sensitivity == "local" else "strict"

    def clips(self, job: JobView) -> bool:
        return self.sensitivity == "public"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        yield from broken("whole_tables", job, RULES)


class Laplace(WholeTables):
    """Noisy tables in which every figure has all of ε, as in the literature; this promises nothing."""

    name: Literal["laplace"] = Field(description="noisy tables; every figure spends all of ε, so there is no guarantee")


class LaplaceComposed(WholeTables):
    """Noisy tables in which a record's figures share ε."""

    name: Literal["laplace_composed"] = Field(description="noisy tables; ε is divided among the figures of a record")

    @classmethod
    def rehearsed(cls, job: JobView) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "", {"sensitivity": "public"}  # sensitivities of the file itself promise nothing
