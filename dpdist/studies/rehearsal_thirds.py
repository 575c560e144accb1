"""Finds the public file for a rehearsal, and splits it into three parts of equal sizes in every cell."""

from __future__ import annotations

from collections.abc import Callable
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
from dpdist.studies.parts import Parts, numbered, parted, thirds
from dpdist.survey.schema import needed_columns
from dpdist.survey.source import Source, open_file, open_source, simulated_source

BY_CHANCE = Key(bytes(32)).child("rehearsal")
"""The key of the split. It is public, so that anyone can make the same thirds of the public file."""
FEWEST = 6
"""Fewest records of a cell whose intervals are judged: each third then has two, and a direct standard error."""


class Thirds(NamedTuple):
    """A public file's table, and each record's third: 0, 1, 2 or LEFT_OVER.

    In every cell the three thirds have the same number of records. `cells` is the number of cells, and `thin` of how many
    cells no interval is judged.
    """

    table: pa.Table
    third: Ints
    text_only: bool
    cells: int
    thin: int

    def written(self, current: int, swapped: bool, folder: Path) -> Parts:
        """Writes three files for a trial: the current third, its reference and the third that is the truth.

        `swapped` exchanges the last two.
        """
        suffix = "csv" if self.text_only else "parquet"
        earlier = (current + (2 if swapped else 1)) % 3
        folder.mkdir(parents=True, exist_ok=True)
        parts = Parts(*(folder / f"{name}.{suffix}" for name in Parts._fields))
        for path, rows in zip(parts, parted(self.third, current, earlier), strict=True):
            part = self.table.filter(pa.array(rows))
            pa_csv.write_csv(part, path) if self.text_only else pq.write_table(part, path)
        return parts

    @property
    def caution(self) -> str:
        """What the split cannot judge, in words; empty where it judges every cell."""
        if not self.thin:
            return ""
        return (
            f"{self.thin} of {self.cells} cells have fewer than {FEWEST} records. Their intervals are not judged, because "
            "three parts need two records each"
        )


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


def in_thirds(job: Job, source: Source, records: int | None, tick: Callable[[int], None] = lambda rows: None) -> Thirds:
    """The columns that the job reads, and a random split of every combination of categories into thirds.

    Records outside the universe are left out. If `records` is given, at most that many records are drawn from the file
    first. `tick` is called with the number of rows of each batch that is read.

    Raises `DataError` if a column is missing, and `JobError` if no cell has three records.
    """
    names = list(dict.fromkeys([*needed_columns(job), *job.microdata.columns]))
    if missing := [name for name in names if name not in source.columns]:
        shown = ", ".join(list(source.columns)[:20])
        problems = [
            Problem(name, "missing column", f"the public file has {shown}", "name another file") for name in missing
        ]
        raise DataError(source.name, problems)
    batches = list[pa.RecordBatch]()
    for batch in source.batches(names):
        batches.append(batch)
        tick(batch.num_rows)
    table = pa.Table.from_batches(batches)
    rng = BY_CHANCE.generator("split")
    order = rng.permutation(table.num_rows)[:records]
    table = table.take(pa.array(np.sort(order)))
    for keep in job.universe:
        inside = pd.Series(table[keep.column].to_pandas()).astype(str).isin(list(map(str, keep.keep)))
        table = table.filter(pa.array(inside.to_numpy()))
    cell = _cells(job, table)
    sizes, third = np.bincount(cell), thirds(cell, rng)
    if not (third == 0).any():
        problem = Problem(
            "rehearsal",
            f"too few records for three parts: no cell of {source.name} has three",
            "three parts: a current file, its reference, and the truth",
            "name a larger public file by --public, or merge levels",
        )
        raise JobError(job.dataset, [problem])
    return Thirds(table, third, source.text_only, len(sizes), int((sizes < FEWEST).sum()))


def _cells(job: Job, table: pa.Table) -> Ints:
    """The number of each record's cell, (record,).

    Records without an outcome form cells of their own: a job may leave them out, and thirds must be equal without them.
    """
    keys = table.select(list(job.categories)).to_pandas()
    for name in job.outcomes:
        keys[f"{name} is missing"] = table[name].is_null(nan_is_null=True).to_numpy()
    return numbered(keys)
