"""Reads files of JSON lines (`.jsonl`): one object a line, with the columns as its keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar

import pyarrow as pa
import pyarrow.json

from dpdist.survey.typed_file import OneFile, unreadable

BATCH_ROWS = 65_536


class JsonLines(OneFile):
    """A file of JSON lines, which is held in memory. A key that a line lacks is a missing value."""

    CONTRACT: ClassVar[int] = 2

    @cached_property
    def table(self) -> pa.Table:
        try:
            return pyarrow.json.read_json(self.path)
        except (pa.ArrowException, OSError):  # whose texts quote the file
            raise unreadable(self.name, "not a file of JSON lines", "write one object a line") from None

    def described(self) -> pa.Schema:
        return self.table.schema

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self.table.select(list(columns)).to_batches(max_chunksize=BATCH_ROWS)
