"""Tables as CSV in which no text runs as a spreadsheet's formula."""

from __future__ import annotations

import csv
import io
import re

import pyarrow as pa

from dpdist.publish.printed_tables import FLAG, NO_ESTIMATE, SAMPLE, PrintedColumn, PrintedTable, figure_text, wide_heads

_FORMULA = re.compile(r"[=@＝＠]|[-+－＋](?!\d+\.?\d*$)")


def plain(text: str) -> str:
    """The text, with an apostrophe before it if a spreadsheet would run it as a formula.

    Signed numbers stay as they are.
    """
    return f"'{text}" if _FORMULA.match(text) else text


def for_spreadsheets(table: pa.Table) -> pa.Table:
    """The table with an apostrophe before each text that a spreadsheet would run as a formula; signed numbers stay."""
    columns = [_plain(column) if pa.types.is_string(column.type) else column for column in table.columns]
    return pa.table(columns, names=[plain(name) for name in table.column_names])


def _plain(column: pa.ChunkedArray) -> pa.Array:
    coded = column.combine_chunks().dictionary_encode()
    return pa.array([plain(text) for text in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)


def wide_text(table: PrintedTable) -> str:
    """A table as it is printed, as CSV. The header line has unique names, each a level across and a statistic.

    An error, a flag and sample records follow their figures.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(plain, (*table.stub, *wide_heads(table))))
    columns = (_texts(column) for column in table.printed)
    for row, *figures in zip(table.rows, *columns, strict=True):
        writer.writerow([*map(plain, row), *figures])
    return text.getvalue()


def _texts(printed: PrintedColumn) -> list[str]:
    """A printed column as texts, (row,)."""
    if printed.kind == FLAG:
        return list(map(str, printed.values))
    decimals = 0 if printed.kind == SAMPLE else printed.column.decimals
    missing = "" if printed.kind else NO_ESTIMATE
    return [figure_text(value, decimals) or missing for value in printed.values.tolist()]
