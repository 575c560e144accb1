"""Records as Arrow batches for tasks; crosstab and by-products as Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpdist.confidential.records import Records
from dpdist.core.files import replaced
from dpdist.core.parquet import batches
from dpdist.core.records import Ints

RECORD_SCHEMA = pa.schema(
    [
        ("record", pa.int64()),
        ("frame", pa.int32()),
        ("outcome", pa.float64()),
        ("weight", pa.float64()),
        ("psu", pa.int32()),
    ]
)

GROUP = 65_536
"""Number of rows of a row group."""
MAPPED = 16
"""Number of batches that are looked at in one memory map. The system maps up to half a megabyte around each."""


def write_records(path: Path, records: Records, edges: Sequence[int], on_write: Callable[[], None] = lambda: None) -> None:
    """Writes sorted records in Arrow's memory layout (IPC). Rows edges[k]:edges[k+1] form a batch, which tasks read.

    Further outcomes are columns outcome_2, …. `on_write` is called after every batch.
    """
    schema = RECORD_SCHEMA
    for number in range(2, records.outcomes.shape[1] + 1):
        schema = schema.append(pa.field(f"outcome_{number}", pa.float64()))
    with replaced(path) as temporary, pa.ipc.new_file(str(temporary), schema) as writer:
        for start, stop in pairwise(edges):
            part = records.part(start, stop)
            first, *further = part.outcomes.T
            columns = [part.record, part.row, first, part.weight, part.psu, *further]
            writer.write_batch(pa.RecordBatch.from_arrays(list(map(_array, columns)), schema=schema))
            on_write()


def _array(values: NDArray[Any]) -> pa.Array:
    return pa.array(np.ascontiguousarray(values))


def read_rows(path: Path, start: int, stop: int) -> Records:
    """Reads records start:stop of the file: as views if they are in one batch, otherwise as copies."""
    reader, edges = _batches(path)
    first, last = int(np.searchsorted(edges, start, side="right")) - 1, int(np.searchsorted(edges, stop))
    batches = [reader.get_batch(k) for k in range(first, last)]
    return _records(pa.Table.from_batches(batches, reader.schema).slice(start - edges[first], stop - start))


def each_part(path: Path, start: int, stop: int, most: int) -> Iterator[Records]:
    """Yields records start:stop of the file, in parts of at most `most` records, each from one batch."""
    reader, edges = _batches(path)
    for k, (first, last) in enumerate(pairwise(edges.tolist())):
        low, high = max(start, first), min(stop, last)
        if low < high:
            records = _records(reader.get_batch(k))
            for begin in range(low, high, most):
                yield records.part(begin - first, min(begin + most, high) - first)


def each_block(path: Path) -> Iterator[Records]:
    """Yields all records, batch by batch."""
    reader, _ = _batches(path)
    for k in range(reader.num_record_batches):
        yield _records(reader.get_batch(k))


def _batches(path: Path) -> tuple[pa.RecordBatchFileReader, Ints]:
    """The opened file, and the borders of its batches.

    Batches are read, not memory-mapped. So a process holds only the batches that it uses, however large the file is.
    """
    stat = path.stat()
    return _opened(path, (stat.st_ino, stat.st_mtime_ns))


@lru_cache(maxsize=4)
def _opened(path: Path, stamp: tuple[int, int]) -> tuple[pa.RecordBatchFileReader, Ints]:
    """Opens the file; a process does so once, until the file changes."""
    reader, sizes = pa.ipc.open_file(pa.OSFile(str(path))), list[int]()
    while len(sizes) < reader.num_record_batches:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as mapped:
            last = min(len(sizes) + MAPPED, mapped.num_record_batches)
            sizes += [mapped.get_batch(k).num_rows for k in range(len(sizes), last)]
    return reader, np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _records(table: pa.Table | pa.RecordBatch) -> Records:
    record, crosstab, first, weight, psu, *further = (table.column(name).to_numpy() for name in table.schema.names)
    return Records(record, crosstab, np.array([first, *further]).T if further else first, weight, psu)


def gather(path: Path, parts: Iterable[pa.Table]) -> None:
    """Combines tables of the same schema into one Parquet file, with row groups of `GROUP` rows or a few more."""
    with replaced(path) as temporary:
        writer: pq.ParquetWriter | None = None
        try:
            for table in _in_groups(parts):
                if writer is None:
                    texts = [field.name for field in table.schema if field.type == pa.string()]
                    writer = pq.ParquetWriter(temporary, table.schema, compression="zstd", use_dictionary=texts)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def _in_groups(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting, rows = list[pa.Table](), 0
    for table in parts:
        waiting.append(table)
        rows += len(table)
        if rows >= GROUP:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def write_part(path: Path, records: Sequence[pa.RecordBatch]) -> None:
    """Writes small batches of records. A stored checksum must show whether the file is complete."""
    with replaced(path, durable=False) as temporary, pa.ipc.new_file(str(temporary), records[0].schema) as writer:
        for batch in records:
            writer.write_batch(batch)


def read_part(path: Path, by_batch: bool = False) -> list[pa.Table]:
    """Reads what `write_part` wrote: as one table, or as a table for each of its batches of records."""
    with pa.OSFile(str(path)) as source:
        file = pa.ipc.open_file(source)
        if not by_batch:
            return [file.read_all()]
        return [pa.Table.from_batches([file.get_batch(k)]) for k in range(file.num_record_batches)]


def rows_at(path: Path, rows: Ints) -> pa.Table:
    """Rows of a Parquet file by position, in the given order; positions are distinct. The file is read in parts."""
    order, parts, start = np.argsort(rows), [], 0
    with pq.ParquetFile(path) as file:
        empty = file.schema_arrow.empty_table()
        for batch in batches(file):
            first, last = np.searchsorted(rows, [start, start + batch.num_rows], sorter=order)
            parts.append(pa.Table.from_batches([batch]).take(pa.array(rows[order[first:last]] - start)))
            start += batch.num_rows
    return pa.concat_tables([empty, *parts]).take(pa.array(np.argsort(order)))


def write_table(path: Path, table: pa.Table) -> None:
    gather(path, [table])


def read_table(path: Path) -> pa.Table:
    return pq.read_table(path)
