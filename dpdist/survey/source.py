"""For `release`, `planning`, `cli`: opens a job's microdata: a file, a table in memory or a simulation."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.errors import DataError, JobError, Problem
from dpdist.core.parquet import batches
from dpdist.job import Job, Simulate, TextFile
from dpdist.survey.csv_text import PARQUET, kind_by_content
from dpdist.survey.parquet_folder import ParquetFolder
from dpdist.survey.readers import reader
from dpdist.survey.schema import needed_columns
from dpdist.survey.simulate import SCHEMA, Doctorates, Truth
from dpdist.survey.typed_file import FORMATS, OneFile, unreadable

BATCH_ROWS = 65_536
AS_CSV = (
    "name it .csv, and add separator: beside its path if its fields are not separated by commas; fixed columns are not read"
)
UNPACKED = "unpack it, and name the file in it; a CSV file may be compressed by gzip, and is named .csv.gz then"
BY_ARROW = "write it as Parquet: pyarrow.parquet.write_table, or write_parquet of Polars or R's arrow"
BY_OFFICE = "save the sheet as CSV in UTF-8, in a file named .csv"
OTHER_KINDS = {
    **dict.fromkeys((".tsv", ".tab"), 'name it .csv, and add separator: "\\t" beside its path'),
    **dict.fromkeys((".txt", ".dat", ".asc", ".prn"), AS_CSV),
    **dict.fromkeys((".zip", ".7z", ".tar", ".tgz", ".bz2", ".xz", ".zst"), UNPACKED),
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), BY_OFFICE),
    **dict.fromkeys((".feather", ".arrow", ".ipc", ".orc", ".rds", ".rda", ".rdata"), BY_ARROW),
    ".por": "save it as .sav in SPSS, or as CSV",
}
"""What to do with files of other kinds, by their suffix."""
IN_MEMORY = "the table in memory"
"""Text that stands for a file's name in messages about a table in memory."""
ONE_TYPE = "texts, numbers, booleans or dates, of one type in a column"


class Exported(Protocol):
    """A table of another library that hands itself over to Arrow, as those of Polars and DuckDB do."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Input: TypeAlias = str | Path | pd.DataFrame | pa.Table | Exported | None
"""A file or a table in memory that replaces the job's own input."""


class Source(Protocol):
    """Microdata as a stream of record batches, in the order of rows."""

    @property
    def name(self) -> str: ...

    @property
    def text_only(self) -> bool:
        """True if all values are text until the job gives their types, as in CSV files."""
        ...

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def rows(self) -> int | None:
        """Number of rows; None if it is only known after reading."""
        ...

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]: ...

    def lines(self, rows: set[int]) -> Mapping[int, int]: ...

    def fingerprint(self) -> str:
        """SHA-256 that identifies the content."""
        ...

    @property
    def truth(self) -> Truth | None: ...


def open_source(job: Job, path: Input = None, written: TextFile | None = None) -> Source:
    """The job's input, or the given file or table in its place.

    `written` is how a CSV file is written, by default as the job's input. Raises `DataError` if a file cannot be read, and
    `JobError` if there is no input or the wrong kind of input.
    """
    declared = job.input
    if isinstance(path, pd.DataFrame):
        return TableSource(arrow(path))
    if isinstance(path, pa.Table):
        return TableSource(path)
    if hasattr(path, "__arrow_c_stream__"):
        return TableSource(pa.table(path))
    if path is None and declared.simulate is not None:
        return simulated_source(declared.simulate)
    chosen = path if path is not None else declared.path
    if chosen is None:
        remedy = "give --input PATH, or input: {path: …} or {simulate: …} in the job"
        remedy += "; dpdist show JOB says where a shipped job's file comes from"
        allowed = f"{FORMATS}, with the columns {', '.join(needed_columns(job))}; or a simulated survey"
        raise JobError(job.dataset, [Problem("input", "no input", allowed, remedy)])
    if not isinstance(chosen, str | os.PathLike):
        fault, allowed = f"a {type(chosen).__name__}", "a path, a data frame of pandas or Polars, or an Arrow table"
        raise JobError(job.dataset, [Problem("input", fault, allowed, "give one of these")])
    return open_file(Path(chosen), written or declared)


def open_file(file: Path, written: TextFile = TextFile()) -> Source:  # noqa: B008 - frozen
    """Opens a file by the reader of its suffix. Raises `DataError` if it cannot be read."""
    try:
        there, folder = file.is_file(), file.is_dir()
    except OSError as error:
        raise unreadable(str(file), f"cannot be opened ({error.strerror})", "correct the path") from None
    if folder:
        return ParquetFolder(file, ParquetSource)
    if not there:
        raise unreadable(str(file), "no such file", "check the path")
    source: Source = reader(file, written)
    return source


def simulated_source(simulate: Simulate) -> Source:
    return SimulatedSource(Doctorates(simulate))


@dataclass(frozen=True)
class ParquetSource(OneFile):
    """A Parquet file, read by row groups."""

    def described(self) -> pa.Schema:
        return self._footer[1].schema.to_arrow_schema()

    @cached_property
    def _footer(self) -> tuple[os.stat_result, pq.FileMetaData]:
        """The file's state and its list of row groups, which is read once, because it may be long."""
        with self._opened(None) as file:
            return self.path.stat(), file.metadata

    @cached_property
    def rows(self) -> int:
        return int(self._footer[1].num_rows)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        then, metadata = self._footer
        now = self.path.stat()
        # the list of a file that was written anew would be read as damage; what changed is found by its records
        same = (now.st_mtime_ns, now.st_size, now.st_ino) == (then.st_mtime_ns, then.st_size, then.st_ino)
        with self._opened(metadata if same else None) as file:
            try:
                yield from batches(file, columns, BATCH_ROWS)
            except (pa.ArrowException, OSError):
                raise unreadable(self.name, "a row group cannot be read", "copy the file again: it is damaged") from None

    def _opened(self, metadata: pq.FileMetaData | None) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.path, metadata=metadata)
        except (pa.ArrowException, OSError):
            suffix = self.path.suffix.lower()
            if suffix not in ("", ".parquet", ".pq"):
                remedy = OTHER_KINDS.get(suffix, "store it as Parquet, or as CSV in a file named .csv")
                raise unreadable(self.name, f"files named {suffix} are not read", remedy) from None
            kind = kind_by_content(self.path)
            fault, remedy = "not a readable Parquet file", "store it as Parquet, or as CSV in a file named .csv"
            if kind == PARQUET:
                fault, remedy = f"{fault}: it is cut off or damaged", "copy the file again"
            elif kind is not None:
                fault, remedy = f"{fault}: it is {kind}", "name it as what it is; a CSV file is named .csv"
            raise unreadable(self.name, fault, remedy) from None


@dataclass(frozen=True, eq=False, repr=False)
class TableSource:
    """A table in memory. Its fingerprint depends on its content, not on its chunks."""

    table: pa.Table
    name: str = IN_MEMORY
    text_only: bool = False

    @property
    def columns(self) -> Sequence[str]:
        return list(self.table.column_names)

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self.table.select(list(columns)).to_batches(max_chunksize=BATCH_ROWS)

    def lines(self, rows: set[int]) -> Mapping[int, int]:
        return {}

    def fingerprint(self) -> str:
        whole = self.table.replace_schema_metadata(None).unify_dictionaries().combine_chunks()
        written = pa.BufferOutputStream()
        with pa.ipc.new_stream(written, whole.schema) as stream:
            stream.write_table(whole)
        return hashlib.sha256(written.getvalue()).hexdigest()

    @property
    def truth(self) -> None:
        return None


def arrow(frame: pd.DataFrame) -> pa.Table:
    """A data frame as an Arrow table, without its index.

    Raises `DataError` if two columns have the same name, or a column has values of several types or of a type that is not
    read.
    """
    names = [str(name) for name in frame.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        problem = Problem(twice[0], "two columns of this name", "a name of its own for every column", "rename one")
        raise DataError(IN_MEMORY, [problem])
    made, problems = list[pa.Array](), list[Problem]()
    for place, name in enumerate(names):
        try:
            made.append(pa.Array.from_pandas(frame.iloc[:, place]))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):  # The message of the exception quotes a value.
            problems.append(Problem(name, "values of several types, or of one that is not read", ONE_TYPE, "convert it"))
    if problems:
        raise DataError(IN_MEMORY, problems)
    return pa.table(made, names=names)


@dataclass(frozen=True)
class SimulatedSource:
    survey: Doctorates
    text_only: bool = False
    name: str = "simulated doctorates"

    @property
    def columns(self) -> Sequence[str]:
        return list(SCHEMA.names)

    @property
    def rows(self) -> int:
        return self.survey.settings.sample

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in self.survey.batches():
            yield batch.select(list(columns))

    def lines(self, rows: set[int]) -> Mapping[int, int]:
        return {}

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.survey.settings.model_dump(), sort_keys=True).encode()).hexdigest()

    @property
    def truth(self) -> Truth:
        return self.survey.truth
