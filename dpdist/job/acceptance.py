"""Settings of gates: limits on a release's errors that are chosen before anybody has seen it, and measured under noise."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from dpdist.job.tables import Statistic, statistic_of, statistic_text
from dpdist.job.values import Budget, Frozen


class Gate(Frozen):
    """A limit on the errors of one statistic in all cells of the listed tables."""

    measure: Literal["largest", "median", "coverage"] = Field(
        description="the largest or median error as a share of the published figure, or the share of intervals that hold"
    )
    of: Annotated[Statistic, BeforeValidator(statistic_of), PlainSerializer(statistic_text)] = Field(
        description="count or {mean: outcome}"
    )
    limit: float = Field(gt=0, description="the most that the error may be; of coverage the least share of intervals")

    @property
    def text(self) -> str:
        return f"{self.measure} of {self.of.text}"


class Acceptance(Frozen):
    """Gates, measured under noise with a part of the release's ε. Their results are published."""

    epsilon: Budget = Field(description="the part of budget.epsilon that the gates take together; write it in quotes")
    tables: tuple[str, ...] = Field(default=(), description="names of the tables whose cells count; unset: all")
    gates: tuple[Gate, ...] = Field(min_length=1, max_length=20, description="all must be met, else nothing is published")
