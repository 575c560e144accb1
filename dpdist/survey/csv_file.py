"""The CSV reader that `survey.readers` lists: blocks of text, in the job's encoding and separator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.csv as pa_csv

from dpdist.core.errors import DataError, Problem
from dpdist.core.files import sha256
from dpdist.job import TextFile
from dpdist.survey.csv_text import (
    UNREAD,
    UTF8,
    Utf8,
    Written,
    lines_of,
    misread,
    unclosed,
    unlike_its_name,
    wide_header,
)
from dpdist.survey.plain import CSV_NULLS
from dpdist.survey.typed_file import unreadable

CSV_BLOCK_BYTES = 1 << 22
LARGER = 16
"""How much larger the blocks are in which a file with longer records is read."""
LONG_LINE = "straddling"
"""A word of Arrow's error for a record that is longer than a block."""


@dataclass(frozen=True)
class CsvSource:
    path: Path
    written: Written = UTF8
    text_only: bool = True

    @classmethod
    def opened(cls, path: Path, written: TextFile) -> Self:
        return cls(path, Written(written.encoding or "utf-8", written.separator or ","))

    @property
    def name(self) -> str:
        return str(self.path)

    @cached_property
    def columns(self) -> Sequence[str]:
        try:
            with Utf8(self.path, self.written) as text, self._open(text, None, CSV_BLOCK_BYTES) as reader:
                names: list[str] = reader.schema.names
        except (pa.ArrowException, *UNREAD, UnicodeError) as error:  # Arrow decodes names only on use
            raise self._unreadable(error) from None
        if (len(names) == 1 or "\0" in "".join(names)) and (problem := misread(self.path, self.written)):
            raise DataError(self.name, [problem])
        return names

    @property
    def rows(self) -> None:
        return None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """A record may have line breaks in quotes. If it is longer than a block, the file is read on in larger ones."""
        read = 0
        for size in (CSV_BLOCK_BYTES, LARGER * CSV_BLOCK_BYTES):
            first = 0
            try:
                with Utf8(self.path, self.written) as text, self._open(text, list(columns), size) as reader:
                    for batch in reader:
                        yield from _after(batch, read - first)
                        first += batch.num_rows
                        read = max(read, first)
                    if text.quotes % 2 and (problem := unclosed(self.path, self.written)):
                        raise DataError(self.name, [problem])
                return
            except (pa.ArrowException, *UNREAD, UnicodeError) as error:
                if LONG_LINE not in str(error) or size > CSV_BLOCK_BYTES or not text.quotes:
                    raise self._unreadable(error, size) from None

    def lines(self, rows: set[int]) -> Mapping[int, int]:
        return lines_of(self.path, rows, self.written)

    def fingerprint(self) -> str:
        return sha256(self.path)

    @property
    def truth(self) -> None:
        return None

    def _open(self, text: Utf8, columns: list[str] | None, size: int) -> pa_csv.CSVStreamingReader:
        if columns is None:
            convert = pa_csv.ConvertOptions()
        else:
            convert = pa_csv.ConvertOptions(
                include_columns=columns,
                column_types={name: pa.string() for name in columns},
                strings_can_be_null=True,
                null_values=list(CSV_NULLS),
            )
        # without threads, Arrow's errors have line numbers
        reading = pa_csv.ReadOptions(block_size=size, use_threads=False)
        parsing = pa_csv.ParseOptions(delimiter=self.written.separator, newlines_in_values=True)
        return pa_csv.open_csv(text, read_options=reading, parse_options=parsing, convert_options=convert)

    def _unreadable(self, error: Exception, size: int = CSV_BLOCK_BYTES) -> DataError:
        """The error for a file or a line that Arrow cannot read.

        Of Arrow's message only the line number is kept, because the rest quotes the line.
        """
        problem = (
            unlike_its_name(self.path)
            or misread(self.path, self.written)
            or wide_header(self.path, self.written, CSV_BLOCK_BYTES)
            or unclosed(self.path, self.written)
        )
        if problem is not None:
            return DataError(self.name, [problem])
        line = re.search(r"Row #(\d+)", str(error))
        if LONG_LINE in str(error):
            fault, remedy = (
                f"a line of more than {size:,} bytes",
                "shorten it, or store the file as Parquet",
            )
            return DataError(self.name, [Problem("file", fault, "shorter lines", remedy)])
        if line is None:
            return unreadable(self.name, "not a readable CSV file", "give a CSV file with a header line")
        row = int(line[1]) - 2  # Arrow counts the header, and neither empty lines nor line breaks in quotes
        place = (f"line {self.lines({row}).get(row, line[1])}",)
        allowed, remedy = "lines with the header's number of fields", "correct the number of fields, or quote commas"
        return DataError(self.name, [Problem("file", "a line has another number of fields", allowed, remedy, 1, place)])


def _after(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """The batch after its first rows, unless none are left."""
    if rows < batch.num_rows:
        yield batch.slice(max(0, rows))
