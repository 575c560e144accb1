"""Reads evaluations for the verdict, and adds to each figure the standard error due to noise alone. Results are
confidential.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.errors import WorkspaceError
from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells, cross
from dpdist.estimation.estimators import STATISTICS
from dpdist.job import Table
from dpdist.opening.results import NO_EVALUATION, Evaluations
from dpdist.publish.noisy_figures import NoiseErrors
from dpdist.publish.released import ReleasedObject
from dpdist.storage.workspace import MADE_AGAIN, Workspace


class Judged(NamedTuple):
    """Evaluations by table, with a column `synthetic_noise_se`, which is NaN where that error is unknown.

    `unjudged` lists parts of the release without an evaluation: tables or statistics that were published later.
    """

    tables: dict[str, pd.DataFrame]
    unjudged: list[str]


def judged(space: Workspace, release: ReleasedObject) -> Judged:
    """Reads the evaluations of the tables that are published now.

    Raises `WorkspaceError` if no folder has an evaluation.
    """
    noise, evaluations = NoiseErrors.of(release), Evaluations(space)
    tables, unjudged = dict[str, pd.DataFrame](), list[str]()
    for table in sorted(release.job.tables, key=lambda listed: listed.name):
        rows = evaluations.get(table.name)
        if rows is None or list(rows.columns[: rows.columns.get_loc("statistic")]) != list(table.by):
            unjudged.append(table.name)
            continue
        cells = cross(release.frame, table.by, table.margins)
        kept, missing = _published(table, cells, rows)
        unjudged += [f"{table.name}, {text}" for text in missing]
        tables[table.name] = kept.assign(synthetic_noise_se=_errors(noise, table, cells, kept))
    if not tables:
        raise WorkspaceError(space.place, NO_EVALUATION, MADE_AGAIN)
    return Judged(tables, unjudged)


def _published(table: Table, cells: Cells, rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Selects the rows of cells and statistics that the table has, and lists those parts of it without an evaluation."""
    labels = set(cells.labels)
    inside = [tuple(label) in labels for label in rows[list(table.by)].astype(str).to_numpy().tolist()]
    about = [variable if isinstance(variable, str) else None for variable in rows["variable"]]
    have = list(zip(rows["statistic"], about, strict=True))
    wanted = {(statistic.label, statistic.about): statistic.text for statistic in table.statistics}
    kept = rows[np.array(inside) & np.array([statistic in wanted for statistic in have])].reset_index(drop=True)
    missing = [text for statistic, text in wanted.items() if statistic not in have]
    if len({tuple(label) for label in rows[list(table.by)].astype(str).to_numpy().tolist()} & labels) < len(labels):
        missing.append("margins")
    return kept, missing


def _errors(noise: NoiseErrors, table: Table, cells: Cells, rows: pd.DataFrame) -> Floats:
    """Returns the standard error due to noise alone of every row, by its cell and statistic."""
    made = np.full(len(rows), np.nan)
    place = {label: number for number, label in enumerate(cells.labels)}
    positions = [place[tuple(label)] for label in rows[list(table.by)].astype(str).to_numpy().tolist()]
    for statistic in table.statistics:
        if statistic.name in STATISTICS:
            outcome = statistic.variable or noise.released.job.outcomes[0]
            about = rows["variable"].isna() if statistic.about is None else rows["variable"] == statistic.about
            mine = (about & (rows["statistic"] == statistic.label)).to_numpy()
            made[mine] = noise.errors(table, cells, outcome)[statistic.name][np.array(positions)[mine]]
    return made
