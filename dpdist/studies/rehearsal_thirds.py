"""Random thirds of a public file: one to release, one as reference, one to judge by.

The parts are independent samples of one population, with the same number n of records in every base cell. So errors are
computed for fixed cell sizes: each cell is a stratum of independent draws, whatever the design.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpdist.core.errors import DataError, JobError, Problem
from dpdist.core.keys import Key
from dpdist.core.records import Ints
from dpdist.job import Job, Simulate, SimulatedReference
from dpdist.survey.batch import Batch, Findings
from dpdist.survey.checks import in_universe
from dpdist.survey.schema import needed_columns
from dpdist.survey.source import Source, open_file, open_source, simulated_source
from dpdist.survey.typed_file import plain_batch

LEFT_OVER = 3
"""Label, beside thirds 0, 1 and 2, of records left over when a cell is divided by three; they are in the reference."""


class FileThirds(NamedTuple):
    """Paths of three files: the one to release, its reference, and the truth."""

    current: Path
    earlier: Path
    truth: Path


def numbered(keys: pd.DataFrame) -> Ints:
    """Each record's cell, (record,), by the text of its keys."""
    texts = keys.astype(str)
    return np.asarray(texts.groupby(list(texts), sort=False).ngroup(), dtype=np.int64)


def thirds(cell: Ints, rng: np.random.Generator) -> Ints:
    """A random split into thirds 0, 1, 2 of equal size in every cell, (record,); the rest is LEFT_OVER."""
    shuffled, place = rng.permutation(len(cell)), np.empty(len(cell), dtype=np.int64)
    place[shuffled] = pd.Series(cell[shuffled]).groupby(cell[shuffled]).cumcount().to_numpy()
    return np.where(place < np.bincount(cell)[cell] // 3 * 3, place % 3, LEFT_OVER)


def parted(third: Ints, current: int = 0, earlier: int = 1) -> Iterator[NDArray[np.bool_]]:
    """Which records are in each of `FileThirds`, (record,)."""
    yield third == current
    yield (third == earlier) | (third == LEFT_OVER)
    yield third == 3 - current - earlier


BY_CHANCE = Key(bytes(32)).child("rehearsal")
"""The key of the split. It is public, so that anyone can repeat the split."""
FEWEST = 6
"""Fewest records of a cell whose intervals are judged: each third then has two, and so a direct standard error."""


class Thirds(NamedTuple):
    """A public file's table, and each record's third: 0, 1, 2 or LEFT_OVER; `thin` is the number of cells too small to
    judge.
    """

    table: pa.Table
    third: Ints
    text_only: bool
    cells: int
    thin: int

    def written(self, current: int, swapped: bool, folder: Path) -> FileThirds:
        """Writes the three files of a trial; `swapped` exchanges reference and truth."""
        suffix = "csv" if self.text_only else "parquet"
        earlier = (current + (2 if swapped else 1)) % 3
        folder.mkdir(parents=True, exist_ok=True)
        parts = FileThirds(*(folder / f"{name}.{suffix}" for name in FileThirds._fields))
        for path, rows in zip(parts, parted(self.third, current, earlier), strict=True):
            part = self.table.filter(pa.array(rows))
            pa_csv.write_csv(part, path) if self.text_only else pq.write_table(part, path)
        return parts

    @property
    def caution(self) -> str:
        """A text on what the split cannot judge; empty if it judges every cell."""
        if not self.thin:
            return ""
        return (
            f"{self.thin} of {self.cells} cells have fewer than {FEWEST} records. Their intervals are not judged, because "
            "each third needs two records"
        )


def public_source(job: Job, public: Path | None) -> Source:
    """The named file, the job's reference, or a simulated survey. Raises `JobError` if there is none."""
    reference = job.reference
    _refuse_the_input(job, public if public is not None else reference.file if reference is not None else None)
    if public is not None:
        return open_file(public, reference.text_format if reference is not None else job.input)
    if reference is not None and reference.file is not None:
        return open_source(job, reference.file, reference.text_format)
    if (simulated := _twin(job)) is None:
        remedy = "name a public file with the job's columns by --public"
        raise JobError.of(job.dataset, "reference", "no public file to rehearse on", "reference.path", remedy)
    return simulated_source(simulated)


def public_reference(job: Job, public: Path | None) -> dict[str, Any]:
    """The reference of a recommended job: the job's own if it holds records, else the public file."""
    if job.reference is not None and job.reference.holds_records and not job.reference.is_redacted:
        return job.reference.model_dump(mode="json", exclude_unset=True)
    if public is not None:
        return {"path": str(public), "provenance": "a public file"}
    twin = _twin(job)
    return {"simulate": twin.model_dump(mode="json")} if twin is not None else {}


def _twin(job: Job) -> Simulate | None:
    if isinstance(job.reference, SimulatedReference):
        return job.reference.simulate
    simulated = job.input.simulate
    return simulated.model_copy(update={"seed": simulated.seed + 1}) if simulated is not None else None


def _refuse_the_input(job: Job, public: str | Path | None) -> None:
    """Refuses the job's own input. Paths are compared, so a copy is not noticed."""
    confidential = job.input.path
    if public is None or confidential is None or not Path(public).exists() or not Path(confidential).exists():
        return
    if Path(public).samefile(confidential):
        remedy = "name a file that is public: a rehearsal shows its errors, at no cost and without noise on them"
        raise JobError.of(job.dataset, "rehearsal", "the public file is the job's own input", "another file", remedy)


def in_thirds(job: Job, source: Source, records: int | None, tick: Callable[[int], None] = lambda rows: None) -> Thirds:
    """The columns that the job reads, with a random split of every combination of categories into thirds.

    At most `records` records are used. Those outside the universe are split, too, because a universe is a domain of the
    sample; they are in no cell. `tick` takes the rows of each batch. Raises `DataError` if a column is missing, and
    `JobError` if no cell has three records.
    """
    names = list(dict.fromkeys([*needed_columns(job, source.columns), *job.microdata.columns]))
    if missing := [name for name in names if name not in source.columns]:
        column_names = ", ".join(list(source.columns)[:20])
        problems = [
            Problem(name, "missing column", f"the public file has {column_names}", "name another file") for name in missing
        ]
        raise DataError(source.name, problems)
    batches, inside, findings, rows = list[pa.RecordBatch](), list[NDArray[np.bool_]](), Findings(), 0
    for batch in source.batches(names):
        batches.append(plain_batch(batch))
        inside.append(in_universe(job, Batch(batch, rows, findings, source.text_only)))
        rows += batch.num_rows
        tick(batch.num_rows)
    if findings.problems:
        raise DataError(source.name, findings.placed(source.lines))
    table = pa.Table.from_batches(batches)
    rng = BY_CHANCE.generator("split")
    order = rng.permutation(table.num_rows)[:records]
    table = table.take(pa.array(np.sort(order)))
    within = np.concatenate([np.empty(0, dtype=bool), *inside])[np.sort(order)]
    cell = _cells(job, table, within)
    third, sizes = thirds(cell, rng), np.bincount(cell[within])
    sizes = sizes[sizes > 0]
    if not (third[within] == 0).any():
        problem = Problem(
            "rehearsal",
            f"too few records for three parts: no cell of {source.name} has three",
            "three parts: a current file, its reference, and the truth",
            "name a larger public file by --public, or merge levels",
        )
        raise JobError(job.dataset, [problem])
    return Thirds(table, third, source.text_only, len(sizes), int((sizes < FEWEST).sum()))


def _cells(job: Job, table: pa.Table, within: NDArray[np.bool_]) -> Ints:
    """Each record's cell, (record,).

    Records outside the universe or without an outcome form cells of their own: a job drops them, and thirds must then
    stay equal.
    """
    keys = table.select(list(job.categories)).to_pandas().assign(**{"in the universe": within})
    for name in job.outcomes:
        keys[f"{name} is missing"] = table[name].is_null(nan_is_null=True).to_numpy()
    return numbered(keys)
