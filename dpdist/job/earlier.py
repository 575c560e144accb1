"""What an earlier period gives a job: public records to refer to, constants tuned on them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Self

from pydantic import Field, model_validator

from dpdist.job.budget import ReleaseBudget
from dpdist.job.data import Column, Keep, Simulate, TextFile
from dpdist.job.design import Survey
from dpdist.job.mechanisms import Mechanism
from dpdist.job.model import Model, Outcome
from dpdist.job.names import Measure
from dpdist.job.units import PrivacyUnit
from dpdist.job.values import Budget, Frozen, Name, Period

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


class Fit(Frozen):
    """What is demanded of the family's fit to the reference: its score (`goodness`), a share of table cells."""

    warn_below: float = Field(
        default=0.8, ge=0, le=1, description="least share of cells that fit; below it plan and statement say so"
    )
    refuse_below: float | None = Field(
        default=None, ge=0, le=1, description="least share of cells that fit; below it the job is refused, before it spends"
    )


CALIBRATION_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "a file that `dpdist calibrate` wrote"}},
}


class Calibration(Frozen):
    """A mechanism's constants, tuned on a reference period by `dpdist calibrate` for this job's later periods."""

    dataset: Name
    period: Period = Field(description="of the reference that the constants were tuned on")
    columns: dict[str, Column]
    universe: tuple[Keep, ...]
    survey: Survey
    strata: tuple[str, ...]
    outcome: Outcome
    model: Model | None
    mechanism: Mechanism
    budget: ReleaseBudget
    synthetic_sets: int
    privacy_unit: PrivacyUnit | None = Field(default=None, exclude_if=lambda said: said is None)
    referring: bool = Field(description="whether weights are fixed on a reference")
    bound: float = Field(description="M of a clamp, or Δ* of a set")
    measure: Measure
    loss: float
    tried: int
    reference: dict[str, str | int | None] = Field(description="checksums, records and provenance of what was tuned on")
    sha256: str = Field(default="", description="of the file, as found by the job that names it")

    @property
    def public(self) -> dict[str, Any]:
        """What a release says of it; its mechanism is the job's."""
        return self.model_dump(mode="json", include={"period", "measure", "loss", "tried", "reference", "sha256"})
