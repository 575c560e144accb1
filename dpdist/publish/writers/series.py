"""Files of a series of periods: long tables as Parquet and CSV, and the page and the workbook of tables by period."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import scipy

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import aside, recover, sha256, swap_in, version_of, write_json, write_text
from dpdist.core.records import Floats
from dpdist.job import Presentation
from dpdist.publish.printed_tables import (
    ERRORS,
    FEW_TABLES,
    LARGE_CV,
    MARGINS,
    WITHOUT,
    PrintedTable,
    columns_of,
    far_off_in,
    in_words,
    margins_of_error,
    rounded,
)
from dpdist.publish.series import Series
from dpdist.publish.writers.csv_tables import for_spreadsheets
from dpdist.publish.writers.page import (
    HEAVIEST_OF_MANY,
    MOST_FIGURES_OF_MANY,
    environment,
    for_download,
    in_room,
    shown_table,
)
from dpdist.publish.writers.workbook import write_workbook

CONTENTS = "series.json"
"""File that lists the releases of a series and the checksums of its files."""
SIGNIFICANT = "significant"
FORMAT = 1
OF_CHANGES = (
    "Changes are from one period to the next. Changes whose 90 % interval excludes 0 are marked as significant. Even if "
    "nothing had changed, about one change in ten would be marked.",
    "The samples of the two periods are treated as independent.",
)
OF_NOISY_BASES = (
    f"There is no relative change if the standard error of the earlier figure is above {100 * LARGE_CV:.0f} % of it: the "
    "interval would be too narrow."
)
OF_SHARED_ERRORS = "Standard errors of changes account for errors that both releases take from a shared reference."
FILES = {
    "series.parquet": "one row for each printed figure and period",
    "series.csv": "the same as CSV",
    "changes.parquet": "changes between consecutive periods, with their standard errors",
    "changes.csv": "the same as CSV",
    "tables.xlsx": "workbook with the tables by period and the tables of changes",
    CONTENTS: "the releases, and checksums of these files",
}


def write_series(folder: Path, series: Series, title: str | None = None) -> None:
    """Writes the folder aside, then swaps it in. The same releases and `title` give the same bytes.

    Raises `WorkspaceError` if the folder is the current one, or has other files than those of a series.
    """
    folder = folder.resolve()
    if folder == Path.cwd():
        raise WorkspaceError(str(folder), "it is the current folder, which cannot be replaced", "name another folder")
    recover(folder)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / CONTENTS).is_file())):
        raise WorkspaceError(str(folder), "it exists, and is not a series", "name another folder")
    building = aside(folder)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    for name, rows in (("series", series.rows), ("changes", series.changes)):
        table = _typed(rows)
        pq.write_table(table, building / f"{name}.parquet")
        pa_csv.write_csv(for_spreadsheets(table), building / f"{name}.csv")
    tables = list(printed(series))
    text = series.last.presentation.model_copy(update={"title": title or series.title, "source": series.source})
    job = series.last.model_copy(update={"period": series.range_of_periods, "presentation": text})
    write_workbook(building / "tables.xlsx", job, tables, _stated(series))
    _write_page(building / "index.html", series, text, tables)
    files = {path.name: sha256(path) for path in sorted(building.iterdir())}
    releases = [
        {"period": period.name, "release": period.id, "cautions": period.cautions, "decision": period.decision}
        for period in series.periods
    ]
    contents = {"format": FORMAT, "dataset": series.last.dataset, "releases": releases, "notes": series.notes}
    write_json(building / CONTENTS, {**contents, "files": files, "versions": {"dpdist": version_of("dpdist")}})
    folder.parent.mkdir(parents=True, exist_ok=True)
    swap_in(building, folder)


def _typed(rows: pd.DataFrame) -> pa.Table:
    """Texts as strings, figures as doubles, marks as booleans."""
    figures = {name for name in rows if rows[name].dtype.kind == "f" and rows[name].notna().any()} | NUMERIC
    kinds = {name: pa.float64() if name in figures else pa.string() for name in map(str, rows.columns)}
    kinds |= dict.fromkeys(MARKS & kinds.keys(), pa.bool_())
    return pa.table({name: pa.array(rows[name], kind, from_pandas=True) for name, kind in kinds.items()})


MARKS = frozenset(("suppressed", "significant"))
NUMERIC = frozenset(
    ("estimate", "standard_error", "df", "lower", "upper", "before", "after", "difference", "relative", "relative_error")
) | {"correlation"}


def _stated(series: Series) -> dict[str, Any]:
    """What the workbook says of privacy: every release's own guarantee."""
    words = f"This series was computed from {len(series.periods)} published releases alone and so uses no privacy budget"
    return {
        "guarantee_in_words": words,
        "releases": [f"{period.name}: {period.release.statement['guarantee_in_words']}" for period in series.periods],
        "cautions": [f"{period.name}: {text}" for period in series.periods for text in period.cautions] or None,
        "publication": [f"{period.name}: {period.decision}" for period in series.periods if period.decision] or None,
        "release_ids": [f"{period.name}: {period.id}" for period in series.periods],
        "notes": series.notes or None,
    }


def printed(series: Series) -> Iterator[PrintedTable]:
    """Tables by period, each followed by that of its changes, if it has any."""
    for name in series.tables:
        yield _without_empty_columns(_by_period(series, name))
        changes = series.changes[series.changes["table"] == name]
        if len(changes):
            yield _without_empty_columns(_of_changes(series, name, changes))


def _without_empty_columns(table: PrintedTable) -> PrintedTable:
    """The table without columns of statistics that a period lacks."""
    there = np.asarray(np.isfinite(table.values).any(axis=0))
    names = ("values", "margins", "lower", "upper", "flags", *(["errors"] if table.errors is not None else []))
    columns = tuple(column for column, present in zip(table.columns, there.tolist(), strict=True) if present)
    return replace(table, columns=columns, **{name: getattr(table, name)[:, there] for name in names})


def _by_period(series: Series, name: str) -> PrintedTable:
    rows = series.rows[series.rows["table"] == name]
    groups, text = [period.name for period in series.tables[name]], series.last.presentation
    cells, statistics = series.levels(name), series.statistics(name)
    layout = _Layout(rows, "period", groups, cells, list(series.by(name)), list(statistics))
    value, error, df = (layout(column) for column in ("estimate", "standard_error", "df"))
    margin = margins_of_error(error, df)
    columns = columns_of(text, groups, list(statistics.values()), value, error)
    flags = np.where(np.isnan(value), "", layout("grade", "")).astype(str)
    far = any(far_off_in(period.release.statement, name) for period in series.tables[name])
    notes = [*text.table(name).notes, *text.notes, ERRORS if text.se == "column" else MARGINS]
    notes += in_words(text.quality, flags, far=far)
    there = np.isfinite(value).any(axis=0)
    notes += [WITHOUT] * bool(np.isnan(value[:, there]).any())
    return PrintedTable(
        name=name,
        title=text.table(name).title or name,
        **_stub(series, name, cells),
        across="Period",
        columns=columns,
        values=rounded(value, columns),
        margins=rounded(margin, columns),
        lower=rounded(layout("lower"), columns),
        upper=rounded(layout("upper"), columns),
        flags=flags,
        notes=tuple(notes),
        errors=rounded(error, columns) if text.se == "column" else None,
    )


def _of_changes(series: Series, name: str, changes: pd.DataFrame) -> PrintedTable:
    """Absolute and relative changes side by side, by pair of periods."""
    changes = changes.assign(pair=changes["period_before"] + " to " + changes["period_after"])
    text, cells, statistics = series.last.presentation, series.levels(name), series.statistics(name)
    groups = list(dict.fromkeys(changes["pair"]))
    layout = _Layout(changes, "pair", groups, cells, list(series.by(name)), list(statistics))
    value, error, significant = layout("difference"), layout("standard_error"), layout("significant", False)
    margin = margins_of_error(error, layout("df"))
    relative, of_relative = 100.0 * layout("relative"), 100.0 * layout("relative_error")
    plain = columns_of(text, groups, list(statistics.values()), value, error)
    columns = [
        both
        for column in plain
        for both in (
            column._replace(head=f"{column.head}: change"),
            column._replace(head=f"{column.head}: change, %", decimals=1),
        )
    ]
    pairs: dict[str, tuple[Floats, Floats]] = {
        "values": (value, relative),
        "margins": (margin, scipy.special.stdtrit(np.inf, 0.95) * of_relative),
        "lower": (layout("lower"), np.full(value.shape, np.nan)),
        "upper": (layout("upper"), np.full(value.shape, np.nan)),
    } | ({"errors": (error, of_relative)} if text.se == "column" else {})
    figures: dict[str, Any] = {key: rounded(_interleaved(*pair), columns) for key, pair in pairs.items()}
    shared, noisy = bool(changes["correlation"].any()), bool((np.isnan(relative) & np.isfinite(value)).any())
    notes = [*OF_CHANGES, *[OF_NOISY_BASES] * noisy, *[OF_SHARED_ERRORS] * shared]
    marks = np.where(significant.astype(bool) & ~np.isnan(value), SIGNIFICANT, "")
    return PrintedTable(
        name=f"{name}-changes",
        title=f"{text.table(name).title or name}: changes",
        **_stub(series, name, cells),
        across="Periods",
        columns=tuple(columns),
        flags=_interleaved(marks, marks),
        notes=(*notes, ERRORS if text.se == "column" else MARGINS),
        **figures,
    )


def _interleaved(first: Any, second: Any) -> Any:
    return np.stack([first, second], axis=2).reshape(len(first), -1)


def _stub(series: Series, name: str, cells: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    text, by = series.last.presentation, series.by(name)
    labels = tuple(tuple(map(text.level, by, cell)) for cell in cells)
    return {"stub": tuple(map(text.label, by)), "rows": labels, "estimator": "", "universe": series.universe(name)}


class _Layout:
    """Values of a column as (cell, group and statistic), NaN or another filling where there is none."""

    def __init__(
        self,
        rows: pd.DataFrame,
        group: str,
        groups: Sequence[str],
        cells: Sequence[tuple[str, ...]],
        by: Sequence[str],
        statistics: Sequence[tuple[str, str | None]],
    ) -> None:
        places = {cell: k for k, cell in enumerate(cells)}
        numbers = {statistic: k for k, statistic in enumerate(statistics)}
        of_group = {name: k for k, name in enumerate(groups)}
        abouts = rows["variable"].astype(object).where(rows["variable"].notna(), None)
        self._row = np.array([places[cell] for cell in rows[list(by)].itertuples(index=False, name=None)], dtype=np.int64)
        pairs = zip(rows["statistic"], abouts, strict=True)
        number = np.array([numbers[pair] for pair in pairs], dtype=np.int64)
        self._column = np.array([of_group[name] for name in rows[group]], dtype=np.int64) * len(statistics) + number
        self._rows, self._shape = rows, (len(cells), len(groups) * len(statistics))

    def __call__(self, name: str, filling: Any = np.nan) -> Any:
        kind = np.float64 if isinstance(filling, float) else object
        values = np.full(self._shape, filling, dtype=kind)
        values[self._row, self._column] = self._rows[name].to_numpy(dtype=kind)
        return values


def _write_page(path: Path, series: Series, text: Presentation, tables: Sequence[PrintedTable]) -> None:
    facts = {
        "title": text.title,
        "language": text.language,
        "dataset": series.last.dataset,
        "releases": series.periods,
        "warned": [period for period in series.periods if period.cautions],
        "notes": series.notes,
        "files": FILES,
        "many": len(tables) > FEW_TABLES,
    }
    template = environment("dpdist.publish.writers").get_template("series.html")
    for most in MOST_FIGURES_OF_MANY:
        fitting = zip(tables, in_room([table.values.size for table in tables], most), strict=True)
        forms = [shown_table(table, with_plots=False) if fits else for_download(table) for table, fits in fitting]
        html = template.render(**facts, tables=forms)
        if len(html.encode()) < HEAVIEST_OF_MANY:
            break
    write_text(path, html)
