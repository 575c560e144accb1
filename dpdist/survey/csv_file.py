"""The CSV reader: blocks of text in the job's encoding. An unreadable file is explained."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple, Self

import pyarrow as pa
import pyarrow.csv as pa_csv

from dpdist.core.errors import DataError, Problem
from dpdist.core.files import sha256
from dpdist.job import TextFile
from dpdist.survey.typed_file import CSV_NULLS, Source, unreadable

HEADER_BYTES = 1 << 20
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
GZIP, PARQUET, TEXT = "compressed by gzip", "a Parquet file", "a file of texts, as CSV is"
MAGIC = {
    b"\x1f\x8b": GZIP,
    b"PK\x03\x04": "a zip archive, or a workbook",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"PAR1": PARQUET,
    b"ARROW1": "an Arrow file",
    b"$FL2": "a file of SPSS",
    b"\xd0\xcf\x11\xe0": "a workbook of Excel",
}
"""Kinds of files by their first bytes."""
WINDOWS = frozenset(range(0x80, 0xA0)) - {0x81, 0x8D, 0x8F, 0x90, 0x9D}
"""Bytes that are characters in Windows' code page, but control codes in Latin-1."""


class CsvFormat(NamedTuple):
    """How a CSV file is written: its encoding and its separator."""

    encoding: str = "utf-8"
    separator: str = ","

    @property
    def decoding(self) -> str:
        """The codec that decodes the file. For UTF-8 it skips a byte order mark at the start."""
        return "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding


class Utf8(io.RawIOBase):
    """A CSV file's text in UTF-8, uncompressed, with single characters as line breaks.

    Arrow misreads a quoted carriage return and line feed that the end of a block divides. So every such pair is read as a
    line feed. A mark of the file's end, as DOS wrote it, is left out.
    """

    def __init__(self, path: Path, text_format: CsvFormat):
        super().__init__()
        self._file, self._ready, self._pending, self._ended = _opened(path), bytearray(), b"", False
        utf8 = text_format.decoding == "utf-8-sig"
        self._decoder = None if utf8 else codecs.getincrementaldecoder(text_format.encoding)()
        self.quotes = self.lines = 0
        """Numbers of quotation marks and of line breaks that were read."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._ended and (size < 0 or len(self._ready) < size):
            self._read_more(max(size, HEADER_BYTES))
        part = bytes(self._ready[: len(self._ready) if size < 0 else size])
        del self._ready[: len(part)]
        return part

    def close(self) -> None:
        self._file.close()
        super().close()

    def _read_more(self, size: int) -> None:
        block = self._file.read(size)
        self._ended = not block
        text = block if self._decoder is None else self._decoder.decode(block, self._ended).encode()
        text = self._pending + text
        stripped = text.rstrip(b"\r\n\x1a")
        self._pending = b"" if self._ended else text[len(stripped) :]
        text = stripped + text[len(stripped) :].replace(b"\x1a", b"") if self._ended else stripped
        self.quotes += text.count(b'"')
        text = text.replace(b"\r\n", b"\n")
        self.lines += text.count(b"\n") + text.count(b"\r")
        self._ready += text


UNREAD = (OSError, EOFError, zlib.error)
"""Errors of files that cannot be opened, are cut off, or are not compressed as their name says."""
UTF8 = CsvFormat()
"""How CSV files are written by default."""


def guess_format(path: Path) -> CsvFormat:
    """Guesses encoding and separator of a CSV file, from its bytes and its first line. Raises what `UNREAD` lists."""
    encoding = "utf-8"
    if (fault := _undecoded(path, "utf-8")) is not None:
        encoding = fault.likely or encoding
    header = _header(path, encoding)
    separators = [mark for mark in SEPARATORS if mark in header]
    return CsvFormat(encoding, separators[0] if separators else ",")


def misread(path: Path, text_format: CsvFormat = UTF8) -> Problem | None:
    """The problem of a file written in an encoding or with a separator other than stated; None if neither is found."""
    encoding_name = codecs.lookup(text_format.encoding).name.upper()
    try:
        if (fault := _undecoded(path, text_format.encoding)) is not None:
            places, finding = (f"line {fault.line}",), f"bytes that are not {encoding_name}"
            if fault.likely is None:
                return Problem("file", "a character of code 0", "text without it", "delete it", 1, places)
            likely = fault.likely if text_format.encoding == "utf-8" else guess_format(path).encoding
            return Problem("file", finding, f"text in {encoding_name}", _add(path, "encoding", likely), 1, places)
        header = _header(path, text_format.encoding)
    except UNREAD:
        return None
    if (remark := no_header(header)) is not None:
        return Problem("file", f"its first line is {remark}", "names of columns", "delete this line", 1, ("line 1",))
    if text_format.separator in header:
        return None
    for mark, name in SEPARATORS.items():
        if mark in header:
            finding, remedy = f"its fields are separated by {name}", _add(path, "separator", mark)
            return Problem(
                "file", finding, SEPARATORS.get(text_format.separator, text_format.separator), remedy, 1, ("line 1",)
            )
    return None


def wide_header(path: Path, text_format: CsvFormat, most: int) -> Problem | None:
    """The problem of a first line of more than `most` bytes; None if it is shorter."""
    separators, size = 0, 0
    try:
        with (
            _opened(path) as file,
            io.TextIOWrapper(file, encoding=text_format.decoding, errors="replace", newline="") as text,
        ):
            while part := text.readline(HEADER_BYTES):
                separators, size = separators + part.count(text_format.separator), size + len(part.encode(errors="replace"))
                if part.endswith(("\n", "\r")):
                    break
    except UNREAD:
        return None
    if size <= most:
        return None
    finding, allowed = f"a first line of {size:,} bytes, with {separators + 1:,} columns", f"one of at most {most:,} bytes"
    return Problem("file", finding, allowed, "store it with the columns that the job names, or as Parquet", 1, ("line 1",))


def no_header(first_line: str) -> str | None:
    """What a first line is that programs write above the header; None if it may be a header."""
    if first_line.lower().startswith("sep="):
        return "Excel's note of the separator (sep=)"
    return "a comment" if first_line.startswith(("#", "%", "//")) else None


def kind_by_content(path: Path) -> str | None:
    """What kind of file it is by its first bytes; None if that is not known."""
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except OSError:
        return None
    binary_kind = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)
    text = b"\n" in start and not set(start) & (set(range(32)) - set(b"\t\n\r"))
    return binary_kind or (TEXT if text else None)


def unlike_its_name(path: Path) -> Problem | None:
    """The problem of a file that is empty, cut off, damaged, or of another kind than its name says; None if it is none."""
    compressed = path.suffix.lower() == ".gz"
    try:
        if not path.stat().st_size:
            return _not_csv("it is empty", "write the file again")
        kind = kind_by_content(path)
        kind = None if kind == TEXT else kind
        if compressed and kind != GZIP:
            remedy = "name it .csv, or compress it with gzip" if kind is None else f"unpack it, and name it as {kind}"
            return _not_csv(f"its name ends in .gz, and it is {kind or 'not compressed'}", remedy)
        if kind is not None and not compressed:
            return _not_csv(
                f"it is {kind}", "name it .csv.gz" if kind == GZIP else "give its name the right ending, or write it as CSV"
            )
        with _opened(path) as file:
            while file.read(HEADER_BYTES):
                pass
    except EOFError:
        return _not_csv("its compressed data end too early: it was cut off", "copy it again, or compress it again")
    except (OSError, zlib.error):
        return _not_csv("its compressed data are damaged", "copy it again, or compress it again")
    return None


def _not_csv(cause: str, remedy: str) -> Problem:
    return Problem("file", f"not a readable CSV file: {cause}", "a file named .csv, or .csv.gz if compressed", remedy)


def unclosed(path: Path, text_format: CsvFormat) -> Problem | None:
    """The problem of a quotation mark that opens a field and is not closed at its end; None if every one is closed."""
    above = 0
    try:
        with _opened(path) as file, io.TextIOWrapper(file, encoding=text_format.decoding, newline="") as text, _any_field():
            reader = csv.reader(text, delimiter=text_format.separator, strict=True)
            for _ in reader:
                above = reader.line_num
    except csv.Error:
        remedy = "close it, or delete it: all text up to the next quotation mark would be one field"
        place = (f"line {above + 1}",)
        return Problem("file", "a quotation mark that is not closed", "quotes in pairs", remedy, 1, place)
    except (*UNREAD, UnicodeError):
        return None
    return None


@contextmanager
def _any_field() -> Iterator[None]:
    """Lets Python's reader of CSV have fields of any length."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def lines_of(path: Path, rows: set[int], text_format: CsvFormat = UTF8) -> Mapping[int, int]:
    """The line (from 1) where each of these rows of data (from 0) begins; empty if the file cannot be read.

    Line breaks within quotes count as lines; empty lines are no rows.
    """
    line_of_row: dict[int, int] = {}
    try:
        with _opened(path) as file, io.TextIOWrapper(file, encoding=text_format.decoding, newline="") as text, _any_field():
            reader, row, above = csv.reader(text, delimiter=text_format.separator), -2, 0
            for fields in reader:
                row += bool(fields)
                if fields and row in rows:
                    line_of_row[row] = above + 1
                above = reader.line_num
                if len(line_of_row) == len(rows):
                    break
    except (*UNREAD, csv.Error, UnicodeError):
        return {}
    return line_of_row


def _add(path: Path, key: str, value: str) -> str:
    quoted = {"\t": '"\\t"', ",": '","', ";": '";"', "|": '"|"'}.get(value, value)
    there = f"add {key}: {quoted} next to its path, as in {{path: {path.name:.60}, {key}: {quoted}}}"
    return f"{there}; where --input names it: --set 'input.{key}={quoted}'"


class _Fault(NamedTuple):
    """The line of the first byte that an encoding cannot read, and the encoding that the file probably has; None if it has
    characters of code 0.
    """

    line: int
    likely: str | None


def _undecoded(path: Path, encoding: str) -> _Fault | None:
    """The first byte of the file that the encoding cannot read; None if it can read the whole file."""
    decoder, line, start = codecs.getincrementaldecoder(encoding)(), 1, b""
    with _opened(path) as file:
        while block := file.read(HEADER_BYTES):
            start = start or block[:4096]
            try:
                text = decoder.decode(block)
            except UnicodeDecodeError as error:
                return _Fault(line + error.object[: error.start].count(b"\n"), _likely(start, block))
            except UnicodeError:  # UTF-16 without a byte order mark
                return _Fault(1, _likely(start, block))
            if "\0" in text:
                return _Fault(line + text[: text.index("\0")].count("\n"), _likely(start, block))
            line += text.count("\n")
    return None


def _likely(start: bytes, block: bytes) -> str | None:
    """The probable encoding of a file that is not UTF-8, from its byte order mark, zero bytes, or Windows' characters.

    In UTF-16, every second byte of plain text is zero.
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if start.count(b"\0") > len(start) / 4:
        return "utf-16-le" if start[1:2] == b"\0" else "utf-16-be"
    if b"\0" in block:
        return None
    return "cp1252" if WINDOWS & set(block) else "latin-1"


def _header(path: Path, encoding: str) -> str:
    with _opened(path) as file, io.TextIOWrapper(file, encoding=encoding, errors="replace") as text:
        return text.readline(HEADER_BYTES)


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


CSV_BLOCK_BYTES = 1 << 22
LARGER = 16
"""How much larger the blocks are in which a file with longer records is read."""
LONG_LINE = "straddling"
"""A word of Arrow's error for a record that is longer than a block."""


@dataclass(frozen=True)
class CsvSource(Source):
    path: Path
    written: CsvFormat = UTF8
    text_only: bool = True

    @classmethod
    def opened(cls, path: Path, written: TextFile) -> Self:
        return cls(path, CsvFormat(written.encoding or "utf-8", written.separator or ","))

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
                    fewer = text.quotes > 0 and first < text.lines - 1  # than lines: breaks in quotes, or empty lines
                    if (text.quotes % 2 or fewer) and (problem := unclosed(self.path, self.written)):
                        raise DataError(self.name, [problem])
                return
            except (pa.ArrowException, *UNREAD, UnicodeError) as error:
                if LONG_LINE not in str(error) or size > CSV_BLOCK_BYTES or not text.quotes:
                    raise self._unreadable(error, size) from None

    def lines(self, rows: set[int]) -> Mapping[int, int]:
        return lines_of(self.path, rows, self.written)

    def fingerprint(self) -> str:
        return sha256(self.path)

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
            return DataError.of(self.name, "file", fault, "shorter lines", remedy)
        if line is None:
            return unreadable(self.name, "not a readable CSV file", "give a CSV file with a header line")
        row = int(line[1]) - 2  # Arrow counts the header, and neither empty lines nor line breaks in quotes
        place = (f"line {self.lines({row}).get(row, line[1])}",)
        allowed, remedy = "lines with the header's number of fields", "correct the number of fields, or quote commas"
        return DataError(self.name, [Problem("file", "a line has a different number of fields", allowed, remedy, 1, place)])


def _after(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """The batch after its first rows, unless none are left."""
    if rows < batch.num_rows:
        yield batch.slice(max(0, rows))
