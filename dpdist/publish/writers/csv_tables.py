"""For `publish.folder` and other writers: tables as CSV in which no text runs as a spreadsheet's formula."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpdist.core.files import write_text
from dpdist.publish.printed_tables import NO_ESTIMATE, PrintedTable, figure_text, wide_heads

_FORMULA = re.compile(r"[=@＝＠]|[-+－＋](?!\d+\.?\d*$)")


def plain(text: str) -> str:
    """The text, with an apostrophe before it if a spreadsheet would run it as a formula.

    Signed numbers stay as they are.
    """
    return f"'{text}" if _FORMULA.match(text) else text


def for_spreadsheets(table: pa.Table) -> pa.Table:
    """The table with an apostrophe before each text that a spreadsheet would run as a formula; signed numbers stay."""
    columns = [
        pa.array([text and plain(text) for text in column.to_pylist()], pa.string())
        if pa.types.is_string(column.type)
        else column
        for column in table.columns
    ]
    return pa.table(columns, names=[plain(name) for name in table.column_names])


def write_wide(path: Path, table: PrintedTable) -> None:
    """Writes a table as it is printed. The header line has unique names, each a level across and a statistic.

    A margin of error follows its figure.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(plain, (*table.stub, *wide_heads(table))))
    for row, *figures in zip(table.rows, table.values, table.margins, table.flags, strict=True):
        cells = [plain(label) for label in row]
        for column, value, margin, flag in zip(table.columns, *(values.tolist() for values in figures), strict=True):
            cells.append(NO_ESTIMATE if np.isnan(value) else figure_text(value, column.decimals))
            cells += [figure_text(margin, column.decimals)] if table.with_margins else []
            cells += [flag] if table.with_flags else []
        writer.writerow(cells)
    write_text(path, text.getvalue())
