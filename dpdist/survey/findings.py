"""For `survey.checks` and `census`: reads a batch's values by the job, counts problems by kind, explains spellings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple
from unicodedata import category, combining, normalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.core.errors import Problem
from dpdist.core.records import Codes, Floats, Ints, Level
from dpdist.job.data import Recode, level_text
from dpdist.survey.typed_file import ELSEWHERE_NULLS, decoded, plain_values

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


SHOWN = 3
Mask = NDArray[np.bool_]


@dataclass
class Findings:
    """Problems of a file by (column, what is wrong), and confidential counts of records that rules dropped or clipped."""

    problems: dict[tuple[str, str], Problem] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    seen: int = 0
    rows: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    """The first rows (from 0) that have each problem."""
    left_out: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Numbers of drawn records that the universe or a rule leaves out, by codes of design strata."""
    units: Counter[tuple[int | str, ...]] = field(default_factory=Counter)
    """Numbers of drawn records of each PSU, by codes of design strata and name, also of records that are left out."""

    def add(self, where: str, fault: str, allowed: str, remedy: str, rows: Ints, values: list[str]) -> None:
        old = self.problems.get((where, fault))
        first = (*self.rows.get((where, fault), ()), *rows[:SHOWN].tolist())[:SHOWN]
        values = [*(old.values if old else ()), *values]
        count = len(rows) + (old.count if old else 0)
        self.rows[where, fault] = first
        places = tuple(f"row {row + 1}" for row in first)
        remedy = old.remedy if old else remedy
        self.problems[where, fault] = Problem(where, fault, allowed, remedy, count, places, tuple(values[:SHOWN]))

    def placed(self, lines: Callable[[set[int]], Mapping[int, int]]) -> list[Problem]:
        """Every problem, with lines of the file as its places.

        If `lines` has no line for a row, the row's number is named.
        """
        line_of_row = lines({row for rows in self.rows.values() for row in rows})
        return [
            replace(
                problem,
                places=tuple(
                    f"line {line_of_row[row]}" if row in line_of_row else f"row {row + 1}" for row in self.rows[key]
                ),
            )
            for key, problem in self.problems.items()
        ]

    def rule(self, what: str, count: int) -> None:
        if count:
            self.removed[what] = self.removed.get(what, 0) + count


class Batch:
    """One raw batch during its check. `keep` is false for records that rules dropped; their problems are not counted."""

    def __init__(self, batch: pa.RecordBatch, first_row: int, findings: Findings, text_only: bool):
        self.batch, self.findings, self.text_only = batch, findings, text_only
        self.row = np.arange(first_row, first_row + batch.num_rows, dtype=np.int64)
        self.keep: Mask = np.ones(batch.num_rows, dtype=bool)
        self._plain = dict[str, pa.Array]()

    def drop(self, where: Mask, what: str) -> None:
        self.findings.rule(what, int((where & self.keep).sum()))
        self.keep &= ~where

    def wrong(
        self, where: Mask, column: str, fault: str, allowed: str, remedy: str, shown: Callable[[object], str] = str
    ) -> None:
        """Marks records that are refused; `shown` formats their values for a custodian who requests them."""
        bad = np.flatnonzero(where & self.keep)
        if len(bad):
            values = [shown(self.batch.column(column)[int(i)].as_py()) for i in bad[:SHOWN]]
            self.findings.add(column, fault, allowed, remedy, self.row[bad], values)
            self.keep &= ~where

    def plain(self, column: str) -> pa.Array:
        """A column's plain values; a dictionary stays one."""
        if column not in self._plain:
            self._plain[column] = plain_values(self.batch.column(column))
        return self._plain[column]

    def text(self, column: str) -> pa.Array:
        """A column's plain values; values of a dictionary column are decoded."""
        values = self.plain(column)
        return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values

    def missing(self, column: str) -> Mask:
        """Marks missing values, (record,)."""
        return np.asarray(pc.is_null(self.plain(column)))

    def of_plain_values(self, column: str, of: Callable[[pa.Array], NDArray[Any]]) -> NDArray[Any]:
        """The function `of` applied to a column's plain values, (record,).
        `of` looks at single values, so a dictionary's entries are converted once.
        """
        values = self.plain(column)
        if not pa.types.is_dictionary(values.type) or len(values.dictionary) >= len(values):
            return of(self.text(column))
        entries, place = pa.concat_arrays([values.dictionary, pa.nulls(1, values.dictionary.type)]), values.indices
        if place.null_count:
            place = pc.cast(place, pa.int64()).fill_null(len(values.dictionary))
        return np.asarray(of(entries)[place.to_numpy()])

    def numbers(self, column: str) -> tuple[Floats, Mask]:
        """A column's values as float64, true as 1 and false as 0, and a mask of missing values."""
        values = self.text(column)
        if self.text_only:
            values = pc.utf8_trim_whitespace(values)
            parsed = pc.if_else(pc.match_substring_regex(values, _NUMBER), values, None)
            bad = np.asarray(pc.is_null(parsed)) & ~self.missing(column) & self.keep
            if bad.any():
                allowed = "numbers with a decimal point, without separators of thousands"
                remedy = number_remedy(column, values[int(np.argmax(bad))].as_py())
                self.wrong(bad, column, "values that are not numbers", allowed, remedy)
            values = parsed
        numbers = np.asarray(pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
        return numbers, np.isnan(numbers)

    def coded(self, column: str, codes: Mapping[str, float]) -> tuple[Floats, Mask]:
        missing = self.missing(column)
        position = positions(self.text(column), list(codes), exact=False)
        bad = (position < 0) & ~missing & self.keep
        if bad.any():
            remedy = f"add the text to columns.{column}.codes, or correct the file"
            text = str(self.text(column)[int(np.argmax(bad))].as_py())
            if cause := next(iter(causes([text], list(codes))), None):
                remedy = f"they are its texts but for {cause.fault}: {remedy}"
            self.wrong(bad, column, "texts without a code", ", ".join(codes), remedy)
        return np.where(position < 0, np.nan, np.array(list(codes.values()))[position]), missing


WHOLE_TEXT = r"^-?[0-9]+$"
DECIMAL_TEXT = r"^(-?[0-9]+)\.0+$"
"""A whole number with a decimal point, as in 2.0."""
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def positions(values: pa.Array, levels: Sequence[Level], exact: bool) -> Codes:
    """Position of each value in `levels`; −1 if it is not a level. Values are compared as texts, unless `exact`."""
    try:
        level_values = pa.array(levels).cast(values.type) if exact else None
    except (pa.ArrowException, OverflowError):
        level_values = None
    if level_values is None:
        values, texts = pc.cast(values, pa.string()), [str(level) for level in levels]
        if all(isinstance(level, bool) for level in levels):
            values, texts = pc.utf8_lower(values), [text.lower() for text in texts]
        level_values = pa.array(texts)
    places = pc.fill_null(pc.index_in(values, value_set=level_values), -1)
    return np.asarray(places.to_numpy(zero_copy_only=False), dtype=np.int32)


def whole_as_levels(values: pa.Array, levels: Sequence[Level]) -> pa.Array:
    """Texts of a CSV file, where 2.0 reads 2 unless 2.0 is a level. Many programs write whole numbers so beside gaps."""
    if not pc.any(pc.match_substring(values, ".0")).as_py():  # a fraction of the time of the pattern
        return values
    decimal = pc.match_substring_regex(values, DECIMAL_TEXT)
    another = pc.and_(decimal, pc.invert(pc.is_in(values, pa.array(list(map(str, levels))))))
    return pc.if_else(another, pc.replace_substring_regex(values, DECIMAL_TEXT, r"\1"), values)


def recoded(batch: pa.RecordBatch, recode: Recode, text_only: bool) -> pa.RecordBatch:
    """A file's batch with its levels merged as the job says."""
    for place, name in enumerate(batch.schema.names):
        if not (merges := recode.get(name)):
            continue
        values, sources = decoded(batch.column(place)), list(merges)
        plain = whole_as_levels(values, sources) if text_only else values
        position = positions(plain, sources, exact=not text_only)
        targets = pa.array([None if target is None else level_text(target) for target in merges.values()], pa.string())
        try:
            after = pc.cast(targets, values.type).take(pa.array(np.maximum(position, 0)))
        except (pa.ArrowException, OverflowError):  # a type that the schema's check refuses
            continue
        batch = batch.set_column(place, name, pc.if_else(pa.array(position >= 0), after, values))
    return batch


def nearest_positions(values: pa.Array, level_positions: Mapping[int, int]) -> Codes:
    """Position of the level nearest to each value, (value,); −1 if a value is no whole number.

    `level_positions` has the position of every level. Of two levels that are as near, the smaller one is taken.
    """
    if pa.types.is_boolean(values.type):
        return np.full(len(values), -1, dtype=np.int32)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = pc.if_else(pc.match_substring_regex(values, WHOLE_TEXT), values, None)
    numbers = np.asarray(pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    integers = np.isfinite(numbers) & (numbers == np.floor(numbers))
    levels = np.array(sorted(level_positions), dtype=np.float64)
    between = (levels[:-1] + levels[1:]) / 2.0
    nearest = np.searchsorted(between, np.where(integers, numbers, 0.0), side="left")
    position = np.array([level_positions[level] for level in sorted(level_positions)], dtype=np.int32)
    return np.where(integers, position[nearest], -1).astype(np.int32)
