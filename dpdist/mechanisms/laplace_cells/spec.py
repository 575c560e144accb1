"""Job section of `laplace_strict`, loaded by `job.specs`; it has no settings of its own."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from dpdist.job.contradiction import JobView
from dpdist.job.mechanism import Noisy
from dpdist.job.names import Guarantee


class LaplaceStrict(Noisy):
    """Noisy sums of every base cell, with values clipped at public bounds."""

    name: Literal["laplace_strict"] = Field(description="noisy sums of every base cell, clipped at public bounds")
    statistics: ClassVar[str | None] = "cell_sums"
    tabulates: ClassVar[bool] = True
    gates: ClassVar[bool] = True
    shape: ClassVar[bool] = False

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"
