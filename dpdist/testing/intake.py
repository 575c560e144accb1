"""What a file's values become before a mechanism sees them, by the check of every run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpdist.confidential.records import Records
from dpdist.core.records import Floats
from dpdist.job import Job
from dpdist.survey.checks import check
from dpdist.survey.findings import Findings
from dpdist.survey.schema import needed_columns


def taken_in(job: Job, records: Records) -> Records:
    """The records with outcomes and weights as a run stores them; the file that holds them must be accepted."""
    findings = Findings()
    columns = dict(_columns(job, records))
    checked = check(job, pa.RecordBatch.from_pydict(columns), 0, findings, text_only=False)
    assert not findings.problems, findings.problems
    assert len(checked.row) == len(records)
    outcomes = np.column_stack(checked.outcomes).reshape(records.outcomes.shape)
    return replace(records, outcomes=outcomes, weight=checked.weight)


def _columns(job: Job, records: Records) -> Iterator[tuple[str, list[object]]]:
    """Columns of a file; those that are not numbers of the records have one value, and codes are the nearest texts'."""
    values = records.outcomes.reshape(len(records), -1).T
    for name in needed_columns(job):
        column = job.columns.get(name)
        if name in job.outcomes:
            number: Floats = values[job.outcomes.index(name)]
            codes = column.codes if column is not None else None
            yield name, [value if codes is None else _nearest(codes, value) for value in number.tolist()]
        elif name == job.survey.weight:
            yield name, records.weight.tolist()
        else:
            one: object = column.levels[0] if column is not None and column.levels else "1"
            yield name, [one] * len(records)


def _nearest(codes: Mapping[str, float], number: float) -> str:
    return min(codes, key=lambda text: abs(codes[text] - number))
