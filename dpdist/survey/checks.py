"""Checks of a batch of records against the job's rules: typed values, and every problem noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.errors import Problem
from dpdist.core.records import Codes, Crosstab, Floats, Ints, Level
from dpdist.estimation.estimators import Margin, NotMet, factors, margins_of
from dpdist.job import Column, Job, family_facts
from dpdist.job.data import NOT_REPORTED, Keep, Recode, level_text
from dpdist.job.families import families_for
from dpdist.job.rules import listed
from dpdist.survey.batch import DECIMAL_TEXT, LARGEST_WHOLE, WHOLE_TEXT, Batch, Findings, Mask, positions, texts_of
from dpdist.survey.schema import (
    AS_NUMBERS,
    MISSING_VALUES,
    causes,
    dropping_columns,
    garbled,
    is_missing_elsewhere,
    replicates,
)
from dpdist.survey.typed_file import ELSEWHERE_NULLS, decode, is_text


def whole_as_levels(values: pa.Array, levels: Sequence[Level]) -> pa.Array:
    """Texts of a CSV file, where 2.0 reads 2 unless 2.0 is a level. Many programs write whole numbers so beside gaps."""
    if not pc.any(pc.match_substring(values, ".0")).as_py():  # a fraction of the time of the pattern
        return values
    decimal = pc.match_substring_regex(values, DECIMAL_TEXT)
    mask = pc.and_(decimal, pc.invert(pc.is_in(values, pa.array(list(map(str, levels))))))
    return pc.if_else(mask, pc.replace_substring_regex(values, DECIMAL_TEXT, r"\1"), values)


def recoded(batch: pa.RecordBatch, recode: Recode, text_only: bool) -> pa.RecordBatch:
    """A file's batch with its levels merged as the job says."""
    for place, name in enumerate(batch.schema.names):
        if not (merges := recode.get(name)):
            continue
        values, sources = decode(batch.column(place)), list(merges)
        as_levels = whole_as_levels(values, sources) if text_only else values
        position = positions(as_levels, sources, exact=not text_only)
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


LARGEST_WEIGHT = 1e15
"""Largest weight. With larger weights, a float64 sum would not change by a record of weight 1."""

MOST_TEXTS = 10_000
"""Largest number of different texts of a batch that are compared with levels, for the cause of their difference."""
SPELLED = "values that differ from declared levels only by"
RECODE = "recode it (to null, if it means missing)"
MARKS_OF_MISSING = "marks of missing values in other programs"
WRITTEN_WRONGLY = (
    "write the file again from its source, which was read in another encoding; for a file of SAS, Stata or SPSS, state "
    "encoding: next to its path"
)
CLIPPED = "outside its bounds, clipped"
"""What happened to values, in a census's effect of rules, after the column's name."""
LEFT_OUT = (
    "delete these records from the file; or mark them in a column of it and of any reference, and keep the others: "
    "universe: [{column: …, keep: […]}]"
)
"""How to leave out records that no weight represents; the universe cannot depend on the weight."""


class CheckedBatch(NamedTuple):
    """Records of a batch that belong to the release. Arrays have the shape (record,); `codes` are by category."""

    row: Ints
    codes: dict[str, Codes]
    outcomes: tuple[Floats, ...]
    weight: Floats
    psu: pa.Array | None
    population: Floats
    """Population sizes of the stages of sampling, (record, column of survey.fpc)."""
    replicates: Floats
    """Replicate weights, (record, replicate), float64; no columns unless the job names replicate weights."""
    unclipped: tuple[Floats, ...] = ()
    """Every outcome, then the weight, as in the file, if the job clips one."""
    unit: pa.Array | None = None
    """Name of the record's privacy unit, if a record is not the unit."""

    def take(self, which: Mask) -> CheckedBatch:
        if which.all():
            return self
        arrow = pa.array(which)

        def of(values: Any) -> Any:
            if isinstance(values, dict):
                return {name: column[which] for name, column in values.items()}
            if isinstance(values, tuple):
                return tuple(column[which] for column in values)
            return values[which] if isinstance(values, np.ndarray) else None if values is None else values.filter(arrow)

        return CheckedBatch(*map(of, self))

    def outcome_in_file(self, number: int) -> Floats:
        """An outcome before clipping, (record,)."""
        return (self.unclipped or self.outcomes)[number]

    @property
    def weight_in_file(self) -> Floats:
        """The weight before clipping, (record,)."""
        return self.unclipped[-1] if self.unclipped else self.weight


def check(job: Job, batch: pa.RecordBatch, first_row: int, findings: Findings, text_only: bool) -> CheckedBatch:
    """Applies universe, rules and domains to a batch; problems go to `findings`."""
    b = Batch(batch, first_row, findings, text_only)
    findings.records += batch.num_rows
    codes = dict[str, Codes]()
    for keep in job.universe:
        _restrict(keep, job.columns.get(keep.column), b, codes)
    raw, outcomes = zip(*(_outcome(job, b, name) for name in job.outcomes), strict=True)
    codes = {name: codes[name] if name in codes else _category(name, job.columns[name], b) for name in job.categories}
    raw_weight, weight = _weight(job, b)
    again = replicates(job, batch.schema.names)
    for name in further_columns(job, again):
        _declared(name, job.columns[name], b)
    population, replicate_weights = _populations(job.survey.fpc, b), _replicates(again, b)
    if again:
        all_weights = np.column_stack([raw_weight, replicate_weights])
        findings.weight_sums = findings.weight_sums + all_weights[b.keep].sum(axis=0)
    psu = _names(job.survey.psu, "PSU", b) if job.survey.psu else None
    unit = _unit_names(job.privacy_unit.column, b) if job.privacy_unit is not None else None
    _count_drawn(b, [codes[name] for name in job.survey.design_strata], raw_weight, job.survey.psu, psu)
    unclipped = (*raw, raw_weight) if job.clipped_columns else ()
    checked = CheckedBatch(b.row, codes, outcomes, weight, psu, population, replicate_weights, unclipped, unit)
    return checked.take(b.keep)


def in_universe(job: Job, b: Batch) -> Mask:
    """Marks records of the universe, (record,); problems of its columns go to the batch's findings."""
    for keep in job.universe:
        _restrict(keep, job.columns.get(keep.column), b, {})
    return b.keep


def _restrict(keep: Keep, declared: Column | None, b: Batch, codes: dict[str, Codes]) -> None:
    """Leaves records outside the universe out, and adds a declared column's `codes`.

    Values of a declared column are held to its levels and rules. A missing value that is left out, or of a column that is
    not declared, is outside the universe. So is a value that is no level, where the filter keeps every level.
    """
    rule = f"{keep.column}: outside the universe"
    if declared is None or declared.levels is None:
        allowed_levels = keep.keep
        place = b.of_plain_values(
            keep.column, lambda plain: positions(_read(plain, allowed_levels, b), allowed_levels, exact=False)
        )
        declare = f"list all values of the column in columns.{keep.column}.levels, or correct the file"
        _nearly(keep.column, allowed_levels, place, b, declare)
        b.drop(place < 0, rule)
        return
    levels = list(map(str, declared.levels))
    everything = set(levels) <= set(map(str, keep.keep))
    codes[keep.column] = _category(keep.column, declared, b, rule, others_outside=everything)
    b.drop(~np.isin(codes[keep.column], [levels.index(level) for level in map(str, keep.keep)]), rule)


def further_columns(job: Job, again: Sequence[str]) -> tuple[str, ...]:
    """Declared columns of the design, and those whose missing values are dropped, that are neither category, outcome nor
    weight; `again` are replicate weights.
    """
    unit = () if job.privacy_unit is None else (job.privacy_unit.column,)
    names = dict.fromkeys([*filter(None, [job.survey.psu]), *job.survey.fpc, *again, *unit, *dropping_columns(job)])
    return tuple(name for name in names if name in job.columns and name not in job.categories)


def _declared(name: str, column: Column, b: Batch) -> None:
    """Holds a column of the design to its levels or bounds."""
    if column.levels is not None:
        _category(name, column, b)
        return
    low, high = column.ends
    values, missing = b.numbers(name)
    if column.missing == "drop":
        b.drop(missing, f"{name}: missing, dropped")
    outside = (values < low) | (values > high) | (column.whole & (values != np.floor(values)))
    remedy = f"widen columns.{name}.bounds, or correct the file"
    b.wrong(outside, name, "values outside the public bounds", f"[{low:g}, {high:g}]", remedy)


def _names(column: str, what: str, b: Batch) -> pa.Array:
    """Names of groups of records, such as PSUs, as texts. Missing names are noted as problems."""
    values = b.text(column)
    if pa.types.is_floating(values.type):
        allowed, remedy = f"a {what} for every record", "complete the column"
        b.wrong(np.isinf(np.asarray(values, dtype=np.float64)), column, "names that are not finite", allowed, remedy)
    return _complete(texts_of(values), column, what, b)


def _complete(names: pa.Array, column: str, what: str, b: Batch) -> pa.Array:
    allowed = f"a {what} for every record"
    trimmed = pc.utf8_lower(pc.utf8_trim_whitespace(names))
    absent = b.missing(column) | np.asarray(pc.fill_null(pc.equal(trimmed, ""), False))
    b.wrong(absent, column, "missing values", allowed, "complete the column")
    marks = pc.is_in(trimmed, value_set=pa.array(["na", *sorted(ELSEWHERE_NULLS)]))
    fault, remedy = "names that are marks of missing values in other programs", "complete the column, or rename them"
    b.wrong(np.asarray(marks), column, fault, allowed, remedy)
    return names


def _unit_names(column: str, b: Batch) -> pa.Array:
    """Names of privacy units as texts. Numbers must be whole, so that 1 and 1.0 name one unit."""
    values = b.text(column)
    if pa.types.is_floating(values.type):
        number = np.asarray(pc.fill_null(values, 0.0), dtype=np.float64)
        unnamed = (number != np.floor(number)) | (np.abs(number) > LARGEST_WHOLE)
        fault, allowed = (
            "a number that cannot identify a unit: it has a fraction, or is beyond 2^53",
            "whole numbers, or texts",
        )
        b.wrong(unnamed, column, fault, allowed, "store the column as whole numbers or as texts")
    return _complete(texts_of(values), column, "unit", b)


def _populations(names: Sequence[str], b: Batch) -> Floats:
    """Population sizes, (record, column)."""
    sizes, allowed = np.empty((len(b.row), len(names))), "a finite size of at least 1"
    for k, name in enumerate(names):
        sizes[:, k], missing = b.numbers(name)
        b.wrong(missing, name, "missing population sizes", allowed, "complete the column")
        impossible = np.isinf(sizes[:, k]) | (sizes[:, k] < 1)
        b.wrong(impossible, name, "impossible population sizes", allowed, "correct the file")
    return sizes


def _replicates(names: Sequence[str], b: Batch) -> Floats:
    """Replicate weights, (record, replicate). Adjustments make some of them negative, and variances need them so."""
    weights, allowed = np.empty((len(b.row), len(names))), "a finite weight for every record and replicate"
    for k, name in enumerate(names):
        weights[:, k], missing = b.numbers(name)
        absent = "complete the column; a record that a replicate leaves out has the weight 0 there"
        b.wrong(missing, name, "missing replicate weights", allowed, absent)
        b.wrong(np.isinf(weights[:, k]), name, "replicate weights that are not finite", allowed, "correct the file")
    return weights


def _count_drawn(b: Batch, strata: Sequence[Codes], weight: Floats, column: str | None, psu: pa.Array | None) -> None:
    """Counts the drawn records of a batch by design stratum where they are left out, and of each PSU.

    A universe is a domain of the sample: variances need the numbers of PSUs and records before it. A record without a
    weight, or without a design stratum, was not drawn.
    """
    in_sample = np.logical_and.reduce([np.isfinite(weight), *(codes >= 0 for codes in strata)])
    outside = in_sample & ~b.keep
    if outside.any():
        keys = np.column_stack([np.zeros(int(outside.sum()), np.int32), *(codes[outside] for codes in strata)])
        distinct, number = np.unique(keys, axis=0, return_counts=True)
        b.findings.left_out.update(dict(zip(map(tuple, distinct[:, 1:].tolist()), number.tolist(), strict=True)))
    if column is not None and psu is not None:
        in_sample &= ~b.missing(column)
        columns = [codes[in_sample].tolist() for codes in strata]
        b.findings.units.update(zip(*columns, psu.filter(pa.array(in_sample)).to_pylist(), strict=True))


def _outcome(job: Job, b: Batch, name: str) -> tuple[Floats, Floats]:
    """The values of an outcome in the file, and the release's values, clipped if the job says so."""
    column = job.columns[name]
    low, high = column.ends
    values, missing = b.numbers(name) if column.codes is None else b.coded(name, column.codes)
    if column.missing == "drop":
        b.drop(missing, f"{name}: missing, dropped")
    dropped = f"state columns.{name}.missing: drop, or a universe"
    if job.strict:  # The number of records after a rule would then depend on the outcome.
        public = (
            "if the number of records without a value is public, leave these records out of the file and state this under "
            "assumed_public"
        )
        ratio = f"write 0, add an outcome 'answered' of 1 and 0, and publish {{ratio: [{name}, answered]}}"
        dropped = f"{ratio}; or impute them, or name a universe that does not depend on an outcome; {public}"
    b.wrong(missing, name, MISSING_VALUES, "a number for every record", dropped)
    b.wrong(np.isinf(values), name, "values that are not finite", "finite numbers", "correct the file")
    if column.zeros == "drop":
        b.drop(values == 0, f"{name}: zeros, dropped")
    outside = (values < low) | (values > high)
    if column.outside == "clip":
        b.findings.rule(f"{name}: {CLIPPED}", int((outside & b.keep).sum()))
        support, clipped = family_facts(job).support, np.clip(values, low, high)
        _supported(job, b, name, np.where((values < support.low) | (values > support.high), values, clipped))
        return values, clipped
    _supported(job, b, name, values)
    remedy = f"widen columns.{name}.bounds, or state columns.{name}.outside: clip"
    b.wrong(outside, name, "values outside the public bounds", f"[{low:g}, {high:g}]", remedy)
    return values, values


def _supported(job: Job, b: Batch, name: str, values: Floats) -> None:
    support = family_facts(job).support
    allowed = f"{support.text} for a {job.family} model"
    outside = ~support.inside(values) & np.isfinite(values)
    zero, negative = outside & (values == 0), outside & (values < 0)
    b.wrong(negative, name, "negative values", allowed, "correct the file")
    able = f"restrict the universe, or use a family that has them: {families_for([0.0])}"
    b.wrong(zero, name, "zeros", allowed, able if job.strict else f"state columns.{name}.zeros: drop, or {able}")
    b.wrong(
        outside & ~zero & ~negative,
        name,
        "values that are too large",
        allowed,
        "rescale the column, or restrict the universe",
    )
    if support.integer or job.columns[name].whole:
        broken = np.isfinite(values) & (values != np.floor(values))
        b.wrong(broken, name, "values that are not whole numbers", "whole numbers", "correct the file")


def _weight(job: Job, b: Batch) -> tuple[Floats, Floats]:
    """The weights in the file, and the release's weights; ones if the job names no weight.

    The release's weights are clipped to both public bounds if the job says so. Sensitivities and domains of sums rely
    on these bounds, and no later step clips.
    """
    name = job.survey.weight
    if name is None:
        return np.ones(len(b.row)), np.ones(len(b.row))
    values, missing = b.numbers(name)
    allowed = "a finite weight above 0 for every record"
    b.wrong(missing, name, "missing weights", allowed, f"complete the column, or {LEFT_OUT}")
    b.wrong(np.isinf(values), name, "weights that are not finite", allowed, "correct the file")
    b.wrong(values < 0, name, "negative weights", allowed, "correct the file")
    declared = job.columns.get(name)
    lowest = declared.bounds[0] if declared is not None and declared.bounds is not None else 1.0
    if not job.mechanism.sums_weights:
        b.wrong(values == 0, name, "zero weights", allowed, LEFT_OUT)
    elif lowest > 0.0:
        remedy = f"let the public bounds of '{name}' begin at 0, or {LEFT_OUT}"
        b.wrong(values == 0, name, "zero weights", allowed, remedy)
    if declared is None or declared.outside == "error":
        extreme = (values > LARGEST_WEIGHT) | (values < 1.0 / LARGEST_WEIGHT)
        allowed = f"weights from {1.0 / LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}"
        b.wrong(
            extreme,
            name,
            "weights too large or too small to be summed without loss to rounding",
            allowed,
            "correct the file",
        )
    if declared is None or declared.bounds is None:
        return values, values
    low, high = declared.bounds
    outside = (values < low) | (values > high)
    if declared.outside == "clip":
        b.findings.rule(f"{name}: {CLIPPED}", int((outside & b.keep).sum()))
        return values, np.clip(values, low, high)
    remedy = f"widen columns.{name}.bounds"
    b.wrong(outside, name, "weights outside the public bounds", f"[{low:g}, {high:g}]", remedy)
    return values, values


def _read(values: pa.Array, levels: Sequence[Level], b: Batch) -> pa.Array:
    return whole_as_levels(values, levels) if b.text_only else values


def _category(name: str, column: Column, b: Batch, dropped: str = "", others_outside: bool = False) -> Codes:
    """Positions of a column's values in its levels, after its rules; −1 for values that are refused or left out.

    `dropped` is the rule under which dropped records are counted, by default that of missing values. With
    `others_outside`, values that resemble no level are dropped under it, too.
    """
    assert column.levels is not None
    levels, absent = column.levels, column.missing == "category"

    def values(plain: pa.Array) -> pa.Array:
        texts = _read(plain, levels, b)
        return pc.fill_null(texts_of(texts), NOT_REPORTED) if absent else texts

    missing = b.missing(name) & (not absent)
    if column.missing == "drop":
        b.drop(missing, dropped or f"{name}: missing, dropped")
    also = f"state columns.{name}.missing: category, for a level '{NOT_REPORTED}', or drop; or name a universe"
    b.wrong(missing, name, MISSING_VALUES, "one of the declared levels", also)
    codes = b.of_plain_values(name, lambda plain: positions(values(plain), levels, exact=not b.text_only))
    if column.outside == "clip":
        integers = column.whole_levels
        nearest = b.of_plain_values(name, lambda plain: nearest_positions(_read(plain, levels, b), integers))
        is_clipped = (codes < 0) & (nearest >= 0)
        b.findings.rule(f"{name}: not a level, counted as the nearest one", int((is_clipped & b.keep).sum()))
        codes = np.where(is_clipped, nearest, codes)
    declare = f"add the level to columns.{name}.levels, or correct the file" if others_outside else ""
    as_numbers = _nearly(name, levels, codes, b, declare)
    if others_outside:
        b.drop(codes < 0, dropped)
        return codes
    counts = column.outside == "error" and len(column.whole_levels) == len(levels) - column.with_missing
    clip = "; or state outside: clip there, if levels are sizes or other counts;" if counts else ","
    remedy = as_numbers or f"add the level to columns.{name}.levels{clip} {RECODE}, or correct the file"
    b.wrong(codes < 0, name, "the file contains values that are not among the declared levels", listed(levels), remedy)
    return codes


def _nearly(name: str, levels: Sequence[Level], codes: Codes, b: Batch, declare: str = "") -> str:
    """Notes texts that resemble a level, with cause and remedy; `declare` is that of a column without declared levels.

    Returns a remedy for texts that are levels as numbers, as 01 is 1, or an empty text. These are no level.
    """
    values, none = b.text(name), (codes < 0) & b.keep & ~b.missing(name)
    if not is_text(values.type) or not none.any():
        return ""
    texts, texts_of_levels = pc.unique(values.filter(pa.array(none))).to_pylist()[:MOST_TEXTS], list(map(str, levels))
    allowed = f"as the job writes them: {listed(list(map(repr, texts_of_levels)))}"

    def refuse(alike: Sequence[str], fault: str, allowed: str, remedy: str) -> None:
        b.wrong(none & (positions(values, alike, exact=True) >= 0), name, fault, allowed, declare or remedy, repr)

    decoded = garbled(tuple(texts_of_levels))
    for encoding in dict.fromkeys(decoded[text] for text in texts if text in decoded):
        alike, encoding_name = [text for text in texts if decoded.get(text) == encoding], encoding.upper()
        remedy = f"write encoding: {encoding} next to the file's path" if b.text_only else WRITTEN_WRONGLY
        refuse(
            alike,
            f"levels that look like text in {encoding_name}, read in another encoding",
            f"text in {encoding_name}",
            remedy,
        )
    by_cause = causes([text for text in texts if text not in decoded], texts_of_levels)
    for cause, alike in by_cause.items():
        if cause is not AS_NUMBERS or declare:
            refuse(alike, f"{SPELLED} {cause.fault}", allowed, cause.remedy.format(name=name))
    if not declare and (marks := [text for text in texts if is_missing_elsewhere(text)]):
        remedy = f"leave these fields empty in the file, and state columns.{name}.missing; or add the level"
        refuse(marks, MARKS_OF_MISSING, "empty fields for missing values", remedy)
    if AS_NUMBERS not in by_cause:
        return ""
    return f"they differ from levels only by {AS_NUMBERS.fault}: {AS_NUMBERS.remedy.format(name=name)}"


def rake_problems(job: Job, crosstab: Crosstab) -> list[Problem]:
    """Problems of raking totals: cells without a record, totals beyond public bounds, totals that contradict each other."""
    margins, problems = margins_of(job, crosstab), []
    for margin in margins:
        empty = [label for label, n in zip(margin.labels, margin.membership @ crosstab.count, strict=True) if not n]
        if empty:
            fault, remedy = "totals for cells without a sample record", "merge levels, or rake to coarser totals"
            allowed, places = "a record in every cell that has a total", tuple(empty[:3])
            problems.append(Problem(f"rake {margin.by}", fault, allowed, remedy, len(empty), places))
        problems += _beyond_bounds(job, crosstab, margin)
    if not problems and margins:
        try:
            factors(crosstab.count.astype(np.float64), margins)
        except NotMet:
            fault, remedy = "no weights of this sample meet all totals", "merge levels, or leave one margin out"
            problems.append(Problem("rake", fault, "totals that the sample's combinations can reach", remedy))
    return problems


def _beyond_bounds(job: Job, crosstab: Crosstab, margin: Margin) -> list[Problem]:
    """Problems of totals that no weights within the public bounds can meet."""
    if job.weight_bounds is None:
        return []
    count = margin.membership @ crosstab.count.astype(np.float64)
    low, high = (count * bound for bound in job.weight_bounds)
    beyond = (count > 0) & ((margin.totals < low * (1.0 - 1e-9)) | (margin.totals > high * (1.0 + 1e-9)))
    if not beyond.any():
        return []
    fault = f"totals beyond what weights from {job.weight_bounds[0]:.10g} to {job.weight_bounds[1]:.10g} can add up to"
    remedy = "give totals of the population that the weights represent, or state wider bounds"
    places = tuple(label for label, outside in zip(margin.labels, beyond, strict=True) if outside)[:3]
    return [
        Problem(f"rake {margin.by}", fault, "records times the weight's public bounds", remedy, int(beyond.sum()), places)
    ]
