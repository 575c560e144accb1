"""Published tables beside direct estimates, noised tables and the truth (confidential)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.cells import Cells, cross
from dpdist.estimates import STATISTICS
from dpdist.evaluation.laplace import noised
from dpdist.evaluation.referred import REFERRED, Referred
from dpdist.job import Job, Table
from dpdist.keys import Key
from dpdist.records import Floats, Frame
from dpdist.survey.direct import Design, Replicated, Totals, degrees_of_freedom, direct
from dpdist.survey.simulate import FIELDS, SEXES, Truth


class Yardstick(NamedTuple):
    """What direct estimates are made of: the records' sums, the design, and replicate weights where there are any."""

    found: Totals
    design: Design
    replicated: Replicated | None


def compare(
    job: Job,
    said: Table,
    frame: Frame,
    yardstick: Yardstick,
    published: pd.DataFrame,
    truth: Truth | None,
    key: Key,
    others: Referred | None = None,
) -> pd.DataFrame:
    """One row per cell × statistic: direct estimate, standard error, df and CV, what was published, comparators, errors.

    `synthetic` is the published default estimator (parameters, or records where the model has no other). Errors are
    against the truth where it is known, else against the direct estimate; `*_error_in_se` is |estimate − direct| /
    direct_se, none where direct_se is 0 (a cell without variance) or unknown; ratios are of absolute errors.
    """
    cells = cross(frame, said.by, said.margins)
    found = yardstick.found
    estimate = dict(zip(STATISTICS, direct(found, frame, cells, *yardstick[1:]), strict=True))
    df = degrees_of_freedom(found, frame, cells, *yardstick[1:])
    wanted = [statistic.name for statistic in said.statistics]
    values: dict[str, Floats] = {name: estimate[name].value for name in wanted}
    epsilon = float(job.budget.epsilon)
    figures = sum(cross(frame, table.by, table.margins).per_record * len(table.statistics) for table in job.tables)
    columns = {
        how: others.figures(how, cells)
        if others is not None and how in REFERRED
        else noised(values, found, cells, epsilon, how, key, said.name, figures)
        for how in job.compare
    }
    true = truth_in_cells(truth, job, said, frame) if truth is not None else None
    frames = []
    for statistic in said.statistics:
        rows = pd.DataFrame(list(cells.labels), columns=list(said.by), index=range(len(cells)))
        rows["statistic"], rows["variable"] = statistic.name, statistic.variable
        rows["direct"] = values[statistic.name]
        rows["direct_se"] = np.sqrt(estimate[statistic.name].variance)
        rows["direct_df"] = df
        rows["direct_cv"] = (rows["direct_se"] / rows["direct"]).abs().where(rows["direct"] != 0)
        default = "parameters" if (published["estimator"] == "parameters").any() else "records"
        for column, estimator in (("synthetic", default), ("synthetic_records", "records")):
            mine = published[(published["statistic"] == statistic.name) & (published["estimator"] == estimator)]
            rows[column] = mine["estimate"].to_numpy(dtype=float)
        for how in job.compare:
            rows[how] = columns[how][statistic.name]
        rows["truth"] = np.nan if true is None else true[statistic.name]
        frames.append(rows)
    return _with_errors(pd.concat(frames, ignore_index=True), job)


def _with_errors(rows: pd.DataFrame, job: Job) -> pd.DataFrame:
    yardstick = rows["truth"].where(rows["truth"].notna(), rows["direct"])
    error = rows["direct_se"].where(rows["direct_se"] > 0)
    for column in ("synthetic", "synthetic_records", *job.compare):
        rows[f"{column}_error"] = rows[column] - yardstick
        rows[f"{column}_error_in_se"] = (rows[column] - rows["direct"]).abs() / error
    for how in job.compare:
        with np.errstate(divide="ignore", invalid="ignore"):
            rows[f"synthetic_to_{how}"] = rows["synthetic_error"].abs() / rows[f"{how}_error"].abs()
    return rows


def truth_in_cells(truth: Truth, job: Job, said: Table, frame: Frame) -> dict[str, Floats]:
    """Population counts, means and totals of the simulated survey in the table's cells."""
    population = _population(truth, job, frame)
    cells: Cells = cross(population[0], said.by, said.margins)
    count = cells.membership @ population[0].count.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = cells.membership @ population[1]
        return {"count": count, "mean": total / count, "total": total}


def _population(truth: Truth, job: Job, frame: Frame) -> tuple[Frame, Floats]:
    names = {"field": FIELDS, "sex": SEXES}
    position = {name: {str(level): code for code, level in enumerate(levels)} for name, levels in frame.levels.items()}
    kept = {keep.column: set(map(str, keep.keep)) for keep in job.universe}
    rows, totals, counts = [], [], []
    for i, field in enumerate(FIELDS):
        for j, sex in enumerate(SEXES):
            said = {"field": field, "sex": sex}
            if all(said[name] in values for name, values in kept.items()):
                rows.append([position[name][said[name]] for name in frame.levels])
                counts.append(int(truth.count[i, j]))
                totals.append(truth.total[i, j])
    assert set(frame.levels) <= set(names)
    table = np.array(rows, dtype=np.int32).reshape(len(rows), len(frame.levels))
    codes = {name: table[:, k] for k, name in enumerate(frame.levels)}
    return Frame(codes, frame.levels, np.array(counts, dtype=np.int64), (), ()), np.array(totals)
