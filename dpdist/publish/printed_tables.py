"""Tables as they are printed: labels, rounded figures and margins of error, without figures that are too uncertain.

Figures are only rounded; margins of error follow from published standard errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy
from numpy.typing import NDArray

from dpdist.core.records import TOTAL, Crosstab, Floats, Ints, codes_of, quotient
from dpdist.core.sharing import PiecesInTurn
from dpdist.job import Job, Statistic, StatisticName, Table
from dpdist.job.presentation import FLAGS, Presentation, Quality, Thresholds
from dpdist.publish.withholding import BECAUSE, rows_with, rule


def labels_of(rows: pd.DataFrame) -> list[str]:
    """The columns of a table, published or evaluated, that identify a cell."""
    return [str(name) for name in rows.columns[: rows.columns.get_loc("statistic")]]


Flags = NDArray[np.str_]


class Ratings(NamedTuple):
    """Ratings of figures, (row, column): a flag, "" if a figure is not rated; and whether the figure is printed."""

    flags: Flags
    printed: NDArray[np.bool_]


LARGE_CV = 0.3
"""Standard error over the figure above which a figure is flagged caution, if the job has no rules for flags."""


def rate(
    rules: Quality,
    statistics: Sequence[StatisticName],
    values: Floats,
    errors: Floats,
    margins: Floats,
    far: NDArray[np.bool_],
) -> Ratings:
    """Rates figures (row, column). `statistics` has the statistics of one group of columns; all groups have them in this
    order. `far` marks figures that may be far off, which are flagged at least caution.
    """
    careful = far if rules.flags else far | (quotient(errors, np.abs(values)) > LARGE_CV)
    grade = np.where(careful, FLAGS.index("caution"), -1)
    if rules.cv is not None:
        grade = np.maximum(grade, _grade(quotient(errors, np.abs(values)), rules.cv))
    for j, name in enumerate(statistics):
        if name in rules.margin:
            grade[:, j] = np.maximum(grade[:, j], _grade(margins[:, j], rules.margin[name]))
    visible = np.ones(values.shape, dtype=bool)
    if rules.minimum is not None:
        visible = ~(_counts(statistics, values) < rules.minimum)
    if rules.hide_unreliable:
        visible &= grade < FLAGS.index("unreliable")
    return Ratings(np.array(["", *FLAGS])[grade + 1], visible)


def ratings(rules: Quality, spec: Table, rows: pa.Table, far: FarOff) -> Ratings:
    """Ratings of a table's shown rows, (row,). `far` names figures that may be far off."""
    names = [statistic.name for statistic in spec.statistics]
    value, error, df = (rows[name].to_numpy().reshape(-1, len(names)) for name in ("estimate", "standard_error", "df"))
    margin, marked = margins_of_error(error, df) if rules.margin else error, np.zeros(value.shape, dtype=bool)
    if far:
        marked = far_off(rows.select([*spec.by, "statistic", "variable"]).to_pandas(), spec, far).reshape(value.shape)
    flags, printed = rate(rules, names, value, error, margin, marked)
    return Ratings(flags.ravel(), printed.ravel())


FarOff = Mapping[str, Collection[str]]
"""Cells of a table whose figures may be far off, by statistic, as the statement names them."""


def far_off_in(statement: Mapping[str, Any], table: str) -> FarOff:
    return dict(statement.get("beyond_direct", {}).get("tables", {}).get(table, {}))


def far_off(rows: pd.DataFrame, spec: Table, far: FarOff) -> NDArray[np.bool_]:
    """True for a table's rows whose figures may be far off, (row,)."""
    marked = np.zeros(len(rows), dtype=bool)
    for statistic in spec.statistics:
        if named := far.get(statistic.text):
            of_statistic = rows_with(rows, statistic)
            levels = rows.loc[of_statistic, list(spec.by)].to_numpy().tolist()
            marked[of_statistic] = [(", ".join(map(str, cell)) or TOTAL) in named for cell in levels]
    return marked


def _grade(measure: Floats, thresholds: Thresholds) -> NDArray[np.int_]:
    """Position in FLAGS of every figure's measure of error, −1 where the measure is unknown."""
    grade = (measure > thresholds.caution).astype(int) + (measure > thresholds.unreliable)
    return np.where(np.isnan(measure), -1, grade)


def _counts(statistics: Sequence[StatisticName], values: Floats) -> Floats:
    """The published count of every figure's cell. Each group of columns contains one column of counts."""
    places = [j for j, name in enumerate(statistics) if name == "count"]
    return np.repeat(values[:, places], len(statistics) // len(places), axis=1)


def in_words(rules: Quality, flags: Flags, *, far: bool) -> list[str]:
    """The rules as notes of a table with these flags; `far` is true if some of its figures may be far off."""
    notes = []
    if not rules.flags and (flags != "").any():
        notes.append(f"A figure is flagged caution if its standard error is above {100 * LARGE_CV:.0f} % of the figure.")
    if rules.cv is not None:
        low, high = (f"{100 * limit:g} %" for limit in (rules.cv.caution, rules.cv.unreliable))
        notes.append(
            f"A figure is flagged “caution” if its coefficient of variation is above {low}, and “unreliable” if it is "
            f"above {high}."
        )
    for name, limits in rules.margin.items():
        notes.append(
            f"A {name} is flagged “caution” if its margin of error is above {limits.caution:,.10g}, and “unreliable” if "
            f"it is above {limits.unreliable:,.10g}."
        )
    if far:
        notes.append("A figure is also flagged caution if the cautions name it as one that may be far off.")
    if rules.minimum is not None:
        notes.append(f"Figures of cells with a published count below {rules.minimum:,} are not printed.")
    if rules.hide_unreliable:
        notes.append("Unreliable figures are not printed.")
    return notes


NO_ESTIMATE = ".."
"""Text for a figure without an estimate."""
FEW_TABLES = 20
"""Largest number of tables that a page shows one below the other, and that products list by titles alone. More tables are
folded below an index, without plots."""
MOST_ACROSS = 8
"""Largest number of levels side by side, unless the job names the column that goes across."""
DIGITS, MOST_DECIMALS = 4, 6
ERROR_DIGITS = 2
"""Digits of a column's smallest standard error that a reader needs; all of its figures end at the same place."""

MARGIN, ERROR, FLAG, SAMPLE = "±", "SE", "flag", "n"
"""Heads of columns beside a figure: margin of error, standard error, reliability; and of sample records."""
ERRORS = "SE is the standard error of the figure before it."
SAMPLES = "n is the unweighted number of sample records."
MARGINS = (
    "± is the margin of error, half the width of a symmetric 90 % confidence interval, which may include impossible "
    "values such as negative counts. The confidence limits in the long-form CSV file may be asymmetric and include only "
    "possible values."
)
WITHOUT = f"{NO_ESTIMATE} means that there is no estimate, or that it is not printed."
ESTIMATORS = {
    "parameters": "Estimates are computed directly from the released {}.",
    "records": "Estimates are computed from the synthetic records.",
    "both": "Estimates are computed directly from the released {} if possible, and otherwise from the synthetic records.",
}
"""What figures are computed from, by estimator; the braces stand for what the mechanism releases."""


class Unit(NamedTuple):
    """The unit of a column's large figures: its size, with its zeros, and its name in the column's heading."""

    size: float
    zeros: int
    suffix: str


ONES, LARGE_UNITS = Unit(1.0, 0, ""), (Unit(1e9, 9, ", billion"), Unit(1e6, 6, ", million"))
DECIMALS_OF_UNIT = 3
"""Largest number of decimals of a figure in millions or billions."""


def unit_of(values: Floats, decimals: int) -> Unit:
    """The largest unit in which every figure but 0 is at least 1, and `decimals` in ones are few in the unit."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0.0)])
    units = (unit for unit in LARGE_UNITS if decimals + unit.zeros <= DECIMALS_OF_UNIT)
    return next((unit for unit in units if len(sizes) and sizes.min() >= unit.size), ONES)


class TableColumn(NamedTuple):
    """A printed column: the level above it, its statistic, and the number of decimals of its figures, negative left of
    the decimal point.
    """

    group: str
    head: str
    statistic: Statistic
    decimals: int


class PrintedColumn(NamedTuple):
    """A column of a printed file: figures, or what stands beside them."""

    column: TableColumn
    kind: str
    """"" for figures; else `MARGIN`, `ERROR`, `FLAG` or `SAMPLE`."""
    values: Floats | Flags
    """(row,)"""

    @property
    def name(self) -> str:
        """Its name among all columns of the table."""
        if self.kind == SAMPLE:
            return f"{self.column.group}: {SAMPLE}" if self.column.group else SAMPLE
        name = f"{self.column.group}: {self.column.head}" if self.column.group else self.column.head
        return f"{name}, {self.kind}" if self.kind else name

    @property
    def head(self) -> str:
        """Its heading below the level across."""
        return self.kind or self.column.head


@dataclass(frozen=True)
class PrintedTable:
    """A printed table. `stub` names the columns of labels in `rows`; figures are (row, column), NaN if there is none."""

    name: str
    title: str
    stub: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    across: str | None
    """Name of the column whose levels head the groups of columns."""
    columns: tuple[TableColumn, ...]
    values: Floats
    margins: Floats
    lower: Floats
    upper: Floats
    flags: Flags
    """Reliability of every figure, (row, column): "reliable", "caution", "unreliable", or "" if it is not rated."""
    estimator: str
    notes: tuple[str, ...]
    universe: str = ""
    """Whose figures these are, in words; empty: those of all records."""
    errors: Floats | None = None
    """Standard errors, (row, column), if they are printed instead of margins of error."""
    sample: Floats | None = None
    """Unweighted numbers of sample records, (row, group of columns), if they are printed."""

    @property
    def caption(self) -> str:
        """The title, with the universe."""
        return f"{self.title} ({self.universe})" if self.universe else self.title

    @property
    def listed(self) -> str:
        """The title, or for a table without one its name and the labels of its columns."""
        columns = " × ".join((*self.stub, *filter(None, (self.across,)))) or "all"
        return f"{self.title}: {columns}" if self.title == self.name else self.title

    @property
    def without_figures(self) -> PrintedTable:
        """What names the table, and its notes: for a list of many tables."""
        nothing, flags = np.empty((0, 0)), np.empty((0, 0), dtype=np.str_)
        light = replace(self, rows=(), columns=(), errors=None, sample=None, flags=flags)
        return replace(light, values=nothing, margins=nothing, lower=nothing, upper=nothing)

    @cached_property
    def printed(self) -> tuple[PrintedColumn, ...]:
        """Columns as files have them: figures, each with its error and flag; sample records at the end of each group."""
        kind, errors = (MARGIN, self.margins) if self.errors is None else (ERROR, self.errors)
        flagged, columns = bool((self.flags != "").any()), list[PrintedColumn]()
        groups = list(dict.fromkeys(column.group for column in self.columns))
        for j, column in enumerate(self.columns):
            columns.append(PrintedColumn(column, "", self.values[:, j]))
            if np.isfinite(errors).any():
                columns.append(PrintedColumn(column, kind, errors[:, j]))
            if flagged:
                columns.append(PrintedColumn(column, FLAG, self.flags[:, j]))
            last = j + 1 == len(self.columns) or self.columns[j + 1].group != column.group
            if self.sample is not None and last:
                columns.append(PrintedColumn(column, SAMPLE, self.sample[:, groups.index(column.group)]))
        return tuple(columns)


def printed_table(job: Job, spec: Table, table: pa.Table, far: FarOff, crosstab: Crosstab | None = None) -> PrintedTable:
    """The printed form of a published table, as `dpdist.publish.tables` made it.

    `far` names figures that may be far off. `crosstab` has the numbers of sample records, which are printed if the job
    says so.
    """
    text, estimator = job.presentation, job.presentation.estimator or str(table["estimator"][0])
    rows = shown_rows(table, estimator)
    labels = [_labels(job, spec, name) for name in spec.by]
    across = _across(text, spec, labels)
    shape = (*map(len, labels), len(spec.statistics))
    value, error, df, lower, upper = (
        _laid_out(rows[name].to_numpy(), shape, across) for name in ("estimate", "standard_error", "df", "lower", "upper")
    )
    margin = margins_of_error(error, df)
    groups = [""] if across is None else labels[across]
    stub = [i for i in range(len(labels)) if i != across]
    columns = columns_of(text, groups, spec.statistics, value, error)
    quality = Ratings(*(_laid_out(part, shape, across) for part in ratings(text.quality, spec, rows, far)))
    value, margin, error, lower, upper = (
        np.where(quality.printed, figures, np.nan) for figures in (value, margin, error, lower, upper)
    )
    sample = None
    if text.sample_size and crosstab is not None:
        records = spec.cells(crosstab).membership @ crosstab.count
        sample = _laid_out(np.repeat(records, len(spec.statistics)), shape, across)[:, :: len(spec.statistics)]
    return PrintedTable(
        name=spec.name,
        title=text.table(spec.name).title or spec.name,
        stub=tuple(text.label(spec.by[i]) for i in stub),
        rows=tuple(product(*(labels[i] for i in stub))),
        across=None if across is None else text.label(spec.by[across]),
        columns=columns,
        values=rounded(value, columns),
        margins=rounded(margin, columns),
        lower=rounded(lower, columns),
        upper=rounded(upper, columns),
        flags=quality.flags,
        estimator=estimator,
        universe=text.within(spec.universe),
        notes=_notes(
            job,
            spec,
            estimator if _is(rows["estimator"], estimator).all() else "both",
            value,
            margin,
            quality.flags,
            far=bool(far),
            withheld=BECAUSE in table.column_names,
        ),
        errors=rounded(error, columns) if text.se == "column" else None,
        sample=sample,
    )


WrittenTables: TypeAlias = Sequence[tuple[PrintedTable, pa.Table]]
"""Published tables in the job's order: as printed, and in long form with a row for each cell, statistic and estimator."""


def written_tables(job: Job, folder: Path, crosstab: Crosstab | None, statement: Mapping[str, Any]) -> WrittenTables:
    """The published tables in a folder. Each is read when it is asked for, so memory holds one of them.

    `crosstab` has the numbers of sample records, which are printed if the job says so. `statement` is what is published
    of predicted errors (`predicted_errors.entry`).
    """

    def written(number: int) -> tuple[PrintedTable, pa.Table]:
        spec = job.tables[number]
        rows = pq.read_table(folder / f"{spec.name}.parquet")
        return printed_table(job, spec, rows, far_off_in(statement, spec.name), crosstab), rows

    return PiecesInTurn(written, len(job.tables))


def in_large_units(table: PrintedTable) -> PrintedTable:
    """The table in a reader's units, which no file has: headings name millions or billions."""
    columns, sizes = list[TableColumn](), list[float]()
    for column in table.columns:
        alike = [k for k, other in enumerate(table.columns) if other.statistic == column.statistic]
        unit = unit_of(table.values[:, alike], column.decimals)
        columns.append(column._replace(head=f"{column.head}{unit.suffix}", decimals=column.decimals + unit.zeros))
        sizes.append(unit.size)
    scaled = ("values", "margins", "lower", "upper", *(["errors"] if table.errors is not None else []))
    figures = {name: getattr(table, name) / np.array(sizes) for name in scaled}
    return replace(table, columns=tuple(columns), **figures)


def shown_rows(table: pa.Table, estimator: str) -> pa.Table:
    """Rows of one estimator; the other estimator fills in statistics that it lacks."""
    statistic, variable = (_codes(table[name]) for name in ("statistic", "variable"))
    figure, is_shown = statistic * (1 + variable.max(initial=0)) + variable, _is(table["estimator"], estimator)
    return table.filter(pa.array(is_shown | ~np.isin(figure, np.unique(figure[is_shown]))))


def _codes(column: pa.ChunkedArray) -> Ints:
    """Numbers of the column's distinct texts, (row,)."""
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return np.asarray(coded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def _is(column: pa.ChunkedArray, text: str) -> NDArray[np.bool_]:
    return np.asarray(pc.equal(column, text).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _labels(job: Job, spec: Table, name: str) -> list[str]:
    all_levels = job.columns[name].levels or ()
    codes = codes_of(all_levels, spec.universe.get(name, all_levels))
    levels = [job.presentation.level(name, all_levels[code]) for code in codes]
    return levels + [TOTAL] * spec.margins


def _across(text: Presentation, spec: Table, labels: Sequence[Sequence[str]]) -> int | None:
    """Position of the column whose levels stand side by side, or None.

    The job may name it; otherwise it has the fewest levels of several columns, at most `MOST_ACROSS`.
    """
    if (column := text.table(spec.name).across) is not None:
        return spec.by.index(column)
    fewest = min(range(len(labels)), key=lambda i: (len(labels[i]), -i), default=0)
    return fewest if len(labels) > 1 and len(labels[fewest]) <= MOST_ACROSS else None


def _laid_out(column: NDArray[Any], shape: tuple[int, ...], across: int | None) -> NDArray[Any]:
    """A table's figures as (row, column). Columns run over the levels across, and within each level over statistics."""
    values = column.reshape(shape)
    if across is None:
        return values.reshape(-1, shape[-1])
    return np.moveaxis(values, across, -2).reshape(-1, shape[across] * shape[-1])


def head_of(text: Presentation, statistic: Statistic) -> str:
    """The heading of a statistic above its column."""
    if statistic.of is not None:
        column, level = text.label(statistic.column or ""), text.level(statistic.column or "", statistic.level)
        return f"Difference from {column} {level}: {head_of(text, statistic.of)}"
    if statistic.across:
        return f"Share across {', '.join(text.label(name) for name in statistic.across)}"
    name = statistic.label[0].upper() + statistic.label[1:]
    if statistic.over is not None:
        return f"{name} of {text.with_unit(statistic.variable or '')} to {text.with_unit(statistic.over)}"
    return name if statistic.variable is None else f"{name} of {text.with_unit(statistic.variable)}"


def columns_of(
    text: Presentation, groups: Sequence[str], statistics: Sequence[Statistic], values: Floats, errors: Floats
) -> tuple[TableColumn, ...]:
    """Columns of every group and statistic, with the decimals of the job or those that standard errors support, which
    all groups share. `values` and `errors` are (row, column).
    """
    shared = []
    for j, statistic in enumerate(statistics):
        of_statistic = slice(j, None, len(statistics))
        stated = text.decimals.get(statistic.name)
        supported = decimals_of(values[:, of_statistic], errors[:, of_statistic], whole=statistic.name == "count")
        shared.append(supported if stated is None else stated)
    return tuple(
        TableColumn(group, head_of(text, statistic), statistic, decimals)
        for group in groups
        for statistic, decimals in zip(statistics, shared, strict=True)
    )


def decimals_of(values: Floats, errors: Floats, *, whole: bool = False) -> int:
    """Number of decimals of a column's figures, negative left of the decimal point.

    They end at the last of the `ERROR_DIGITS` digits of the smallest standard error. Without errors, and at most, the
    largest figure has `DIGITS` digits and its whole part; `whole` figures have no decimals.
    """
    sizes = np.abs(values[np.isfinite(values)])
    largest = float(sizes.max()) if len(sizes) else 0.0
    if not largest:
        return 0
    most = 0 if whole else int(np.clip(DIGITS - 1 - np.floor(np.log10(largest)), 0, MOST_DECIMALS))
    known = np.isfinite(values) & np.isfinite(errors) & ((values != 0.0) | (errors != 0.0))
    least = float(errors[known].min()) if known.any() else 0.0
    return min(most, ERROR_DIGITS - 1 - int(f"{least:.{ERROR_DIGITS - 1}e}".partition("e")[2])) if least > 0.0 else most


def rounded(values: Floats, columns: Sequence[TableColumn]) -> Floats:
    return np.column_stack([np.round(values[:, j], column.decimals) + 0.0 for j, column in enumerate(columns)])


def wide_heads(table: PrintedTable) -> list[str]:
    """Names of the printed columns, all different."""
    return [column.name for column in table.printed]


def figure_text(value: float, decimals: int, thousands: str = "") -> str:
    """A rounded figure as text; nothing where there is none."""
    return "" if np.isnan(value) else f"{round(value, decimals) if decimals < 0 else value:{thousands}.{max(decimals, 0)}f}"


def margins_of_error(error: Floats, df: Floats) -> Floats:
    """Half the width of symmetric 90 % intervals."""
    with np.errstate(invalid="ignore"):
        return np.asarray(scipy.special.stdtrit(df, 0.95) * error)


def _notes(
    job: Job, spec: Table, estimator: str, values: Floats, margins: Floats, flags: Flags, *, far: bool, withheld: bool
) -> tuple[str, ...]:
    text, released = job.presentation, "noisy sums" if job.mechanism.adds_noise else "parameters of the model"
    notes = [f"Universe: {text.within(spec.universe)}."] if spec.universe else []
    notes += [*text.table(spec.name).notes, *text.notes, ESTIMATORS[estimator].format(released)]
    if np.isfinite(margins).any():
        notes.append(ERRORS if text.se == "column" else MARGINS)
    notes += [SAMPLES] if text.sample_size else []
    notes += [WITHOUT] if np.isnan(values).any() else []
    notes += [rule(job.withhold_above)] if withheld else []
    notes += in_words(text.quality, flags, far=far)
    return (*notes, f"Source: {text.source}.") if text.source else tuple(notes)
