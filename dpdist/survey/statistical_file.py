"""The reader of SAS, Stata and SPSS files: codes in chunks, through pyreadstat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.errors import DataError, install, installed
from dpdist.job import TextFile
from dpdist.survey.typed_file import STATISTICAL, OneFile, unreadable

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
            remedy = "add encoding: beside its path, as in encoding: latin-1"
            return unreadable(self.name, "its texts are not in the encoding that it states", remedy)
        return unreadable(self.name, f"not a readable {kind} file", "copy it again, or store it as Parquet or CSV")


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if kind == pa.float64():
        return pa.array(np.asarray(values, dtype=np.float64), from_pandas=True)
    texts = pa.array(values, type=kind, from_pandas=True)
    return pc.if_else(pc.equal(texts, ""), None, texts)
