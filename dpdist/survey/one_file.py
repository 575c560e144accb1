"""The common part of sources that are one file with typed columns: Parquet, and files of SAS, Stata and SPSS."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from dpdist.core.files import sha256


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
        return self._described()

    @abstractmethod
    def _described(self) -> pa.Schema: ...

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
