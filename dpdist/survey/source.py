"""The microdata of a job, opened for reading: a file by a reader of its suffix, a folder, a table or a simulation."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeAlias
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpdist.core.errors import DataError, JobError, Problem
from dpdist.core.files import sha256
from dpdist.core.parquet import batches
from dpdist.core.plugins import READERS as GROUP, Members, Plugin, PluginRefused
from dpdist.job import Job, Simulate, TextFile
from dpdist.survey.csv_file import PARQUET, kind_by_content
from dpdist.survey.schema import needed_columns
from dpdist.survey.simulate import SCHEMA, Doctorates, Truth
from dpdist.survey.typed_file import (
    FORMATS,
    STATISTICAL,
    OneFile,
    Source as Source,
    decode,
    is_number,
    is_text,
    plain_type,
    unreadable,
)

PLACES = {
    "parquet": "dpdist.survey.source:ParquetSource",
    "pq": "dpdist.survey.source:ParquetSource",
    "": "dpdist.survey.source:ParquetSource",
    "csv": "dpdist.survey.csv_file:CsvSource",
    "gz": "dpdist.survey.csv_file:CsvSource",
    **{suffix.removeprefix("."): "dpdist.survey.typed_file:StatisticalSource" for suffix in STATISTICAL},
}
"""Places of dpdist's readers by a file's suffix, in small letters without its dot. Those of plug-ins are entry points."""
NO_READER = "fix the plug-in, or store the file as Parquet or CSV"
BY_PLUGIN = (
    "The {which} is read by '{name}', third-party: {distribution} {version}. Its authors state that each row of the file "
    "gives one record, whatever the other rows are. Neighbouring files are compared as this reader reads them."
)
"""What a promise takes from the authors of a plug-in's reader."""


def _fault(name: str, member: Any) -> str:
    if name in PLACES:
        return ""
    if not (isinstance(member, type) and issubclass(member, OneFile)):
        return "is not a class derived from OneFile of dpdist.survey.typed_file"
    if lacking := sorted(getattr(member, "__abstractmethods__", ())):
        return f"has no {', '.join(lacking)}: write what is missing in {member.__name__}"
    if name != name.lower() or "." in name:
        return "has no suffix as its name: use the file's suffix in lower case, without a dot"
    return ""


READERS: Members[Any] = Members(GROUP, PLACES, _fault)
"""Classes of readers by a file's suffix."""


def reader(path: Path, written: TextFile) -> Any:
    """The source of a file by its suffix; a file of unknown suffix is read as Parquet. Raises `DataError`."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix in READERS:
        return READERS[suffix].opened(path, written)
    try:
        plugin, kind = READERS.plugged_in(suffix)
    except KeyError:
        return READERS["parquet"].opened(path, written)
    except PluginRefused as refusal:
        raise unreadable(str(path), str(refusal), NO_READER) from None
    with _guarded(str(path), plugin):
        opened: OneFile = kind.opened(path, written)
    return ThirdParty(path, opened, plugin)


@contextmanager
def _guarded(name: str, plugin: Plugin) -> Iterator[None]:
    """Replaces errors of a plug-in by one without their texts, which may quote a value. Its own `DataError` passes."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # code of others may fail in any way
        raise unreadable(name, f"plug-in {plugin} cannot read it ({type(error).__name__})", NO_READER) from None


@dataclass(frozen=True)
class ThirdParty(OneFile):
    """A file read by a plug-in's class. Its output must have the columns and types that it states.

    dpdist determines the file's name and checksum.
    """

    reader: OneFile
    plugin: Plugin

    def described(self) -> pa.Schema:
        with _guarded(self.name, self.plugin):
            schema = self.reader.described()
        if not isinstance(schema, pa.Schema):
            raise self._unlike("no Arrow schema")
        return schema

    @cached_property
    def rows(self) -> int | None:
        with _guarded(self.name, self.plugin):
            return self.reader.rows

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema, read = pa.schema([self.schema.field(name) for name in columns]), 0
        with _guarded(self.name, self.plugin):
            parts = iter(self.reader.batches(list(columns)))
        while True:
            with _guarded(self.name, self.plugin):
                batch = next(parts, None)
            if batch is None:
                break
            if not isinstance(batch, pa.RecordBatch) or not batch.schema.equals(schema):
                raise self._unlike("a batch with columns or types that differ from those it states")
            read += batch.num_rows
            yield batch
        if self.rows is not None and read != self.rows:
            raise self._unlike("a number of rows that differs from the one it states")

    def _unlike(self, what: str) -> DataError:
        return unreadable(self.name, f"plug-in {self.plugin} gives {what}", NO_READER)


def reader_of(source: object) -> dict[str, str]:
    """The reader of a source, with distribution and version, for plug-ins; else empty."""
    if not isinstance(source, ThirdParty):
        return {}
    return {"name": source.plugin.name, **source.plugin.origin}


SUFFIXES = (".parquet", ".pq", ".parq", "")
NO_VALUE = ("", "__HIVE_DEFAULT_PARTITION__")
"""Values of a subfolder's name that stand for a missing value."""
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
Keys: TypeAlias = dict[str, str | None]


@dataclass(frozen=True)
class ParquetFolder(OneFile):
    """A folder of Parquet files. Raises `DataError`, by name, for files that do not go together."""

    part: type[OneFile]
    """The reader of one file."""

    @cached_property
    def parts(self) -> Sequence[tuple[OneFile, Keys]]:
        """Every file, in the order of paths, with the values that its subfolders' names give."""
        files = [self.path / name for name in sorted(self._names())]
        if not files:
            raise unreadable(self.name, "a folder without Parquet files", "name a file, or a folder of Parquet files")
        keys = [_keys(file.relative_to(self.path)) for file in files]
        for file, path_keys in zip(files, keys, strict=True):
            if list(path_keys) != list(keys[0]):
                fault = (
                    f"{_shown(file, self.path)} lies in subfolders whose columns differ from those of "
                    f"{_shown(files[0], self.path)}"
                )
                raise unreadable(self.name, fault, "name a folder whose files all have the same form of path, column=value")
        return [(self.part(file), path_keys) for file, path_keys in zip(files, keys, strict=True)]

    def described(self) -> pa.Schema:
        kinds = dict[str, pa.DataType]()
        for file, _ in self.parts:
            for field in file.schema:
                kind = plain_type(field.type)
                kinds[field.name] = _common(kinds.get(field.name, kind), kind) or kinds[field.name]
        kinds |= {name: _kind([path_keys[name] for _, path_keys in self.parts]) for name in self.parts[0][1]}
        return pa.schema(list(kinds.items()))

    @cached_property
    def rows(self) -> int:
        return sum(file.rows or 0 for file, _ in self.parts)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([self.schema.field(name) for name in columns])
        for file, path_keys in self.parts:
            self._check(file, path_keys, schema)
        for file, path_keys in self.parts:
            stored = [name for name in columns if name in file.columns]
            for batch in file.batches(stored or list(file.columns[:1])):
                yield pa.record_batch([self._column(file, path_keys, batch, field) for field in schema], schema=schema)

    def fingerprint(self) -> str:
        listed = [(file.path.relative_to(self.path).as_posix(), sha256(file.path)) for file, _ in self.parts]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

    def _names(self) -> Iterator[str]:
        """Paths of the folder's Parquet files, as texts."""
        wrong_names = list[str]()
        for folder, folders, files in os.walk(self.path, followlinks=True):
            if "_delta_log" in folders:
                remedy = "write the table's current records as Parquet: the folder also holds files of earlier versions"
                raise unreadable(self.name, "a table of Delta Lake", remedy)
            folders[:] = [name for name in folders if not name.startswith((".", "_")) or "=" in name]
            for file in files:
                if file.startswith((".", "_")):
                    continue
                name = str(Path(folder, file).relative_to(self.path))
                if Path(file).suffix.lower() not in SUFFIXES:
                    wrong_names.append(name)
                else:
                    yield name
        if wrong_names:
            fault = f"a folder with files that are not Parquet: {', '.join(sorted(wrong_names)[:3])}"
            fault += f" and {len(wrong_names) - 3} more" if len(wrong_names) > 3 else ""
            raise unreadable(self.name, fault, "name one file, or a folder of only Parquet files")

    def _check(self, file: OneFile, path_keys: Keys, schema: pa.Schema) -> None:
        """Raises `DataError` if a file lacks a column, or has it of a type that does not go with the others'."""
        where = _shown(file.path, self.path)
        for field in schema:
            if field.name in path_keys:
                continue
            if field.name not in file.columns:
                remedy = "add the column to the file, or remove the file from the folder"
                raise unreadable(self.name, f"{where} has no column '{field.name}', and other files have", remedy)
            kind = plain_type(file.schema.field(field.name).type)
            if _common(field.type, kind) is None:
                fault = f"column '{field.name}' is {field.type} in other files, and {kind} in {where}"
                raise unreadable(self.name, fault, "store the column with one type in all files")

    def _column(self, file: OneFile, path_keys: Keys, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        stored = decode(batch.column(field.name)) if field.name in batch.schema.names else None
        if field.name not in path_keys:
            return pc.cast(stored, field.type)
        value = pa.scalar(path_keys[field.name], pa.string()).cast(field.type)
        if stored is not None and not _agrees(stored, value):
            shown = _shown(file.path, self.path)
            fault = f"records of {shown} have values of '{field.name}' that differ from the subfolder's name"
            raise unreadable(self.name, fault, "correct the name, or delete the column")
        return pa.repeat(value, batch.num_rows)


def _keys(path: PurePath) -> Keys:
    """The columns that a path gives, as in region=north/part-0.parquet; a value that stands for a missing one is None."""
    pairs = (folder.partition("=") for folder in path.parts[:-1] if "=" in folder)
    return {unquote(name): None if value in NO_VALUE else unquote(value) for name, _, value in pairs}


def _kind(values: Sequence[str | None]) -> pa.DataType:
    """The type of values in names of subfolders: whole numbers, numbers, truth values or texts, as 01."""
    texts = {value for value in values if value is not None}
    if all(WHOLE.fullmatch(text) for text in texts) and texts:
        return pa.int64()
    if all(DECIMAL.fullmatch(text) and (WHOLE.fullmatch(text) or "." in text) for text in texts) and texts:
        return pa.float64()
    return pa.bool_() if texts and {text.lower() for text in texts} <= {"true", "false"} else pa.string()


def _common(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type that has values of both; None if there is none."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_text(left) and is_text(right):
        return pa.large_string()
    if is_number(left) and is_number(right):
        return pa.int64() if pa.types.is_integer(left) and pa.types.is_integer(right) else pa.float64()
    return None


def _agrees(stored: pa.Array, value: pa.Scalar) -> bool:
    """True if every stored value is that of the subfolder's name."""
    try:
        same = pc.equal(stored.cast(value.type), value)
    except pa.ArrowException:
        return False
    return stored.null_count == len(stored) if not value.is_valid else bool(pc.all(pc.fill_null(same, False)).as_py())


def _shown(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


BATCH_ROWS = 65_536
AS_CSV = "name it .csv, and add separator: next to its path unless commas separate its fields; fixed widths are not read"
UNPACKED = "unpack it, and name the file in it; a CSV file may be compressed with gzip if its name ends in .csv.gz"
BY_ARROW = "write it as Parquet: pyarrow.parquet.write_table, or write_parquet of Polars or R's arrow"
BY_OFFICE = "save the sheet as CSV in UTF-8, in a file named .csv"
OTHER_KINDS = {
    **dict.fromkeys((".tsv", ".tab"), 'name it .csv, and add separator: "\\t" next to its path'),
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


class ArrowExporter(Protocol):
    """A table of another library that hands itself over to Arrow, as those of Polars and DuckDB do."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Input: TypeAlias = str | Path | pd.DataFrame | pa.Table | ArrowExporter | None
"""A file or a table in memory that replaces the job's own input."""


def open_source(job: Job, path: Input = None, text_format: TextFile | None = None) -> Source:
    """The job's input, or the given file or table in its place.

    `text_format` is how a CSV file is written, by default as the job's input. Raises `DataError` if a file cannot be read,
    and `JobError` if there is no input or the wrong kind of input.
    """
    declared = job.input
    if isinstance(path, pd.DataFrame):
        return TableSource(arrow(path))
    if isinstance(path, pa.Table):
        return TableSource(path)
    if hasattr(path, "__arrow_c_stream__"):
        try:
            return TableSource(pa.table(path))
        except pa.ArrowException:
            fault, allowed = "a column of a type that Arrow cannot read", "texts, numbers, dates, or true and false"
            raise DataError.of(type(path).__name__, "input", fault, allowed, "convert the column") from None
    if path is None and declared.simulate is not None:
        return simulated_source(declared.simulate)
    file = path if path is not None else declared.path
    if file is None:
        remedy = "give --input PATH, or input: {path: …} or {simulate: …} in the job"
        remedy += "; dpdist show JOB says where a shipped job's file comes from"
        allowed = f"{FORMATS}, with the columns {', '.join(needed_columns(job))}; or a simulated survey"
        raise JobError.of(job.dataset, "input", "no input", allowed, remedy)
    if not isinstance(file, str | os.PathLike):
        fault, allowed = f"a {type(file).__name__}", "a path, a data frame of pandas or Polars, or an Arrow table"
        raise JobError.of(job.dataset, "input", fault, allowed, "give one of these")
    return open_file(Path(file), text_format or declared)


def open_file(file: Path, text_format: TextFile = TextFile()) -> Source:  # noqa: B008 - frozen
    """Opens a file by the reader of its suffix. Raises `DataError` if it cannot be read."""
    try:
        there, folder = file.is_file(), file.is_dir()
    except OSError as error:
        raise unreadable(str(file), f"cannot be opened ({error.strerror})", "correct the path") from None
    if folder:
        return ParquetFolder(file, ParquetSource)
    if not there:
        raise unreadable(str(file), "no such file", "check the path")
    source: Source = reader(file, text_format)
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
                fault, remedy = f"{fault}: it is {kind}", "give its name the right ending; a CSV file is named .csv"
            raise unreadable(self.name, fault, remedy) from None


@dataclass(frozen=True, eq=False, repr=False)
class TableSource(Source):
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

    def fingerprint(self) -> str:
        table = self.table.replace_schema_metadata(None).unify_dictionaries().combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return hashlib.sha256(sink.getvalue()).hexdigest()


def arrow(frame: pd.DataFrame) -> pa.Table:
    """A data frame as an Arrow table, without its index.

    Raises `DataError` if two columns have the same name, or a column has values of several types or of a type that is not
    read.
    """
    names = [str(name) for name in frame.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        problem = Problem(twice[0], "two columns of this name", "a different name for every column", "rename one")
        raise DataError(IN_MEMORY, [problem])
    arrays, problems = list[pa.Array](), list[Problem]()
    for place, name in enumerate(names):
        try:
            arrays.append(pa.Array.from_pandas(frame.iloc[:, place]))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):  # The message of the exception quotes a value.
            problems.append(
                Problem(name, "values of several types, or of a type that cannot be read", ONE_TYPE, "convert it")
            )
    if problems:
        raise DataError(IN_MEMORY, problems)
    return pa.table(arrays, names=names)


@dataclass(frozen=True)
class SimulatedSource(Source):
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

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.survey.settings.model_dump(), sort_keys=True).encode()).hexdigest()

    @property
    def truth(self) -> Truth:
        return self.survey.truth
