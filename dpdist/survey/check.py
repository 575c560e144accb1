"""Checking: a raw batch and the job's rules in, typed values and the problems found out. Nothing is spent or written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.errors import Problem
from dpdist.families import FAMILIES, families_for
from dpdist.job import Column, Job
from dpdist.records import Codes, Floats, Ints, Level

SHOWN = 3
CSV_NULLS = ("", "NA", "NaN", "nan", "null", "NULL")
Mask = NDArray[np.bool_]


class Checked(NamedTuple):
    """Records of a batch that belong to the release; arrays (record,), `codes` by category."""

    row: Ints
    codes: dict[str, Codes]
    outcome: Floats
    weight: Floats
    psu: pa.Array | None
    population: Floats
    """Units of the population that each stage sampled from, (record, column of survey.fpc)."""
    replicates: Floats
    """(record, replicate), float64; without a column unless asked for."""
    others: Floats | None = None
    """Outcomes after the first, (record, outcome − 1), where the job names several."""

    @property
    def outcomes(self) -> tuple[Floats, ...]:
        """Every outcome, (record,) each."""
        return (self.outcome, *(() if self.others is None else self.others.T))


@dataclass
class Findings:
    """Problems by (column, what is wrong), and the records that stated rules dropped or clipped (confidential counts)."""

    problems: dict[tuple[str, str], Problem] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    seen: int = 0
    units: set[tuple[int | str, ...]] = field(default_factory=set)
    """PSUs of the whole file with their design strata's codes: those without a record in the universe were sampled too."""

    def add(self, where: str, found: str, allowed: str, remedy: str, rows: Ints, values: list[str]) -> None:
        old = self.problems.get((where, found))
        places = tuple(f"row {row}" for row in rows[:SHOWN])
        if old is not None:
            places, values = (old.places + places)[:SHOWN], [*old.values, *values]
        count = len(rows) + (old.count if old else 0)
        self.problems[where, found] = Problem(where, found, allowed, remedy, count, places, tuple(values[:SHOWN]))

    def rule(self, what: str, count: int) -> None:
        if count:
            self.removed[what] = self.removed.get(what, 0) + count


class Batch:
    """One raw batch being checked: `keep` shrinks as rules drop records; problems are counted over kept records only."""

    def __init__(self, batch: pa.RecordBatch, first_row: int, findings: Findings, text_only: bool):
        self.batch, self.findings, self.text_only = batch, findings, text_only
        self.row = np.arange(first_row, first_row + batch.num_rows, dtype=np.int64)
        self.keep: Mask = np.ones(batch.num_rows, dtype=bool)

    def drop(self, where: Mask, what: str) -> None:
        self.findings.rule(what, int((where & self.keep).sum()))
        self.keep &= ~where

    def wrong(self, where: Mask, column: str, found: str, allowed: str, remedy: str) -> None:
        bad = np.flatnonzero(where & self.keep)
        if len(bad):
            values = [str(self.batch.column(column)[int(i)].as_py()) for i in bad[:SHOWN]]
            self.findings.add(column, found, allowed, remedy, self.row[bad], values)
            self.keep &= ~where

    def text(self, column: str) -> pa.Array:
        """Values as plain text or numbers, dictionaries decoded."""
        values = self.batch.column(column)
        return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values

    def numbers(self, column: str) -> tuple[Floats, Mask]:
        """float64 values and where they are missing (null or NaN)."""
        values = self.text(column)
        if self.text_only:
            values = pc.utf8_trim_whitespace(values)
            parsed = pc.if_else(pc.match_substring_regex(values, _NUMBER), values, None)
            missing = np.asarray(pc.is_null(values))
            self.wrong(
                np.asarray(pc.is_null(parsed)) & ~missing,
                column,
                "values that are not numbers",
                "numbers",
                "correct the file",
            )
            values = parsed
        numbers = np.asarray(pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
        return numbers, np.isnan(numbers)

    def coded(self, column: str, codes: Mapping[str, float]) -> tuple[Floats, Mask]:
        """The numbers that texts stand for and where they are missing."""
        values = self.text(column)
        missing = np.asarray(pc.is_null(values))
        position = _positions(values, list(codes), exact=False)
        remedy = f"add the text to columns.{column}.codes, or correct the file"
        self.wrong((position < 0) & ~missing, column, "texts without a code", ", ".join(codes), remedy)
        return np.where(position < 0, np.nan, np.array(list(codes.values()))[position]), missing


_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def needed_columns(job: Job) -> tuple[str, ...]:
    """Columns of the file that a job reads."""
    universe = [keep.column for keep in job.universe]
    design = [name for name in (job.survey.weight, job.survey.psu) if name]
    return tuple(
        dict.fromkeys([*universe, *job.categories, *job.model.outcomes, *design, *job.survey.fpc, *replicates(job)])
    )


def replicates(job: Job) -> tuple[str, ...]:
    """Columns of replicate weights."""
    said = job.survey.replicate_weights
    return () if said is None else said.columns


def check_replicates(job: Job, names: Sequence[str]) -> list[Problem]:
    """Replicate weights of which the file has another number than the job says."""
    said = job.survey.replicate_weights
    if said is None:
        return []
    found = [name for name in names if name.startswith(said.prefix) and name[len(said.prefix) :].isdigit()]
    if set(said.columns) == set(found):
        return []
    remedy = "correct survey.replicate_weights.number or prefix: a variance from part of the replicates is wrong"
    what = f"{len(found)} columns {said.prefix}<number>, not {said.number} of them from {said.prefix}1"
    return [Problem("survey.replicate_weights", what, f"{said.columns[0]} to {said.columns[-1]}, all of the file", remedy)]


def check_schema(job: Job, schema: pa.Schema, text_only: bool) -> list[Problem]:
    """Missing columns and wrong types, before any record is read."""
    problems = []
    for name in needed_columns(job):
        if name not in schema.names:
            near = ", ".join(schema.names[:20])
            problems.append(
                Problem(name, "missing column", f"the file has {near}", "correct the name in the job or the file")
            )
            continue
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        column = job.columns.get(name)
        numeric = name in (*job.model.outcomes, job.survey.weight, *job.survey.fpc, *replicates(job))
        if text_only:
            lost = [level for level in (column.levels or () if column else ()) if str(level) in CSV_NULLS]
            if lost and not numeric:
                found = f"the level '{lost[0]}' reads as missing in a CSV file"
                remedy = "give a Parquet file, or rename the level in the job and the file"
                problems.append(Problem(name, found, f"levels other than {', '.join(filter(None, CSV_NULLS))}", remedy))
            continue
        if column is not None and column.codes is not None:
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                remedy = f"leave columns.{name}.codes out"
                problems.append(Problem(name, f"wrong type: {kind}", "text, as its codes say", remedy))
            continue
        if numeric and not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            problems.append(Problem(name, f"wrong type: {kind}", "numbers", "store the column as integers or floats"))
        elif not numeric and column is not None and column.levels is not None and not _comparable(column, kind):
            wanted = type(column.levels[0]).__name__
            hint = (
                "quote the levels in the job (YAML reads No and Yes as booleans)"
                if wanted == "bool"
                else "change the levels"
            )
            problems.append(
                Problem(name, f"wrong type: {kind}", f"values of the levels' type, {wanted}", f"{hint}, or the column")
            )
    return problems


def _comparable(column: Column, kind: pa.DataType) -> bool:
    tests: dict[type, Callable[[pa.DataType], bool]] = {
        str: lambda k: pa.types.is_string(k) or pa.types.is_large_string(k),
        bool: pa.types.is_boolean,
        int: pa.types.is_integer,
    }
    assert column.levels is not None
    return all(tests[type(level)](kind) for level in column.levels)


def check(job: Job, batch: pa.RecordBatch, first_row: int, findings: Findings, text_only: bool) -> Checked:
    """Apply universe, rules and domains to a batch; problems go to `findings`."""
    b = Batch(batch, first_row, findings, text_only)
    findings.seen += batch.num_rows
    if job.survey.psu:
        findings.units |= _units(job, job.survey.psu, b)
    for keep in job.universe:
        allowed = _positions(b.text(keep.column), keep.keep, exact=False)
        b.drop(allowed < 0, f"{keep.column}: outside the universe")
    outcome, *others = [_outcome(job, b, name) for name in job.model.outcomes]
    codes = {name: _category(name, job.columns[name], b) for name in job.categories}
    weight = _weight(job, b)
    population = _numbers(job.survey.fpc, b, "population sizes", "a finite size of at least 1", lambda v: v < 1)
    again = _numbers(replicates(job), b, "replicate weights", "finite weights of at least 0", lambda v: v < 0)
    psu = None
    if job.survey.psu:
        psu = pc.cast(b.text(job.survey.psu), pa.string())
        b.wrong(
            np.asarray(pc.is_null(psu)), job.survey.psu, "missing values", "a PSU for every record", "complete the column"
        )
    kept = b.keep
    return Checked(
        b.row[kept],
        {name: values[kept] for name, values in codes.items()},
        outcome[kept],
        weight[kept],
        None if psu is None else psu.filter(pa.array(kept)),
        population[kept],
        again[kept],
        np.column_stack(others)[kept] if others else None,
    )


def _numbers(names: Sequence[str], b: Batch, what: str, allowed: str, wrong: Callable[[Floats], Mask]) -> Floats:
    """Columns of a design, (record, column)."""
    found = np.empty((len(b.row), len(names)))
    for k, name in enumerate(names):
        values, missing = b.numbers(name)
        b.wrong(missing, name, f"missing {what}", allowed, "complete the column")
        b.wrong(np.isinf(values) | wrong(values), name, f"{what} that cannot be", allowed, "correct the file")
        found[:, k] = values
    return found


def _units(job: Job, psu: str, b: Batch) -> set[tuple[int | str, ...]]:
    """(code of every design stratum column, PSU) of the records that have them all."""
    levels = [(name, job.columns[name].levels or ()) for name in job.survey.design_strata]
    codes = [_positions(b.text(name), known, exact=not b.text_only) for name, known in levels]
    names = pc.cast(b.text(psu), pa.string())
    there = np.array(pc.is_valid(names))
    for code in codes:
        there &= code >= 0
    columns = [code[there].tolist() for code in codes]
    return set(zip(*columns, names.filter(pa.array(there)).to_pylist(), strict=True))


def _outcome(job: Job, b: Batch, name: str) -> Floats:
    column = job.columns[name]
    assert column.bounds is not None
    low, high = column.bounds
    values, missing = b.numbers(name) if column.codes is None else b.coded(name, column.codes)
    if column.missing == "drop":
        b.drop(missing, f"{name}: missing, dropped")
    b.wrong(
        missing, name, "missing values", "a number for every record", f"state columns.{name}.missing: drop, or a universe"
    )
    b.wrong(np.isinf(values), name, "values that are not finite", "finite numbers", "correct the file")
    if column.zeros == "drop":
        b.drop(values == 0, f"{name}: zeros, dropped")
    outside = (values < low) | (values > high)
    if column.outside == "clip":
        b.findings.rule(f"{name}: outside its bounds, clipped", int((outside & b.keep).sum()))
        support, clipped = FAMILIES[job.model.family].support, np.clip(values, low, high)
        _supported(job, b, name, np.where((values < support.low) | (values > support.high), values, clipped))
        values = clipped
    else:
        _supported(job, b, name, values)
        remedy = f"widen columns.{name}.bounds, or state columns.{name}.outside: clip"
        b.wrong(outside, name, "values outside the public bounds", f"[{low:g}, {high:g}]", remedy)
    return values


def _supported(job: Job, b: Batch, name: str, values: Floats) -> None:
    """Values that the family cannot take."""
    support = FAMILIES[job.model.family].support
    allowed = f"{support.text} for a {job.model.family} model"
    outside = ~support.inside(values) & np.isfinite(values)
    zero, negative = outside & (values == 0), outside & (values < 0)
    b.wrong(negative, name, "negative values", allowed, "correct the file")
    able = f"or take a family that has them: {families_for([0.0])}"
    b.wrong(zero, name, "zeros", allowed, f"state columns.{name}.zeros: drop, or restrict the universe, {able}")
    b.wrong(
        outside & ~zero & ~negative,
        name,
        "values that are too large",
        allowed,
        "rescale the column, or restrict the universe",
    )
    if support.whole or job.columns[name].whole:
        broken = np.isfinite(values) & (values != np.floor(values))
        b.wrong(broken, name, "values that are not whole numbers", "whole numbers", "correct the file")


def _weight(job: Job, b: Batch) -> Floats:
    """The weight column, or ones."""
    name = job.survey.weight
    if name is None:
        return np.ones(len(b.row))
    values, missing = b.numbers(name)
    allowed = "a finite weight above 0 for every record"
    b.wrong(missing, name, "missing weights", allowed, "complete the column, or leave these records out by a universe")
    b.wrong(np.isinf(values), name, "weights that are not finite", allowed, "correct the file")
    b.wrong(values < 0, name, "negative weights", allowed, "correct the file")
    b.wrong(values == 0, name, "zero weights", allowed, "leave these records out by a universe")
    declared = job.columns.get(name)
    if declared is not None and declared.bounds is not None and declared.outside == "error":
        low, high = declared.bounds
        remedy = f"widen columns.{name}.bounds"
        b.wrong((values < low) | (values > high), name, "weights outside the public bounds", f"[{low:g}, {high:g}]", remedy)
    return values


def _category(name: str, column: Column, b: Batch) -> Codes:
    assert column.levels is not None
    values = b.text(name)
    missing = np.asarray(pc.is_null(values))
    if column.missing == "drop":
        b.drop(missing, f"{name}: missing, dropped")
    b.wrong(
        missing, name, "missing values", "one of the declared levels", f"state columns.{name}.missing: drop, or a universe"
    )
    codes = _positions(values, column.levels, exact=not b.text_only)
    shown = ", ".join(map(str, column.levels[:8])) + (", …" if len(column.levels) > 8 else "")
    remedy = f"add the level to columns.{name}.levels, or correct the file"
    b.wrong(codes < 0, name, "values that are not declared levels", shown, remedy)
    return codes


def _positions(values: pa.Array, levels: Sequence[Level], exact: bool) -> Codes:
    """Position of every value in `levels`, −1 where it is none of them; as texts, unless `exact`."""
    try:
        known = pa.array(levels).cast(values.type) if exact else None
    except (pa.ArrowException, OverflowError):
        known = None
    if known is None:
        values, said = pc.cast(values, pa.string()), [str(level) for level in levels]
        if all(isinstance(level, bool) for level in levels):
            values, said = pc.utf8_lower(values), [text.lower() for text in said]
        known = pa.array(said)
    found = pc.fill_null(pc.index_in(values, value_set=known), -1)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.int32)
