"""`tables/<name>.wide.csv`: a table as it is printed, one row a line of the stub."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from dpdist.files import write_text
from dpdist.publish.printed import MARGIN, NO_ESTIMATE, Printed, figure_text
from dpdist.publish.writers.cells import plain


def write_wide(path: Path, table: Printed) -> None:
    """One header, of unique names: the level across and the statistic; a margin of error follows its figure."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = list(table.stub)
    for column in table.columns:
        name = f"{column.group}: {column.head}" if column.group else column.head
        head += [name, f"{name}, {MARGIN}"] if table.with_margins else [name]
    writer.writerow(map(plain, head))
    for row, values, margins in zip(table.rows, table.values, table.margins, strict=True):
        cells = [plain(label) for label in row]
        for column, value, margin in zip(table.columns, values.tolist(), margins.tolist(), strict=True):
            cells.append(NO_ESTIMATE if np.isnan(value) else figure_text(value, column.decimals))
            cells += [figure_text(margin, column.decimals)] if table.with_margins else []
        writer.writerow(cells)
    write_text(path, text.getvalue())
