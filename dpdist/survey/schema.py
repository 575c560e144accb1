"""For `survey.source` and `checks`: the columns and types that a job needs of a file, before records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from dpdist.core.errors import Problem, suggestion
from dpdist.job import Column, Job
from dpdist.survey.findings import causes, garbled
from dpdist.survey.typed_file import CSV_NULLS, is_number, is_text, plain_type

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
    return [*universe, *job.categories, *job.outcomes, *design, *job.survey.fpc]


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
    others = {*_apart_from_replicates(job), *job.columns}
    numbers = [
        number
        for name in names
        if (number := weights.number_of(name)) is not None and (weights.has(name) or name not in others)
    ]
    if sorted(numbers) == list(range(1, weights.number + 1)):
        return []
    what = f"{len(numbers)} columns {weights.prefix}<number>, not {weights.number} of them from {weights.prefix}1"
    allowed = f"{weights.columns[0]} to {weights.columns[-1]}, all of the file; zeros may stand before the number"
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
        return [] if is_text(kind) else [Problem(name, fault, "text, as its codes say", remedy)]
    if numeric:
        truth = name in job.outcomes and pa.types.is_boolean(kind)
        remedy = "store the column as integers or floats"
        if is_text(kind) and name in job.outcomes:
            remedy += f"; numbers that its texts stand for are columns.{name}.codes"
        return [] if is_number(kind) or truth else [Problem(name, fault, "numbers", remedy)]
    if column is not None and column.levels is not None:
        wanted = type(column.levels[0]).__name__
        allowed = f"values of the levels' type, {wanted}"
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
        return "quote the levels in the job, where they are texts as Yes and No, or change the column"
    if is_number(kind):
        return "list the column's numbers as levels, without quotes, or store the column as text"
    return "change the levels, or store the column as text"


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def missing_column(name: str, names: Sequence[str]) -> Problem:
    """Describes a missing column. It mentions the same name wrongly decoded, or a similar name."""
    decoded = garbled((name,))
    if encoding := next((decoded[spelling] for spelling in names if spelling in decoded), None):
        shown = encoding.upper()
        fault = f"{MISSING}; the file has its name as a text in {shown} looks in another encoding"
        also = ", or leave encoding out" if encoding == "utf-8" else ""
        remedy = f"the file is in {shown}: write encoding: {encoding} beside its path{also}"
        return Problem(name, fault, f"text in {shown}", remedy)
    for cause, alike in causes([other for other in names if other != name], [name]).items():
        fault = f"{MISSING}; the file has that name but for {cause.fault.removesuffix(' them')}"
        return Problem(name, fault, f"the file has {_listed(names)}", f"did you mean {alike[0]!r}?")
    remedy = suggestion(name, names, "correct the name in the job or the file")
    return Problem(name, MISSING, f"the file has {_listed(names)}", remedy)


def check_copied(job: Job, names: Sequence[str], schema: Callable[[Sequence[str]], pa.Schema]) -> list[Problem]:
    """Problems of the columns to copy from a reference: missing, there twice, or with lists as values.

    `schema` returns the types of columns.
    """
    problems, wanted = [], job.microdata.columns
    for name in wanted:
        if name not in names:
            remedy = f"{suggestion(name, names)} correct the name under microdata.columns, or leave it out".strip()
            problems.append(Problem(name, MISSING, f"the reference has {_listed(names)}", remedy))
        elif list(names).count(name) > 1:
            problems.append(Problem(name, "stands twice in the reference", "each column once", "rename or delete one"))
    for field in [] if problems or not wanted else schema(wanted):
        kind = plain_type(field.type)
        if pa.types.is_nested(kind):
            allowed = "texts, numbers, dates, or true and false"
            problems.append(Problem(field.name, f"wrong type: {kind}", allowed, "leave it out of microdata.columns"))
    return problems


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


def _comparable(column: Column, kind: pa.DataType) -> bool:
    # pandas stores whole numbers with missing values as floats
    tests: dict[type, Callable[[pa.DataType], bool]] = {str: is_text, bool: pa.types.is_boolean, int: is_number}
    assert column.levels is not None
    if column.missing == "category":  # levels are then texts, whatever their type in the file
        return any(test(kind) for test in tests.values())
    return all(tests[type(level)](kind) for level in column.levels)
