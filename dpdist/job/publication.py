"""Sections `accept`, `approval` and `correction` of a job, which `approval` reads: gates, approval, what is corrected."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from dpdist.job.tables import Statistic, statistic_of, statistic_text
from dpdist.job.values import RELEASE, Budget, Frozen, KeyText, Sentence


class Gate(Frozen):
    """A limit on the errors of one statistic in all cells of the listed tables."""

    measure: Literal["largest", "median", "coverage"] = Field(
        description="the largest or median error as a share of the published figure, or the share of intervals that cover"
    )
    of: Annotated[Statistic, BeforeValidator(statistic_of), PlainSerializer(statistic_text)] = Field(
        description="count or {mean: outcome}"
    )
    limit: float = Field(gt=0, description="largest error; for coverage, the smallest share of intervals")

    @property
    def text(self) -> str:
        return f"{self.measure} of {self.of.text}"


class Acceptance(Frozen):
    """Gates, measured under noise with a part of the release's ε. Their results are published."""

    epsilon: Budget = Field(description="the part of budget.epsilon that the gates take together")
    tables: tuple[str, ...] = Field(default=(), description="names of the tables whose cells count; unset: all")
    gates: tuple[Gate, ...] = Field(min_length=1, max_length=20, description="all must be met, else nothing is published")


class Approval(Frozen):
    """The release is held back until somebody approves it under one of these keys."""

    required: Literal[True] = Field(default=True, description="true: nothing is published before somebody approves it")
    keys: tuple[KeyText, ...] = Field(
        default=(),
        max_length=100,
        description="public keys of those who may approve (the second line of FILE.pub); unset: any key may",
    )


class Correction(Frozen):
    """The public content of a correction. A correction is a further release, and is charged again."""

    version: Annotated[int, Field(ge=2, le=1000)] = Field(
        description="number of the release within its period; the first correction is 2"
    )
    of: str = Field(pattern=RELEASE, description="id of the corrected release, from its manifest")
    reason: Sentence = Field(min_length=1, description="what was wrong, for readers")
