"""Settings of the ledger, which adds up the costs of a dataset's releases, and of limits on their sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from dpdist.job.values import Budget, Delta, Frozen, Sentence

BudgetClass = Literal["strict", "zCDP", "asymptotic"]
"""Classes of cost, never added to each other: ε of strict releases, ε of asymptotic ones, ρ of those under zCDP."""


class Window(Frozen):
    """A limit on the cost of any run of consecutive periods: for panels, whose members stay for some periods."""

    periods: int = Field(ge=1, le=10_000, description="consecutive periods")
    budget: Annotated[Budget, Field(description="what they may cost together")]


class Limits(Frozen):
    """Limits on what a dataset's releases cost together: ε of strict or of asymptotic ones, or ρ of those under zCDP."""

    total: Budget | None = Field(default=None, description="over all periods")
    per_period: Budget | None = Field(default=None, description="of one period: corrections of a release are charged, too")
    window: Window | None = Field(default=None, description="over any so many consecutive periods")
    delta: Delta | None = Field(
        default=None,
        description="δ: of strict releases in all, under zCDP the one at which a release states its ε; a δ that nobody "
        "knows does not fit",
    )

    def of(self, cls: BudgetClass) -> tuple[Limits, ...] | None:
        """Limits for releases of a class; None where limits are stated for other classes only."""
        return (self,)

    @property
    def some(self) -> bool:
        """True if any limit is stated."""
        return any(each is not None for each in (self.total, self.per_period, self.window, self.delta))


class LedgerSettings(Limits):
    """The ledger that charges a run, and limits that the job states. The ledger may have limits too."""

    url: Sentence | None = Field(
        default=None,
        min_length=1,
        description="a file, sqlite:///FILE or postgresql://…; unset: DPDIST_LEDGER, or ledger.sqlite beside the workspace",
    )
    limits: Mapping[BudgetClass, Limits] = Field(
        default={},
        description="limits by class, as {strict: {total: …}, zCDP: {total: …, delta: …}}; a release of a class that is "
        "not listed is then refused",
    )

    def of(self, cls: BudgetClass) -> tuple[Limits, ...] | None:
        if self.limits and cls not in self.limits:
            return None
        return (self, *(limits for name, limits in self.limits.items() if name == cls))
