"""Sections `budget`, `privacy_unit`, `predictors`, `ledger` of a job: ε, neighbouring files, limits on sums of costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, exp, floor, log, log1p, log10, sqrt
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from dpdist.job.values import (
    Adjacency,
    Budget,
    ColumnName,
    Delta,
    Exchange,
    Frozen,
    Sentence,
    adapter_of,
    at_most,
    budget_text,
)
from dpdist.job.yaml_lines import keys_of

# ρ-zCDP (zero-concentrated differential privacy) and (ε, δ) (Bun & Steinke 2016; Canonne et al. 2020).
#
# ρ-zCDP means that the Rényi divergence of order α between the outputs under neighbouring files is at most αρ, for every
# α > 1. For each α this implies (ε, δ)-differential privacy with
#
#     ε = αρ + ln(1 − 1/α) + (ln(1/δ) − ln α)/(α − 1)
#
# (Canonne, Kamath & Steinke 2020, proposition 12). At the best α it is smaller than Bun & Steinke's ρ + 2√(ρ ln(1/δ)). It
# holds for every α, so the search for the best one need not be exact. Results are rounded outward by more than the rounding
# error.
DIGITS = 9
SECTIONS, WIDTH = 120, 8.0
"""Number of steps of a golden section search over log(α − 1), and its width on each side of a guess."""


@lru_cache(maxsize=256)
def epsilon_of(rho: Fraction, delta: Fraction) -> Fraction:
    """An ε for which ρ-zCDP implies (ε, δ)-differential privacy, rounded up."""
    return _round(max(least_epsilon(float(rho), float(delta)), 1e-9), up=True)


def least_epsilon(rho: float, delta: float) -> float:
    """`epsilon_of` before rounding."""
    loss = -log(delta)
    return _least(lambda a: (1.0 + a) * rho + _rest(a, loss), sqrt(loss / rho))


@lru_cache(maxsize=256)
def rho_of(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The largest ρ for which ρ-zCDP is shown to imply (ε, δ)-differential privacy, rounded down."""
    loss = -log(float(delta))
    root = sqrt(loss + float(epsilon)) - sqrt(loss)
    most = -_least(lambda a: (_rest(a, loss) - float(epsilon)) / (1.0 + a), sqrt(loss) / root)
    return _round(most, up=False)


def _rest(a: float, loss: float) -> float:
    """ln(1 − 1/α) + (ln(1/δ) − ln α)/(α − 1), with a = α − 1 and loss = ln(1/δ)."""
    return log(a) - log1p(a) + (loss - log1p(a)) / a


def _least(of: Callable[[float], float], guess: float) -> float:
    """The least value of a function of a, by golden section search over log a."""
    golden = (sqrt(5.0) - 1.0) / 2.0
    low, high = log(guess) - WIDTH, log(guess) + WIDTH
    for _ in range(SECTIONS):
        lower, two = high - golden * (high - low), low + golden * (high - low)
        if of(exp(lower)) < of(exp(two)):
            high = two
        else:
            low = lower
    return of(exp((low + high) / 2.0))


def _round(value: float, up: bool) -> Fraction:
    """Rounds up or down to DIGITS significant digits, by at least one unit of the last digit."""
    unit = Fraction(10) ** (floor(log10(value)) - DIGITS + 1)
    places = Fraction(value) / unit
    return unit * (ceil(places) + 1 if up else floor(places) - 1)


class ReleaseBudget(Frozen):
    """The budget of the whole release. With Gaussian noise, the job states δ and either ε or ρ; ε follows from ρ and δ."""

    epsilon: Budget = Field(description="budget of the whole release, all synthetic sets together")
    adjacency: Adjacency = Field(
        default="zero_out",
        description="how neighbouring files differ: in whether one record's outcome and weight are used (zero_out), in "
        "their values (substitution), or by a whole record (add_remove)",
    )
    exchange: Exchange = Field(
        default="same_x",
        description="what substitution exchanges: only outcome and weight (same_x), or table columns as well (anywhere)",
    )
    delta: Delta | None = Field(default=None, description="δ at which epsilon holds, with Gaussian noise")
    rho: Budget | None = Field(default=None, description="ρ of zCDP with Gaussian noise, instead of epsilon")

    @model_validator(mode="before")
    @classmethod
    def _epsilon_of_rho(cls, value: Any) -> Any:
        if keys_of(value).get("rho") is None:
            return value
        if value.get("delta") is None:
            raise ValueError("rho needs a delta, at which epsilon is stated: add a delta below 1/n")
        amounts = {
            name: adapter_of(kind).validate_python(value[name]) for name, kind in (("rho", Budget), ("delta", Delta))
        }
        epsilon = epsilon_of(amounts["rho"], amounts["delta"])
        if value.get("epsilon") not in (None, epsilon, budget_text(epsilon)):
            raise ValueError("epsilon follows from rho and delta: leave it out, or state epsilon and delta alone")
        return value | {"epsilon": epsilon}

    @property
    def concentrated(self) -> Fraction:
        """ρ of a budget with a δ: as stated, or the largest ρ for which ε holds at δ."""
        if self.delta is None:
            raise ValueError("a budget without delta has no rho")
        return self.rho if self.rho is not None else rho_of(self.epsilon, self.delta)


@dataclass(frozen=True)
class Split:
    """A release's ε or ρ in exact parts, which add up to the total."""

    total: Fraction
    gates: Fraction
    crosstab: Fraction
    """Of noisy sample counts."""
    histograms: Fraction
    """Of the current file, in place of a reference."""

    @property
    def release(self) -> Fraction:
        """Of everything that follows the gates and the noisy sample counts."""
        return self.total - self.gates - self.crosstab

    @property
    def tables(self) -> Fraction:
        """The rest."""
        return self.release - self.histograms


class PrivacyUnit(Frozen):
    """All records with the same value of a column are one unit, whose loss the budget bounds."""

    column: ColumnName = Field(description="column that identifies the unit of a record, such as a household")
    most: Annotated[int, at_most(10_000, "noise grows with it")] = Field(
        ge=1, description="largest number of records that a unit can have, from a public source"
    )
    beyond: Literal["refuse", "truncate"] = Field(
        default="refuse", description="if a unit has more records: refuse the file, or use the first `most` of them"
    )


class Protect(Frozen):
    """Columns whose sample counts are published under noise, and used for the whole release.

    Without an ε no counts are measured, because the mechanism's own sums show numbers of records.
    """

    columns: tuple[ColumnName, ...] | None = Field(
        default=None,
        min_length=1,
        description="protected columns; unset: all of them. Counts by the other columns stay public and exact",
    )
    epsilon: Budget | None = Field(
        default=None,
        exclude_if=lambda epsilon: epsilon is None,
        description="the part of budget.epsilon that is spent on noisy counts; not with the mechanism tables, whose own "
        "sums measure them",
    )


class Predictors(Frozen):
    """How the sample counts of the predictors, the public columns, are protected."""

    protect: Protect = Field(description="noise on the counts of combinations of public columns")


FRAME_MINIMUM = 3
"""Smallest sample count that may be published without consent; smaller counts single out one or two people."""


def _reason(text: str) -> str:
    if not any(map(str.isalnum, text)):
        raise ValueError("state in words why such small sample counts may be published; the statement prints this reason")
    return text


class PublicFrame(Frozen):
    """Accepts published small sample counts, although they single people out."""

    accepted: Annotated[Sentence, AfterValidator(_reason)] = Field(
        description="reason for publishing sample counts below frame_minimum, for the statement"
    )


BudgetClass = Literal["strict", "zCDP", "asymptotic"]
"""Classes of cost, never added to each other: ε of strict releases, ε of asymptotic ones, ρ of those under zCDP."""


class Window(Frozen):
    """A limit on the cost of any run of consecutive periods: for panels, whose members stay for some periods."""

    periods: int = Field(ge=1, le=10_000, description="consecutive periods")
    budget: Annotated[Budget, Field(description="their total budget")]


class Limits(Frozen):
    """Limits on what a dataset's releases cost together: ε of strict or of asymptotic ones, or ρ of those under zCDP."""

    total: Budget | None = Field(default=None, description="over all periods")
    per_period: Budget | None = Field(default=None, description="limit in one period, including corrections")
    window: Window | None = Field(default=None, description="limits over a number of consecutive periods")
    delta: Delta | None = Field(
        default=None,
        description="δ of all strict releases together; under zCDP, the δ at which a release states its ε. An unknown δ "
        "is always refused",
    )

    def of(self, cls: BudgetClass) -> tuple[Limits, ...] | None:
        """Limits for releases of a class; None if limits exist for other classes only."""
        return (self,)

    @property
    def has_limits(self) -> bool:
        """True if any limit is stated."""
        return any(limit is not None for limit in (self.total, self.per_period, self.window, self.delta))


class LedgerSettings(Limits):
    """The ledger that charges a run, and limits that the job states. The ledger itself may also have limits."""

    url: Sentence | None = Field(
        default=None,
        min_length=1,
        description="FILE, sqlite:///FILE or postgresql://…; unset: DPDIST_LEDGER, or ledger.sqlite beside the workspace",
    )
    limits: Mapping[BudgetClass, Limits] = Field(
        default={},
        description=(
            "limits by class of guarantee, as in {strict: {total: …}, zCDP: {total: …, delta: …}}; other classes are "
            "then refused"
        ),
    )

    def of(self, cls: BudgetClass) -> tuple[Limits, ...] | None:
        if self.limits and cls not in self.limits:
            return None
        return (self, *(limits for name, limits in self.limits.items() if name == cls))
