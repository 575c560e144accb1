"""A job's reference, a public file, read with the job's columns and design.

The reference must not be the confidential file, because its constants must not depend on confidential records. The
confidential file is refused under any name or format. A file is also refused if it shares more records with the
confidential one than chance explains (`survey.same_file`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.cautions import Caution
from dpdist.core.errors import DataError, Problem
from dpdist.core.records import Crosstab, Ints, first_rows
from dpdist.estimation.donors import AbsentRecords
from dpdist.job import Job, SimulatedReference
from dpdist.survey.batch import Batch, Findings
from dpdist.survey.census import Census, Tick, place, take_census
from dpdist.survey.checks import in_universe, recoded
from dpdist.survey.same_file import LARGEST, NO_PROTECTION, ColumnValues, column_values, hashed, moved_records, same_records
from dpdist.survey.schema import MISSING, MISSING_VALUES, check_copied, needed_columns
from dpdist.survey.source import Source, open_source, simulated_source
from dpdist.survey.typed_file import plain_batch

SHOWN = 3
SUBJECT = "reference"
"""What messages call the file."""
FEWEST_RECORDS = 300
"""Smallest number of a reference's records without a doubt: of fewer, the highest 1 % are fewer than 3."""
FAR_BELOW = 0.01
"""Part of the public bounds that some value of the reference should reach."""
LARGE_FACTOR = 10
"""Factor between medians of reference and file that `validate` and `plan` note. No run is refused for it, because strict
promises allow no refusal that depends on a file's outcomes.
"""
NEARLY_ALL = 0.9
"""Largest share of a reference's values outside the job's public bounds. Beyond it, the bounds are judged wrong."""


@dataclass(frozen=True)
class ReferenceFile:
    """A reference that fits the job and the crosstab of the current file, which is the confidential one."""

    source: Source
    census: Census
    sha256: str
    row: Ints
    """For every row of the reference's crosstab, the row of the current crosstab with the same stratum and predictors.

    It is −1 where the current file has no such record. The shape is (row,).
    """
    doubts: tuple[Caution, ...] = ()
    """What its values make doubtful, by public facts."""
    factors: tuple[str, ...] = ()
    """Confidential: columns whose median differs from the file's by a factor of `LARGE_FACTOR` or more."""

    def counts(self, crosstab: Crosstab) -> Ints:
        """Number of reference records per row of the current crosstab, (row,)."""
        on = self.row >= 0
        return np.bincount(self.row[on], weights=self.census.crosstab.count[on], minlength=len(crosstab)).astype(np.int64)

    def sized(self, crosstab: Crosstab) -> Crosstab:
        """The current crosstab with the sizes of the reference."""
        return replace(crosstab, count=self.counts(crosstab), sampled=self.census.crosstab.sampled)

    @property
    def left_out(self) -> int:
        """Number of reference records of combinations that the current file lacks."""
        return int(self.census.crosstab.count[self.row < 0].sum())

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def records(self) -> int:
        """Number of reference records left by universe and rules, with those of combinations not in the current file."""
        return int(self.census.crosstab.count.sum())


def open_reference(job: Job, source: Source, crosstab: Crosstab, tick: Tick = lambda rows: None) -> ReferenceFile:
    """Reads the job's reference, and checks it against the job and the current file.

    Raises `DataError`, which says that it is about the reference.
    """
    try:
        return _opened(job, source, crosstab, tick)
    except DataError as error:
        raise DataError(error.source, [_about_a_reference(problem) for problem in error.problems], SUBJECT) from None


def _about_a_reference(problem: Problem) -> Problem:
    """The problem, with a remedy that suits a reference."""
    if problem.fault == MISSING_VALUES:
        return replace(
            problem, remedy=f"leave these records out of the reference, which is public; otherwise {problem.remedy}"
        )
    if not problem.fault.startswith(MISSING):
        return problem
    remedy = f"{problem.remedy}; the job also reads this column from the reference: use a reference that has it"
    return replace(problem, remedy=remedy)


def _opened(job: Job, source: Source, crosstab: Crosstab, tick: Tick) -> ReferenceFile:
    assert job.reference is not None
    declared = job.reference
    if declared.file is not None and not Path(declared.file).exists():
        allowed = f"an earlier file that is public, with the columns {', '.join(needed_columns(job))}"
        remedy = "name it: --set reference.path=FILE, or reference: {path: FILE} in the job"
        raise DataError.of(str(declared.file), "reference.path", "no such file", allowed, remedy)
    reference = (
        simulated_source(declared.simulate)
        if isinstance(declared, SimulatedReference)
        else open_source(job, declared.file, declared.text_format)
    )
    digest = reference.fingerprint()
    if digest == source.fingerprint():
        raise _current(reference)
    if problems := check_copied(job, reference.columns, lambda names: next(iter(reference.batches(names))).schema):
        raise DataError(reference.name, problems)
    census = take_census(job.by_record, reference, tick)
    problems, doubts = _units(job, reference)
    if problems:
        raise DataError(reference.name, problems)
    values = column_values(job, source), column_values(job, reference)
    if same_records(*(hashed(job, file, largest=LARGEST) for file in (source, reference))) or moved_records(
        *values, len(job.outcomes)
    ):
        raise _current(reference)
    factors = [name for name, factor in _factors(job, *values) if not 1 / LARGE_FACTOR < factor < LARGE_FACTOR]
    if (records := int(census.crosstab.count.sum())) < FEWEST_RECORDS:
        doubts.append(Caution.of("few_reference_records", records=f"{records:,}", least=f"{FEWEST_RECORDS:,}"))
    row, missing = _matched(job, crosstab, census.crosstab)
    if missing and job.mechanism.sets != "copied":
        names = " and ".join(job.reference_columns) or "file"
        allowed = f"a record for every combination of {names} that the current file has"
        fewer = "leave a predictor out" if job.likelihood_predictors else "leave a column out of the tables"
        remedy = f"merge levels, {fewer}, or use a reference that has them"
        places = tuple(missing[:SHOWN])
        raise DataError(reference.name, [Problem("reference", "no record of", allowed, remedy, len(missing), places)])
    return ReferenceFile(reference, census, digest, row, tuple(doubts), tuple(factors))


def _units(job: Job, source: Source) -> tuple[list[Problem], list[Caution]]:
    """Problems of values that nearly all lie outside the bounds at which the job clips them, and doubts about small or
    constant values.

    Without this check, clipping would hide bounds, or a reference, in a wrong unit. Values outside the universe do not
    count: many are codes, as 9999999 of whoever was not asked.
    """
    problems, doubts = list[Problem](), list[Caution]()
    for name in filter(None, (job.survey.weight, *job.outcomes)):
        declared = job.columns.get(name)
        if declared is None or declared.bounds is None or declared.codes:
            continue
        low, high = declared.bounds
        outside = records = 0
        least, most = np.inf, -np.inf
        for stored in source.batches(tuple(dict.fromkeys([name, *(keep.column for keep in job.universe)]))):
            batch = Batch(recoded(stored, job.recode, source.text_only), records, Findings(), source.text_only)
            values, missing = batch.numbers(name)
            values = values[in_universe(job, batch) & ~missing]
            outside, records = outside + int(((values < low) | (values > high)).sum()), records + len(values)
            least, most = min(least, float(values.min(initial=np.inf))), max(most, float(values.max(initial=-np.inf)))
        if records > 1 and least == most:
            doubts.append(Caution.of("constant_in_reference", column=name, value=f"{most:g}", records=f"{records:,}"))
        if declared.outside != "clip":
            continue
        largest = max(-least, most) if records else 0.0
        what = "weights" if name == job.survey.weight else "outcomes"
        if outside > NEARLY_ALL * records:
            remedy = (
                f"check the unit of columns.{name}.bounds, then the bounds; or convert the reference to the file's unit"
            )
            fault = f"nearly all of the reference's {what} lie outside"
            problems.append(Problem(f"columns.{name}.bounds", fault, f"[{low:g}, {high:g}]", remedy))
        elif 0.0 < largest < FAR_BELOW * max(-low, high):
            doubts.append(Caution.of("reference_unit", column=name, bounds=f"[{low:g}, {high:g}]"))
    return problems, doubts


def _factors(job: Job, current: Sequence[ColumnValues], reference: Sequence[ColumnValues]) -> Iterator[tuple[str, float]]:
    """Confidential: the ratio of medians of values other than 0, of the reference over the file, by column."""
    for name, ours, theirs in zip((*job.outcomes, job.survey.weight), current, reference, strict=False):
        medians = [
            np.median(np.abs(values)) if (values := part.value[part.value != 0]).size else 0.0 for part in (ours, theirs)
        ]
        if name is not None and min(medians) > 0.0:
            yield name, float(medians[1] / medians[0])


def in_rows(reference: ReferenceFile, placed: Records) -> Records:
    """Those of all records of the reference that have a row of the current crosstab, sorted by these rows."""
    row = reference.row[placed.row]
    order = np.argsort(row, kind="stable")
    in_order = order[np.searchsorted(row[order], 0) :]
    records = placed.take(in_order)
    return replace(records, row=row[in_order].astype(np.int32))


def absent_records(job: Job, reference: ReferenceFile, placed: Records) -> AbsentRecords:
    """Those of all records of the reference that have no row of the current crosstab.

    None where numbers of records are secret: which crosses the file lacks is then secret, too.
    """
    names = job.reference_columns
    absent = np.flatnonzero(reference.row[placed.row] < (-1 if job.sizes_in_sums else 0))
    by_column = reference.census.crosstab.codes_of(names, placed.row[absent])
    return AbsentRecords(names, by_column, placed.weight[absent], placed.outcomes[absent])


def records_of(job: Job, reference: ReferenceFile, scratch: Path, tick: Tick = lambda rows: None) -> Records:
    """All records of the reference, in its own order, with unclipped weights, or with those that the job declares."""
    placed = place(job.by_record, reference.source, reference.census, scratch, tick, weights_clipped=False)
    if (public := job.survey.design_weights) is None:
        return placed
    return replace(placed, weight=public.of(reference.census.crosstab)[placed.row])


def copied_columns(job: Job, source: Source) -> Iterator[pa.Table]:
    """The columns that the job copies from its reference: all rows in the file's order, with categories as texts."""
    for batch in source.batches(job.microdata.columns):
        recoded_batch = recoded(plain_batch(batch), job.recode, source.text_only)
        yield pa.Table.from_batches([recoded_batch.select(list(job.microdata.columns))])


def _current(reference: Source) -> DataError:
    fault = "it is the current file, or contains records from it"
    remedy = f"name an earlier period's file, or another public file, under reference.path. {NO_PROTECTION}"
    return DataError.of(reference.name, "reference", fault, "", remedy)


def _matched(job: Job, crosstab: Crosstab, other: Crosstab) -> tuple[Ints, list[str]]:
    """For every row of `other`, the first row of `crosstab` with the same stratum and predictors, or −1.

    The second result names the combinations of `crosstab` that `other` lacks.
    """
    names = job.reference_columns
    ours, theirs = crosstab.codes_of(names), other.codes_of(names)
    lacking = np.unique(ours[first_rows(theirs, ours) < 0], axis=0)
    labels = [
        " and ".join(f"{name} = {crosstab.levels[name][code]}" for name, code in zip(names, codes, strict=True))
        for codes in lacking.tolist()
    ]
    return first_rows(ours, theirs).astype(np.int64), sorted(labels)
