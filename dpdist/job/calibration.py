"""The constants that `dpdist calibrate` tuned: the file that it writes, and the section of a job that names it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dpdist.job.budget import PrivacyUnit, ReleaseBudget
from dpdist.job.data import Column, Keep, Survey
from dpdist.job.families import Model, Outcome
from dpdist.job.specs import Mechanism
from dpdist.job.values import Frozen, Measure, Name, Period
from dpdist.job.yaml_lines import as_yaml

FIRST_LINE = (
    "# Tuned on a reference period by `dpdist calibrate`; later jobs name it under calibration: {path: …}, unchanged.\n"
)

CALIBRATION_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "a file that `dpdist calibrate` wrote"}},
}


class Calibration(Frozen):
    """Constants that `dpdist calibrate` tuned on an earlier period, for later periods of the same job."""

    dataset: Name
    period: Period = Field(description="period of the reference on which the constants were tuned")
    columns: dict[str, Column]
    universe: tuple[Keep, ...]
    survey: Survey
    strata: tuple[str, ...]
    outcome: Outcome
    model: Model | None
    mechanism: Mechanism
    budget: ReleaseBudget
    synthetic_sets: int
    privacy_unit: PrivacyUnit | None = Field(default=None, exclude_if=lambda unit: unit is None)
    referring: bool = Field(description="whether weights are fixed on a reference")
    bound: float = Field(description="M of a clamp, or Δ* of a set")
    measure: Measure
    loss: float
    tried: int
    reference: dict[str, str | int | None] = Field(
        description="checksums, records and provenance of the reference on which constants were tuned"
    )
    sha256: str = Field(default="", description="checksum of the file, as found by the job that names it")

    @property
    def text(self) -> str:
        """The file's text, as `load_calibration` reads it."""
        return FIRST_LINE + as_yaml(self.model_dump(mode="json", exclude={"sha256"}))

    @property
    def public(self) -> dict[str, Any]:
        """The published part of a calibration. It lacks the mechanism, which the statement takes from the job."""
        return self.model_dump(mode="json", include={"period", "measure", "loss", "tried", "reference", "sha256"})
