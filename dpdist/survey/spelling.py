"""For `survey.checks` and `schema`: shows why a text is not the declared one that it resembles."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple
from unicodedata import category, combining, normalize

from dpdist.survey.typed_file import ELSEWHERE_NULLS

SPACES = re.compile("[\\s\u00a0\u2000-\u200b\u202f]+")
NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)", re.ASCII)
QUOTES = "'\"`\u00b4\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"
MARKS = str.maketrans(
    dict.fromkeys("\u2018\u2019\u00b4`", "'") | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
)
ENCODINGS = ("utf-8", "cp1252", "mac-roman", "cp850", "iso-8859-15", "latin-1")
"""Encodings that are taken for one another, the most probable first."""
IN_LEVELS = "write the levels in columns.{name}.levels as the file has them, or correct the file"


class Cause(NamedTuple):
    """A kind of difference between texts: `fold` gives texts that differ in it alone one form."""

    fault: str
    remedy: str
    fold: Callable[[str], str]


def _visible(text: str) -> str:
    return "".join(character for character in text if category(character) not in ("Cc", "Cf"))


def _number(text: str) -> str:
    return str(Fraction(text.replace(",", "."))) if NUMBER.fullmatch(text) else text


def _without_accents(text: str) -> str:
    return "".join(character for character in normalize("NFD", text) if not combining(character))


def _in_any_spelling(text: str) -> str:
    text = _without_accents(_visible(normalize("NFKC", text)).casefold().translate(MARKS)).strip(QUOTES)
    return _number(SPACES.sub(" ", text).strip())


AS_NUMBERS = Cause(
    "leading zeros, a plus sign or decimal places",
    "write the levels in columns.{name}.levels in quotes, as the file has them, or correct the file",
    _number,
)
CAUSES = (
    Cause(
        "spaces before or after them",
        "delete the spaces in the file, or write them in columns.{name}.levels, the level in quotes",
        str.strip,
    ),
    Cause(
        "no-break spaces, or for several spaces in a row",
        "delete the spaces in the file, or write them in columns.{name}.levels, the level in quotes",
        lambda text: SPACES.sub(" ", text).strip(),
    ),
    Cause("capital letters", IN_LEVELS, str.lower),
    Cause(
        "the Unicode form of accents",
        "store the file's texts in Unicode form NFC (letters with accents as single characters), as the job has them",
        lambda text: normalize("NFC", text),
    ),
    AS_NUMBERS,
    Cause("invisible characters, as NUL or zero-width spaces", "delete them in the file", _visible),
    Cause("quotation marks around them", 'delete them in the file, or quote fields by "', lambda text: text.strip(QUOTES)),
    Cause("other dashes or apostrophes", IN_LEVELS, lambda text: text.translate(MARKS)),
    Cause("full-width or other compatible characters", IN_LEVELS, lambda text: normalize("NFKC", text)),
    Cause("accents", IN_LEVELS, _without_accents),
    Cause("several differences in spelling", IN_LEVELS, _in_any_spelling),
)
"""In the order in which they are tried."""


def causes(texts: Sequence[str], declared: Sequence[str]) -> dict[Cause, list[str]]:
    """The texts that would be declared ones but for a single kind of difference, by the first such kind."""
    by_cause, rest = dict[Cause, list[str]](), list(texts)
    for cause, forms in zip(CAUSES, _forms(tuple(declared)), strict=True):
        if alike := [text for text in rest if cause.fold(text) in forms]:
            by_cause[cause] = alike
            rest = [text for text in rest if text not in {*alike}]
    return by_cause


@lru_cache(maxsize=8)
def _forms(declared: tuple[str, ...]) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(map(cause.fold, declared)) for cause in CAUSES)


@lru_cache(maxsize=8)
def garbled(declared: tuple[str, ...]) -> dict[str, str]:
    """What declared texts become if another encoding than theirs is taken for it, each with theirs."""
    spellings = dict[str, str]()
    for theirs in ENCODINGS:
        for text in (text for text in declared if not text.isascii()):
            for encoding in ENCODINGS:
                spelling = _taken_for(text, theirs, encoding)
                if spelling is not None and spelling not in declared:
                    spellings.setdefault(spelling, theirs)
    return spellings


def _taken_for(text: str, theirs: str, encoding: str) -> str | None:
    try:
        stored = text.encode(theirs)
    except UnicodeError:
        return None
    try:
        return stored.decode(encoding)
    except UnicodeError:  # a text of UTF-8 with bytes that the other encoding lacks
        return stored.decode(encoding, errors="ignore") if theirs == "utf-8" else None


def is_missing_elsewhere(text: str) -> bool:
    """True for a mark of a missing value that other programs write, as `.` or `N/A`."""
    return text.strip().lower() in ELSEWHERE_NULLS


PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
NO_NUMBERS = (
    (r"[+-]?\d{1,3},\d{3}", "delete the comma if it separates thousands; if it is a decimal comma, write a decimal point"),
    (
        r"[+-]?\d{1,3}([ ,._'\u2019\u00a0\u202f]\d{3})+([.,]\d+)?|[+-]?\d+(_\d+)+(\.\d+)?",
        "delete the separators of thousands",
    ),
    (r"[+-]?\d*,\d+", "write a decimal point in place of the decimal comma"),
    (r"[+-]?(\d+\.?\d*|\.\d+)[dD][+-]?\d+", "write exponents with e in place of d: Fortran wrote them so"),
    (
        r"(?i)true|false|t|f|yes|no|y|n",
        "or state numbers that these texts stand for: columns.{name}.codes: {{'No': 0, 'Yes': 1}}",
    ),
    (r"(?i)[+-]?(inf|infinity)", "write a finite number"),
    (r"[<>\u2264\u2265=~]+\s*[\d.,]+|[\d.,]+\s*(-|\u2013|to)\s*[\d.,]+", "write one number in place of a range or a limit"),
    (r"[^\w\s.+-]{1,3}\s*[\d.,]+|[\d.,]+\s*[^\d\s]{1,4}", "delete signs of currencies, percent signs and units"),
    (r"\([\d.,]+\)|[\d.,]+-", "write negative numbers with a minus before them"),
)
"""Forms of numbers that are not read, each with the remedy."""


def number_remedy(name: str, text: str) -> str:
    """What to do about a text of a column that should be a number, by its form."""
    text = text.strip()
    if is_missing_elsewhere(text):
        marks = "these texts mark missing values elsewhere, and an empty field does here"
        return f"correct the file: {marks}; see columns.{name}.missing"
    for form, remedy in NO_NUMBERS:
        if re.fullmatch(form, text):
            return f"correct the file: {remedy.format(name=name)}"
    compatible = normalize("NFKC", _visible(text).strip(QUOTES)).translate(MARKS).strip()
    if PLAIN_NUMBER.fullmatch(compatible):
        return "correct the file: write numbers in ASCII digits, without quotation marks or invisible characters"
    return "correct the file"
