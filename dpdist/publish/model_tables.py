"""Writes tables that a model makes itself; they follow from released figures, at no privacy cost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dpdist.estimation.weighted_points import CELL
from dpdist.job import DesignEffect
from dpdist.models.outputs import DesignEffectOf, ModelTable, TablesBeside
from dpdist.publish.design_effects import effect_of
from dpdist.publish.released import ReleasedObject


def write_model_tables(folder: Path, release: ReleasedObject) -> list[str]:
    """Writes each table as <name>.parquet and .csv, with rows of all strata; returns the names."""
    whole = dict[str, ModelTable]()
    frame, effect = release.frame, _within(release.design_effects, release.frame.strata)
    for stratum in range(len(frame.stratum_labels)):
        model, first = release.model(stratum), frame.rows_of(stratum).start
        if not isinstance(model, TablesBeside):
            return []
        levels = {name: str(frame.levels[name][frame.codes[name][first]]) for name in frame.strata}
        theta = release.theta(model, stratum, 0)
        for name, made in model.tables_beside(release.job, theta, effect).items():
            rows = [row | {"cell": levels | row["cell"]} for row in made.rows]
            whole.setdefault(name, made._replace(rows=[])).rows.extend(rows)
    for name, made in whole.items():
        _write(folder / name, release, made)
    return list(whole)


def _within(effects: tuple[DesignEffect, ...], strata: tuple[str, ...]) -> DesignEffectOf:
    """Design effects of cells within one stratum, which the strata's columns cross too."""
    return lambda columns, statistic, outcome: effect_of(effects, columns | set(strata), statistic, outcome)


def _write(path: Path, release: ReleasedObject, made: ModelTable) -> None:
    """Writes `path`.parquet and .csv with a row a cell: its text, its levels, and numbers."""
    columns = [*release.frame.strata, *release.job.outcomes]
    data = {made.label: pa.array([row[made.label] for row in made.rows], pa.string())}
    data |= {CELL + name: pa.array([row["cell"].get(name) for row in made.rows], pa.string()) for name in columns}
    data |= {name: pa.array([row[name] for row in made.rows], pa.float64()) for name in made.numbers}
    table = pa.table(data)
    pq.write_table(table, path.with_name(f"{path.name}.parquet"))
    pa_csv.write_csv(table, path.with_name(f"{path.name}.csv"))
