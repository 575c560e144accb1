"""Settings of sample counts by the public columns: published as they are, or protected by noise."""

from __future__ import annotations

from pydantic import Field

from dpdist.job.values import Budget, ColumnName, Frozen


class Protect(Frozen):
    """Columns whose sample counts are published under noise. All else is made from the noisy counts."""

    columns: tuple[ColumnName, ...] | None = Field(
        default=None,
        min_length=1,
        description="columns of the frame that are protected; unset: all. Counts by the others stay public and exact",
    )
    epsilon: Budget = Field(description="the part of budget.epsilon that the noisy counts take; write it in quotes")


class Predictors(Frozen):
    """How the public columns are protected that a release is made for."""

    protect: Protect = Field(description="protect predictors and sizes: counts of their cross get noise")
