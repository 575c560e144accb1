"""Writes the tables of a fitted model of coded columns, with errors; they follow from released figures, at no privacy cost.

A published error has two parts, upper bounds without a reference. One is the noise of the measured table. The other is the
sampling error of a sum of weights Σw with all w ≤ U, the public bound: Var Σw ≤ U Σw (weighted_marginals/release.py). With
a reference, counts hold what lies beyond the bound, and errors hold its error (coded_tables/beyond_bound.py). Without one,
errors from clipping are not included. Errors from setting negative counts to 0 never are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dpdist.core.records import Floats
from dpdist.estimation.estimators import NORMAL_90
from dpdist.estimation.weighted_points import CELL
from dpdist.mechanisms.coded_tables.beyond_bound import variance_per_weight
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.model import CodedTables
from dpdist.models.protocol import Draws
from dpdist.publish.design_effects import effect_of
from dpdist.publish.released import ReleasedObject

FILE = "marginals"
NUMBERS = ("count", "share", "standard_error", "lower", "upper")


def write_marginals(folder: Path, release: ReleasedObject) -> bool:
    """Writes marginals.parquet and .csv with counts by stratum, table and cell; returns whether there are any."""
    if not isinstance(release.model(0), CodedTables):
        return False
    rows = [row for stratum in range(len(release.frame.stratum_labels)) for row in _rows(release, stratum)]
    write_cells(folder / FILE, release, "marginal", rows, NUMBERS)
    return True


def write_cells(
    path: Path, release: ReleasedObject, label: str, rows: list[dict[str, Any]], numbers: Sequence[str]
) -> None:
    """Writes `path`.parquet and .csv with a row a cell: its text under `label`, its levels `cell`, and numbers."""
    columns = [*release.frame.strata, *release.job.outcomes]
    data = {label: pa.array([row[label] for row in rows], pa.string())}
    data |= {CELL + name: pa.array([row["cell"].get(name) for row in rows], pa.string()) for name in columns}
    data |= {name: pa.array([row[name] for row in rows], pa.float64()) for name in numbers}
    made = pa.table(data)
    pq.write_table(made, path.with_name(f"{path.name}.parquet"))
    pa_csv.write_csv(made, path.with_name(f"{path.name}.csv"))


def _rows(release: ReleasedObject, stratum: int) -> list[dict[str, Any]]:
    """Rows of a stratum's cells, table after table."""
    model, frame = release.model(stratum), release.frame
    assert isinstance(model, CodedTables)
    first = frame.rows_of(stratum).start
    levels = {name: str(frame.levels[name][frame.codes[name][first]]) for name in frame.strata}
    theta = release.theta(model, stratum, 0)
    fitted, found = model.fitted(theta), []
    for key in model.noise_of(theta):
        crossed = frozenset((*frame.strata, *(model.columns[column] for column in key)))
        errors = errors_of_counts(model, theta, key, effect_of(release.design_effects, crossed, "count", None))
        name = " x ".join(model.columns[column] for column in key)
        cells = zip(model.labelled(release.job, key), fitted.table(key).ravel().tolist(), errors.tolist(), strict=True)
        for cell, value, error in cells:
            share = value / fitted.total if fitted.total > 0.0 else None
            ends = max(0.0, value - NORMAL_90 * error), value + NORMAL_90 * error
            figures = dict(zip(NUMBERS, (value, share, error, *ends), strict=True))
            found.append({"marginal": name, "cell": levels | cell, **figures})
    return found


def errors_of_counts(model: CodedTables, theta: Draws, key: Marginal, effect: float = 1.0) -> Floats:
    """Standard errors of a table's fitted counts, (cell,), under a design effect on the sampling variance."""
    counts = model.fitted(theta).table(key).ravel()
    beyond = np.hypot(*model.errors_beyond(theta, key)).ravel()
    sampling = effect * variance_per_weight(theta, model.weights[1]) * counts
    return np.asarray(np.sqrt(2.0 * model.noise_of(theta)[key] ** 2 + sampling + (beyond * counts) ** 2))
