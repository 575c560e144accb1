"""For `survey.census` and `placement`: a file in batches of checked, typed records, with numbered categories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from dpdist.core.errors import DataError, Problem
from dpdist.core.records import Codes, Ints, Level
from dpdist.job import Job
from dpdist.survey.checks import Checked, check
from dpdist.survey.csv_text import no_header
from dpdist.survey.findings import Findings, recoded
from dpdist.survey.schema import check_replicates, check_schema, needed_columns
from dpdist.survey.source import Source
from dpdist.survey.spelling import causes
from dpdist.survey.units import Bounded

Tick = Callable[[int], None]


def changed_while_read(source: Source) -> DataError:
    return DataError(source.name, [Problem("file", "it changed while it was read", "a file at rest", "run again")])


def checked_batches(
    job: Job, source: Source, findings: Findings | None = None, tick: Tick = lambda rows: None
) -> Iterator[Checked]:
    """Yields the records that belong to the release as typed batches; problems of the file are added to `findings`."""
    findings = Findings() if findings is None else findings
    first = 0
    columns = list(source.columns)
    if problems := check_replicates(job, columns):
        raise DataError(source.name, problems)
    needed = needed_columns(job, columns)
    twice = [name for name in needed if columns.count(name) > 1]
    if twice:
        remedy = "rename or delete one"
        raise DataError(source.name, [Problem(n, "stands twice in the file", "each column once", remedy) for n in twice])
    missing = [name for name in needed if name not in columns]
    if source.text_only and len(missing) == len(needed) and not causes(columns, needed):
        fault, remedy = "its first line names none of the job's columns", "give a header line, names separated by commas"
        if remark := no_header(columns[0]) if columns else None:
            fault, remedy = f"its first line is {remark}", "delete this line, so that the line of names is the first"
        raise DataError(source.name, [Problem("file", fault, ", ".join(needed), remedy)])
    if missing:
        empty = pa.schema([(name, pa.string()) for name in source.columns])
        raise DataError(source.name, check_schema(job, empty, text_only=True))
    bounded = Bounded(job, findings)
    for stored in source.batches(needed):
        batch = recoded(stored, job.recode, source.text_only)
        if first == 0 and (problems := check_schema(job, batch.schema, source.text_only)):
            raise DataError(source.name, problems)
        checked = bounded(check(job, batch, first, findings, source.text_only))
        first += batch.num_rows
        tick(batch.num_rows)
        if len(checked.row):
            yield checked


def strides(levels: Mapping[str, tuple[Level, ...]]) -> dict[str, int]:
    strides: dict[str, int] = {}
    stride = 1
    for name in reversed(list(levels)):
        strides[name] = stride
        stride *= len(levels[name])
    return strides


def frame_key(codes: Mapping[str, Codes], levels: Mapping[str, tuple[Level, ...]], size: int) -> Ints:
    """One number per record or row for its combination of categories, in the frame's sort order; 0 without categories."""
    key = np.zeros(size, dtype=np.int64)
    for name, stride in strides(levels).items():
        key += codes[name].astype(np.int64) * stride
    return key
