"""The columns and types that a job needs of a file, before records; and why a text is not the declared one it resembles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple
from unicodedata import category, combining, normalize

import pyarrow as pa

from dpdist.core.errors import Problem, suggestion
from dpdist.job import Column, Job
from dpdist.job.rules import listed
from dpdist.job.yaml_lines import flow
from dpdist.survey.typed_file import CSV_NULLS, ELSEWHERE_NULLS, is_number, is_text, plain_type

SHOWN = 20
"""Largest number of a file's columns that a message lists."""
SHOWN_ALIKE = 3
"""Largest number of columns, and of places in them, that a problem of many columns names."""
MISSING = "missing column"
MISSING_VALUES = "missing values"
DIGITS = "0123456789"


def needed_columns(job: Job, names: Iterable[str] = ()) -> tuple[str, ...]:
    """The columns that a job needs; replicate weights as a file with the columns `names` spells them."""
    return tuple(dict.fromkeys([*_apart_from_replicates(job), *replicates(job, names)]))


def _apart_from_replicates(job: Job) -> list[str]:
    universe = [keep.column for keep in job.universe]
    unit = job.privacy_unit.column if job.privacy_unit is not None else None
    design = [name for name in (job.survey.weight, job.survey.psu, unit) if name]
    return [*universe, *job.categories, *job.outcomes, *design, *job.survey.fpc, *dropping_columns(job)]


def dropping_columns(job: Job) -> list[str]:
    """Declared columns without which a record is left out, beside outcomes and the weight."""
    by_name = {*job.outcomes, job.survey.weight}
    return [name for name, column in job.columns.items() if column.missing == "drop" and name not in by_name]


def replicates(job: Job, names: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of the columns of replicate weights, as a file with the columns `names` spells them."""
    weights = job.survey.replicate_weights
    return () if weights is None else weights.columns_in(names)


def combined(problems: Iterable[Problem], columns: Sequence[str]) -> list[Problem]:
    """The problems, of which those of `columns` that differ in column and places alone become one."""
    kinds = dict[Problem, list[Problem]]()
    for problem in problems:
        where, remedy = problem.where, problem.remedy
        if where in columns:
            where, remedy = "", remedy.replace(where, "")
        kind = replace(problem, where=where, remedy=remedy, count=0, places=(), values=())
        kinds.setdefault(kind, []).append(problem)
    return [_together(alike) for alike in kinds.values()]


def _together(alike: Sequence[Problem]) -> Problem:
    names, more = [problem.where for problem in alike], len(alike) - SHOWN_ALIKE
    where = ", ".join(names) if more <= 0 else f"{', '.join(names[:SHOWN_ALIKE])} and {more} more"
    places = tuple(place for problem in alike for place in problem.places)[:SHOWN_ALIKE]
    values = tuple(value for problem in alike for value in problem.values)[:SHOWN_ALIKE]
    return replace(alike[0], where=where, count=sum(problem.count for problem in alike), places=places, values=values)


def check_replicates(job: Job, names: Sequence[str]) -> list[Problem]:
    """Checks that the file has the number of replicate weights that the job states, and each of them once."""
    weights = job.survey.replicate_weights
    if weights is None:
        return []
    other_names = {*_apart_from_replicates(job), *job.columns}
    numbers = [
        number
        for name in names
        if (number := weights.number_of(name)) is not None and (weights.has(name) or name not in other_names)
    ]
    if sorted(numbers) == list(range(1, weights.number + 1)):
        return []
    what = f"{len(numbers)} columns {weights.prefix}<number>, not {weights.number} of them from {weights.prefix}1"
    allowed = f"{weights.columns[0]} to {weights.columns[-1]}, all of the file; the number may have leading zeros"
    remedy = "correct survey.replicate_weights.number or prefix: a variance from part of the replicates is wrong"
    stems = {name.rstrip(DIGITS) for name in names if name[-1:] in DIGITS} - {weights.prefix}
    alike = sorted(stem for stem in stems if stem.lower() == weights.prefix.lower())
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        what, remedy = f"several columns {weights.prefix}<number> with the number {twice[0]}", "rename or delete one"
    elif not numbers and alike:
        remedy = f"did you mean prefix: {alike[0]}? {remedy}"
    elif 0 in numbers:
        full = next(name for name in names if weights.number_of(name) == 0)
        remedy = f"if {full} is the full-sample weight, name it as survey.weight, or leave it out of the file; or {remedy}"
    return [Problem("survey.replicate_weights", what, allowed, remedy)]


def declared_missing(job: Job, schema: pa.Schema, means_missing: Callable[[str, Any], bool]) -> list[Problem]:
    """Problems of levels, and of values of the universe, that the file declares as missing."""
    values = {keep.column: keep.keep for keep in job.universe}
    values |= {name: job.columns[name].levels or () for name in job.categories if name in job.columns}
    problems = list[Problem]()
    for name, levels in values.items():
        of_text = is_text(plain_type(schema.field(name).type))
        codes = [(str(level), str(level) if of_text else _code(str(level))) for level in levels]
        if lost := [level for level, code in codes if code is not None and means_missing(name, code)]:
            fault, allowed = f"the file declares {', '.join(lost)} as missing", "values that are not missing"
            remedy = f"leave {'it' if len(lost) == 1 else 'them'} out, or take the declaration out of the file"
            problems.append(Problem(name, fault, allowed, remedy))
    return problems


def _code(text: str) -> float | None:
    """The number that a text writes; None if it writes none."""
    try:
        return float(text)
    except ValueError:
        return None


def check_schema(job: Job, schema: pa.Schema, text_only: bool) -> list[Problem]:
    """Problems of missing columns and of columns of a wrong type."""
    problems = list[Problem]()
    again = replicates(job, schema.names)
    for name in needed_columns(job, schema.names):
        if name not in schema.names:
            problems.append(missing_column(name, schema.names))
            continue
        kind = plain_type(schema.field(name).type)
        column = job.columns.get(name)
        numeric = name in (*job.outcomes, job.survey.weight, *job.survey.fpc, *again)
        lost = [str(level) for level in (column.levels or () if column else ()) if _is_lost(str(level), text_only)]
        if lost and not numeric:
            what = "in a CSV file" if lost[0].strip() else "in every file"
            remedy = "rename the level in the job and the file"
            remedy = f"give a Parquet file, or {remedy}" if lost[0].strip() else remedy
            fault = f"the level '{lost[0]}' reads as missing {what}"
            problems.append(Problem(name, fault, f"levels other than {', '.join(filter(None, CSV_NULLS))}", remedy))
        if not text_only:
            problems += _wrong_type(job, name, kind, numeric)
    return combined(problems, again)


def _is_lost(level: str, text_only: bool) -> bool:
    return not level.strip() or (text_only and level in CSV_NULLS)


def _wrong_type(job: Job, name: str, kind: pa.DataType, numeric: bool) -> list[Problem]:
    column, fault = job.columns.get(name), f"wrong type: {kind}"
    if column is not None and column.codes is not None:
        remedy = f"leave columns.{name}.codes out"
        return [] if is_text(kind) else [Problem(name, fault, "text, according to its codes", remedy)]
    if numeric:
        truth = name in job.outcomes and pa.types.is_boolean(kind)
        remedy = "store the column as integers or floats"
        if is_text(kind) and name in job.outcomes:
            remedy += f"; if its texts stand for numbers, state these numbers under columns.{name}.codes"
        return [] if is_number(kind) or truth else [Problem(name, fault, "numbers", remedy)]
    if column is not None and column.levels is not None:
        type_name = type(column.levels[0]).__name__
        allowed = f"values of the levels' type, {type_name}"
        return [] if _comparable(column, kind) else [Problem(name, fault, allowed, _other_levels(column, kind))]
    if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) or _is_bytes(kind):
        return [Problem(name, fault, "texts, numbers, dates, or true and false", "convert the column")]
    return []


def _other_levels(column: Column, kind: pa.DataType) -> str:
    """The remedy for levels of another type than the column's."""
    level = (column.levels or ("",))[0]
    if pa.types.is_boolean(kind):
        return "write the levels as true and false, without quotes, or change the column"
    if isinstance(level, bool):
        return "if levels such as Yes and No are texts, quote them in the job; otherwise change the column"
    if is_text(kind):
        return f"the file has texts: put the levels in quotes, such as {flow(str(level))}"
    if is_number(kind):
        return "list the column's numbers as levels, without quotes, or store the column as text"
    return "change the levels, or store the column as text"


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def missing_column(name: str, names: Sequence[str]) -> Problem:
    """Describes a missing column. It mentions the same name wrongly decoded, or a similar name."""
    decoded = garbled((name,))
    if encoding := next((decoded[spelling] for spelling in names if spelling in decoded), None):
        encoding_name = encoding.upper()
        fault = f"{MISSING}; the file has this name, but it is encoded in {encoding_name} and was read in another encoding"
        also = ", or leave encoding out" if encoding == "utf-8" else ""
        remedy = f"the file is in {encoding_name}: write encoding: {encoding} next to its path{also}"
        return Problem(name, fault, f"text in {encoding_name}", remedy)
    for cause, alike in causes([other for other in names if other != name], [name]).items():
        fault = f"{MISSING}; a name in the file differs only by {cause.fault.removesuffix(' them')}"
        return Problem(name, fault, f"the file has {listed(names, SHOWN)}", f"did you mean {alike[0]!r}?")
    remedy = suggestion(name, names, "correct the name in the job or the file")
    return Problem(name, MISSING, f"the file has {listed(names, SHOWN)}", remedy)


def check_copied(job: Job, names: Sequence[str], schema: Callable[[Sequence[str]], pa.Schema]) -> list[Problem]:
    """Problems of the columns to copy from a reference: missing, there twice, or with lists as values.

    `schema` returns the types of columns.
    """
    problems, columns = [], job.microdata.columns
    for name in columns:
        if name not in names:
            remedy = f"{suggestion(name, names)} correct the name under microdata.columns, or leave it out".strip()
            problems.append(Problem(name, MISSING, f"the reference has {listed(names, SHOWN)}", remedy))
        elif list(names).count(name) > 1:
            problems.append(Problem(name, "appears twice in the reference", "each column once", "rename or delete one"))
    for field in [] if problems or not columns else schema(columns):
        kind = plain_type(field.type)
        if pa.types.is_nested(kind):
            allowed = "texts, numbers, dates, or true and false"
            problems.append(Problem(field.name, f"wrong type: {kind}", allowed, "leave it out of microdata.columns"))
    return problems


def _comparable(column: Column, kind: pa.DataType) -> bool:
    # pandas stores whole numbers with missing values as floats
    tests: dict[type, Callable[[pa.DataType], bool]] = {str: is_text, bool: pa.types.is_boolean, int: is_number}
    assert column.levels is not None
    if column.missing == "category":  # levels are then texts, whatever their type in the file
        return any(test(kind) for test in tests.values())
    return all(tests[type(level)](kind) for level in column.levels)


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
        "delete the spaces in the file, or write them in columns.{name}.levels, with the level in quotes",
        str.strip,
    ),
    Cause(
        "no-break spaces, or several spaces in a row",
        "delete the spaces in the file, or write them in columns.{name}.levels, with the level in quotes",
        lambda text: SPACES.sub(" ", text).strip(),
    ),
    Cause("capital letters", IN_LEVELS, str.lower),
    Cause(
        "the Unicode form of accents",
        "store the file's texts in Unicode form NFC (letters with accents as single characters), as the job has them",
        lambda text: normalize("NFC", text),
    ),
    AS_NUMBERS,
    Cause("invisible characters, such as NUL or zero-width spaces", "delete them in the file", _visible),
    Cause(
        "quotation marks around them", 'delete them in the file, or enclose fields in "', lambda text: text.strip(QUOTES)
    ),
    Cause("other dashes or apostrophes", IN_LEVELS, lambda text: text.translate(MARKS)),
    Cause("full-width or other compatible characters", IN_LEVELS, lambda text: normalize("NFKC", text)),
    Cause("accents", IN_LEVELS, _without_accents),
    Cause("several differences in spelling", IN_LEVELS, _in_any_spelling),
)
"""In the order in which they are tried."""


def causes(texts: Sequence[str], declared: Sequence[str]) -> dict[Cause, list[str]]:
    """The texts that differ from declared ones by a single kind of difference, by the first such kind."""
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
        "delete the thousands separators",
    ),
    (r"[+-]?\d*,\d+", "write a decimal point instead of the decimal comma"),
    (r"[+-]?(\d+\.?\d*|\.\d+)[dD][+-]?\d+", "write exponents with e instead of Fortran's d"),
    (
        r"(?i)true|false|t|f|yes|no|y|n",
        "or state numbers that these texts stand for: columns.{name}.codes: {{'No': 0, 'Yes': 1}}",
    ),
    (r"(?i)[+-]?(inf|infinity)", "write a finite number"),
    (r"[<>\u2264\u2265=~]+\s*[\d.,]+|[\d.,]+\s*(-|\u2013|to)\s*[\d.,]+", "write one number instead of a range or a limit"),
    (r"[^\w\s.+-]{1,3}\s*[\d.,]+|[\d.,]+\s*[^\d\s]{1,4}", "delete currency signs, percent signs and units"),
    (r"\([\d.,]+\)|[\d.,]+-", "write negative numbers with a leading minus sign"),
)
"""Forms of numbers that are not read, each with the remedy."""


def number_remedy(name: str, text: str) -> str:
    """What to do about a text of a column that should be a number, by its form."""
    text = text.strip()
    if is_missing_elsewhere(text):
        marks = "these texts mark missing values elsewhere; here, an empty field does"
        return f"correct the file: {marks}; see columns.{name}.missing"
    for form, remedy in NO_NUMBERS:
        if re.fullmatch(form, text):
            return f"correct the file: {remedy.format(name=name)}"
    compatible = normalize("NFKC", _visible(text).strip(QUOTES)).translate(MARKS).strip()
    if PLAIN_NUMBER.fullmatch(compatible):
        return "correct the file: write numbers in ASCII digits, without quotation marks or invisible characters"
    return "correct the file"
