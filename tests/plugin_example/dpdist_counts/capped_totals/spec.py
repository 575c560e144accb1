"""What a job may state under `capped_totals`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from dpdist.job import Contradiction, Guarantee, JobView, Noisy, StatisticName, declared


class CappedTotals(Noisy):
    """Noisy sums of capped weights of 0 and of 1 in every cell."""

    name: Literal["capped_totals"] = Field(description="noisy sums of capped weights, by an outcome's two values")
    CONTRACT: ClassVar[int] = 2
    statistics: ClassVar[str | None] = "capped_totals"
    tabulates: ClassVar[bool] = True
    gives: ClassVar[frozenset[StatisticName]] = frozenset({"count", "mean"})
    cap: float = Field(default=50.0, ge=1, description="a larger weight counts as this one")

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        for outcome in declared(job):
            if set((job.columns[outcome].codes or {}).values()) != {0.0, 1.0}:
                fault = f"'{self.name}' sums weights of zeros and ones"
                yield Contradiction(("columns", outcome, "codes"), fault, "state codes: {no: 0, yes: 1}")
