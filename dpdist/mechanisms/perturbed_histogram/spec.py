"""Job section of `perturbed_histogram`: how many bins a histogram has."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from dpdist.job import Guarantee, JobView, Noisy, OwnKey


class PerturbedHistogram(Noisy):
    """A noisy histogram of the outcome with equal bins, in every stratum."""

    name: Literal["perturbed_histogram"] = Field(description="a noisy histogram in equal bins, in every stratum")
    bins: int | None = Field(
        default=None, ge=1, le=10_000, description="number of bins; unset: ln n, rounded up, with n the mean size of strata"
    )
    statistics: ClassVar[str | None] = "histogram"
    counts_records: ClassVar[bool] = True
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"accept"})
    scanned: ClassVar[dict[str, tuple[int, ...]]] = {"bins": (2, 3, 5, 8, 13, 21, 34, 55, 89)}

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"
