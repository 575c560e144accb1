"""Where microdata come from: Parquet and CSV files, streamed, and simulated surveys, behind one Protocol."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dpdist.core.errors import DataError, JobError, Problem
from dpdist.core.files import sha256
from dpdist.job import Job, Simulate
from dpdist.survey.csv_text import lines_of, misread
from dpdist.survey.schema import CSV_NULLS
from dpdist.survey.simulate import SCHEMA, Doctorates, Truth

BATCH_ROWS = 65_536
CSV_BLOCK_BYTES = 1 << 22
IN_MEMORY = "the table in memory"
"""What stands in place of a file's name."""
ONE_TYPE = "texts, numbers, booleans or dates, of one type in a column"
FORMATS = "a Parquet file, or a CSV file (.csv, .csv.gz) in UTF-8 with commas between fields"


Input: TypeAlias = str | Path | pd.DataFrame | pa.Table | None
"""Records in place of the job's own: a file, or a table in memory."""


class Source(Protocol):
    """A stream of record batches in row order."""

    @property
    def name(self) -> str: ...

    @property
    def text_only(self) -> bool:
        """True for CSV: every value is text until the job says what it is."""
        ...

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def rows(self) -> int | None:
        """Number of rows, where known without reading."""
        ...

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]: ...

    def lines(self, rows: set[int]) -> Mapping[int, int]:
        """The line of the file where each of these rows (from 0) begins, as far as there are lines and they are known."""
        ...

    def fingerprint(self) -> str:
        """SHA-256 that identifies the content."""
        ...

    @property
    def truth(self) -> Truth | None: ...


def open_source(job: Job, path: Input = None) -> Source:
    """The job's input, or in its stead the file or table given. Raises `DataError` for one that cannot be read."""
    said = job.input
    if isinstance(path, pd.DataFrame):
        return TableSource(arrow(path))
    if isinstance(path, pa.Table):
        return TableSource(path)
    if path is None and said.simulate is not None:
        return simulated_source(said.simulate)
    chosen = path if path is not None else said.path
    if chosen is None:
        remedy = "give --input PATH, or input: {path: …} or {simulate: …} in the job"
        raise JobError(job.dataset, [Problem("input", "no input", "a Parquet or CSV file, or a simulated survey", remedy)])
    return open_file(Path(chosen))


def open_file(file: Path) -> Source:
    """A Parquet or CSV file. Raises `DataError` for one that cannot be read."""
    try:
        there = file.is_file()
    except OSError as error:
        raise _unreadable(str(file), f"cannot be opened ({error.strerror})", "correct the path") from None
    if not there:
        raise _unreadable(str(file), "no such file", "check the path")
    if file.suffix.lower() in (".csv", ".gz"):
        return CsvSource(file)
    return ParquetSource(file)


def simulated_source(simulate: Simulate) -> Source:
    return SimulatedSource(Doctorates(simulate))


@dataclass(frozen=True)
class ParquetSource:
    path: Path
    text_only: bool = False

    def __post_init__(self) -> None:
        self.schema  # noqa: B018 - unreadable files are found when the source is opened

    @property
    def name(self) -> str:
        return str(self.path)

    @cached_property
    def schema(self) -> pa.Schema:
        with self._open() as file:
            return file.schema_arrow

    @property
    def columns(self) -> Sequence[str]:
        names: list[str] = self.schema.names
        return names

    @cached_property
    def rows(self) -> int:
        with self._open() as file:
            return int(file.metadata.num_rows)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self._open() as file:
            try:
                yield from file.iter_batches(batch_size=BATCH_ROWS, columns=list(columns))
            except (pa.ArrowException, OSError):
                raise _unreadable(self.name, "a row group cannot be read", "copy the file again: it is damaged") from None

    def lines(self, rows: set[int]) -> Mapping[int, int]:
        return {}

    def fingerprint(self) -> str:
        return sha256(self.path)

    @property
    def truth(self) -> None:
        return None

    def _open(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError):
            kind = self.path.suffix.lower()
            found = "not a readable Parquet file" if kind in ("", ".parquet", ".pq") else f"files named {kind} are not read"
            raise _unreadable(self.name, found, "store it as Parquet, or as CSV in a file named .csv") from None


@dataclass(frozen=True, eq=False, repr=False)
class TableSource:
    """A table in memory. Its fingerprint follows from its content, in whatever chunks it stands."""

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
        """Of the columns in order, one whole chunk each, as an Arrow stream."""
        whole = self.table.replace_schema_metadata(None).unify_dictionaries().combine_chunks()
        written = pa.BufferOutputStream()
        with pa.ipc.new_stream(written, whole.schema) as stream:
            stream.write_table(whole)
        return hashlib.sha256(written.getvalue()).hexdigest()

    @property
    def truth(self) -> None:
        return None


def arrow(frame: pd.DataFrame) -> pa.Table:
    """A data frame as an Arrow table, without its index. Raises `DataError`, which names columns of several types."""
    names = [str(name) for name in frame.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        problem = Problem(twice[0], "two columns of this name", "a name of its own for every column", "rename one")
        raise DataError(IN_MEMORY, [problem])
    made, problems = list[pa.Array](), list[Problem]()
    for place, name in enumerate(names):
        try:
            made.append(pa.Array.from_pandas(frame.iloc[:, place]))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):  # its message quotes a value
            problems.append(Problem(name, "values of several types, or of one that is not read", ONE_TYPE, "convert it"))
    if problems:
        raise DataError(IN_MEMORY, problems)
    return pa.table(made, names=names)


@dataclass(frozen=True)
class CsvSource:
    path: Path
    text_only: bool = True

    @property
    def name(self) -> str:
        return str(self.path)

    @cached_property
    def columns(self) -> Sequence[str]:
        with self._open(None) as reader:
            names: list[str] = reader.schema.names
        if len(names) == 1 and (problem := misread(self.path)):
            raise DataError(self.name, [problem])
        return names

    @property
    def rows(self) -> None:
        return None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        try:
            with self._open(list(columns)) as reader:
                yield from reader
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _unreadable_csv(self.path, error) from None

    def lines(self, rows: set[int]) -> Mapping[int, int]:
        return lines_of(self.path, rows)

    def fingerprint(self) -> str:
        return sha256(self.path)

    @property
    def truth(self) -> None:
        return None

    def _open(self, columns: list[str] | None) -> pa_csv.CSVStreamingReader:
        if columns is None:
            convert = pa_csv.ConvertOptions()
        else:
            convert = pa_csv.ConvertOptions(
                include_columns=columns,
                column_types={name: pa.string() for name in columns},
                strings_can_be_null=True,
                null_values=list(CSV_NULLS),
            )
        try:
            # without threads, Arrow numbers the lines in its errors
            reading = pa_csv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False)
            return pa_csv.open_csv(self.path, read_options=reading, convert_options=convert)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _unreadable_csv(self.path, error) from None


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


def _unreadable_csv(path: Path, error: Exception) -> DataError:
    """What is wrong with the whole file, or with a line; of Arrow's message only its number is kept: the rest quotes it."""
    name = str(path)
    if problem := misread(path):
        return DataError(name, [problem])
    line = re.search(r"Row #(\d+)", str(error))
    if line is None:
        return _unreadable(name, "not a readable CSV file", "give a CSV file with a header line, in UTF-8")
    place = (f"line {line[1]}",)
    allowed, remedy = "lines with the header's number of fields", "correct the number of fields, or quote commas"
    return DataError(name, [Problem("file", "a line has another number of fields", allowed, remedy, 1, place)])


def _unreadable(name: str, what: str, remedy: str) -> DataError:
    return DataError(name, [Problem("file", what, FORMATS, remedy)])
