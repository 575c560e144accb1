"""What a job may state under `yes_no_counts`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from dpdist.job import Contradiction, Guarantee, JobView, Noisy, StatisticName, declared


class YesNoCounts(Noisy):
    """Noisy counts of 0 and of 1 in every cell."""

    name: Literal["yes_no_counts"] = Field(description="noisy counts of an outcome's two values in every cell")
    CONTRACT: ClassVar[int] = 2
    statistics: ClassVar[str | None] = "yes_no_counts"
    counts_records: ClassVar[bool] = True
    tabulates: ClassVar[bool] = True
    gives: ClassVar[frozenset[StatisticName]] = frozenset({"count", "mean"})

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        for outcome in declared(job):
            if set((job.columns[outcome].codes or {}).values()) != {0.0, 1.0}:
                found = f"'{self.name}' counts zeros and ones"
                yield Contradiction(("columns", outcome, "codes"), found, "state codes: {no: 0, yes: 1}")
