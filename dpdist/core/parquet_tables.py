"""Gives the Parquet tables of a folder by name. A table is read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd


class ParquetTables(Mapping[str, pd.DataFrame]):
    """The tables of a folder. Each access reads a table anew, so callers do not see each other's changes."""

    def __init__(self, folder: Path, what: str, kept: object = None):
        """Parameters: `what` names the tables in messages, in the plural; `kept` is an object that must not be deleted.

        The folder may exist only as long as `kept` does.
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
