"""Parquet files in parts: every row once and in order, and memory that does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdist.core import parquet
from dpdist.core.parquet import batches


@pytest.mark.parametrize("sizes", [(), (0,), (5,), (40, 40, 40), (7, 200, 1, 0, 99)], ids=str)
def test_every_row_comes_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]) -> None:
    monkeypatch.setattr(parquet, "PASS_ROWS", 100)
    whole = pa.table({"number": np.arange(sum(sizes)), "text": pa.array(map(str, range(sum(sizes))), pa.string())})
    with pq.ParquetWriter(tmp_path / "rows", whole.schema) as writer:
        start = 0
        for size in sizes:
            writer.write_table(whole.slice(start, size))
            start += size
    with pq.ParquetFile(tmp_path / "rows") as file:
        found = list(batches(file, most=16))
        assert pa.Table.from_batches(found, whole.schema) == whole
        assert all(0 < len(batch) <= 16 for batch in found)
        assert [batch.schema.names for batch in batches(file, ["text"], 16)] == [["text"]] * len(found)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyArrow's own pass over the same file is the control: it holds what it has read, several times as much at the end."""
    monkeypatch.setattr(parquet, "PASS_ROWS", 100_000)
    texts = pa.DictionaryArray.from_arrays(pa.array(np.arange(100_000, dtype=np.int32) % 50), pa.array(map(str, range(50))))
    table = pa.table({"text": texts, "number": np.random.default_rng(1).normal(size=100_000)})
    with pq.ParquetWriter(tmp_path / "rows", table.schema) as writer:
        for _ in range(40):
            writer.write_table(table)

    def held(parts: Iterable[pa.RecordBatch]) -> int:
        before = pa.total_allocated_bytes()
        return max(pa.total_allocated_bytes() - before for _ in parts)

    with pq.ParquetFile(tmp_path / "rows") as file:
        own = held(batches(file))
    with pq.ParquetFile(tmp_path / "rows") as file:
        assert held(file.iter_batches()) > 3 * own, "PyArrow holds no more than one pass: row groups need not be counted"
