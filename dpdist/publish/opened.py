"""A public folder as an object with tables, synthetic sets and statement."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpdist.core.errors import AnalysisError
from dpdist.core.parquet import ParquetTables
from dpdist.core.public_files import HELD, read_object, unfit
from dpdist.estimation.crosstab_table import read_crosstab, read_job
from dpdist.estimation.estimators import combine_sets
from dpdist.job import Job
from dpdist.privacy import claims
from dpdist.publish.printed_tables import PrintedTable, far_off_in, printed_table, wide_heads
from dpdist.publish.released import design_effects, effect_of

FRAME = "released/frame.parquet"
SetStatistic = Callable[[pd.DataFrame], tuple[float, float]]
"""A function of a set's records that returns an estimate and its variance within the set."""
QUOTE = "quote the published tables: their standard errors include the error of the protection"
LINES = 10
"""Number of lines shown of each table when all tables are shown."""
PAIR = "an estimate and its variance: two finite numbers, the second not negative"


class CombinedEstimate(NamedTuple):
    """An estimate over all synthetic sets: its standard error √T (see `Release.combine`), df, and a 90 % t interval."""

    estimate: float
    standard_error: float
    df: float
    lower: float
    upper: float


class ReleasedTables(ParquetTables):
    """Published tables by name, in long form: one row for each cell, statistic and estimator."""

    def __init__(self, folder: Path, job: Job, owner: object):
        super().__init__(folder, "tables of the release", owner)
        self._job = job

    def wide(self, name: str) -> pd.DataFrame:
        """A table as it is printed: levels across, figures rounded, errors and flags beside them.

        Parameters
        ----------
        name : the table's name in the job.

        Returns
        -------
        A data frame with one row for each line of the table. The index has the lines' labels. A figure that is not printed
        is NaN.

        Raises
        ------
        KeyError : there is no such table. The message names those that there are.

        Example
        -------
        >>> dpdist.open_release("doctorates-2017").tables.wide("salaries").index.name
        'sex'
        """
        path = self.path(name)
        spec = next(table for table in self._job.tables if table.name == name)
        public = path.parent.parent
        crosstab = read_crosstab(public, FRAME, self._job) if self._job.presentation.sample_size else None
        far = far_off_in(read_object(public, "statement.json"), name)
        form = printed_table(self._job, spec, pq.read_table(path), far, crosstab)
        figures = [column.values for column in form.printed]
        return pd.DataFrame(dict(zip(wide_heads(form), figures, strict=True)), index=_stub(form))

    def __repr__(self) -> str:
        """Every table as it is printed, with its first lines."""
        return "\n\n".join(_first_lines(name, self.wide(name)) for name in self) or super().__repr__()


def _first_lines(name: str, table: pd.DataFrame) -> str:
    more = f"\n… {len(table) - LINES:,} more lines: tables.wide({name!r})" if len(table) > LINES else ""
    return f"{name}\n{table.head(LINES).to_string(na_rep='')}{more}"


def _stub(form: PrintedTable) -> pd.Index[Any] | None:
    if len(form.stub) == 1:
        return pd.Index([row[0] for row in form.rows], name=form.stub[0])
    return pd.MultiIndex.from_tuples(form.rows, names=form.stub) if form.stub else None


@dataclass(frozen=True, eq=False, repr=False)
class Release(os.PathLike[str]):
    """A release as anybody may read it. It reads nothing from the confidential folder.

    `str` and `os.fspath` give `place`. A release can therefore stand for the path of a public folder on this machine.

    Parameters
    ----------
    place : the public folder, or its URL in an object store.
    opening : returns the path of the folder on this machine.

    Example
    -------
    >>> release = dpdist.open_release("doctorates-2017")
    >>> list(release.tables), release.folder.name
    (['salaries'], 'public')
    """

    place: str
    opening: Callable[[], Path]
    """Returns the folder's path on this machine; for an object store it first copies the files here."""

    @cached_property
    def folder(self) -> Path:
        """The public folder on this machine. An object store's files are copied here for as long as this object lives."""
        return self.opening()

    @property
    def tables(self) -> ReleasedTables:
        """Published tables by name, read when asked for: `tables["salaries"]`, or as printed: `tables.wide("salaries")`.

        An unknown name raises `KeyError`, which lists the known names.
        """
        return ReleasedTables(self.folder / "tables", self._job, self)

    @property
    def statement(self) -> dict[str, Any]:
        """The privacy statement, as in statement.json. docs/reference/statement.md describes its fields."""
        return read_object(self.folder, "statement.json")

    def synthetic(self, number: int) -> pd.DataFrame:
        """The records of a synthetic set.

        Parameters
        ----------
        number : which set, from 1.

        Returns
        -------
        A data frame with one row for each synthetic record.

        Raises
        ------
        IndexError : there is no such set.

        Example
        -------
        >>> dpdist.open_release("doctorates-2017").synthetic(1).columns.tolist()
        ['sex', 'salary', 'weight']
        """
        if number not in range(1, (sets := self._job.published_sets) + 1):
            there = f"sets are numbered from 1 to {sets}" if sets else "this release has only tables"
            raise IndexError(f"no synthetic set {number!r}: {there}")
        return pd.read_parquet(self.folder / "synthetic" / f"set-{number}.parquet")

    def combine(self, statistic: str | SetStatistic) -> CombinedEstimate:
        """Combines an analysis of every synthetic set: T = B/m + W (docs/methods.md, §6).

        T is the variance of the combined estimate. B is the variance of the estimates between the m sets, and W is their
        mean variance within a set. The degrees of freedom are (m − 1)(1 + W/(B/m))². `statement["standard_errors"]` lists
        the errors that T leaves out.

        Parameters
        ----------
        statistic : a function of a set's records that returns an estimate and its variance, or the name of a numeric
            column. For a column it is the weighted mean. Its variance is linearised with records as units, and multiplied
            by the public design effect, which the job states or its reference gave.

        Returns
        -------
        Estimate, standard error √T, degrees of freedom, and the limits of a 90 % interval.

        Raises
        ------
        AnalysisError : the release has no sets for which T = B/m + W holds; there is no such column; or the function
            does not return two finite numbers.

        Example
        -------
        >>> release = dpdist.open_release("doctorates-2017")
        >>> release.combine("salary").estimate > 0
        True
        """
        self._refuse_uncombinable()
        measure = self._mean_of(statistic) if isinstance(statistic, str) else statistic
        pairs = np.array([_pair(measure(self.synthetic(k)), k) for k in range(1, self._job.published_sets + 1)])
        # the last argument, degrees of freedom within a set, is used for a single set only
        combined = combine_sets(pairs[:, :1], pairs[:, 1:], np.inf)
        return CombinedEstimate(*(float(part[0]) for part in combined))

    def _refuse_uncombinable(self) -> None:
        """Raises `AnalysisError` if sets cannot be combined by T = B/m + W."""
        mechanism = self._job.mechanism
        if not self._job.published_sets:
            raise AnalysisError("the release has no synthetic records", "a release with synthetic sets", QUOTE)
        if mechanism.sets != "protected":
            fault = "the synthetic sets follow one noisy release, whose noise does not vary between them"
            allowed = "sets that are protected separately, for which T = B/m + W holds"
            raise AnalysisError(fault, allowed, f"{QUOTE}; `synthetic(k)` gives records, without standard errors")
        if self._job.published_sets == 1:
            fault = "one synthetic set, which does not show the variation between sets"
            raise AnalysisError(fault, "two sets or more", f"{QUOTE}, or release several sets (synthetic_sets)")

    def _mean_of(self, column: str) -> SetStatistic:
        """A function that gives a column's weighted mean and its variance. Raises `AnalysisError` for an unknown column."""
        survey, records = self._job.survey, self.synthetic(1)
        effect = effect_of(design_effects(self._job, self.statement), frozenset(), "mean", column)
        numeric = [str(name) for name in records.select_dtypes("number")]
        if column not in numeric:
            raise AnalysisError(
                f"no numeric column {column!r}", f"one of {', '.join(numeric)}", "name one, or pass a function"
            )

        def mean(records: pd.DataFrame) -> tuple[float, float]:
            values, n = records[column].to_numpy(dtype=float), len(records)
            weights = records[survey.weight].to_numpy() if survey.weight in records else np.ones(n)
            centre = float(np.average(values, weights=weights))
            scores = weights * (values - centre) / weights.sum()
            return centre, effect * n / max(n - 1, 1) * float(scores @ scores)

        return mean

    @cached_property
    def _job(self) -> Job:
        return read_job(self.folder, "released/job.json")

    @property
    def mechanism(self) -> str:
        """The name of the mechanism that protected the release."""
        return self._job.mechanism.name

    @property
    def held(self) -> bool:
        """True if the release is held: it waits for approval and is not published."""
        return unfit(self.folder) == HELD.splitlines()[0]

    @property
    def _facts(self) -> dict[str, str]:
        """Facts shown about a release: its identity, its guarantee, its contents."""
        statement = self.statement
        warned = {"not for publication": why} if (why := unfit(self.folder)) is not None else {}
        protects = {"protects": statement["headline"]} if "headline" in statement else {}
        return {
            **warned,
            **claims.headline(statement),
            **protects,
            "tables": ", ".join(self.tables) or "none",
            "synthetic sets": str(self._job.published_sets),
            "folder": self.place,
        }

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        """The path, on this machine, of a file of the release."""
        return self.folder / name

    def __fspath__(self) -> str:
        return self.place

    def __str__(self) -> str:
        return self.place

    def __repr__(self) -> str:
        statement = self.statement
        lines = [f"  {name}: {text}" for name, text in self._facts.items()]
        return "\n".join([f"Release of {statement['dataset']} {statement['period']}", *lines])

    def _repr_html_(self) -> str:
        """The same facts for a notebook, with every text escaped."""
        statement = self.statement
        rows = [f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self._facts.items()]
        return (
            f"<h4>{escape(str(statement['dataset']))} {escape(str(statement['period']))}</h4><table>{''.join(rows)}</table>"
        )


def _pair(pair: object, number: int) -> tuple[float, float]:
    """The result of a statistic for a set. Raises `AnalysisError` unless it is an estimate and a variance."""
    remedy = "return (estimate, variance) from the function"
    try:
        estimate, variance = (float(part) for part in pair)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise AnalysisError(f"for set {number}, the function returned a {type(pair).__name__}", PAIR, remedy) from None
    if not (np.isfinite([estimate, variance]).all() and variance >= 0):
        raise AnalysisError(f"for set {number}, the function returned ({estimate:g}, {variance:g})", PAIR, remedy)
    return estimate, variance
