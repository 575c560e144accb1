"""What a release passes on to a later one: noisy totals of earlier periods, and weighted points of dpdist 0.2.

Every release states the totals of its measured cells with the variances of their errors. Nothing in them depends on what
had been predicted, and no figure of an earlier release is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.files import write_json
from dpdist.core.public_files import Damaged, printable, read_columns, read_object
from dpdist.core.records import Floats, Ints, Level
from dpdist.job import Job

REFERENCE_FILE = "reference.parquet"
CELL = "cell "
"""Prefix of the names of columns that identify a cell."""
MOST_POINTS = 400
"""Largest number of points for each cell and outcome."""
LEAST_WEIGHT, LARGEST_WEIGHT = 2.0**-53, 2.0**53
"""Range of accepted weights and numbers of records, which keeps sums within float64."""


def read_points(folder: Path, name: str, job: Job) -> pa.Table:
    """Reads the points of a release and checks them against the public domains of a job; raises `Damaged`.

    Clipping limits are computed from the points, so weights must be positive, outcomes within bounds, and numbers
    finite.
    """
    levels: dict[str, list[Level]] = {CELL + column: list(job.columns[column].levels or ()) for column in job.cell_columns}
    types = {column: pa.infer_type(allowed_levels) for column, allowed_levels in levels.items()}
    types |= {"variable": pa.string(), **dict.fromkeys(("standing", "weight", "outcome"), pa.float64())}
    most = prod(len(allowed_levels) for allowed_levels in levels.values()) * len(job.outcomes) * MOST_POINTS
    table = read_columns(folder, name, types, most)
    if not len(table):
        raise Damaged(name, "no points", "points of every cell")
    known_values = levels | {"variable": list(job.outcomes)}
    for column, allowed_values in known_values.items():
        for value in pc.unique(table.column(column)).to_pylist():
            if value not in allowed_values:
                allowed = f"one of {', '.join(str(value_allowed) for value_allowed in allowed_values)}"
                raise Damaged(name, f"the {printable(column)} '{printable(value)}'", printable(allowed, 200))
    for column in ("weight", "standing"):
        _check_within(name, column, table.column(column).to_numpy(), LEAST_WEIGHT, LARGEST_WEIGHT)
    variable, outcome = table.column("variable").to_numpy(), table.column("outcome").to_numpy()
    for name_of_outcome, domain in job.outcome_columns.items():
        _check_within(
            name, f"outcome of {name_of_outcome}", outcome[variable == name_of_outcome], *(domain.bounds or (0.0, 1.0))
        )
    _check_cells(name, table, list(levels), len(job.outcomes))
    return table


def _check_within(name: str, what: str, values: Floats, low: float, top: float) -> None:
    if wrong := int((~((values >= low) & (values <= top))).sum()):
        raise Damaged(
            name, f"{wrong} values of {what} outside its domain", f"finite numbers from {low:,.10g} to {top:,.10g}"
        )


def _check_cells(name: str, table: pa.Table, cells: list[str], outcomes: int) -> None:
    rows = pd.DataFrame({column: table.column(column).to_numpy(zero_copy_only=False) for column in table.column_names})
    sizes = rows.groupby([*cells, "variable"]).size()
    if sizes.max() > MOST_POINTS:
        raise Damaged(name, f"{sizes.max()} points of one cell and outcome", f"at most {MOST_POINTS}")
    held = rows.groupby(cells)["variable"].nunique() if cells else pd.Series([rows["variable"].nunique()])
    if missing := int((held < outcomes).sum()):
        raise Damaged(name, f"{missing} cells without points of some outcome", "points of every outcome in every cell")
    if (rows.groupby([*cells, "variable"])["standing"].nunique() > 1).any():
        raise Damaged(name, "several values of standing in one cell", "one number of records behind a cell's points")


HISTORY = "history.json"
"""Name of the file of earlier periods' totals, in the folder `released/`."""
MOST_PERIODS = 10_000
"""Largest number of periods between two totals."""
MOST_TOTALS = 2_000
"""Number of totals of earlier periods that a release learns from; those of the last period are never fewer than all."""


@dataclass(frozen=True, eq=False)
class PeriodTotals:
    """Totals of one period's measured cells.

    `codes` (cell, column) and `count` (cell,) are levels of base cells and their numbers of records, public or estimated.
    `row` (table, cell) is the measured cell that a base cell belongs to.
    """

    period: str
    codes: Ints
    count: Floats
    row: Ints
    about: Floats
    """What outcomes are measured from, (row, outcome)."""
    total: Floats
    """Noisy sums of w, and of w(y − `about`), (row, 1 + outcome)."""
    variance: Floats
    """Variances of the errors of `total`, (row, 1 + outcome); 0 for public weights."""
    weight: Floats
    """Predicted or public mean weights, (cell,)."""
    scatter: Floats
    """Standard deviations of residuals of a record's w and wy, (cell, 1 + outcome)."""
    counts: Floats
    """Noisy counts of bins by public bounds, (bin,), of the first period of a chain without a reference; otherwise none."""
    scale: float = 0.0
    """Scale of their noise, as of a Laplace law."""
    since: int = 1
    """Number of periods since the totals before, or since the reference."""

    def described(self) -> dict[str, Any]:
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        numbers = {"period": self.period, "since": self.since, "scale": self.scale}
        return numbers | {name: value.tolist() for name, value in arrays.items()}

    @classmethod
    def recalled(cls, described: Mapping[str, Any]) -> Self:
        """The inverse of `described`. Raises `ValueError`, `KeyError` or `TypeError` if arrays do not fit each other."""
        names = ("codes", "count", "row", "about", "total", "variance", "weight", "scatter", "counts")
        codes, count, row, *rest = (np.array(described[name], dtype=np.float64) for name in names)
        about, total, variance, weight, scatter, counts = rest
        cells, rows, outcomes = len(count), len(total), total.shape[-1]
        codes, about = codes.reshape(cells, -1), about.reshape(rows, -1)
        of_rows = {one.shape for one in (total, variance)} == {(rows, outcomes)}
        shapes = row.shape[1:], about.shape[1] + 1, weight.shape, scatter.shape
        if not of_rows or shapes != ((cells,), outcomes, (cells,), (cells, outcomes)):
            raise ValueError("arrays of different lengths")
        if not all(np.isfinite(one).all() for one in (codes, count, row, *rest)):
            raise ValueError("numbers that are not finite")
        negative = any((one < 0).any() for one in (codes, count, row, variance, weight, scatter))
        if negative or (row >= rows).any() or (variance[:, 1:] <= 0).any() or (count <= 0).any():
            raise ValueError("numbers outside their ranges")
        since, scale = described["since"], float(described["scale"])
        if counts.ndim != 1 or not np.isfinite(scale) or (scale > 0.0) != (counts.size > 0):
            raise ValueError("counts without a scale of their noise")
        if not isinstance(since, int) or not 1 <= since <= MOST_PERIODS:
            raise ValueError("no number of periods")
        stated = total, variance, weight, scatter, counts, scale, since
        return cls(str(described["period"]), codes.astype(np.int64), count, row.astype(np.int64), about, *stated)


def remembered(history: Sequence[PeriodTotals]) -> tuple[PeriodTotals, ...]:
    """The last periods that have at most MOST_TOTALS totals; the first of them counts those before it, too.

    The first period of a chain without a reference is among them.
    """
    if law_of(history) is not None:
        return (history[0], *remembered(history[1:]))
    totals, periods = 0, 0
    for one in reversed(history):
        totals += one.total.size
        if periods and totals > MOST_TOTALS:
            break
        periods += 1
    before, last = history[: len(history) - periods], history[len(history) - periods :]
    if not before:
        return tuple(last)
    return (replace(last[0], since=sum(one.since for one in (*before, last[0]))), *last[1:])


def law_of(history: Sequence[PeriodTotals]) -> PeriodTotals | None:
    """The first period of a chain without a reference, whose counts of bins give the law of all cells."""
    return history[0] if history and history[0].counts.size else None


History = Mapping[str, tuple[PeriodTotals, ...]]
"""Totals of every period, the earliest first, by stratum."""


def write_history(path: Path, history: History) -> None:
    strata = {label: [one.described() for one in periods] for label, periods in history.items()}
    write_json(path, {"strata": strata})


def read_history(folder: Path, name: str, columns: int, outcomes: int) -> History:
    """The inverse of `write_history`. Raises `Damaged` if totals are incomplete, or of other columns or outcomes."""
    try:
        stated = read_object(folder, name)["strata"]
        history = {str(label): tuple(map(PeriodTotals.recalled, periods)) for label, periods in stated.items()}
        every = [one for periods in history.values() for one in periods]
        if not all((one.codes.shape[1], one.about.shape[1]) == (columns, outcomes) for one in every):
            raise ValueError("other columns or outcomes")
        if not all(history.values()):
            raise ValueError("a stratum without totals")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):
        raise Damaged(
            name, "no totals that fit each other", "totals as a release of mechanism tables states them"
        ) from None
    return history
