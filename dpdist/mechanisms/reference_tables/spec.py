"""Job section of `reference_tables`, read by its cells and texts: whether cells are shrunk; what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from dpdist.job.contradiction import Contradiction, JobView
from dpdist.job.mechanism import Noisy
from dpdist.job.names import Guarantee


class ReferenceTables(Noisy):
    """Noisy sums of every base cell, clipped at limits from a reference; its shapes are used to invert the clipping."""

    name: Literal["reference_tables"] = Field(description="noisy sums of every base cell, clipped where a reference tells")
    shrinkage: bool = Field(default=True, description="move cells towards each other as noise moved them apart")
    statistics: ClassVar[str | None] = "reference_cells"
    by_cell: ClassVar[bool] = True
    sizes_by_sums: ClassVar[bool] = True
    tabulates: ClassVar[bool] = True
    takes_reference: ClassVar[bool] = True
    needs_reference: ClassVar[str] = "has clipping limits that are fixed on the records"
    own_histograms: ClassVar[bool] = True
    gates: ClassVar[bool] = True
    donates: ClassVar[bool] = True
    several_outcomes: ClassVar[bool] = True
    copies: ClassVar[bool] = True
    public_weights: ClassVar[bool] = True

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if job.synthetic_sets != 1:
            fault = "'reference_tables' releases one table, on which the whole budget is best spent"
            yield Contradiction(("synthetic_sets",), fault, "write 1")
