"""Types of values and names for all sections of a job, such as exact budgets and adjacencies; the sections' base class."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
)

from dpdist.core.errors import control
from dpdist.core.plugins import MemberName
from dpdist.core.records import Level
from dpdist.job.statistics import KINDS


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """The validator of a type, built once: to build it takes longer than to validate a job's values."""
    return TypeAdapter(kind)


def _printable(text: str) -> str:
    if codes := control(text):
        raise ValueError(f"text without control characters, which drive a terminal; it has {codes}")
    return text


def at_most(limit: int, why: str) -> AfterValidator:
    """An upper limit for a number, with the reason that its message gives."""

    def check(value: int) -> int:
        if value > limit:
            raise ValueError(f"at most {limit:,}: {why}")
        return value

    return AfterValidator(check)


Period = Annotated[str, BeforeValidator(lambda v: str(v) if type(v) is int else v), AfterValidator(_printable)]
ColumnName = Annotated[str, AfterValidator(_printable)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
TABLE = r"^[^\x00-\x2f:-@\x5b-\x5e`\x7b-\xbf\u2000-\u206f\u3000][^\x00-\x2c/:-@\x5b-\x5e`\x7b-\xbf\u2000-\u206f\u3000]*$"
"""A name of files in which columns of any script have theirs; no marks but _, . and -, and no blanks."""
LANGUAGE = r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$"
ADDRESS = r"^https?://\S+$"
AGENCY = r"^[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z][A-Za-z0-9_-]*)*$"
VERSION = r"^\d+\.\d+(\.\d+)?$"
RELEASE = r"^[0-9a-f]{64}$"
MINISIGN = r"^RW[QRST][A-Za-z0-9+/]{53}$"
PATTERNS = {
    NAME: "letters, digits, _, . and -, the first a letter or a digit",
    TABLE: "letters of any script, digits, _, . and -, the first a letter, a digit or _",
    LANGUAGE: "a language tag, such as en or en-GB",
    ADDRESS: "an address that begins with http:// or https://, without blanks",
    AGENCY: "letters, digits, _ and -, beginning with a letter, such as ESTAT; parts are joined by a full stop",
    VERSION: "two or three numbers joined by full stops, such as 1.0",
    MINISIGN: "a public key: the second line of minisign's .pub file, 56 characters that begin with RW",
    RELEASE: "the 64 characters that the release's manifest has under `release`",
}
"""The patterns in words, for messages."""
Name = Annotated[str, Field(pattern=NAME, max_length=80)]
MOST_BYTES = 160
"""Largest length of a table's name in UTF-8: a file of 255 bytes has endings, and a temporary ending, too."""


def _file_name(text: str) -> str:
    if unicodedata.normalize("NFC", text) != text or unicodedata.combining(text[0]):
        raise ValueError("letters with their accents as one character each (Unicode form NFC), the first a letter")
    if hidden := [mark for mark in text if unicodedata.category(mark) in ("Cc", "Cf", "Cn", "Co", "Cs")]:
        raise ValueError(f"no invisible character: U+{ord(hidden[0]):04X}")
    if (size := len(text.encode())) > MOST_BYTES:
        raise ValueError(f"at most {MOST_BYTES} bytes in UTF-8; it has {size}")
    return text


TableName = Annotated[str, Field(pattern=TABLE, max_length=80), AfterValidator(_file_name)]
KeyText = Annotated[str, Field(pattern=MINISIGN)]
"""A public key as minisign writes it, in the second line of its file."""
Sentence = Annotated[str, Field(max_length=400), AfterValidator(_printable)]
"""Text that is printed as it is: one line without control characters."""

LEAST_BUDGET = Fraction(1, 10**6)
TOO_LITTLE = (
    "below 1e-6 the noise would exceed 2^53, where float64 rounds whole numbers, and the rounding would reveal something "
    "about the sums"
)
LONGEST = 2_000
"""Largest number of characters, and largest exponent of ten, of an exact number.

Without a limit, a short text such as 1e999999999 could fill the memory.
"""
NUMBER = re.compile(r"[+-]?(?:\d+/\d+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?(?P<exponent>\d{1,4}))?)", re.ASCII)
"""A decimal number, or a ratio of whole numbers. Python accepts more, such as underscores in an exponent."""


def _fraction(value: Any, example: str) -> Fraction:
    """Converts text to an exact fraction, after checking its length."""
    try:
        text = str(value).strip()
        form = NUMBER.fullmatch(text) if len(text) <= LONGEST else None
        if form is None or int(form["exponent"] or 0) > LONGEST:
            raise ValueError
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"a number in quotes is expected, for example {example}") from None


def _exact(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Fraction):
        raise ValueError('a number in quotes is expected, for example "10.8" or "1/3"')
    fraction = _fraction(value, '"10.8" or "1/3"')
    if fraction <= 0:
        raise ValueError("a budget must be greater than 0")
    if not LEAST_BUDGET <= fraction <= 10**9:
        raise ValueError(f"a budget must be between 1e-6 and 1e9: {TOO_LITTLE}")
    return fraction


def budget_text(value: Fraction) -> str:
    """An exact number as text: a decimal number if that is finite, else a ratio."""
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
    fraction = _fraction(value, '"1e-6"')
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
    return _printable(value) if isinstance(value, str) else value


PublicLevel = Annotated[Level, BeforeValidator(_level)]
MOST_LEVELS = 100_000
"""Largest number of levels in a range."""


def _ranges(value: Any) -> Any:
    listed = [value] if isinstance(value, dict) else value
    if not isinstance(listed, list | tuple):
        return value
    return tuple(level for item in listed for level in (_range(item) if isinstance(item, dict) else (item,)))


def _range(value: dict[Any, Any]) -> range:
    if "range" not in value and len(value) > 1:
        example = "numbers that its texts stand for are codes: {bounds: [0, 1], codes: {'No': 0, 'Yes': 1}}"
        raise ValueError(f"for a category, a list such as ['No', 'Yes']; for an outcome, {example}")
    ends: Any = value.get("range")
    integers = isinstance(ends, list | tuple) and len(ends) == 2 and all(type(end) is int for end in ends)
    if len(value) != 1 or not integers or not ends[0] <= ends[1] < ends[0] + MOST_LEVELS:
        raise ValueError(f"a range of at most {MOST_LEVELS:,} whole numbers, both ends included: {{range: [1, 255]}}")
    return range(ends[0], ends[1] + 1)


_RANGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "range": {
            "type": "array",
            "items": {"type": "integer"},
            "minItems": 2,
            "maxItems": 2,
            "description": "the first and the last of whole numbers that are levels",
        }
    },
    "required": ["range"],
    "additionalProperties": False,
}
_LEVEL_SCHEMAS: list[dict[str, Any]] = [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]
Levels = Annotated[
    tuple[PublicLevel, ...],
    BeforeValidator(_ranges),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"anyOf": [*_LEVEL_SCHEMAS, _RANGE_SCHEMA]}}, _RANGE_SCHEMA]}),
]


class Frozen(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", allow_inf_nan=False)


Synthesis = Literal["fbs", "fbp"]
Guarantee = Literal["strict", "asymptotic", "none"]
"""Whether a promise holds for every file, or for the file at hand, or nothing is promised."""
Fallback = Literal["refuse", "pool", "proper_prior"]
Adjacency = Literal["zero_out", "add_remove", "substitution"]
Exchange = Literal["same_x", "anywhere"]
Comparator = Literal["laplace", "laplace_composed", "laplace_consistent", "laplace_finest", "reference_only", "fbs", "fbp"]
SamplerName = Literal["auto", "exact", "grid", "stan"]
Toolchain = Literal["auto", "cmdstan", "embedded"]
ExecutorName = Literal["serial", "dask"]
Sensitivity = Literal["local", "public"]
NoiseName = Literal["laplace", "gaussian"]
Consistency = Literal["none", "least_squares"]
Measure = Literal["max_ecdf", "avg_ecdf", "mean", "median"]
Rule = Literal["error", "drop"]
MissingRule = Literal["error", "drop", "category"]
Lonely = Literal["error", "certainty", "average", "centred"]
ReplicateKind = Literal["brr", "fay", "jackknife", "bootstrap", "successive_difference"]

StatisticName = Annotated[str, MemberName("statistic", KINDS)]
"""The name of a statistic of dpdist, or of a plug-in."""

LARGEST_DRIFT = 0.66
"""Largest drift that `centred` may plan for, in standard deviations of a record: beyond it no κ serves (METHODS §4b)."""


def keys_as_text(value: Any) -> Any:
    """A mapping of a job file with its keys as text: YAML reads a level such as 1 or no as a number or a truth value."""
    return {str(key): entry for key, entry in value.items()} if isinstance(value, dict) else value
