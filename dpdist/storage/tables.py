"""Parquet stores: records in blocks, the frame, gathered by-products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.files import replaced
from dpdist.records import Ints, Records

RECORD_SCHEMA = pa.schema(
    [
        ("record", pa.int64()),
        ("frame", pa.int32()),
        ("outcome", pa.float64()),
        ("weight", pa.float64()),
        ("psu", pa.int32()),
    ]
)


def write_records(path: Path, records: Records, edges: Sequence[int]) -> None:
    """Write sorted records; block k is rows edges[k]:edges[k+1] and row group k, so a task reads just its own."""
    with replaced(path) as temporary, pq.ParquetWriter(temporary, RECORD_SCHEMA, compression="lz4") as writer:
        for start, stop in pairwise(edges):
            part = records.part(start, stop)
            arrays = [pa.array(np.ascontiguousarray(getattr(part, name))) for name in RECORD_SCHEMA.names]
            writer.write_table(pa.Table.from_arrays(arrays, schema=RECORD_SCHEMA), row_group_size=max(1, stop - start))


def read_rows(path: Path, start: int, stop: int) -> Records:
    """Records start:stop of the file; reads only the row groups that hold them."""
    said = path.stat()
    metadata, edges = _footer(path, (said.st_ino, said.st_mtime_ns))
    first, last = int(np.searchsorted(edges, start, side="right")) - 1, int(np.searchsorted(edges, stop))
    with pq.ParquetFile(path, metadata=metadata) as file:
        table = file.read_row_groups(list(range(first, last))).slice(start - edges[first], stop - start)
    return Records(*(table.column(name).to_numpy() for name in RECORD_SCHEMA.names))


@lru_cache(maxsize=4)
def _footer(path: Path, stamp: tuple[int, int]) -> tuple[pq.FileMetaData, Ints]:
    """Metadata and row-group borders of a file, read once a process as long as it is the same file."""
    metadata = pq.read_metadata(path)
    sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    return metadata, np.concatenate([[0], np.cumsum(sizes)])


def each_block(path: Path) -> Iterator[Records]:
    """All records, a row group at a time."""
    with pq.ParquetFile(path) as file:
        for k in range(file.metadata.num_row_groups):
            table = file.read_row_group(k)
            yield Records(*(table.column(name).to_numpy() for name in RECORD_SCHEMA.names))


def gather(path: Path, parts: Iterable[pa.Table]) -> None:
    """One Parquet file from tables of the same schema, a row group each."""
    with replaced(path) as temporary:
        writer: pq.ParquetWriter | None = None
        try:
            for table in parts:
                if writer is None:
                    writer = pq.ParquetWriter(temporary, table.schema, compression="zstd")
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def write_table(path: Path, table: pa.Table) -> None:
    gather(path, [table])


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    return pq.read_table(path, columns=columns)
