"""Published tables beside direct estimates, noised tables and the truth (confidential)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.cells import Cells, cross
from dpdist.estimates import STATISTICS, Estimate
from dpdist.evaluation.fitted import FITTED, Fitted
from dpdist.evaluation.laplace import noised
from dpdist.evaluation.referred import REFERRED, Referred
from dpdist.job import Comparator, Job, StatisticName, Table
from dpdist.keys import Key
from dpdist.privacy.noisy_tables import figures_met
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
    yardsticks: Mapping[str, Yardstick],
    published: pd.DataFrame,
    truth: Truth | None,
    key: Key,
    others: Referred | None = None,
    fits: Fitted | None = None,
) -> pd.DataFrame:
    """One row per cell × statistic: direct estimate, standard error, df and CV, what was published, comparators, errors.

    `synthetic` is the published default estimator (parameters, or records where the model has no other). Errors are
    against the truth where it is known, else against the direct estimate; `*_error_in_se` is |estimate − direct| /
    direct_se, none where direct_se is 0 (a cell without variance) or unknown; ratios are of absolute errors. Comparators
    that are fitted have their figures from parameters, `*_records` from synthetic records, and in `*_note` their guarantee,
    or why a figure is missing.
    """
    cells = cross(frame, said.by, said.margins)
    outcomes = job.model.outcomes
    first = yardsticks[outcomes[0]]
    df = degrees_of_freedom(first.found, frame, cells, *first[1:])
    estimates = {
        name: dict(zip(STATISTICS, direct(each.found, frame, cells, *each[1:]), strict=True))
        for name, each in yardsticks.items()
    }
    columns: dict[str, Mapping[str, Mapping[StatisticName, Floats]]] = {}
    for how in job.compare:
        if fits is not None and how in FITTED:
            columns[how] = {outcomes[0]: fits.figures(how, "parameters", cells)}
            columns[f"{how}_records"] = {outcomes[0]: fits.figures(how, "records", cells)}
        elif others is not None and how in REFERRED:
            columns[how] = {outcomes[0]: others.figures(how, cells)}
        else:
            columns[how] = _noised(job, said, frame, cells, yardsticks, estimates, how, key)
    notes = {f"{how}_note": fits.notes(cells) for how in job.compare if fits is not None and how in FITTED}
    frames = []
    for statistic in said.statistics:
        outcome = statistic.variable or outcomes[0]
        estimate = estimates[outcome][statistic.name]
        rows = pd.DataFrame(list(cells.labels), columns=list(said.by), index=range(len(cells)))
        rows["statistic"], rows["variable"] = statistic.name, statistic.variable
        rows["direct"] = estimate.value
        rows["direct_se"] = np.sqrt(estimate.variance)
        rows["direct_df"] = df
        rows["direct_cv"] = (rows["direct_se"] / rows["direct"]).abs().where(rows["direct"] != 0)
        default = "parameters" if (published["estimator"] == "parameters").any() else "records"
        for column, estimator in (("synthetic", default), ("synthetic_records", "records")):
            mine = (published["statistic"] == statistic.name) & (published["estimator"] == estimator)
            mine &= published["variable"].isna() if statistic.variable is None else published["variable"] == outcome
            rows[column] = published.loc[mine, "estimate"].to_numpy(dtype=float) if mine.any() else np.nan
        for name, figures in columns.items():
            rows[name] = figures[outcome][statistic.name]
        for name, texts in notes.items():
            rows[name] = texts
        true = None if truth is None else truth_in_cells(truth, job, said, frame, outcome)
        rows["truth"] = np.nan if true is None else true[statistic.name]
        frames.append(rows)
    return _with_errors(pd.concat(frames, ignore_index=True), job, list(columns))


def _noised(
    job: Job,
    said: Table,
    frame: Frame,
    cells: Cells,
    yardsticks: Mapping[str, Yardstick],
    estimates: Mapping[str, Mapping[StatisticName, Estimate]],
    how: Comparator,
    key: Key,
) -> dict[str, dict[StatisticName, Floats]]:
    """Noised statistics by outcome; counts are noised once, among the first outcome's."""
    figures = figures_met(frame, job.tables)
    epsilon, found = float(job.budget.epsilon), dict[str, dict[StatisticName, Floats]]()
    for number, (outcome, estimate) in enumerate(estimates.items()):
        wanted = [s.name for s in said.statistics if s.variable == outcome or (s.variable is None and number == 0)]
        own = key if number == 0 else key.child(f"outcome {number + 1}")
        values: dict[StatisticName, Floats] = {name: estimate[name].value for name in wanted}
        mine = noised(values, yardsticks[outcome].found, cells, epsilon, how, own, said.name, figures)
        count = next(iter(found.values()), mine).get("count")
        if how == "laplace_consistent" and number and count is not None and {"mean", "total"} <= set(mine):
            with np.errstate(divide="ignore", invalid="ignore"):
                mine["mean"] = mine["total"] / count
        found[outcome] = mine
    return found


def _with_errors(rows: pd.DataFrame, job: Job, compared: list[str]) -> pd.DataFrame:
    yardstick = rows["truth"].where(rows["truth"].notna(), rows["direct"])
    error = rows["direct_se"].where(rows["direct_se"] > 0)
    for column in ("synthetic", "synthetic_records", *compared):
        rows[f"{column}_error"] = rows[column] - yardstick
        rows[f"{column}_error_in_se"] = (rows[column] - rows["direct"]).abs() / error
    for how in job.compare:
        with np.errstate(divide="ignore", invalid="ignore"):
            rows[f"synthetic_to_{how}"] = rows["synthetic_error"].abs() / rows[f"{how}_error"].abs()
    return rows


def truth_in_cells(truth: Truth, job: Job, said: Table, frame: Frame, outcome: str = "salary") -> dict[str, Floats]:
    """Population counts, and means and totals of an outcome, of the simulated survey in the table's cells."""
    population = _population(truth, job, frame, outcome)
    cells: Cells = cross(population[0], said.by, said.margins)
    count = cells.membership @ population[0].count.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = cells.membership @ population[1]
        return {"count": count, "mean": total / count, "total": total}


def _population(truth: Truth, job: Job, frame: Frame, outcome: str) -> tuple[Frame, Floats]:
    names = {"field": FIELDS, "sex": SEXES}
    position = {name: {str(level): code for code, level in enumerate(levels)} for name, levels in frame.levels.items()}
    kept = {keep.column: set(map(str, keep.keep)) for keep in job.universe}
    rows, totals, counts, total = [], [], [], truth.of(outcome)
    for i, field in enumerate(FIELDS):
        for j, sex in enumerate(SEXES):
            said = {"field": field, "sex": sex}
            if all(said[name] in values for name, values in kept.items()):
                rows.append([position[name][said[name]] for name in frame.levels])
                counts.append(int(truth.count[i, j]))
                totals.append(total[i, j])
    assert set(frame.levels) <= set(names)
    table = np.array(rows, dtype=np.int32).reshape(len(rows), len(frame.levels))
    codes = {name: table[:, k] for k, name in enumerate(frame.levels)}
    return Frame(codes, frame.levels, np.array(counts, dtype=np.int64), (), ()), np.array(totals)
