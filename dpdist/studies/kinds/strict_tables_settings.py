"""Settings of a study of strict tables with a reference: surveys and their drift, mechanisms, and ε (METHODS §7b, §8)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dpdist.job import Frozen, Name, Synthesis
from dpdist.studies.kinds.surveys import OfSurveys
from dpdist.studies.kinds.tables_settings import STATISTICS

YARDSTICK = "direct"
UNPROTECTED = (YARDSTICK, "reference_only", "laplace_composed")
"""Labels of figures without formal protection, which every case has besides the study's arms."""


class StrictArm(Frozen):
    """A strict mechanism, whose table is computed from its released parameters."""

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
    """Study of RMSE over the RMSE of the direct estimate, bias, and coverage of 90 % intervals.

    The cells are field × sex with margins.
    """

    kind: Literal["strict_tables"]
    mechanisms: tuple[StrictArm, ...] = Field(min_length=1)

    @property
    def labels(self) -> tuple[str, ...]:
        return (*UNPROTECTED, *(arm.label for arm in self.mechanisms))

    @property
    def yardsticks(self) -> tuple[str, ...]:
        """Labels of the yardsticks, by whose RMSE each arm's RMSE is divided."""
        return (YARDSTICK,)

    @property
    def asked(self) -> tuple[str, ...]:
        return tuple(f"{one}_{what}" for what in ("ratio_direct", "bias_direct", "coverage") for one in STATISTICS)
