"""Reads Parquet files in parts, in memory that does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

PASS_ROWS = 2**20
"""Row groups of at most this number of rows, or single ones, are read in one pass. A pass uses about 25 bytes per row."""


def batches(file: pq.ParquetFile, columns: Sequence[str] | None = None, most: int = 65_536) -> Iterator[pa.RecordBatch]:
    """Yields batches of a file in order, each with at most the given number of rows."""
    wanted, groups, rows = None if columns is None else list(columns), list[int](), 0
    for group in range(file.metadata.num_row_groups):
        more = file.metadata.row_group(group).num_rows
        if groups and rows + more > PASS_ROWS:
            yield from file.iter_batches(most, groups, wanted)
            groups, rows = [], 0
        groups.append(group)
        rows += more
    if groups:
        yield from file.iter_batches(most, groups, wanted)
