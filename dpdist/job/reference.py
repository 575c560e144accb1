"""What a job may name as its reference: public records, an earlier release, or noisy histograms of the current file."""

from __future__ import annotations

from fractions import Fraction
from typing import Self

from pydantic import Field, model_validator

from dpdist.job.data import Simulate, TextFile
from dpdist.job.values import Budget, Frozen, Period

HISTOGRAM_SHARE = Fraction(1, 3)
"""Of a release's budget, where a job names no reference and histograms take its place."""


class HistogramReference(Frozen):
    """Noisy histograms of the current file, charged to the release: in place of a reference, or, beside an earlier release,
    over bins that follow from it, to bring its shapes up to date."""

    epsilon: Budget = Field(description="the part of budget.epsilon that the histograms take; write it in quotes")


class Reference(TextFile):
    """What limits and shapes are fixed on before the current file's outcomes are used: records that the job declares public
    (an earlier period's file, or another, of the same columns and design), an earlier release, or noisy histograms; an
    earlier release and histograms that bring its shapes up to date."""

    path: str | None = Field(
        default=None, description="a public file with the job's columns: Parquet, CSV, SAS, Stata or SPSS"
    )
    simulate: Simulate | None = Field(default=None, description="in place of a path: a simulated survey, for examples")
    release: str | None = Field(default=None, description="public folder of an earlier release of reference_tables")
    histogram: HistogramReference | None = Field(
        default=None, description="noisy histograms of the current file, paid from the release's budget"
    )
    period: Period | None = Field(default=None, description="the period that the file is of; not the job's own")
    provenance: str | None = Field(default=None, max_length=500, description="where it comes from and why it is public")

    @property
    def named(self) -> str | None:
        """The file or folder, where there is one."""
        return self.path or self.release

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("path", "simulate", "release", "histogram") if getattr(self, name) is not None]
        if len(given) > 1 and given != ["release", "histogram"]:
            found = f"give one of path, release and histogram, or simulate, not {' and '.join(given)}"
            raise ValueError(f"{found}; release alone may have a histogram beside it")
        return self
