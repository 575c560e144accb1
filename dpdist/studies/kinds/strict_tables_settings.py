"""What a study of strict tables with a reference may say: law, drift, size and ε, against the truth (METHODS §7b, §8)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dpdist.job import Frozen, Name, Synthesis
from dpdist.studies.kinds.surveys import OfSurveys
from dpdist.studies.kinds.tables_settings import STATISTICS

YARDSTICK = "direct"
UNPROTECTED = (YARDSTICK, "reference_only", "laplace_composed")
"""What every case has beside the study's arms."""


class StrictArm(Frozen):
    """A strict mechanism, tabulated from its released parameters."""

    label: Name
    mechanism: Literal["sanitized_statistics", "reference_tables"]
    adjacency: Literal["zero_out", "substitution"] = "zero_out"
    synthesis: Synthesis = "fbs"
    shrinkage: bool = True

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.mechanism == "reference_tables" and self.synthesis != "fbs":
            raise ValueError("reference_tables synthesises nothing: leave synthesis out")
        return self


class StrictTablesStudy(OfSurveys):
    """RMSE over the direct estimate's, bias and coverage of 90 % intervals, by cell of field × sex with margins."""

    kind: Literal["strict_tables"]
    mechanisms: tuple[StrictArm, ...] = Field(min_length=1)

    @property
    def labels(self) -> tuple[str, ...]:
        return (*UNPROTECTED, *(arm.label for arm in self.mechanisms))

    @property
    def yardsticks(self) -> tuple[str, ...]:
        """Labels over whose RMSE every arm's is told."""
        return (YARDSTICK,)

    @property
    def asked(self) -> tuple[str, ...]:
        return tuple(f"{one}_{what}" for what in ("ratio_direct", "bias_direct", "coverage") for one in STATISTICS)
