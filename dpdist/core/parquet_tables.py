"""Reads data frames by name, each from its Parquet file when it is first used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd


class ParquetTables(Mapping[str, pd.DataFrame]):
    """Tables of a folder. A frame is read anew each time, so that a caller's changes do not affect other callers."""

    def __init__(self, folder: Path, what: str, kept: object = None):
        """`what` names the tables in messages, in the plural.

        `kept` is an object whose lifetime is the lifetime of the folder, if any.
        """
        self._kept = kept
        self._paths, self._what = {path.stem: path for path in sorted(folder.glob("*.parquet"))}, what

    def __getitem__(self, name: str) -> pd.DataFrame:
        """The table of this name. Raises `KeyError`, which lists the known names."""
        return pd.read_parquet(self.path(name))

    def path(self, name: str) -> Path:
        """Path of the table's file. Raises `KeyError`, which lists the known names."""
        if name not in self._paths:
            raise KeyError(f"no table {name!r} among these {self._what}: {', '.join(self) or 'there are none'}")
        return self._paths[name]

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"<{self._what}: {', '.join(self) or 'none'}>"
