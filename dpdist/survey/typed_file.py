"""For readers of Parquet, SAS, Stata and SPSS files in `survey`: shared columns, types and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import pyarrow as pa

from dpdist.core.errors import DataError, Problem
from dpdist.core.files import sha256
from dpdist.job import TextFile

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
