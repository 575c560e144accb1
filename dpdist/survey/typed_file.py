"""Plain values of typed columns, and which are missing; typed files, among them those of SAS, Stata and SPSS."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.errors import DataError, install, installed
from dpdist.core.files import sha256
from dpdist.core.plugins import READERS, declared
from dpdist.job import TextFile
from dpdist.survey.simulate import Truth

# Readers give columns as their files store them. `plain_values` is the one place that decides what is missing: a null, a
# number that is NaN, and a text that is empty or blank. Codes that a file of SAS, Stata or SPSS declares as missing arrive
# as nulls, and so do the texts of `CSV_NULLS` in a CSV file.
CSV_NULLS = ("", "NA", "NaN", "nan", "null", "NULL")
"""Texts that are missing values in a CSV file."""
ELSEWHERE_NULLS = frozenset(
    ["n/a", "#n/a", "nan", "-nan", "nat", "null", "(null)", "none", "<na>", "#null!", "#value!", "."]
    + [f".{letter}" for letter in "abcdefghijklmnopqrstuvwxyz_"]
)
"""Marks of missing values in other programs, in small letters. They are texts here, and no name of a unit."""
EXACT_DIGITS = 18
"""Largest number of digits of a decimal type whose whole numbers fit into 64 bits."""


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's plain values: its encoding is taken off.

    Decimals are whole numbers if they have no decimal places, and else floats.
    """
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and is_text(plain_type(kind.storage_type)):
        return plain_type(kind.storage_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal(kind):
        return pa.int64() if kind.scale == 0 and kind.precision <= EXACT_DIGITS else pa.float64()
    return kind


def plain_values(values: pa.Array) -> pa.Array:
    """A column's values as texts, numbers, truth values or dates, or as a dictionary of these. Missing ones are null."""
    kind = values.type
    if pa.types.is_run_end_encoded(kind):
        return plain_values(pc.run_end_decode(values))
    if pa.types.is_dictionary(kind):
        return _plain_dictionary(values)
    target = plain_type(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return values if target == kind else plain_values(values.storage)
    if pa.types.is_decimal(kind) and pa.types.is_floating(target):
        values = pc.cast(values, pa.string())  # Arrow's way from decimal to float may miss the nearest float
    return _without_missing(values if values.type == target else pc.cast(values, target))


def decode(values: pa.Array) -> pa.Array:
    """Plain values without a dictionary."""
    decoded = plain_values(values)
    return decoded.dictionary_decode() if pa.types.is_dictionary(decoded.type) else decoded


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with plain values, decoded."""
    return pa.record_batch([decode(values) for values in batch.columns], names=batch.schema.names)


def _plain_dictionary(values: pa.DictionaryArray) -> pa.Array:
    if len(values.dictionary) > len(values) and not pa.types.is_string_view(values.dictionary.type):
        return plain_values(values.dictionary_decode())
    entries, place = plain_values(values.dictionary), values.indices
    if pa.types.is_dictionary(entries.type):
        entries = entries.dictionary_decode()
    if entries.null_count:
        place = pc.if_else(pc.is_null(entries).take(place), None, place)
    return pa.DictionaryArray.from_arrays(place, entries)


def _without_missing(values: pa.Array) -> pa.Array:
    if pa.types.is_floating(values.type):
        missing = pc.is_nan(values)
    elif is_text(values.type):
        missing = pc.or_(pc.equal(pc.binary_length(values), 0), pc.ascii_is_space(values))
    else:
        return values
    return pc.if_else(missing, None, values) if pc.any(missing).as_py() else values


STATISTICAL = {
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
    ".dta": "read_dta",
    ".sav": "read_sav",
    ".zsav": "read_sav",
}
"""File extensions of SAS, Stata and SPSS, with pyreadstat's function for each."""
FORMATS = (
    f"a Parquet file, a CSV file (.csv, .csv.gz), a file of SAS, Stata or SPSS ({', '.join(STATISTICAL)}), "
    "or a folder of Parquet files"
)


def unreadable(name: str, cause: str, remedy: str) -> DataError:
    return DataError.of(name, "file", cause, formats(), remedy)


def formats() -> str:
    """The formats of files that can be read, with those of plug-ins."""
    suffixes = ", ".join(dict.fromkeys(f".{plugin.name}" for plugin in declared(READERS)))
    return f"{FORMATS}; by plug-ins: {suffixes}" if suffixes else FORMATS


class Source(ABC):
    """Microdata as a stream of record batches, in the order of rows."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def text_only(self) -> bool:
        """True if all values are text until the job gives their types, as in CSV files."""
        return False

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]: ...

    @property
    @abstractmethod
    def rows(self) -> int | None:
        """Number of rows; None if it is only known after reading."""

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]: ...

    def means_missing(self, column: str, code: Any) -> bool:
        """True if the file declares that a code stands for a missing value, and so reads it as one."""
        return False

    def lines(self, rows: set[int]) -> Mapping[int, int]:
        """Lines of a text file in which rows stand, for messages."""
        return {}

    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 that identifies the content."""

    @property
    def truth(self) -> Truth | None:
        """True figures, if they are known."""
        return None


@dataclass(frozen=True)
class OneFile(Source):
    """A file with typed columns, without text lines or known true figures. Raises `DataError` if it cannot be read."""

    path: Path

    def __post_init__(self) -> None:
        self.schema  # noqa: B018 - unreadable files are found when the source is opened

    @property
    def name(self) -> str:
        return str(self.path)

    @cached_property
    def schema(self) -> pa.Schema:
        """The file's columns with their types. Raises `DataError`."""
        return self.described()

    @classmethod
    def opened(cls, path: Path, written: TextFile) -> Self:
        """The source of a file; `written` says how its texts are written, if the job states it."""
        return cls(path)

    @abstractmethod
    def described(self) -> pa.Schema: ...

    @property
    def columns(self) -> Sequence[str]:
        names: list[str] = self.schema.names
        return names

    def fingerprint(self) -> str:
        return sha256(self.path)


SPSS = (".sav", ".zsav")
"""Suffixes of the files that declare which of their codes stand for missing values."""
CHUNK_ROWS = 65_536
CHUNK_VALUES = 1 << 23
"""Largest number of values in a chunk; wide files have chunks of fewer rows."""


@dataclass(frozen=True)
class StatisticalSource(OneFile):
    """A SAS, Stata or SPSS file. Numbers and dates are read as float64, empty texts and missing-value codes as missing."""

    encoding: str | None = None

    @classmethod
    def opened(cls, path: Path, written: TextFile) -> Self:
        return cls(path, written.encoding)

    @cached_property
    def meta(self) -> Any:
        """The file's header as pyreadstat returns it. Raises `DataError`."""
        return self._read(metadataonly=True)[1]

    def described(self) -> pa.Schema:
        kinds: Mapping[str, str] = self.meta.readstat_variable_types
        return pa.schema(
            [(name, pa.string() if kinds[name] == "string" else pa.float64()) for name in self.meta.column_names]
        )

    @property
    def rows(self) -> int | None:
        number: int | None = self.meta.number_rows
        return number

    @property
    def labels(self) -> Mapping[str, Mapping[object, str]]:
        labels: Mapping[str, Mapping[object, str]] = self.meta.variable_value_labels
        return labels

    @cached_property
    def _missing_ranges(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        if self.path.suffix.lower() not in SPSS:
            return {}
        ranges: Mapping[str, Sequence[Mapping[str, Any]]] = self._read(metadataonly=True, user_missing=True)[
            1
        ].missing_ranges
        return ranges

    def means_missing(self, column: str, code: Any) -> bool:
        """True if a code stands for a missing value: in SPSS by declaration, in Stata and SAS the letters of .a to .z."""
        if self.meta.readstat_variable_types[column] != "string" and isinstance(code, str):
            return True
        return any(
            type(code) is type(limits["lo"]) and limits["lo"] <= code <= limits["hi"]
            for limits in self._missing_ranges.get(column, ())
        )

    @property
    def column_labels(self) -> dict[str, str]:
        labels: Mapping[str, str | None] = self.meta.column_names_to_labels
        return {name: label for name, label in labels.items() if label}

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema, first = pa.schema([self.schema.field(name) for name in columns]), 0
        size = min(CHUNK_ROWS, max(1, CHUNK_VALUES // max(1, len(columns))))
        while True:
            chunk, _ = self._read(usecols=list(columns), row_offset=first, row_limit=size, output_format="dict")
            batch = pa.record_batch([_array(chunk[field.name], field.type) for field in schema], schema=schema)
            if not batch.num_rows:
                return
            yield batch
            first += batch.num_rows
            if batch.num_rows < size or first == self.rows:
                return

    def _read(self, **how: Any) -> tuple[Any, Any]:
        kind = self.path.suffix.lower()
        if not installed("pyreadstat"):
            fault, remedy = f"files named {kind} need pyreadstat, which is not installed", install("pyreadstat")
            raise unreadable(self.name, fault, remedy)
        import pyreadstat

        try:
            fault = getattr(pyreadstat, STATISTICAL[kind])(
                str(self.path), encoding=self.encoding, disable_datetime_conversion=True, **how
            )
        except (pyreadstat.ReadstatError, pyreadstat.PyreadstatError, UnicodeError, LookupError, OSError) as error:
            raise self._damaged(kind, error) from None
        return fault  # type: ignore[no-any-return]

    def _damaged(self, kind: str, error: Exception) -> DataError:
        """The error for a damaged file. It leaves pyreadstat's message out, which may quote a value."""
        if "ncod" in str(error) or isinstance(error, UnicodeError | LookupError):
            remedy = "add encoding: next to its path, as in encoding: latin-1"
            return unreadable(self.name, "its texts are not in the encoding that it states", remedy)
        return unreadable(self.name, f"not a readable {kind} file", "copy it again, or store it as Parquet or CSV")


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if kind == pa.float64():
        return pa.array(np.asarray(values, dtype=np.float64), from_pandas=True)
    texts = pa.array(values, type=kind, from_pandas=True)
    return pc.if_else(pc.equal(texts, ""), None, texts)
