"""Settings of a release's sample counts by public columns: they are published exactly, or with noise."""

from __future__ import annotations

from pydantic import Field

from dpdist.job.values import Budget, ColumnName, Frozen


class Protect(Frozen):
    """Columns whose sample counts are published under noise. The whole release is made from the noisy counts."""

    columns: tuple[ColumnName, ...] | None = Field(
        default=None,
        min_length=1,
        description="columns of the frame that are protected; unset: all. Counts by the others stay public and exact",
    )
    epsilon: Budget = Field(description="the part of budget.epsilon that the noisy counts take; write it in quotes")


class Predictors(Frozen):
    """How the sample counts of the predictors, the public columns, are protected."""

    protect: Protect = Field(description="protect predictors and sizes: counts of their cross get noise")
