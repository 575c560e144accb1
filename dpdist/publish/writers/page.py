"""`index.html`, a release's self-contained page. Reports and studies share its parts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup, escape

from dpdist.core.files import write_text
from dpdist.core.records import TOTAL
from dpdist.job import FLAGS, Job
from dpdist.publish.printed_tables import (
    FEW_TABLES,
    FLAG,
    MARGIN,
    NO_ESTIMATE,
    SAMPLE,
    PrintedColumn,
    PrintedTable,
    figure_text,
    in_large_units,
)
from dpdist.publish.writers.csv_tables import plain
from dpdist.publish.writers.dotplot import Plot, plots
from dpdist.publish.writers.microdata import variable_names
from dpdist.publish.writers.workbook import about

if TYPE_CHECKING:
    from jinja2 import Environment


class Check(NamedTuple):
    """A published figure that equals the mean over sets."""

    table: str
    value: float


class Names(NamedTuple):
    """Names in programs, which take the mean of an outcome, for all records and by one column: of files, columns in these
    files, and their names in Stata and SAS.
    """

    extension: str
    outcome: str
    weight: str | None
    group: str | None
    short: dict[str, str]


def names_of(job: Job) -> Names:
    extension = "csv" if "csv" in job.presentation.formats else "parquet"
    group = next(iter(job.modelled_columns), None)
    short = variable_names([*job.modelled_columns, *job.components])
    return Names(extension, job.outcomes[0], job.survey.weight, group, short)


def check_of(printed: PrintedTable, table: pa.Table, outcome: str) -> Check | None:
    """The published mean of the outcome over all records, if the table has it."""
    if printed.universe:
        return None
    keys: dict[str, str | bool] = dict.fromkeys(table.column_names[: table.column_names.index("statistic")], TOTAL)
    keys |= {"statistic": "mean", "variable": outcome, "estimator": "records", "suppressed": False}
    rows = table.filter(reduce(pc.and_kleene, (pc.equal(table[name], value) for name, value in keys.items())))
    return Check(printed.name, rows["estimate"][0].as_py()) if len(rows) else None


@cache
def environment(*packages: str) -> Environment:
    """The template environment of these packages, which caches compiled templates. It escapes every text."""
    import jinja2

    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in packages])
    env = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    env.filters |= {"sentence": _sentence, "closed": _closed, "first_sentence": _first_sentence, "quoted": _quoted}
    return env


MOST_FIGURES = (3_000, 1_000, 300, 0)
"""Limits on the number of figures that a page shows, over all tables. Further tables are for download only.

They are tried in order, until the page is smaller than `HEAVIEST`; the last is used in any case.
"""
MOST_FIGURES_OF_MANY, HEAVIEST_OF_MANY = (30_000, 20_000, 10_000, 3_000, 0), 3_000_000
"""The same as `MOST_FIGURES` and `HEAVIEST`, for a page of more tables than `FEW_TABLES`."""
HEAVIEST = 1_000_000
"""Size of a page in bytes above which fewer figures are shown; a report then loses its drawings, the last one first."""
PORTRAIT, LANDSCAPE, LABEL_ON_PAPER, COLUMN_GAP = 100, 170, 20, 2
"""Characters of a row that a printed page holds in its two orientations, of a label there, and between columns."""
MOST_SETS = 5
"""Largest number of synthetic sets whose files the page links."""
CODE = Markup("<code>{}</code>")
EPSILON = (
    "ε (epsilon) bounds how much published results can depend on any one record. Smaller values are stricter, and at 0 "
    "there is no dependence."
)
EPSILON_AIMED_AT = (
    "ε (epsilon) is a target for how much published results may depend on any one record. Smaller values are stricter, but "
    "nothing proves that the target is met."
)
PROTECTED, MEANT_TO_BE = "Protected", "Intended to be protected"


class Cell(NamedTuple):
    text: str
    margin: str
    value: str
    """The value by which a column is sorted."""
    flag: str
    """A mark for figures that need care; otherwise empty."""


class Row(NamedTuple):
    labels: tuple[str, ...]
    cells: list[Cell]
    margin: bool


class PageTable(NamedTuple):
    """A table on the page; without rows it is for download only."""

    printed: PrintedTable
    heads: list[str]
    """Headings of columns behind the stub."""
    rows: list[Row]
    groups: list[tuple[str, int]]
    plots: list[Plot]
    figures: int

    @property
    def on_paper(self) -> str:
        """Classes for a print: in landscape if its columns need that, and with figures that break if nothing else fits."""
        labels = (max(map(len, words)) for words in zip(*(row.labels for row in self.rows), strict=True))
        widths = [max(map(len, head.split())) for head in self.heads]
        for row in self.rows:
            widths = [max(w, len(cell.text), 1 + len(cell.margin)) for w, cell in zip(widths, row.cells, strict=True)]
        width = sum(min(label, LABEL_ON_PAPER) for label in labels) + sum(widths) + COLUMN_GAP * len(widths)
        return " wide widest" if width > LANDSCAPE else " wide" if width > PORTRAIT else ""


def write_page(path: Path, job: Job, tables: Sequence[tuple[PrintedTable, pa.Table]], statement: Mapping[str, Any]) -> None:
    """Writes the page. It links the files beside it; texts on privacy come from the statement."""
    templates = environment("dpdist.publish.writers")
    text, names = job.presentation, names_of(job)
    records = (path.parent / "synthetic").exists()
    check, listed, aimed_at = None, list[PageTable](), statement.get("guarantee") == "asymptotic"
    for form, rows in tables:
        if records and check is None:
            check = check_of(form, rows, names.outcome)
        listed.append(for_download(form))
    many = len(tables) > FEW_TABLES
    limits, heaviest = (MOST_FIGURES_OF_MANY, HEAVIEST_OF_MANY) if many else (MOST_FIGURES, HEAVIEST)
    facts = {
        "title": text.title or f"{job.dataset}, {job.period}",
        "language": text.language,
        "facts": list(about(job)),
        "said": statement,
        "epsilon": "" if statement.get("guarantee") == "none" else EPSILON_AIMED_AT if aimed_at else EPSILON,
        "protected": MEANT_TO_BE if aimed_at else PROTECTED,
        "records": records,
        "sets": job.synthetic_sets,
        "names": names,
        "check": check,
        "check_text": figure_text(check.value, 6, ",") if check else "",
        "note": f"  # {check.value!r} in tables/{check.table}.csv, estimator records" if check else "",
        "labelled": "dta" in text.formats,
        "codebook": _codebook(job),
        "files": list(_files(path.parent, job, tables=not many)),
        "many": many,
        "of_table": {
            form.printed.name: [
                caution
                for caution in statement.get("cautions", [])
                if caution.startswith((f"{form.printed.name}, ", f"{form.printed.name}: "))
            ]
            for form in listed
            if len(tables) > 1
        },
    }
    template, notes_of_tables = templates.get_template("release.html"), [form.printed.notes for form in listed]
    shared = [note for note in next(iter(notes_of_tables), ()) if many and all(note in notes for notes in notes_of_tables)]

    def page_table(number: int, fits: bool) -> PageTable:
        form = shown_table(tables[number][0], with_plots=not many) if fits else listed[number]
        rest = tuple(note for note in notes_of_tables[number] if note not in shared)
        return form._replace(printed=replace(form.printed, notes=rest))

    for most in limits:
        fitting = enumerate(in_room([form.figures for form in listed], most))
        html = template.render(**facts, shared=shared, tables=[page_table(*pair) for pair in fitting])
        if len(html.encode()) < heaviest:
            break
    write_text(path, html)


def _quoted(name: str) -> str:
    """The name as a text in a program."""
    return json.dumps(plain(name), ensure_ascii=False)


def _sentence(text: str) -> Markup:
    """The text as a sentence, with a capital and a full stop; backticks mark code."""
    sentence = _closed(text[:1].upper() + text[1:])
    parts = enumerate(re.split("`([^`]+)`", sentence))
    return Markup("").join(CODE.format(part) if k % 2 else escape(part) for k, part in parts)


def _first_sentence(text: str) -> str:
    """The first sentence of a text."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text, maxsplit=1)[0]


def _closed(text: str) -> str:
    """The text with a full stop. Its first letter stays, because it may begin a column's name."""
    return text + ("" if text.endswith((".", "?", "!")) else ".")


def in_room(figures: Sequence[int], room: int) -> list[bool]:
    """Whether tables of so many figures are shown: in order, those for which the limit has enough left."""
    fits = list[bool]()
    for size in figures:
        fits.append(size <= room)
        room -= size * fits[-1]
    return fits


def for_download(table: PrintedTable) -> PageTable:
    """A table without rows."""
    return PageTable(table.without_figures, [], [], [], [], table.values.size)


def shown_table(table: PrintedTable, *, with_plots: bool = True) -> PageTable:
    """A table with rows, and with plots if asked."""
    table = in_large_units(table)
    columns = _columns(table)
    names = [printed.column.group for printed in columns]
    groups = [(name, names.count(name)) for name in dict.fromkeys(names)]
    heads, drawings = [printed.head for printed in columns], list(plots(table)) if with_plots else []
    return PageTable(table, heads, list(_rows(table)), groups, drawings, table.values.size)


def _columns(table: PrintedTable) -> list[PrintedColumn]:
    """Columns of the page, on which a margin of error and a flag stand in the figure's own cell."""
    return [printed for printed in table.printed if printed.kind not in (MARGIN, FLAG)]


def _rows(table: PrintedTable) -> Iterator[Row]:
    columns = _columns(table)
    number = {id(column): j for j, column in enumerate(table.columns)}
    places = [number[id(printed.column)] for printed in columns]
    for i, labels in enumerate(table.rows):
        cells = list[Cell]()
        for j, printed in zip(places, columns, strict=True):
            value = float(printed.values[i])
            decimals = table.columns[j].decimals
            if printed.kind:
                text = figure_text(value, 0 if printed.kind == SAMPLE else decimals, ",")
                cells.append(Cell(text, "", "" if np.isnan(value) else f"{value:.10g}", ""))
                continue
            margin = "" if table.errors is not None else figure_text(float(table.margins[i, j]), decimals, ",")
            flag, none = str(table.flags[i, j]), bool(np.isnan(value))
            marked = "" if flag == FLAGS[0] or none else flag
            text = NO_ESTIMATE if none else figure_text(value, decimals, ",")
            cells.append(Cell(text, margin, "" if none else f"{value:.10g}", marked))
        yield Row(labels, cells, TOTAL in labels)


def _codebook(job: Job) -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    text, entries = job.presentation, []
    for name in dict.fromkeys([*job.cell_columns, *job.modelled_columns, *job.components, *job.microdata.columns]):
        column = job.columns.get(name)
        labelled = [(str(level), text.level(name, level)) for level in (column and column.levels) or ()]
        labelled += [(f"{code:.10g}", text_of_code) for text_of_code, code in ((column and column.codes) or {}).items()]
        entries.append((name, text.label(name), text.column(name).unit or "", labelled))
    return entries


ABOUT = {
    "tables.xlsx": "all tables as printed, with the privacy statement",
    "codebook.json": "columns, levels and labels, as CSV on the Web metadata",
    "codebook.xml": "the synthetic records' columns, levels and labels as a DDI codebook",
    "measurements.parquet": "noisy measurements: values, noise distributions and scales, for your own inference",
    "measurements.dta": "the same for Stata, and for R by haven",
    "sdmx/structure.json": "the structures of the tables as SDMX dataflows; their observations are in the same folder",
    "statement.json": "the privacy statement in full",
    "registry.yaml": "the release as an entry of the registry of differential-privacy deployments",
    "manifest.json": "the job, versions, and checksums of all files",
}


def _files(folder: Path, job: Job, *, tables: bool = True) -> Iterator[tuple[str, str]]:
    """Paths of the release's files with a description; of many synthetic sets only the first `MOST_SETS`.

    Without `tables`, files of single tables are left out, because every table links its own.
    """
    for name, description in ABOUT.items():
        if name == "manifest.json" or (folder / name).exists():
            yield name, description
    for table in job.tables if tables else ():
        for end, description in (("csv", "long form"), ("wide.csv", "as printed"), ("parquet", "long form")):
            yield f"tables/{table.name}.{end}", f"{job.presentation.table(table.name).title or table.name}: {description}"
    for number in range(1, min(job.synthetic_sets, MOST_SETS) + 1):
        for path in sorted((folder / "synthetic").glob(f"set-{number}.*")):
            yield f"synthetic/{path.name}", f"synthetic records, set {number}"
