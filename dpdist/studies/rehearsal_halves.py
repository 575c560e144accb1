"""Finds the public file for a rehearsal, and splits it into two halves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dpdist.core.errors import DataError, JobError, Problem
from dpdist.core.keys import Key
from dpdist.core.records import Ints
from dpdist.job import Job, Simulate
from dpdist.job.reference import SimulatedReference
from dpdist.survey.schema import needed_columns
from dpdist.survey.source import Source, open_file, open_source, simulated_source

BY_CHANCE = Key(bytes(32)).child("rehearsal")
"""The key of the split. It is public, so that anyone can make the same halves of the public file."""


class Halves(NamedTuple):
    """A public file's table, and each record's half, 0 or 1.

    A record alone in its cell has the number 2, and is always in the reference.
    """

    table: pa.Table
    half: Ints
    text_only: bool

    def written(self, current: int, folder: Path) -> tuple[Path, Path]:
        """Writes the current half and its reference as files for a trial."""
        suffix = "csv" if self.text_only else "parquet"
        paths = folder / f"current.{suffix}", folder / f"earlier.{suffix}"
        for path, kept in zip(paths, (self.half == current, self.half != current), strict=True):
            part = self.table.filter(pa.array(kept))
            pa_csv.write_csv(part, path) if self.text_only else pq.write_table(part, path)
        return paths


def public_source(job: Job, public: Path | None) -> Source:
    """The public file: the named one, the job's reference, or a simulated survey. Raises `JobError` where there is none."""
    given = job.reference
    _refuse_the_input(job, public if public is not None else given.file if given is not None else None)
    if public is not None:
        return open_file(public, given.written if given is not None else job.input)
    if given is not None and given.file is not None:
        return open_source(job, given.file, given.written)
    if (simulated := _twin(job)) is None:
        remedy = "name a public file with the job's columns by --public"
        raise JobError(job.dataset, [Problem("reference", "no public file to rehearse on", "reference.path", remedy)])
    return simulated_source(simulated)


def public_reference(job: Job, public: Path | None) -> dict[str, Any]:
    """The reference of a recommended job: the job's own if it is a file of records, else the rehearsal's public file."""
    if job.reference is not None and job.reference.holds_records and not job.reference.unnamed:
        return job.reference.model_dump(mode="json", exclude_unset=True)
    if public is not None:
        return {"path": str(public), "provenance": "a public file"}
    twin = _twin(job)
    return {"simulate": twin.model_dump(mode="json")} if twin is not None else {}


def _twin(job: Job) -> Simulate | None:
    """Settings of a simulated survey: those of the job's reference, or those of its input with another seed."""
    if isinstance(job.reference, SimulatedReference):
        return job.reference.simulate
    simulated = job.input.simulate
    return simulated.model_copy(update={"seed": simulated.seed + 1}) if simulated is not None else None


def _refuse_the_input(job: Job, public: str | Path | None) -> None:
    """Refuses the job's own input as the public file. It compares paths only, so a copy of the input goes unnoticed."""
    confidential = job.input.path
    if public is None or confidential is None or not Path(public).exists() or not Path(confidential).exists():
        return
    if Path(public).samefile(confidential):
        remedy = "name a file that is public: a rehearsal shows its errors, at no cost and without noise on them"
        raise JobError(
            job.dataset, [Problem("rehearsal", "the public file is the job's own input", "another file", remedy)]
        )


def halved(job: Job, source: Source, records: int | None) -> Halves:
    """The columns that the job reads, and a random split of every combination of categories into halves.

    If `records` is given, at most that many records are drawn from the file first. Raises `DataError` if a column is
    missing.
    """
    names = list(dict.fromkeys([*needed_columns(job), *job.microdata.columns]))
    if missing := [name for name in names if name not in source.columns]:
        shown = ", ".join(list(source.columns)[:20])
        problems = [
            Problem(name, "missing column", f"the public file has {shown}", "name another file") for name in missing
        ]
        raise DataError(source.name, problems)
    table = pa.Table.from_batches(source.batches(names))
    rng = BY_CHANCE.generator("split")
    order = rng.permutation(table.num_rows)[:records]
    table = table.take(pa.array(np.sort(order)))
    combined = table.select(list(job.categories)).to_pandas().astype(str) if job.categories else None
    cell = np.zeros(table.num_rows, int) if combined is None else combined.groupby(list(combined), sort=False).ngroup()
    shuffled = rng.permutation(table.num_rows)
    within = pd.Series(np.asarray(cell)[shuffled]).groupby(np.asarray(cell)[shuffled]).cumcount().to_numpy()
    half = np.empty(table.num_rows, dtype=np.int64)
    half[shuffled] = within % 2
    half[np.bincount(cell)[cell] == 1] = 2
    return Halves(table, half, source.text_only)
