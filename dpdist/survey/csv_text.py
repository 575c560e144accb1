"""For `survey.csv_file` and `domains`: explains an unreadable CSV file, and finds rows' lines for messages."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple

from dpdist.core.errors import Problem

HEADER_BYTES = 1 << 20
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
WINDOWS = frozenset(range(0x80, 0xA0)) - {0x81, 0x8D, 0x8F, 0x90, 0x9D}
"""Bytes that are characters in Windows' code page, but control codes in Latin-1."""


class Written(NamedTuple):
    """How a CSV file is written: its encoding and its separator."""

    encoding: str = "utf-8"
    separator: str = ","

    @property
    def decoding(self) -> str:
        """The codec that decodes the file. For UTF-8 it skips a byte order mark at the start."""
        return "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding


UNREAD = (OSError, EOFError, zlib.error)
"""Errors of files that cannot be opened, are cut off, or are not compressed as their name says."""
UTF8 = Written()
"""How CSV files are written by default."""


def guessed(path: Path) -> Written:
    """Guesses encoding and separator of a CSV file, from its bytes and its first line. Raises what `UNREAD` lists."""
    encoding = "utf-8"
    if (fault := _undecoded(path, "utf-8")) is not None:
        encoding = fault.likely
    header = _header(path, encoding)
    others = [mark for mark in SEPARATORS if mark in header]
    return Written(encoding, others[0] if others else ",")


def misread(path: Path, written: Written = UTF8) -> Problem | None:
    """The problem of a file written in an encoding or with a separator other than stated; None if neither is found."""
    shown = codecs.lookup(written.encoding).name.upper()
    try:
        if (fault := _undecoded(path, written.encoding)) is not None:
            places, finding = (f"line {fault.line}",), f"bytes that are not {shown}"
            likely = fault.likely if written.encoding == "utf-8" else guessed(path).encoding
            return Problem("file", finding, f"text in {shown}", _add(path, "encoding", likely), 1, places)
        header = _header(path, written.encoding)
    except UNREAD:
        return None
    if written.separator in header:
        return None
    for mark, name in SEPARATORS.items():
        if mark in header:
            finding, remedy = f"its fields are separated by {name}", _add(path, "separator", mark)
            return Problem("file", finding, SEPARATORS.get(written.separator, written.separator), remedy, 1, ("line 1",))
    return None


def wide_header(path: Path, written: Written, most: int) -> Problem | None:
    """The problem of a first line of more than `most` bytes; None if it is shorter."""
    separators, size = 0, 0
    try:
        with _opened(path) as file, io.TextIOWrapper(file, encoding=written.decoding, errors="replace", newline="") as text:
            while part := text.readline(HEADER_BYTES):
                separators, size = separators + part.count(written.separator), size + len(part.encode(errors="replace"))
                if part.endswith(("\n", "\r")):
                    break
    except UNREAD:
        return None
    if size <= most:
        return None
    finding, allowed = f"a first line of {size:,} bytes, with {separators + 1:,} columns", f"one of at most {most:,} bytes"
    return Problem("file", finding, allowed, "store it with the columns that the job names, or as Parquet", 1, ("line 1",))


def lines_of(path: Path, rows: set[int], written: Written = UTF8) -> Mapping[int, int]:
    """The line (from 1) where each of these rows of data (from 0) begins; empty if the file cannot be read.

    Line breaks within quotes count as lines; empty lines are no rows.
    """
    line_of_row: dict[int, int] = {}
    try:
        with _opened(path) as file, io.TextIOWrapper(file, encoding=written.decoding, newline="") as text:
            reader, row, above = csv.reader(text, delimiter=written.separator), -2, 0
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
    shown = {"\t": '"\\t"', ",": '","', ";": '";"', "|": '"|"'}.get(value, value)
    there = f"add {key}: {shown} beside its path, as in {{path: {path.name:.60}, {key}: {shown}}}"
    return f"{there}; where --input names it: --set 'input.{key}={shown}'"


class _Fault(NamedTuple):
    """The line of the first byte that an encoding cannot read, and the encoding that the file probably has."""

    line: int
    likely: str


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


def _likely(start: bytes, block: bytes) -> str:
    """The probable encoding of a file that is not UTF-8, from its byte order mark, zero bytes, or Windows' characters."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in start:
        return "utf-16-le" if start[1:2] == b"\0" else "utf-16-be"
    return "cp1252" if WINDOWS & set(block) else "latin-1"


def _header(path: Path, encoding: str) -> str:
    with _opened(path) as file, io.TextIOWrapper(file, encoding=encoding, errors="replace") as text:
        return text.readline(HEADER_BYTES)


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]
