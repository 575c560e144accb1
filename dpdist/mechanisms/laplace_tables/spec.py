"""Job section `mechanism` of `laplace` and `laplace_composed`: sensitivities, and whether margins are sums of cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from dpdist.job import Contradiction, JobView, Noisy
from dpdist.job.mechanism import Sets
from dpdist.job.values import Consistency, Guarantee, Sensitivity, StatisticName


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
        if self.sensitivity == "local" and job.budget.adjacency == "substitution":
            fault = f"'{self.name}' with local sensitivities gives no guarantee under any adjacency"
            yield Contradiction(("budget", "adjacency"), fault, "leave it out, or use tables")
        if job.strata:
            fault = f"'{self.name}' adds noise to tables of the whole file and their margins"
            yield Contradiction(("strata",), fault, "leave strata out")
        if job.synthetic_sets != 1:
            fault = f"'{self.name}' releases one set of tables, on which all of ε is best spent"
            yield Contradiction(("synthetic_sets",), fault, "write 1")
        if job.rake:
            fault = f"'{self.name}' releases figures, and no weights that could be raked"
            yield Contradiction(("rake",), fault, "leave rake out")


class Laplace(WholeTables):
    """Noisy tables in which every figure has all of ε, as in the literature; this promises nothing."""

    name: Literal["laplace"] = Field(description="noisy tables; every figure spends all of ε, so there is no guarantee")

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if self.sensitivity == "public":
            fault = (
                "'laplace' spends all of ε on every figure, with sensitivities computed from the file itself, as in the "
                "literature"
            )
            yield Contradiction(("mechanism", "sensitivity"), fault, "use laplace_composed or tables")


class LaplaceComposed(WholeTables):
    """Noisy tables in which a record's figures share ε."""

    name: Literal["laplace_composed"] = Field(description="noisy tables; ε is divided among the figures of a record")

    @classmethod
    def rehearsed(cls, job: JobView) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "", {"sensitivity": "public"}  # sensitivities of the file itself promise nothing
