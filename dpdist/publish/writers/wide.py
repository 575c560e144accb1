"""Writes `tables/<name>.wide.csv`: a table as it is printed, with levels across columns, for spreadsheets."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from dpdist.core.files import write_text
from dpdist.publish.printed import NO_ESTIMATE, Printed, figure_text, wide_heads
from dpdist.publish.writers.cells import plain


def write_wide(path: Path, table: Printed) -> None:
    """Writes one header line of unique names, each a level across and a statistic; a margin of error follows its figure."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(plain, (*table.stub, *wide_heads(table))))
    for row, *figures in zip(table.rows, table.values, table.margins, table.flags, strict=True):
        cells = [plain(label) for label in row]
        for column, value, margin, flag in zip(table.columns, *(each.tolist() for each in figures), strict=True):
            cells.append(NO_ESTIMATE if np.isnan(value) else figure_text(value, column.decimals))
            cells += [figure_text(margin, column.decimals)] if table.with_margins else []
            cells += [flag] if table.with_flags else []
        writer.writerow(cells)
    write_text(path, text.getvalue())
