"""Weighted points of a release of dpdist 0.2 (`reference_tables`), which `survey` reads as a reference.

A point is a pair of weight and outcome that represents records of its cell.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.public_files import Damaged, printable, read_columns
from dpdist.core.records import Floats, Level
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
