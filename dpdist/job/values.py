"""Kinds of values in a job: exact budgets, names, levels; every section is frozen and refuses what it does not know."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from dpdist.records import Level

Period = Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, int) else v)]
Sentence = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=400)]
"""Text that is printed as it stands: one line, no control characters."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]


LEAST_BUDGET = Fraction(1, 10**6)
TOO_LITTLE = "below that noise passes 2^53, where float64 rounds whole numbers, and the rounding would tell of the sums"


def _exact(value: Any) -> Any:
    """Exact fraction from a decimal text, a ratio or a number as written."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Fraction):
        raise ValueError('a number in quotes is expected, for example "10.8" or "1/3"')
    try:
        fraction = Fraction(str(value).strip())
    except (ValueError, ZeroDivisionError):
        raise ValueError('a number in quotes is expected, for example "10.8" or "1/3"') from None
    if fraction <= 0:
        raise ValueError("a budget must be greater than 0")
    if not LEAST_BUDGET <= fraction <= 10**9:
        raise ValueError(f"a budget must be between 1e-6 and 1e9: {TOO_LITTLE}")
    return fraction


def budget_text(value: Fraction) -> str:
    """Exact text: a decimal where it terminates, else a ratio."""
    try:
        decimal = Decimal(value.numerator) / Decimal(value.denominator)
    except InvalidOperation:  # pragma: no cover - absurdly long fractions only
        return str(value)
    return str(decimal) if Fraction(decimal) == value else str(value)


Budget = Annotated[
    Fraction,
    BeforeValidator(_exact),
    PlainSerializer(budget_text),
    WithJsonSchema({"type": ["string", "number"], "description": "exact, greater than 0; write it in quotes"}),
]


def _delta(value: Any) -> Any:
    try:
        fraction = Fraction(str(value).strip())
    except (ValueError, ZeroDivisionError):
        raise ValueError('a number in quotes is expected, for example "1e-6"') from None
    if not Fraction(1, 10**30) <= fraction < 1:
        raise ValueError("delta must be below 1 and at least 1e-30")
    return fraction


Delta = Annotated[
    Fraction,
    BeforeValidator(_delta),
    PlainSerializer(budget_text),
    WithJsonSchema({"type": ["string", "number"], "description": "exact, above 0 and below 1; write it in quotes"}),
]


def _level(value: Any) -> Any:
    if not isinstance(value, str | int | bool):
        raise ValueError("a level is text, a whole number or a truth value: quote it")
    return value


PublicLevel = Annotated[Level, BeforeValidator(_level)]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
