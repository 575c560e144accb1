"""Reads Parquet files in parts, so that memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

PASS_ROWS = 2**20
"""Largest number of rows of the row groups that are read in one pass, unless a single group is larger.

A pass uses about 25 bytes for each row.
"""


def batches(file: pq.ParquetFile, columns: Sequence[str] | None = None, most: int = 65_536) -> Iterator[pa.RecordBatch]:
    """Yields a file's rows in order, in batches of at most `most` rows."""
    wanted, groups, rows = None if columns is None else list(columns), list[int](), 0
    if (metadata := file.metadata).num_rows <= PASS_ROWS:
        yield from file.iter_batches(most, columns=wanted)
        return
    for group in range(metadata.num_row_groups):
        more = metadata.row_group(group).num_rows
        if groups and rows + more > PASS_ROWS:
            yield from file.iter_batches(most, groups, wanted)
            groups, rows = [], 0
        groups.append(group)
        rows += more
    if groups:
        yield from file.iter_batches(most, groups, wanted)
