"""Parquet files read in parts of bounded memory, and the tables of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

PASS_ROWS = 2**20
"""Largest number of rows of the row groups that are read in one pass, unless a single group is larger.

A pass uses about 25 bytes for each row.
"""


def batches(file: pq.ParquetFile, columns: Sequence[str] | None = None, most: int = 65_536) -> Iterator[pa.RecordBatch]:
    """Yields a file's rows in order, in batches of at most `most` rows."""
    names, groups, rows = None if columns is None else list(columns), list[int](), 0
    if (metadata := file.metadata).num_rows <= PASS_ROWS:
        yield from file.iter_batches(most, columns=names)
        return
    for group in range(metadata.num_row_groups):
        more = metadata.row_group(group).num_rows
        if groups and rows + more > PASS_ROWS:
            yield from file.iter_batches(most, groups, names)
            groups, rows = [], 0
        groups.append(group)
        rows += more
    if groups:
        yield from file.iter_batches(most, groups, names)


class ParquetTables(Mapping[str, pd.DataFrame]):
    """The tables of a folder. Each access reads a table anew, so callers do not see each other's changes."""

    def __init__(self, folder: Path, what: str, owner: object = None):
        """Parameters: `what` names the tables in messages, in the plural; `owner` is an object that must not be deleted.

        The folder may exist only as long as `owner` does.
        """
        self._kept = owner
        self._paths, self._what = {path.stem: path for path in sorted(folder.glob("*.parquet"))}, what

    def __getitem__(self, name: str) -> pd.DataFrame:
        """The table of this name."""
        return pd.read_parquet(self.path(name))

    def path(self, name: str) -> Path:
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
