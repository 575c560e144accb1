"""Defines the parts of a section in the custodian's report: sentences, tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from dpdist.quality.summary import brief

MOST_ROWS = 60
"""Largest number of rows of a table on the page. All rows are in the files of the evaluation."""


class Cell(NamedTuple):
    text: str
    value: str = ""
    """The value to sort by; empty for text."""


class Grid(NamedTuple):
    """A table: a caption, headings, rows whose first `stub` cells are labels, and notes."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    stub: int = 1
    notes: Sequence[str] = ()

    def is_text(self, column: int) -> bool:
        """True for a column of text, which is aligned left."""
        return not any(row[column].value for row in self.rows)


class Figure(NamedTuple):
    caption: str
    svg: Markup


@dataclass
class Section:
    """One section of the report. Links refer to it by `name`."""

    name: str
    title: str
    sentences: list[str] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


def cell(value: object) -> Cell:
    """Formats a value for a table: text as it is, yes or no, a rounded number, or nothing where it is missing."""
    if isinstance(value, bool | np.bool_):
        return Cell("yes" if value else "no")
    if isinstance(value, int | np.integer):
        return Cell(f"{int(value):,}", str(int(value)))
    if isinstance(value, float | np.floating):
        return Cell("", "NaN") if np.isnan(value) else Cell(rounded(float(value)), f"{float(value):.10g}")
    return Cell("" if value is None else str(value))


def rounded(value: float) -> str:
    """Rounds to four significant digits; from 1,000 on to whole numbers."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def error(value: float) -> Cell:
    """Formats an error that is a multiple of a standard error."""
    return Cell("", "NaN") if np.isnan(value) else Cell(brief(value), f"{value:.6g}")


def grid(caption: str, table: pd.DataFrame, stub: int = 1, notes: Iterable[str] = ()) -> Grid:
    """Makes a table of the page from a data frame: its first rows, and a note on how many there are."""
    shown = [[cell(value) for value in row] for row in table.head(MOST_ROWS).itertuples(index=False)]
    more = [f"The first {MOST_ROWS} of {len(table):,} rows."] if len(table) > MOST_ROWS else []
    return Grid(caption, [str(name) for name in table.columns], shown, stub, [*notes, *more])
