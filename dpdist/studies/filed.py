"""What a study of releases from public files may say: files split into halves, samples or periods, each a real release."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dpdist.job import Adjacency, Budget, Frozen, Name
from dpdist.studies.settings import Study
from dpdist.studies.tabulated import sizes_of

RELEASE = "reference_tables"
Comparison = Literal["reference_only", "laplace_finest", "laplace_composed"]
COMPARISONS: tuple[Comparison, ...] = ("reference_only", "laplace_finest", "laplace_composed")
STATISTICS = ("count", "mean")


class FileCase(Frozen):
    """A public file, the job that is run on its parts, and how it is split.

    `halves`: one half is the other's reference. `samples`: two disjoint ones, each a `share` of the file, which is the
    truth. `periods`: every level of `column` in turn is released, each release the next one's reference; the first is fixed
    on histograms of its own, at `first` of its ε.
    """

    name: Name
    file: str = Field(description="in the folder that `dpdist study --data` names")
    job: str = Field(description="a job file, or the name of a shipped job")
    split: Literal["halves", "samples", "periods"]
    share: float = Field(default=0.1, gt=0, le=0.5)
    column: str | None = None
    first: Budget | None = Field(default=None, description="share of ε; unset: the first period is a public file")
    complete: tuple[str, ...] = Field(default=(), description="columns of which records with missing values are left out")
    drift: float = Field(default=1.0, gt=0, description="of the current part's weights and outcomes, in halves")
    adjacency: Adjacency = "zero_out"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.split == "periods") != (self.column is not None):
            raise ValueError("column names what tells periods apart: it goes with split: periods, and only with it")
        if self.first is not None and (self.split != "periods" or self.first >= 1):
            raise ValueError("first is a share, below 1, of the first period's ε")
        if self.drift != 1.0 and self.split != "halves":
            raise ValueError("drift is for split: halves")
        return self

    @property
    def n(self) -> int:
        """Not known before the file is read."""
        return 0


class Filed(Study):
    """|error| in direct standard errors, as designed and of counts also given the cells' sizes, median and largest over
    cells and margins; around the truth of samples RMSE over
    the direct estimate's, and coverage."""

    kind: Literal["files"]
    cases: tuple[FileCase, ...] = Field(min_length=1)
    epsilons: tuple[Budget, ...] = Field(min_length=1)
    data: str | None = Field(default=None, description="folder of the files; `--data` names another")

    @property
    def labels(self) -> tuple[str, ...]:
        return (RELEASE, *COMPARISONS, "direct")

    @property
    def case_names(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases)

    @property
    def asked(self) -> tuple[str, ...]:
        sizes = [f"{name}_{last}{size}" for name in STATISTICS for size in sizes_of(name) for last in ("", "last_")]
        return (
            *sizes,
            *(f"{name}_{what}" for name in STATISTICS for what in ("ratio_direct", "coverage")),
            "chain_epsilon",
        )
