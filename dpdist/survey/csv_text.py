"""A CSV file as text, read once more where something is wrong with it: its encoding, its separator, lines of its rows."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from dpdist.core.errors import Problem

HEADER_BYTES = 1 << 20
OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def misread(path: Path) -> Problem | None:
    """What makes every line of the file unreadable: another encoding than UTF-8, another separator than a comma."""
    try:
        if (line := _not_utf8(path)) is not None:
            found, allowed = "bytes that are not UTF-8", "text in UTF-8"
            remedy = "convert the file, as by iconv -f LATIN1 -t UTF-8 (or -f UTF-16)"
            return Problem("file", found, allowed, remedy, 1, (f"line {line}",))
        with _opened(path) as file:
            header = file.readline(HEADER_BYTES).decode("utf-8", "replace")
    except (OSError, EOFError):
        return None
    for mark, name in OTHER_SEPARATORS.items():
        if mark in header and "," not in header:
            return Problem(
                "file", f"its fields are separated by {name}", "commas", "write the file with commas", 1, ("line 1",)
            )
    return None


def lines_of(path: Path, rows: set[int]) -> Mapping[int, int]:
    """The line, from 1, where each row of data (from 0) begins, as far as the file can be read so far.

    Line breaks within quotes count; empty lines are no rows.
    """
    found: dict[int, int] = {}
    try:
        with _opened(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            reader, row, above = csv.reader(text), -2, 0
            for fields in reader:
                row += bool(fields)
                if fields and row in rows:
                    found[row] = above + 1
                above = reader.line_num
                if len(found) == len(rows):
                    break
    except (OSError, EOFError, csv.Error, UnicodeDecodeError):
        return {}
    return found


def _not_utf8(path: Path) -> int | None:
    """The line of the first byte that is not UTF-8 text."""
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with _opened(path) as file:
        while block := file.read(HEADER_BYTES):
            try:
                text = decoder.decode(block)
            except UnicodeDecodeError as error:
                return line + error.object[: error.start].count(b"\n")
            if "\0" in text:
                return line + text[: text.index("\0")].count("\n")
            line += text.count("\n")
    return None


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]
