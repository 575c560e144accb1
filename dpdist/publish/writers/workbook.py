"""`tables.xlsx`, with a cover, a sheet for each printed table, and the statement.

The same release always gives the same bytes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

import numpy as np

from dpdist.job import Job
from dpdist.publish.printed_tables import FEW_TABLES, FLAG, NO_ESTIMATE, SAMPLE, PrintedColumn, PrintedTable

if TYPE_CHECKING:  # the package loads slowly, and most processes write no workbook
    import xlsxwriter
    from xlsxwriter.format import Format
    from xlsxwriter.worksheet import Worksheet

CREATED = datetime(2000, 1, 1)
"""Fixed value for the time of writing, so that the same release gives the same bytes."""
MOST_ROWS, MOST_COLUMNS = 2**20 - 100, 2**14
"""Largest number of rows and of columns of a table on one sheet; lines above and below it still fit."""
MOST_CELLS = 750_000
"""Largest number of cells of all tables' sheets together, as many as Eurostat lets a reader take in one workbook: programs
open more slowly than a reader waits.
"""
WIDEST = 44
"""Largest width of a column of labels, in characters."""
FIGURE, TEXT = 13, 90
"""Width, in characters, of a column of figures and of a column of text."""
RIGHT_TO_LEFT = frozenset(("ar", "ckb", "dv", "fa", "he", "ps", "sd", "ug", "ur", "yi"))
"""Languages whose tables begin at the right."""
BOLDER = 4
"""Characters by which a wide column holds less of bold text."""
MOST_LINES = 20
"""Largest number of lines of one entry of the privacy statement, and of names on one line."""
FOR_PROGRAMS = frozenset(("format", "exchange", "caution_codes"))
"""Entries of the statement that are codes, which the sheet leaves out."""
HEADINGS = {"protected_by": "made with dpdist", "of_one_record": "sample counts of 1"}
"""Headings of entries whose names do not say enough."""
LINE, ROW = 15, 17
"""Height, in points, of a line of text and of a row of figures. Both are set, because some programs compute none."""


class Styles:
    """Formats of a workbook; each is made once.

    For languages written from right to left, texts of a table are aligned right, so that long texts continue into the
    next cells.
    """

    def __init__(self, book: xlsxwriter.Workbook, from_right: bool = False):
        self.book = book
        self.numbers: dict[tuple[int, bool], Format] = {}
        self.from_right, side = from_right, {"align": "right"} if from_right else {}
        self.title = book.add_format({"bold": True, "font_size": 14})
        self.caption = book.add_format({"bold": True, "font_size": 14, **side})
        self.bold = book.add_format({"bold": True, "valign": "top"})
        self.head = book.add_format({"bold": True, "text_wrap": True, "valign": "bottom", "align": "right", "bottom": 1})
        self.stub = book.add_format({"bold": True, "text_wrap": True, "valign": "bottom", "bottom": 1, **side})
        self.group = book.add_format({"bold": True, "align": "center", "bottom": 1, "text_wrap": True})
        self.wrapped = book.add_format({"text_wrap": True, "valign": "top"})
        self.label = book.add_format({"valign": "vcenter", "text_wrap": True, **side})
        self.note = book.add_format({"font_color": "#595959", "font_size": 9, **side})
        self.missing = book.add_format({"align": "right", "valign": "vcenter", "font_color": "#595959"})
        self.link = book.add_format({"font_color": "#0563C1", "underline": 1, "valign": "top"})

    def number(self, decimals: int, grey: bool) -> Format:
        """The format of a figure, or of what stands beside it, which is grey."""
        if (decimals, grey) not in self.numbers:
            form = "#,##0" + ("." + "0" * decimals if decimals > 0 else "")
            shade = {"font_color": "#595959"} if grey else {}
            self.numbers[decimals, grey] = self.book.add_format({"num_format": form, "valign": "vcenter", **shade})
        return self.numbers[decimals, grey]


def write_workbook(path: Path, job: Job, tables: Iterable[PrintedTable], statement: Mapping[str, Any]) -> None:
    """Writes the workbook; tables for which it has no room are named, with their files.

    Texts are never read as formulas or links.
    """
    import xlsxwriter

    book = xlsxwriter.Workbook(str(path), {"strings_to_formulas": False, "strings_to_urls": False, "in_memory": True})
    book.set_properties({"title": _title(job), "author": job.presentation.responsible or "", "created": CREATED})
    styles = Styles(book, job.presentation.language.split("-")[0].lower() in RIGHT_TO_LEFT)
    cover = book.add_worksheet("Cover")
    titles, room = list[tuple[str, str]](), MOST_CELLS
    for number, table in enumerate(tables, start=1):
        fits = (cells := len(table.rows) * (len(table.stub) + len(table.printed))) <= room
        room -= cells if fits else 0
        _sheet(book.add_worksheet(f"Table {number}"), styles, job, number, table, fits)
        titles.append((table.title, table.listed))
    _statement(book.add_worksheet("Privacy"), styles, statement)
    _cover(cover, styles, job, titles, statement)
    book.close()


def _title(job: Job) -> str:
    return job.presentation.title or f"{job.dataset}, {job.period}"


def about(job: Job) -> Iterator[tuple[str, str]]:
    """Headings and texts for the cover, for the facts that the job states."""
    text = job.presentation
    yield "Data", f"{job.dataset}, {job.period}"
    for head in ("universe", "source", "responsible", "contact", "licence"):
        if (fact := getattr(text, head)) is not None:
            yield {"responsible": "Responsible body"}.get(head, head.capitalize()), fact


def _cover(
    sheet: Worksheet, styles: Styles, job: Job, tables: Sequence[tuple[str, str]], statement: Mapping[str, Any]
) -> None:
    sheet.set_column(0, 0, 20)
    sheet.set_column(1, 1, TEXT)
    sheet.write_string(0, 0, _title(job), styles.title)
    row = 2
    for head, fact in (*about(job), ("Privacy", str(statement["guarantee_in_words"]))):
        sheet.write_string(row, 0, head, styles.bold)
        _wrapped(sheet, styles, row, fact)
        row += 1
    row += 1
    sheet.write_string(row, 0, "Tables", styles.bold)
    titles = {f"Table {k}": names[len(tables) > FEW_TABLES] for k, names in enumerate(tables, 1)}
    for i, (name, text) in enumerate((titles | {"Privacy": "What is protected, and what is not"}).items(), start=row + 1):
        sheet.write_url(i, 0, f"internal:'{name}'!A1", styles.link, name)  # a link does not wrap everywhere
        _wrapped(sheet, styles, i, text)
    _for_print(sheet, landscape=False)


def _wrapped(sheet: Worksheet, styles: Styles, row: int, text: str) -> None:
    sheet.write_string(row, 1, text, styles.wrapped)
    sheet.set_row(row, LINE * _number_of_lines(text, TEXT))


def _number_of_lines(text: str, width: int) -> int:
    return max(1, len(textwrap.wrap(text, width)), -(-_width(text) // width))


def _width(text: str) -> int:
    """Width of a text in characters, of which East Asian ones are two wide."""
    return sum(1 + (east_asian_width(letter) in "WF") for letter in text)


def _for_print(sheet: Worksheet, landscape: bool = True) -> None:
    sheet.hide_gridlines(2)
    sheet.set_paper(9)
    sheet.set_landscape() if landscape else sheet.set_portrait()
    sheet.fit_to_pages(1, 0)
    sheet.set_footer("&L&A&R&P / &N")


def _sheet(sheet: Worksheet, styles: Styles, job: Job, number: int, table: PrintedTable, fits: bool) -> None:
    sheet.write_string(0, 0, f"Table {number}. {table.title}", styles.caption)
    universe = job.presentation.universe
    sheet.write_string(1, 0, ", ".join(filter(None, (job.dataset, job.period, universe))), styles.note)
    _for_print(sheet)
    if styles.from_right:
        sheet.right_to_left()
    stub, width = len(table.stub), len(table.printed)
    if len(table.rows) > MOST_ROWS or stub + width > MOST_COLUMNS:
        sheet.write_string(3, 0, f"A sheet cannot hold this table: it is in tables/{table.name}.csv.")
        return
    if not fits:
        sheet.write_string(3, 0, f"The workbook has no room for this table: it is in tables/{table.name}.csv.")
        return
    top = 5 if table.across else 4
    _heads(sheet, styles, table, top - 1)
    for i, label in enumerate(zip(*table.rows, strict=True) if stub else ()):
        sheet.set_column(i, i, min(WIDEST, max(map(_width, (table.stub[i], *label))) + 2))
    sheet.set_column(stub, stub + width - 1, FIGURE)
    sheet.set_default_row(ROW)
    sheet.freeze_panes(top, stub)
    sheet.repeat_rows(0, top - 1)
    _figures(sheet, styles, table, top)
    for i, note in enumerate(table.notes, start=top + len(table.rows) + 1):
        sheet.write_string(i, 0, note, styles.note)


def _heads(sheet: Worksheet, styles: Styles, table: PrintedTable, row: int) -> None:
    """Writes statistics above their columns. Each level across is one merged cell above all its columns."""
    stub = len(table.stub)
    heads = [_number_of_lines(printed.head, FIGURE - 1) for printed in table.printed]
    sheet.set_row(row, LINE * max(heads + [_number_of_lines(name, WIDEST - BOLDER) for name in table.stub]))
    for i, name in enumerate(table.stub):
        sheet.write_string(row, i, name, styles.stub)
    for j, printed in enumerate(table.printed, start=stub):
        sheet.write_string(row, j, printed.head, styles.head)
    if table.across:
        first, high = stub, 1
        for group, columns in groupby(printed.column.group for printed in table.printed):
            width = len(list(columns))
            _wide(sheet, row - 1, first, width, group, styles.group)
            high = max(high, _number_of_lines(group, FIGURE * width - BOLDER))
            first += width
        sheet.set_row(row - 1, LINE * high)
        sheet.write_string(row - 2, stub, table.across, styles.bold)


def _wide(sheet: Worksheet, row: int, first: int, width: int, text: str, style: Format) -> None:
    if width == 1:
        sheet.write_string(row, first, text, style)
        return
    sheet.merge_range(row, first, row, first + width - 1, "", style)
    sheet.write_string(row, first, text, style)


def _figures(sheet: Worksheet, styles: Styles, table: PrintedTable, top: int) -> None:
    for i, label in enumerate(table.rows, start=top):
        if (lines := max((_number_of_lines(text, WIDEST) for text in label), default=1)) > 1:
            sheet.set_row(i, LINE * lines)
        for j, text in enumerate(label):
            sheet.write_string(i, j, text, styles.label)
        for j, printed in enumerate(table.printed, start=len(table.stub)):
            _figure(sheet, styles, (i, j), printed, printed.values[i - top])


def _figure(sheet: Worksheet, styles: Styles, place: tuple[int, int], printed: PrintedColumn, value: Any) -> None:
    if printed.kind == FLAG:
        if value:
            sheet.write_string(*place, str(value), styles.missing)
    elif np.isfinite(value):
        decimals = 0 if printed.kind == SAMPLE else printed.column.decimals
        sheet.write_number(*place, float(value), styles.number(decimals, bool(printed.kind)))
    elif not printed.kind:
        sheet.write_string(*place, NO_ESTIMATE, styles.missing)


def _statement(sheet: Worksheet, styles: Styles, statement: Mapping[str, Any]) -> None:
    """Writes statement.json as rows of heading and text; a long list is cut, with the number of omitted entries."""
    sheet.set_column(0, 0, 26)
    sheet.set_column(1, 1, TEXT)
    sheet.write_string(0, 0, "Privacy statement", styles.title)
    row = 2
    for name, entry in statement.items():
        for i, line in enumerate(_brief(entry) if name not in FOR_PROGRAMS else ()):
            if i == 0:
                sheet.write_string(row, 0, _heading(name).capitalize(), styles.bold)
            _wrapped(sheet, styles, row, line)
            row += 1
    sheet.freeze_panes(2, 0)
    _for_print(sheet, landscape=False)


def _heading(name: str) -> str:
    return HEADINGS.get(name, name.replace("_", " "))


def _brief(content: Any) -> list[str]:
    """A value of the statement as at most MOST_LINES lines of text. Names in a list stand on one line."""
    all_lines = lines(content)
    if len(all_lines) <= MOST_LINES:
        return all_lines
    if isinstance(content, Mapping):
        short = [line for name, value in content.items() for line in lines(_cut(value), f"{_heading(name)}: ")]
    else:
        short = lines(_cut(content))
    more = len(short) - MOST_LINES
    return short if more <= 0 else [*short[:MOST_LINES], f"… and {more:,} more: see statement.json"]


def _cut(content: Any) -> Any:
    """A list of many names as one text with the first of them; other values are unchanged."""
    if (
        not isinstance(content, list | tuple)
        or len(content) <= MOST_LINES
        or any(isinstance(value, Mapping) for value in content)
    ):
        return content
    return f"{'; '.join(map(str, content[:MOST_LINES]))}; … and {len(content) - MOST_LINES:,} more: see statement.json"


def lines(content: Any, prefix: str = "") -> list[str]:
    """Turns a value of the statement into lines of text."""
    if isinstance(content, Mapping):
        return [line for name, value in content.items() for line in lines(value, f"{prefix}{_heading(name)}: ")]
    if isinstance(content, list | tuple):
        return [line for value in content for line in lines(value, prefix)]
    return [prefix + ("none" if content is None else ("no", "yes")[content] if isinstance(content, bool) else str(content))]
