"""Tables as text, with aligned figures and a word in place of a missing figure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpdist.cli.caution_lines import caution_lines
from dpdist.cli.console import out
from dpdist.core.cautions import UNCATALOGUED, Caution
from dpdist.core.records import first_named
from dpdist.estimation.donors import DONORS as DONORS_FILE
from dpdist.privacy import claims

ROWS = 40
MISSING = "none"
WIDEST_WORD = 16
"""Largest length in characters of a level's word that is not broken over lines."""
LISTED = 4
"""Largest number of cautions on figures that may be far off, of which each is listed."""
WIDEST_FACT, NARROWEST = 28, 60
"""Characters of the longest name of a fact with its space, and of the narrowest terminal for which cautions are fitted."""
WHOLE = 1e3
"""A column with a figure of at least this size is shown without decimals."""


def facts_text(facts: Mapping[str, str]) -> Table:
    """Formats facts as lines, each with a heading and a text."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(name, style="dim"), Text(value, overflow="fold"))  # no path loses its end
    return grid


def paragraphs(texts: Iterable[str], style: str = "") -> Table:
    """Formats texts one below the other, with lines broken between words."""
    grid = Table.grid()
    for text in texts:
        grid.add_row(Text(text, style=style))
    return grid


def table_text(
    title: str, rows: pd.DataFrame, instead: Sequence[str] | None = None, narrow: bool = False
) -> RenderableType:
    """Formats the first rows of a table under a title. `instead` has a text for every shown row with a missing figure."""
    grid = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD if narrow else box.HEAVY_HEAD)
    grid.padding = (0, 1, 0, 0) if narrow else (0, 1)
    texts = _texts(rows, instead)
    for column, kind, cells in zip(rows.columns, rows.dtypes, texts, strict=True):
        head, least = _head(str(column), cells)
        justify: Literal["left", "right"] = "right" if pd.api.types.is_float_dtype(kind) else "left"
        grid.add_column(Text(head), justify=justify, min_width=least, overflow="fold")
    for row in zip(*texts, strict=True):
        grid.add_row(*map(Text, row))
    if len(rows) <= ROWS:
        return grid
    return Group(grid, Text(f"… {len(rows) - ROWS:,} more rows in the public folder", style="dim"))


def least_width(rows: pd.DataFrame) -> int:
    """Returns the line length in characters that `table_text` needs to break no word and no figure."""
    return 1 + sum(_head(str(column), cells)[1] + 3 for column, cells in zip(rows.columns, _texts(rows), strict=True))


def _texts(rows: pd.DataFrame, instead: Sequence[str] | None = None) -> list[list[str]]:
    columns = [rows.iloc[:, number] for number in range(rows.shape[1])]
    kinds = [pd.api.types.is_float_dtype(kind) for kind in rows.dtypes]
    return [
        figures(values, instead, ROWS) if figure else list(map(str, values[:ROWS]))
        for figure, values in zip(kinds, columns, strict=True)
    ]


def _head(name: str, cells: Sequence[str]) -> tuple[str, int]:
    """Breaks the name of a column after `_` if the name is longer than all cells below it.

    Returns the name and the width in characters that the column needs.
    """
    beneath = min(WIDEST_WORD, max((len(word) for cell in cells for word in cell.split()), default=0))
    head = name if len(name) <= beneath else name.replace("_", "_\n")
    return head, max(beneath, *(len(word) for word in head.split()))


def figures(values: pd.Series[float], instead: Sequence[str] | None = None, shown: int | None = None) -> list[str]:
    """Formats a column's first figures: as whole numbers if one of the column is large, else with four digits; a word for
    a missing figure.
    """
    numbers = values.to_numpy(dtype=float)
    integers = bool((np.abs(numbers[np.isfinite(numbers)]) >= WHOLE).any())
    first = numbers[:shown].tolist()
    words = [MISSING] * len(first) if instead is None else instead[: len(first)]
    return [word if np.isnan(number) else _figure(number, integers) for number, word in zip(first, words, strict=True)]


def _figure(number: float, integer: bool) -> str:
    if not integer:
        return f"{number:,.4g}"
    return "<1" if 0 < number < 0.5 else f"{number:,.0f}"


DONATED = Caution.of("reference_published", file=f"public/released/{DONORS_FILE}")
PUBLISHED_TOO = str(DONATED)


def drifted(drift: Mapping[str, Any]) -> Iterator[Caution]:
    """States how many cells have moved away from the reference, by column."""
    number_by_column = {name: len(cells) for name, cells in drift.items() if isinstance(cells, list) and cells}
    if number_by_column:
        cells = ", ".join(f"{name} in {number:,}" for name, number in number_by_column.items())
        yield Caution.of("drift", cells=cells)


def stated_cautions(
    statement: Mapping[str, Any], further: Iterable[Caution] = (), printed: Collection[str] = ()
) -> dict[str, str]:
    """Lists known problems in few lines, without those that have been `printed`; early versions' statements list none."""
    texts = statement.get("cautions", ())
    coded_texts = zip(statement.get("caution_codes", [UNCATALOGUED] * len(texts)), texts, strict=True)
    all_cautions = [
        *_together([*(Caution.coded(*pair) for pair in coded_texts), *further]),
        *drifted(statement.get("drift", {})),
    ]
    new = [caution for caution in all_cautions if not any(note.startswith(caution.text) for note in printed)]
    lines = caution_lines(new, max(out.width, NARROWEST) - WIDEST_FACT - len("- "))
    return {"cautions": "\n".join(f"- {line}" for line in lines)} if lines else {}


def _together(cautions: Iterable[Caution]) -> Iterator[Caution]:
    """Yields one caution for the statistics with figures that may be far off, if more than `LISTED` have one each."""
    from dpdist.publish.predicted_errors import FAR_NAMED

    far = ("far_off", "predicted_far_off")
    all_cautions = list(cautions)
    of_tables = [caution.text.split(", ", 1)[0] for caution in all_cautions if caution.code in far]
    if len(of_tables) <= LISTED:
        yield from all_cautions
        return
    tables = list(dict.fromkeys(of_tables))
    number = f"{len(of_tables):,} statistics of {len(tables):,} table{'s'[: len(tables) != 1]} ({first_named(tables)})"
    off = f"Figures may be more than {FAR_NAMED:g} direct standard errors off"
    yield Caution("far_off", f"{off} in {number}.", "The page and statement.json list them all.")
    yield from (caution for caution in all_cautions if caution.code not in far)


def promise(statement: Mapping[str, Any]) -> dict[str, str]:
    """States the guarantee, its cost and what it protects, as the statement has them; empty if nothing is promised."""
    if "headline" not in statement or statement["guarantee"] == "none":
        return claims.headline(statement)
    verb = "meant to protect" if statement["guarantee"] == "asymptotic" else "protects"
    return claims.headline(statement) | {verb: statement["headline"]}
