"""A series of releases of one dataset: one long table over periods, and changes between consecutive periods.

Everything follows from public folders, so a series spends nothing. The latest release that has a table defines its columns
and its universe. Earlier releases that define a table of this name differently are left out of it, and named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from dpdist.core.errors import AnalysisError
from dpdist.core.public_files import MANIFEST, read_object, unfit
from dpdist.estimation.crosstab_table import read_job
from dpdist.job import Job, Statistic, Table
from dpdist.publish.differences import FIGURES, OF_A_FIGURE, compared_periods
from dpdist.publish.opened import Release
from dpdist.publish.printed_tables import far_off_in, ratings, shown_rows
from dpdist.publish.tables import NUMBERS

GRADE = "grade"
ONE_OF_EACH = "one release of every period"
YEAR, DIGIT = re.compile(r"\d{4}(?!\d)"), re.compile(r"\d")
OWN_COLUMNS = frozenset(("period", "table", "release", "period_before", "period_after", GRADE, *FIGURES))
"""Columns of a series beside those of its tables."""


class Period(NamedTuple):
    """A release of a series."""

    release: Release
    job: Job
    id: str

    @property
    def name(self) -> str:
        return self.job.period

    @property
    def cautions(self) -> list[str]:
        """What its statement warns of."""
        return list(self.release.statement.get("cautions", []))

    @property
    def decision(self) -> str:
        """What its statement says of who decides on publication; empty if nobody does."""
        statement = self.release.statement
        return str(statement.get("approval") or statement.get("publication") or "")

    @property
    def tables(self) -> dict[str, Table]:
        return {table.name: table for table in self.job.tables}


@dataclass(frozen=True, eq=False)
class Series:
    """Releases of one dataset in the order of their periods: their figures, changes, and what differs between them."""

    periods: tuple[Period, ...]

    @property
    def last(self) -> Job:
        """The job of the last release, whose labels are printed."""
        return self.periods[-1].job

    @property
    def title(self) -> str:
        """The title that all releases have, with the range of periods in the place of each one's period, or at its end; or
        else the dataset with the range.
        """
        titles = [self._with_range(period) for period in self.periods]
        title = titles[0] if titles[0] is not None and len(set(titles)) == 1 else self.last.dataset
        return title if self.range_of_periods in title else f"{title}, {self.range_of_periods}"

    def _with_range(self, period: Period) -> str | None:
        title, name = period.job.presentation.title, re.escape(period.name)
        return title and re.sub(rf"(?<!\w){name}(?!\w)", lambda _: self.range_of_periods, title)

    @property
    def range_of_periods(self) -> str:
        return f"{self.periods[0].name} to {self.periods[-1].name}"

    @property
    def source(self) -> str | None:
        """The sources of all releases."""
        sources = [period.job.presentation.source for period in self.periods]
        return "; ".join(dict.fromkeys(filter(None, sources))) or None

    @cached_property
    def tables(self) -> dict[str, tuple[Period, ...]]:
        """Names of tables, those of the last release first, with the releases that define them alike."""
        names = [table.name for period in reversed(self.periods) for table in period.job.tables]
        return {name: tuple(self._alike(name)) for name in dict.fromkeys(names)}

    def _alike(self, name: str) -> Iterator[Period]:
        latest = self._latest(name)
        for period in self.periods:
            if name in period.tables and _definition(period.tables[name]) == _definition(latest):
                yield period

    def _latest(self, name: str) -> Table:
        return next(period.tables[name] for period in reversed(self.periods) if name in period.tables)

    def statistics(self, name: str) -> dict[tuple[str, str | None], Statistic]:
        """Statistics of a table in any of its releases by label and variable, those of the latest first."""
        by_label = dict[tuple[str, str | None], Statistic]()
        for period in reversed(self.tables[name]):
            for statistic in period.tables[name].statistics:
                by_label.setdefault((statistic.label, statistic.about), statistic)
        return by_label

    def levels(self, name: str) -> list[tuple[str, ...]]:
        """Cells of a table in any of its releases, those of the latest first."""
        rows = self.rows
        rows = rows[rows["table"] == name]
        number = {period.name: k for k, period in enumerate(self.periods)}
        rows = rows.iloc[np.argsort(-rows["period"].map(number).to_numpy(), kind="stable")]
        cells = rows[list(self._latest(name).by)].itertuples(index=False, name=None)
        return list(dict.fromkeys(cells))

    def by(self, name: str) -> tuple[str, ...]:
        return self._latest(name).by

    def universe(self, name: str) -> str:
        return self.last.presentation.within(self._latest(name).universe)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row for every printed figure: period, table, levels of its cell, statistic, variable, estimator, estimate,
        `standard_error`, `df`, `lower` and `upper` (90 %), `suppressed`, `grade`, and the id of its release.

        Columns of levels are those of all tables; a table lacks values of those that it is not by.
        """
        parts, by = list[pd.DataFrame](), dict[str, None]()
        for name, periods in self.tables.items():
            by |= dict.fromkeys(self.by(name))
            for period in periods:
                rows = _printed(period, name)
                parts.append(rows.assign(period=period.name, table=name, release=period.id))
        order = ["period", "table", *by, *OF_A_FIGURE, *NUMBERS, "suppressed", GRADE, "release"]
        return _join(parts, order)

    @cached_property
    def changes(self) -> pd.DataFrame:
        """One row for every figure that two consecutive periods both print: its change as `period_differences` has it."""
        return self._compared[0]

    @cached_property
    def _compared(self) -> tuple[pd.DataFrame, list[str]]:
        parts, notes, by = list[pd.DataFrame](), list[str](), dict[str, None]()
        for before, after in pairwise(self.periods):
            common = [name for name, periods in self.tables.items() if before in periods and after in periods]
            if not common:
                notes.append(f"{before.name} and {after.name} have no table in common")
                continue
            try:
                differences, independent = compared_periods(before.release, after.release)
            except AnalysisError as error:
                notes.append(f"no changes from {before.name} to {after.name}: {error.fault}")
                continue
            notes += independent
            for name in common:
                by |= dict.fromkeys(self.by(name))
                figures = _printed(after, name)[[*self.by(name), *OF_A_FIGURE]]
                rows = figures.merge(differences[name], on=[*self.by(name), *OF_A_FIGURE])
                parts.append(rows.assign(period_before=before.name, period_after=after.name, table=name))
        order = ["period_before", "period_after", "table", *by, *OF_A_FIGURE, *FIGURES]
        return _join(parts, order), notes

    @property
    def notes(self) -> list[str]:
        """What differs between periods, and what has been left out, a sentence each."""
        notes = list[str]()
        for name, periods in self.tables.items():
            latest = self._latest(name)
            for period in self.periods:
                if name in period.tables and period not in periods:
                    notes.append(
                        f"table '{name}' of {period.name} is {_described(period.tables[name])}, but {_described(latest)} "
                        "in later periods, so it is left out"
                    )
            for (label, about), statistic in self.statistics(name).items():
                lacking = [each.name for each in periods if not _has(each, name, statistic)]
                if lacking:
                    text = label if about is None else f"{label} of {about}"
                    notes.append(f"table '{name}' has no {text} in {', '.join(lacking)}")
        for before, after in pairwise(self.periods):
            notes += _changed_columns(before, after)
        return [*notes, *self._compared[1]]


def _join(parts: Sequence[pd.DataFrame], order: Sequence[str]) -> pd.DataFrame:
    if not parts:
        return pd.DataFrame({name: pd.Series(dtype=object) for name in order})
    joined: pd.DataFrame = pd.concat([part.reindex(columns=list(order)) for part in parts], ignore_index=True)
    return joined


def _definition(table: Table) -> tuple[Any, ...]:
    return table.by, {name: tuple(map(str, levels)) for name, levels in table.universe.items()}


def _described(table: Table) -> str:
    within = "".join(f" where {name} is {' or '.join(map(str, levels))}" for name, levels in table.universe.items())
    return f"by {', '.join(table.by) or 'nothing'}{within}"


def _has(period: Period, name: str, statistic: Statistic) -> bool:
    listed = period.tables[name].statistics if name in period.tables else ()
    return (statistic.label, statistic.about) in {(stat.label, stat.about) for stat in listed}


def _changed_columns(before: Period, after: Period) -> Iterator[str]:
    """Differences of public definitions that may break a series."""
    where = f"between {before.name} and {after.name}"
    for name in (name for name in before.job.columns if name in after.job.columns):
        column_before, other = before.job.columns[name], after.job.columns[name]
        missing, new = (
            [str(level) for level in a.levels or () if level not in (b.levels or ())]
            for a, b in ((column_before, other), (other, column_before))
        )
        if missing or new:
            changes = [f"without {', '.join(missing)}"] * bool(missing) + [f"with {', '.join(new)}"] * bool(new)
            yield f"column '{name}' changed levels {where}: {'; '.join(changes)}"
        if column_before.bounds != other.bounds and name in (*before.job.outcomes, *after.job.outcomes):
            yield f"column '{name}' changed bounds {where}"
    if before.job.presentation.estimator != after.job.presentation.estimator:
        yield f"the printed estimator changed {where}, and changes use the later one"
    if before.job.universe != after.job.universe:
        yield f"the universe changed {where}"
    for key in ("mechanism", "budget"):
        if getattr(before.job, key) != getattr(after.job, key):
            yield f"the {key} changed {where}"


def _printed(period: Period, name: str) -> pd.DataFrame:
    """The rows of a table that its release prints, with their grades."""
    rows, text = pa.Table.from_pandas(period.release.tables[name], preserve_index=False), period.job.presentation
    rows = shown_rows(rows, text.estimator or str(rows["estimator"][0]))
    far, rules = far_off_in(period.release.statement, name), text.quality.model_copy(update={"minimum": None})
    flags = ratings(rules, period.tables[name], rows, far).flags
    printed: pd.DataFrame = rows.to_pandas()
    return printed.assign(**{GRADE: np.where(printed["estimate"].isna(), "", flags)})


def _later(period: str, other: str) -> bool:
    """Whether a period is known to be later: both begin with a year, and periods of one year have one form."""
    years = [YEAR.match(name) for name in (period, other)]
    if not all(years):
        return False
    alike = DIGIT.sub("0", period) == DIGIT.sub("0", other)
    return period > other if alike else period[:4] > other[:4]


_refusal = partial(AnalysisError, subject="series")


def series_of(releases: Sequence[Release]) -> Series:
    """One long table over the periods of a product, and changes between consecutive periods. It spends nothing.

    Parameters
    ----------
    releases : two or more of one dataset, in the order of their periods.

    Returns
    -------
    A series, which computes its data frames when they are first asked for:

    - `rows`: one row for every printed figure: period, table, levels, statistic, variable, estimator, estimate,
      `standard_error`, `df`, limits `lower` and `upper` of a 90 % interval, `suppressed`, `grade`, id of the release.
    - `changes`: one row for every figure that two consecutive periods both print, as `period_differences` has it.
    - `notes`: what differs between periods, and what has been left out, a sentence each.

    Raises
    ------
    AnalysisError : there are fewer than two releases, of several datasets, two of one period, a later period before an
        earlier one, one that is not for publication, a table is by a column of one of `OWN_COLUMNS`, or no two have a
        table in common.

    Example
    -------
    >>> found = dpdist.series([dpdist.open_release(name) for name in ("doctorates-2017", "doctorates-2019")])
    >>> sorted(found.rows["period"].unique()), len(found.changes) > 0
    (['2017', '2019'], True)
    """
    if len(releases) < 2:
        raise _refusal("only one release", "two releases or more", "name releases of further periods")
    periods = list[Period]()
    for release in releases:
        if (why := unfit(release.folder)) is not None:
            raise _refusal(f"{release} is not for publication: {why}", "published releases", "leave it out")
        job = read_job(release.folder, "released/job.json")
        periods.append(Period(release, job, str(read_object(release.folder, MANIFEST)["release"])))
    first, *later_periods = periods
    for period in later_periods:
        if period.job.dataset != first.job.dataset:
            fault = f"{first.release} is of '{first.job.dataset}', but {period.release} is of '{period.job.dataset}'"
            raise _refusal(fault, "releases of the same dataset", "name releases of the same dataset")
    by_name = dict[str, Period]()
    for period in periods:
        for table in period.job.tables:
            if reserved := sorted(OWN_COLUMNS.intersection(table.by)):
                fault = (
                    f"table '{table.name}' of {period.release} is by '{reserved[0]}', which is the name of a column that "
                    "every series has"
                )
                raise _refusal(fault, "tables by columns of other names", "rename the column, or leave the release out")
        if (other := by_name.setdefault(period.name, period)) is not period:
            fault = f"{other.release} and {period.release} are both of {period.name}"
            raise _refusal(fault, ONE_OF_EACH, "if a release was corrected, name only the correction")
    for before, after in pairwise(periods):
        if _later(before.name, after.name):
            fault = f"the releases are not in order of period: {before.name} is named before {after.name}"
            order = ", ".join(sorted(period.name for period in periods))
            raise _refusal(fault, "releases in order of period", f"name them in the order {order}")
    series = Series(tuple(periods))
    if all(len(alike) < 2 for alike in series.tables.values()):
        notes = "; ".join(series.notes[:3])
        fault = f"no two releases have a table in common{f': {notes}' if notes else ''}"
        raise _refusal(fault, "a table with the same name and columns", "publish them again with such a table")
    return series
