"""For `survey.source`: a folder of Parquet files read as one file, with the columns that names of subfolders give.

Programs for large data write such folders: `region=north/part-0.parquet` has the records of the level north. Files are
read in the order of their paths. Files and folders whose names begin with `.` or `_` are notes of these programs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.files import sha256
from dpdist.survey.plain import decoded, is_number, is_text, plain_type
from dpdist.survey.typed_file import OneFile, unreadable

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
                fault = f"{_shown(file, self.path)} lies in subfolders of other columns than {_shown(files[0], self.path)}"
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
        wanted = pa.schema([self.schema.field(name) for name in columns])
        for file, path_keys in self.parts:
            self._check(file, path_keys, wanted)
        for file, path_keys in self.parts:
            stored = [name for name in columns if name in file.columns]
            for batch in file.batches(stored or list(file.columns[:1])):
                yield pa.record_batch([self._column(file, path_keys, batch, field) for field in wanted], schema=wanted)

    def fingerprint(self) -> str:
        listed = [(file.path.relative_to(self.path).as_posix(), sha256(file.path)) for file, _ in self.parts]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

    def _names(self) -> Iterator[str]:
        """Paths of the folder's Parquet files, as texts."""
        others = list[str]()
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
                    others.append(name)
                else:
                    yield name
        if others:
            fault = f"a folder with files that are not Parquet: {', '.join(sorted(others)[:3])}"
            fault += f" and {len(others) - 3} more" if len(others) > 3 else ""
            raise unreadable(self.name, fault, "name one file, or a folder of Parquet files alone")

    def _check(self, file: OneFile, path_keys: Keys, wanted: pa.Schema) -> None:
        """Raises `DataError` if a file lacks a column, or has it of a type that does not go with the others'."""
        where = _shown(file.path, self.path)
        for field in wanted:
            if field.name in path_keys:
                continue
            if field.name not in file.columns:
                remedy = "add the column to the file, or take the file out of the folder"
                raise unreadable(self.name, f"{where} has no column '{field.name}', and other files have", remedy)
            kind = plain_type(file.schema.field(field.name).type)
            if _common(field.type, kind) is None:
                fault = f"column '{field.name}' is {field.type} in other files, and {kind} in {where}"
                raise unreadable(self.name, fault, "store the column with one type in all files")

    def _column(self, file: OneFile, path_keys: Keys, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        stored = decoded(batch.column(field.name)) if field.name in batch.schema.names else None
        if field.name not in path_keys:
            return pc.cast(stored, field.type)
        value = pa.scalar(path_keys[field.name], pa.string()).cast(field.type)
        if stored is not None and not _agrees(stored, value):
            fault = (
                f"records of {_shown(file.path, self.path)} have other values of '{field.name}' than the subfolder's name"
            )
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


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that has values of both; None if there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_text(one) and is_text(other):
        return pa.large_string()
    if is_number(one) and is_number(other):
        return pa.int64() if pa.types.is_integer(one) and pa.types.is_integer(other) else pa.float64()
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
