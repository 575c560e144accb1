"""Where a release's cost is counted beside earlier ones of its dataset, and what they may cost together."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dpdist.job.values import Budget, Frozen, Sentence


class Window(Frozen):
    """What any run of consecutive periods may cost together: for panels, whose members stay for some periods."""

    periods: int = Field(ge=1, le=10_000, description="consecutive periods")
    budget: Annotated[Budget, Field(description="what they may cost together")]


class Limits(Frozen):
    """What a dataset's releases may cost: ε of strict and of asymptotic releases, ρ of those under zCDP."""

    total: Budget | None = Field(default=None, description="over all periods")
    per_period: Budget | None = Field(default=None, description="of one period: corrections of a release are charged, too")
    window: Window | None = Field(default=None, description="over any so many consecutive periods")


class LedgerSettings(Limits):
    """The ledger that a run is charged in, and the job's own limits; the ledger may hold others."""

    url: Sentence | None = Field(
        default=None,
        min_length=1,
        description="a file, sqlite:///FILE or postgresql://…; unset: DPDIST_LEDGER, or ledger.sqlite beside the workspace",
    )
