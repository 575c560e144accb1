"""A batch of raw records during its check: typed values of columns, dropped records, and noted problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.core.errors import Problem
from dpdist.core.records import Codes, Floats, Ints, Level
from dpdist.survey.schema import causes, number_remedy
from dpdist.survey.typed_file import plain_values

SHOWN = 3
Mask = NDArray[np.bool_]


@dataclass
class Findings:
    """Problems of a file by (column, what is wrong), and confidential counts of records that rules dropped or clipped."""

    problems: dict[tuple[str, str], Problem] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    records: int = 0
    rows: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    """The first rows (from 0) that have each problem."""
    left_out: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Numbers of drawn records that the universe or a rule leaves out, by codes of design strata."""
    units: Counter[tuple[int | str, ...]] = field(default_factory=Counter)
    """Numbers of drawn records of each PSU, by codes of design strata and name, also of records that are left out."""
    weight_sums: Floats | float = 0.0
    """Sums of the weight and of every replicate weight, (1 + replicate,)."""

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

    def of_file(self, problem: Problem) -> None:
        """Adds a problem of no single record."""
        self.problems[problem.where, problem.fault] = problem
        self.rows[problem.where, problem.fault] = ()

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
        self, where: Mask, column: str, fault: str, allowed: str, remedy: str, as_text: Callable[[object], str] = str
    ) -> None:
        """Marks records that are refused; `as_text` formats their values for a custodian who requests them."""
        bad = np.flatnonzero(where & self.keep)
        if len(bad):
            values = [as_text(self.batch.column(column)[int(i)].as_py()) for i in bad[:SHOWN]]
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
                allowed = "numbers with a decimal point, without thousands separators"
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
                remedy = f"they differ from texts with a code only by {cause.fault}: {remedy}"
            self.wrong(bad, column, "texts without a code", ", ".join(codes), remedy)
        return np.where(position < 0, np.nan, np.array(list(codes.values()))[position]), missing


WHOLE_TEXT = r"^-?[0-9]+$"
DECIMAL_TEXT = r"^(-?[0-9]+)\.0+$"
"""A whole number with a decimal point, as in 2.0."""
LARGEST_WHOLE = 2.0**53
"""Largest whole number that float64 tells from its neighbours."""
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def texts_of(values: pa.Array) -> pa.Array:
    """Values as texts, whole numbers without an exponent, which Arrow writes from 10^10 on."""
    texts = pc.cast(values, pa.string())
    if not pa.types.is_floating(values.type):
        return texts
    numbers = np.asarray(pc.cast(values, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    integral = (np.abs(numbers) <= LARGEST_WHOLE) & (numbers == np.floor(numbers))
    integers = pa.array(np.where(integral, numbers, 0.0).astype(np.int64))
    return pc.if_else(pa.array(integral), pc.cast(integers, pa.string()), texts)


def positions(values: pa.Array, levels: Sequence[Level], exact: bool) -> Codes:
    """Position of each value in `levels`; −1 if it is not a level. Values are compared as texts, unless `exact`."""
    try:
        level_values = pa.array(levels).cast(values.type) if exact else None
    except (pa.ArrowException, OverflowError):
        level_values = None
    if level_values is None:
        values, texts = texts_of(values), [str(level) for level in levels]
        if all(isinstance(level, bool) for level in levels):
            values, texts = pc.utf8_lower(values), [text.lower() for text in texts]
        level_values = pa.array(texts)
    places = pc.fill_null(pc.index_in(values, value_set=level_values), -1)
    return np.asarray(places.to_numpy(zero_copy_only=False), dtype=np.int32)
