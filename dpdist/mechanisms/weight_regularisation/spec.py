"""Job section of `weight_regularisation`, read by `query` and `post`: common weight, how far weights move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from dpdist.job.contradiction import Contradiction, JobView
from dpdist.job.mechanism import Noisy
from dpdist.job.names import Guarantee


class WeightRegularisation(Noisy):
    """Noisy sums of every base cell. Weights are moved towards a common one first, so that less noise is needed."""

    name: Literal["weight_regularisation"] = Field(
        description="noisy sums of every base cell, under weights moved towards a common one"
    )
    towards: float | None = Field(
        default=None, gt=0, description="the common weight; unset: the mean weight, under noise, for 1/20 of ε"
    )
    regularisation: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="how far weights are moved, from 0 to 1; unset: the least predicted error, for 1/10 of ε",
    )
    statistics: ClassVar[str | None] = "regularised_cells"
    tabulates: ClassVar[bool] = True
    shape: ClassVar[bool] = False

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        weight = job.survey.weight
        bounds = job.columns[weight].bounds if weight is not None and weight in job.columns else None
        if weight is None:
            fault = f"'{self.name}' moves weights towards a common one, and the job names no weight"
            yield Contradiction(("survey", "weight"), fault, "name the weight, or take laplace_strict")
        elif self.towards is not None and bounds is not None and not bounds[0] <= self.towards <= bounds[1]:
            fault = f"{self.towards:g} is outside of the weight's public bounds"
            yield Contradiction(("mechanism", "towards"), fault, f"take a weight from {bounds[0]:g} to {bounds[1]:g}")
        if job.synthetic_sets != 1:
            fault = f"'{self.name}' releases one table, on which the whole budget is best spent"
            yield Contradiction(("synthetic_sets",), fault, "write 1")
