"""Proposed levels, bounds and types of columns for a new job, from a public file or a codebook."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.errors import DataError, Problem, suggestion
from dpdist.core.records import Level
from dpdist.job.values import NUMBER
from dpdist.survey.batch import DECIMAL_TEXT
from dpdist.survey.csv_file import guess_format
from dpdist.survey.source import Source
from dpdist.survey.typed_file import (
    STATISTICAL,
    OneFile,
    StatisticalSource,
    decode,
    is_number,
    is_text,
    plain_type,
    plain_values,
)

MOST_LEVELS = 200
MOST_CODES = 10_000
"""Largest number of whole numbers from the least to the largest that are proposed as levels of a design stratum."""
FEW_NUMBERS = 12
"""Largest number of distinct whole numbers that are treated as codes of a category, and of texts that may get numbers."""
FEWEST_OF_A_NUMBER = 6
"""Smallest number of levels that are treated as those of a number, whose values may lie beyond what was seen."""
DENSE = 0.5
"""Smallest share of the whole numbers from the least to the largest that are levels of such a number. Of a dozen or fewer
levels all must be where the last has the digits 7 to 9 alone: after a gap it is a sign of codes, such as 9 for *not known*.
"""
SPECIAL = frozenset("789")
"""Digits of codes that stand after a gap for no answer: 9, 88, 97."""
"""A whole number as it prints: 01 is a text."""
FEW_RECORDS = 5
"""Smallest number of public records of a level that is not proposed to be merged."""
CODEBOOK = "lines with a column, then a level (and its label), or low and high"


@dataclass(frozen=True)
class ColumnDomain:
    """Levels of a category or bounds of a number, with their source; `holes` is true if values are missing.

    A number with one value has neither, because that shows no bounds.
    `codes` are the whole numbers of a column with bounds, if there are few enough to be levels. `texts` are the answers of
    an outcome that need numbers.
    """

    origin: str
    levels: tuple[Level, ...] | None = None
    bounds: tuple[float, float] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    holes: bool = False
    codes: tuple[int, ...] = ()
    span: tuple[int, int] | None = None
    """The least and the largest value of a column of whole numbers."""
    texts: tuple[str, ...] = ()
    rare: tuple[str, ...] = ()
    """Levels that fewer than `FEW_RECORDS` records of the public file have."""
    missing: tuple[Level, ...] = ()
    """Codes that a codebook declares to stand for missing values. A file without such declarations has them as values."""

    def of_category(self) -> ColumnDomain:
        """The domain for a category: whole numbers become levels."""
        return replace(self, levels=self.codes, bounds=None) if self.levels is None and self.codes else self

    @property
    def of_a_number(self) -> bool:
        """True if the levels count something: several whole numbers without labels, and few gaps."""
        integers = [level for level in self.levels or () if isinstance(level, int) and not isinstance(level, bool)]
        if self.labels or not len(integers) == len(self.levels or ()) >= FEWEST_OF_A_NUMBER:
            return False
        dense = 1.0 if len(integers) <= FEW_NUMBERS and SPECIAL.issuperset(str(max(integers))) else DENSE
        return len(integers) >= dense * (max(integers) - min(integers) + 1)

    def of_design(self) -> ColumnDomain:
        """The domain for a design stratum; many whole numbers become the range from the least to the largest."""
        if self.levels is not None or self.span is None or self.span[1] - self.span[0] >= MOST_CODES:
            return self.of_category()
        return replace(self, levels=tuple(range(self.span[0], self.span[1] + 1)), bounds=None)

    def of_number(self) -> ColumnDomain:
        """The same domain for an outcome or a weight: whole-number levels become bounds, but one value gives none."""
        if self.levels is None or not all(str(level).lstrip("-").isdecimal() for level in self.levels):
            return self
        if len(self.levels) == 1:
            return replace(self, levels=None)
        return ColumnDomain(self.origin, bounds=outward(min(map(int, self.levels)), max(map(int, self.levels))))

    def of_outcome(self) -> ColumnDomain:
        """The domain for an outcome: as a number, or with the texts that need numbers. Two texts are 0 and 1."""
        number = self.of_number()
        texts = tuple(level for level in number.levels or () if isinstance(level, str))
        if not 2 <= len(texts) <= FEW_NUMBERS:
            return number
        return replace(number, levels=None, bounds=(0.0, 1.0) if len(texts) == 2 else None, texts=texts)


def kinds(source: Source) -> dict[str, str]:
    """Names and types (number, text or other) from a file's header alone; a CSV header gives only names.

    Raises `DataError` for a duplicate name, and for a CSV file whose first line is a record instead of a header.
    """
    if problems := list(_wrong_names(source)):
        raise DataError(source.name, problems)
    if not isinstance(source, OneFile):
        return dict.fromkeys(source.columns, "unknown")
    return {field.name: _kind(field.type) for field in source.schema}


def _wrong_names(source: Source) -> Iterator[Problem]:
    if len(set(source.columns)) < len(source.columns):
        yield Problem("header", "a column's name appears twice", "each name once", "rename or delete one column")
    if source.text_only and any(NUMBER.fullmatch(name.strip()) for name in source.columns):
        fault, remedy = "the first line has numbers: it is a record", "write the columns' names into the first line"
        yield Problem("header", fault, "names of columns", remedy, 1, ("line 1",))


def _kind(kind: pa.DataType) -> str:
    kind = plain_type(kind)
    return "number" if is_number(kind) else "text" if is_text(kind) else "other"


def nested(source: Source, first: str, names: Iterable[str]) -> set[str]:
    """Columns that are a finer or coarser form of column `first`, so that crossing adds no cells."""
    pairs: dict[str, set[tuple[Level, Level]]] = {other: set() for other in names}
    for batch in source.batches([first, *pairs]) if pairs else ():
        columns = {name: decode(batch.column(batch.schema.get_field_index(name))) for name in (first, *pairs)}
        for other, both in pairs.items():
            distinct = pa.table({"a": columns[first], "b": columns[other]}).group_by(["a", "b"]).aggregate([])
            both |= set(zip(*distinct.to_pydict().values(), strict=True))
    return {
        other for other, both in pairs.items() if len(both) == max(len({a for a, _ in both}), len({b for _, b in both}))
    }


def domains_by_value(source: Source, names: Iterable[str], origin: str, in_order: bool = True) -> dict[str, ColumnDomain]:
    """Domains of the named columns, from a file's values; a column of texts with too many levels has none.

    Texts are in the order of the file's own list of categories, if it has one. Others are in alphabetical order;
    numbers are in order of size. Every value is read. Callers read a confidential file only with the custodian's
    permission.
    """
    kinds(source)
    collectors = {name: _ColumnValues(source.text_only, in_order) for name in names if name in source.columns}
    for batch in source.batches(list(collectors)) if collectors else ():
        for name, column in collectors.items():
            column.add(batch.column(batch.schema.get_field_index(name)))
    return {name: domain for name, column in collectors.items() if (domain := column.domain(origin)) is not None}


class _ColumnValues:
    """Collects a column's values: whether all are numbers, their range, and their levels if there are few."""

    def __init__(self, text_only: bool, in_order: bool) -> None:
        self.text_only, self.in_order, self.levels, self.holes = text_only, in_order, dict[Level, int](), False
        self.listed = False
        self.number, self.integer, self.low, self.high = True, True, math.inf, -math.inf

    def add(self, values: pa.Array) -> None:
        values = plain_values(values)
        if pa.types.is_dictionary(values.type) and self.in_order:
            self.listed = True
            entries = values.dictionary.drop_null().to_pylist()[: MOST_LEVELS + 1]
            self.levels = dict.fromkeys(entries, 0) | self.levels
        values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        self.holes |= values.null_count > 0
        values = values.drop_null()
        if len(self.levels) <= MOST_LEVELS:
            for entry in pc.value_counts(values)[: MOST_LEVELS + 1].to_pylist():
                self.levels[entry["values"]] = self.levels.get(entry["values"], 0) + entry["counts"]
        if self.number and len(values):
            self._add_numbers(values)

    def _add_numbers(self, values: pa.Array) -> None:
        try:
            if pa.types.is_boolean(values.type):
                raise pa.ArrowInvalid
            if is_text(values.type) and not self.text_only:
                raise pa.ArrowInvalid  # where a file has types, texts of digits are texts
            numbers = pc.cast(values, pa.float64(), safe=not pa.types.is_integer(values.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self.number = False
            return
        low, high = (float(extreme.as_py()) for extreme in pc.min_max(numbers).values())
        self.low, self.high = min(self.low, low), max(self.high, high)
        texts = pc.cast(pc.cast(numbers, pa.int64(), safe=False), pa.string()) if self.text_only else None
        integers = pc.replace_substring_regex(values, DECIMAL_TEXT, r"\1") if self.text_only else values
        same = pc.equal(integers, texts) if texts is not None else pc.equal(pc.floor(numbers), numbers)
        self.integer &= bool(pc.all(same).as_py())

    def domain(self, origin: str) -> ColumnDomain | None:
        is_category = len(self.levels) <= MOST_LEVELS and bool(self.levels)
        few = [level for level, records in self.levels.items() if 0 < records < FEW_RECORDS] if origin else []
        rare = tuple(str(level).removesuffix(".0") for level in few)
        if self.number and math.isfinite(self.low) and math.isfinite(self.high):
            if self.low == self.high and not self.integer:
                return ColumnDomain(origin, holes=self.holes)
            if self.integer and len(self.levels) <= FEW_NUMBERS:
                return ColumnDomain(origin, levels=self._whole_levels, holes=self.holes, rare=rare)
            codes = self._whole_levels if self.integer and is_category else ()
            span = (int(self.low), int(self.high)) if self.integer else None
            return ColumnDomain(origin, bounds=outward(self.low, self.high), holes=self.holes, codes=codes, span=span)
        kind = {type(level) for level in self.levels}
        levels = tuple(self.levels if self.listed and kind == {str} else sorted(self.levels, key=_by_size))
        return (
            ColumnDomain(origin, levels=levels, holes=self.holes, rare=rare)
            if is_category and kind in ({str}, {bool})
            else None
        )

    @property
    def _whole_levels(self) -> tuple[int, ...]:
        texts = (level.partition(".")[0] if isinstance(level, str) else level for level in self.levels)
        return tuple(sorted(set(map(int, texts))))


def _by_size(level: Level) -> list[tuple[int, float, str]]:
    """The sort key of a text: alphabetical, but numbers in it are sorted by size, so that 5-9 comes before 10-14."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(level))
    return [(0, float(part), "") if part[:1].isdigit() else (1, 0.0, part.casefold()) for part in parts if part]


def outward(low: float, high: float) -> tuple[float, float]:
    """Bounds that contain both numbers, rounded outward to two significant digits, so that neither bound is a record's
    value.
    """
    bounds = _rounded(low, math.floor), _rounded(high, math.ceil)
    return bounds if bounds[0] < bounds[1] else (bounds[0], bounds[0] + 1.0)


def _rounded(value: float, way: Callable[[float], int]) -> float:
    if value == 0.0:
        return 0.0
    power = math.floor(math.log10(abs(value))) - 1
    scaled = value / 10.0**power if power >= 0 else value * 10.0**-power
    integer = way(scaled)
    return float(integer * 10**power) if power >= 0 else integer / 10**-power


def codebook(path: Path, kinds_of: Mapping[str, str]) -> dict[str, ColumnDomain]:
    """Domains from a CSV codebook with one line per level, or one with bounds; numeric columns have numeric levels.

    Raises `DataError`.
    """
    rows = _lines(path)
    names = dict.fromkeys(str(row["column"]) for row in rows)
    return {name: _stated(name, [row for row in rows if row["column"] == name], kinds_of, path.name) for name in names}


def column_labels(path: Path) -> dict[str, str]:
    """Labels of numeric columns from a CSV codebook: that of the line with a column's bounds. Raises `DataError`."""
    return {row["column"]: row["label"] for row in _lines(path) if row.get("low") and row.get("label")}


def _lines(path: Path) -> list[dict[str, str]]:
    """Raises `DataError`."""
    try:
        text_format = guess_format(path)
        with path.open(encoding=text_format.decoding, newline="") as file:
            reader = csv.DictReader(file, delimiter=text_format.separator)
            rows = [(reader.line_num, row) for row in reader]
            columns = list(reader.fieldnames or ())
    except (OSError, csv.Error, UnicodeError) as error:
        fault = f"cannot be read ({type(error).__name__})"
        raise DataError.of(str(path), "file", fault, "a CSV file", "check the path") from None
    if problems := [*_wrong_header(columns), *_wrong_rows(rows)] if columns else [*_wrong_header(columns)]:
        raise DataError(str(path), problems)
    return [row for _, row in rows]


def _stated(name: str, rows: list[dict[str, str]], kinds_of: Mapping[str, str], origin: str) -> ColumnDomain:
    if rows[0].get("low"):
        return ColumnDomain(origin, bounds=(float(rows[0]["low"]), float(rows[0]["high"])))
    texts = [row["level"] for row in rows]
    number = kinds_of.get(name) == "number" and all(text.lstrip("-").isdecimal() for text in texts)
    labels = {row["level"]: row["label"] for row in rows if row.get("label")}
    return ColumnDomain(origin, levels=tuple(int(text) if number else text for text in texts), labels=labels)


def _wrong_header(columns: list[str]) -> Iterator[Problem]:
    headings = ("column", "level", "low", "high", "label")
    if "column" not in columns or not ({"level"} & set(columns) or {"low", "high"} <= set(columns)):
        names = ", ".join(columns[:10]) or "nothing"
        first, unknown = "".join(columns[:1]), [name for name in headings if name not in columns]
        yield Problem(
            "header", f"it names {names}", CODEBOOK, suggestion(first, unknown, "name the columns so"), 1, ("line 1",)
        )


def _wrong_rows(rows: list[tuple[int, dict[str, str]]]) -> Iterator[Problem]:
    entries: dict[str, set[str]] = {}
    for line, row in rows:
        name, level, low, high = (row.get(key) or "" for key in ("column", "level", "low", "high"))
        before = entries.setdefault(name, set())
        if None in row or not name or bool(level) == bool(low or high):
            fault, remedy = "neither a level nor low and high of a column, or both", "write one of them"
        elif (low or high) and not _ordered(low, high):
            fault, remedy = (
                f"low '{low:.20}' and high '{high:.20}' are not bounds",
                "write two numbers, the smaller one first",
            )
        elif level in before or (before and ("" in before or not level)):
            fault, remedy = f"'{name:.80}' has this level twice, or bounds beside another line", "delete one"
        else:
            before.add(level)
            continue
        yield Problem("codebook", fault, CODEBOOK, remedy, 1, (f"line {line}",))


def _ordered(low: str, high: str) -> bool:
    try:
        return -math.inf < float(low) < float(high) < math.inf
    except ValueError:
        return False


def labelled(
    path: Path, kinds_of: Mapping[str, str], in_public_file: Mapping[str, ColumnDomain]
) -> dict[str, ColumnDomain]:
    """Domains of columns from a file's value labels. Raises `DataError`.

    Levels in the public file (`in_public_file`) stay, and get labels. A column without levels there is left out, because
    its labels may only be of special codes, such as reasons for missing. Codes that the file declares to stand for missing
    values are no levels.
    """
    names, source = {}, StatisticalSource(path)
    for name, labels in source.labels.items():
        codes = {_code(value): str(label) for value, label in labels.items() if not source.means_missing(name, value)}
        if None in codes or not codes or (kinds_of and name not in kinds_of):
            continue
        absent = [code for value in labels if source.means_missing(name, value) and (code := _code(value)) is not None]
        missing = tuple(code for code in absent if type(code) is type(next(iter(codes))))
        levels = {level: label for level, label in codes.items() if level is not None}
        texts = {str(level): label for level, label in levels.items()}
        there = in_public_file.get(name)
        if there is None:
            names[name] = ColumnDomain(path.name, tuple(levels), labels=texts, holes=bool(absent), missing=missing)
        elif there.levels is not None:
            declared = tuple(level for level in there.levels if str(level) not in map(str, absent))
            level_labels = {text: label for text, label in texts.items() if text in map(str, declared)}
            holes = there.holes or len(declared) < len(there.levels)
            names[name] = replace(there, levels=declared, labels=level_labels, holes=holes, missing=missing)
    return names


def _code(value: object) -> Level | None:
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, str | int) else None


def domains_of(
    book: Path, kinds_of: Mapping[str, str], in_public_file: Mapping[str, ColumnDomain]
) -> dict[str, ColumnDomain]:
    """Levels or bounds of columns. Where the public file lacks values, they do, too. Raises `DataError`."""
    if _statistical(book):
        return labelled(book, kinds_of, in_public_file)
    listed = codebook(book, kinds_of)
    return {
        name: replace(domain, holes=name in in_public_file and in_public_file[name].holes)
        for name, domain in listed.items()
    }


def labels_of(book: Path) -> dict[str, str]:
    """Labels of columns: of those with bounds in a CSV file, of all in another file. Raises `DataError`."""
    return StatisticalSource(book).column_labels if _statistical(book) else column_labels(book)


def _statistical(book: Path) -> bool:
    return book.suffix.lower() in STATISTICAL
