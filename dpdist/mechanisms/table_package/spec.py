"""Job section of `table_package`, read by `query` and `post`: what is measured, under which noise, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from dpdist.job.contradiction import Contradiction, JobView
from dpdist.job.mechanism import Noisy, against_secret_counts
from dpdist.job.names import Guarantee, NoiseName
from dpdist.packages.strategy import STRATEGIES

AUTO = "auto"
MEAN_SQUARE: Literal["mean_square"] = "mean_square"


class TablePackage(Noisy):
    """Noisy sums over groups of base cells, and one posterior that gives all cells of all tables."""

    name: Literal["table_package"] = Field(
        description="many tables over many columns from one budget, as sums over groups of base cells"
    )
    strategy: str = Field(
        default=AUTO,
        description=f"what is measured: {', '.join(strategy.name for strategy in STRATEGIES)}; or auto, the one of the "
        "least predicted error",
    )
    objective: Literal["mean_square", "largest"] = Field(
        default=MEAN_SQUARE,
        exclude_if=lambda objective: objective == MEAN_SQUARE,
        description="what measurements and their parts of the budget make least: the mean of tables' mean squared errors, "
        "or the largest error of any cell; in direct standard errors, by priority",
    )
    noise: NoiseName = Field(
        default="laplace", description="discrete Laplace, for ε alone, or Gaussian, for zCDP and a delta"
    )
    statistics: ClassVar[str | None] = "package"
    first_version: ClassVar[tuple[int, ...]] = (0, 2)
    by_cell: ClassVar[bool] = True
    sizes_by_sums: ClassVar[bool] = True
    fills_empty_cells: ClassVar[bool] = True
    sums_weights_of_zero: ClassVar[bool] = True
    crosses_tables: ClassVar[bool] = True
    tabulates: ClassVar[bool] = True
    takes_reference: ClassVar[bool] = True
    needs_reference: ClassVar[str] = "has clipping limits that are fixed on the records"
    own_histograms: ClassVar[bool] = True
    donates: ClassVar[bool] = True
    prioritises: ClassVar[bool] = True
    several_outcomes: ClassVar[bool] = True
    nests: ClassVar[bool] = True
    shape_of_reference: ClassVar[bool] = True
    public_weights: ClassVar[bool] = True

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    @property
    def gaussian(self) -> bool:
        return self.noise == "gaussian"

    def against_noisy_frame(self, job: JobView) -> str:
        return "its own sums measure secret numbers of records, without noisy counts beside them"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        names = (AUTO, *(strategy.name for strategy in STRATEGIES))
        if self.strategy not in names:
            yield Contradiction(
                ("mechanism", "strategy"), f"'{self.strategy}' is no strategy", "name one", ", ".join(names)
            )
        if job.synthetic_sets != 1:
            fault = f"'{self.name}' releases one package, on which the whole budget is best spent"
            yield Contradiction(("synthetic_sets",), fault, "write 1")
        if job.strata:
            fault = f"'{self.name}' measures the tables of the whole file"
            yield Contradiction(("strata",), fault, "leave strata out, and put these columns into tables")
        if self.gaussian and job.budget.exchange == "anywhere":
            fault = "the distance of any two records is not known to be attained under Gaussian noise"
            yield Contradiction(("mechanism", "noise"), fault, "take noise: laplace, or adjacency: add_remove")
        yield from against_secret_counts(job)
        if job.reference is not None and job.reference.earlier is not None:
            fault = f"'{self.name}' takes its limits from records, or from noisy histograms of the current file alone"
            yield Contradiction(("reference", "release"), fault, "name a public file under reference.path, or leave it out")
        if job.rake:
            yield Contradiction(("rake",), f"'{self.name}' does not rake to public totals", "leave rake out")
