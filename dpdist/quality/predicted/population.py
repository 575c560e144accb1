"""For `predicted.prediction`: the reference's public records by frame row, from which replicates are drawn.

A replicate has a current file with the confidential file's public sizes, and a reference of the reference's own size.
Both are drawn with replacement from the reference's records. So it has a run's noise, limits and sampling errors, but
no drift between the files.

A row of the current frame draws from reference records with the same public columns. If there are none, it draws from
those of the same stratum, predictors and base cell, or else from all records.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Frame, Ints
from dpdist.estimation.donors import AbsentRecords
from dpdist.job import Job
from dpdist.survey.reference_file import ReferenceFile, absent_records, records_of


@dataclass(frozen=True)
class Population:
    """The reference's records in the order of its own frame, with unclipped weights.

    `row` is each record's row of the current frame, −1 for none, (record,). A row of the current frame draws from the
    records `order[start : start + size]`, (row,) each.
    """

    records: Records
    row: Ints
    order: Ints
    start: Ints
    size: Ints
    absent: AbsentRecords
    """The records without a row of the current frame."""

    @classmethod
    def of(cls, job: Job, reference: ReferenceFile, frame: Frame) -> Population:
        with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
            placed = records_of(job, reference, Path(folder))
            fields = (np.array(getattr(placed, name)) for name in ("record", "frame", "outcomes", "weight", "psu"))
            records, absent = Records(*fields), absent_records(job, reference, placed)
        other, keys = reference.census.frame, (tuple(frame.codes), _cell_columns(job), ())
        pools = [_by_key(names, frame, other, records.frame) for names in keys]
        start, size, order = np.zeros(len(frame), dtype=np.int64), np.zeros(len(frame), dtype=np.int64), list[Ints]()
        for pool in pools:
            first = size == 0
            start[first], size[first] = pool.start[first] + len(records) * len(order), pool.size[first]
            order.append(pool.order)
        return cls(records, reference.row[records.frame], np.concatenate(order), start, size, absent)

    def current(self, frame: Frame, rng: np.random.Generator) -> Records:
        """A current file with the frame's sizes, in its order, before clipping."""
        row = frame.expand()
        place_in_pool = (rng.random(len(row)) * self.size[row]).astype(np.int64)
        drawn = self.records.take(self.order[self.start[row] + place_in_pool])
        return replace(drawn, record=np.arange(len(row)), frame=row)

    def whole(self, frame: Frame) -> Records:
        """The records behind all rows, weighted to each row's number of records."""
        row = np.repeat(np.arange(len(frame), dtype=np.int32), self.size)
        within = np.arange(len(row)) - np.repeat(np.cumsum(self.size) - self.size, self.size)
        drawn = self.records.take(self.order[self.start[row] + within])
        return replace(drawn, frame=row, weight=drawn.weight * (frame.count / np.maximum(self.size, 1))[row])

    def reference(self, rng: np.random.Generator) -> Records:
        """A reference with the sizes of this one, in rows of the current frame."""
        row = self.records.frame
        size = np.bincount(row)
        first = np.concatenate([[0], np.cumsum(size)])
        return self._placed(self.records.take(first[row] + (rng.random(len(row)) * size[row]).astype(np.int64)))

    def as_it_is(self) -> Records:
        """The reference itself, in rows of the current frame."""
        return self._placed(self.records)

    def _placed(self, records: Records) -> Records:
        order = np.argsort(self.row, kind="stable")
        order = order[np.searchsorted(self.row[order], 0) :]
        return replace(records.take(order), frame=self.row[order].astype(np.int32))


class _Pool(NamedTuple):
    order: Ints
    start: Ints
    size: Ints


def _cell_columns(job: Job) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*job.reference_columns, *job.cell_columns]))


def _by_key(names: tuple[str, ...], frame: Frame, other: Frame, row: Codes) -> _Pool:
    """The records of every row of the current frame by these columns; `row` is each record's row of the other frame."""
    tables = [
        np.column_stack([np.zeros(len(part), dtype=np.int32), *(part.codes[name] for name in names)])
        for part in (frame, other)
    ]
    key = np.unique(np.vstack(tables), axis=0, return_inverse=True)[1].reshape(-1)
    ours, theirs = key[: len(frame)], key[len(frame) :][row]
    sizes = np.bincount(theirs, minlength=int(key.max()) + 1)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return _Pool(np.argsort(theirs, kind="stable"), starts[ours], sizes[ours])
