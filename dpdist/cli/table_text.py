"""Facts and tables as text: figures of a column alike, and words where a figure is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

ROWS = 40
MISSING = "none"
WHOLE = 1e3
"""A column that reaches this far has no decimals."""


def facts_text(facts: Mapping[str, str]) -> Table:
    """Facts under their headings, a line each."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid


def paragraphs(texts: Iterable[str], style: str = "") -> Table:
    """Texts under each other, broken between words."""
    grid = Table.grid()
    for text in texts:
        grid.add_row(Text(text, style=style))
    return grid


def table_text(
    title: str, rows: pd.DataFrame, instead: Sequence[str] | None = None, narrow: bool = False
) -> RenderableType:
    """The first rows under a title; `instead` says of every row what stands where a figure is missing."""
    shown = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD if narrow else box.HEAVY_HEAD)
    shown.padding = (0, 1, 0, 0) if narrow else (0, 1)
    texts = []
    for number, (column, kind) in enumerate(zip(rows.columns, rows.dtypes, strict=True)):
        figure, values = pd.api.types.is_float_dtype(kind), rows.iloc[:, number]
        texts.append((figures(values, instead) if figure else list(map(str, values)))[:ROWS])
        shown.add_column(Text(str(column)), justify="right" if figure else "left", no_wrap=figure, overflow="fold")
    for row in zip(*texts, strict=True):
        shown.add_row(*map(Text, row))
    if len(rows) <= ROWS:
        return shown
    return Group(shown, Text(f"… {len(rows) - ROWS:,} more rows in the public folder", style="dim"))


def figures(values: pd.Series[float], instead: Sequence[str] | None = None) -> list[str]:
    """A column's figures as texts: whole numbers where one is large, else four digits; words where there is none."""
    numbers = values.to_numpy(dtype=float)
    whole = bool((np.abs(numbers[np.isfinite(numbers)]) >= WHOLE).any())
    words = [MISSING] * len(numbers) if instead is None else instead
    return [
        word if np.isnan(number) else _figure(number, whole) for number, word in zip(numbers.tolist(), words, strict=True)
    ]


def _figure(number: float, whole: bool) -> str:
    if not whole:
        return f"{number:,.4g}"
    return "<1" if 0 < number < 0.5 else f"{number:,.0f}"
