"""Evaluations as they are judged: beside each published error, what of it is noise of protection (confidential)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dpdist.core.errors import WorkspaceError
from dpdist.core.records import Floats
from dpdist.core.table_cells import cross
from dpdist.estimation.estimators import STATISTICS
from dpdist.evaluation.opening import EVALUATED, NO_EVALUATION, evaluations
from dpdist.job import Table
from dpdist.publish.noise_alone import NoiseAlone
from dpdist.publish.released import read_release
from dpdist.storage.workspace import Workspace


def judged(space: Workspace) -> dict[str, pd.DataFrame]:
    """The evaluation of every published table with a column `synthetic_noise_se`, NaN where noise is not known apart.

    Raises `WorkspaceError` where the run has no evaluation.
    """
    names, found = sorted(path.stem for path in (space.newest / "tables").glob("*.parquet")), evaluations(space)
    if not set(names) <= set(found):
        raise WorkspaceError(space.place, NO_EVALUATION, EVALUATED)
    noise = NoiseAlone.of(read_release(space.newest / "released"))
    tables = {table.name: table for table in noise.release.job.tables}
    return {name: found[name].assign(synthetic_noise_se=_errors(noise, tables[name], found[name])) for name in names}


def _errors(noise: NoiseAlone, table: Table, rows: pd.DataFrame) -> Floats:
    """Of every row, by its cell and statistic."""
    cells, made = cross(noise.release.frame, table.by, table.margins), np.full(len(rows), np.nan)
    place = {label: number for number, label in enumerate(cells.labels)}
    own = [place[tuple(label)] for label in rows[list(table.by)].astype(str).to_numpy().tolist()]
    for statistic in table.statistics:
        if statistic.name in STATISTICS:
            outcome = statistic.variable or noise.release.job.outcomes[0]
            about = rows["variable"].isna() if statistic.about is None else rows["variable"] == statistic.about
            mine = (about & (rows["statistic"] == statistic.label)).to_numpy()
            made[mine] = noise.errors(table, cells, outcome)[statistic.name][np.array(own)[mine]]
    return made
