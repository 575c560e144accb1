"""Job section of `sanitized_statistics`: the law of the noise, and whether cells are shrunk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from dpdist.job import Contradiction, Guarantee, JobView, NoiseName, Noisy, Prior, Sampler, broken, declared
from dpdist.job.mechanism import OwnKey, Sets

RULES = Path(__file__).with_name("rules.txt")


class SanitizedStatistics(Noisy):
    """Noisy moments of logarithms, winsorised at limits from a reference. Synthetic sets follow from the fit to them."""

    name: Literal["sanitized_statistics"] = Field(description="noisy moments of logarithms, winsorised by a reference")
    shrinkage: bool = Field(default=True, description="shrink cell estimates (empirical Bayes)")
    noise: NoiseName = Field(
        default="laplace", description="discrete Laplace, for ε alone, or Gaussian, for zCDP and a delta"
    )
    by_cell: ClassVar[bool] = True
    tabulates: ClassVar[bool] = True
    sets: ClassVar[Sets] = "drawn"
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"reference"})
    needs_reference: ClassVar[str] = "has clipping limits that are fixed on the records"

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    @property
    def gaussian(self) -> bool:
        return self.noise == "gaussian"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        facts = {"drawn": job.sampler != Sampler(name="exact"), "prior": job.likelihood.prior != Prior()}
        yield from broken("sanitized", job, RULES, **facts)
        for outcome in declared(job):
            column = job.columns[outcome]
            yield from broken("positive", job, RULES, name=outcome, column=column, low=column.ends[0])
