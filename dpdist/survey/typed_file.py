"""Plain values of typed columns, which of them are missing, and what typed files share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.errors import DataError, Problem
from dpdist.core.files import sha256
from dpdist.job import TextFile

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
    return DataError(name, [Problem("file", cause, FORMATS, remedy)])


@dataclass(frozen=True)
class OneFile(ABC):
    """A file with typed columns, without text lines or known true figures. Raises `DataError` if it cannot be read."""

    path: Path

    def __post_init__(self) -> None:
        self.schema  # noqa: B018 - unreadable files are found when the source is opened

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def text_only(self) -> bool:
        return False

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
    @abstractmethod
    def rows(self) -> int | None: ...

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]: ...

    @property
    def columns(self) -> Sequence[str]:
        names: list[str] = self.schema.names
        return names

    def lines(self, rows: set[int]) -> Mapping[int, int]:
        return {}

    def fingerprint(self) -> str:
        return sha256(self.path)

    @property
    def truth(self) -> None:
        return None
