"""Runs one replicate of repeated samples: draws an informative sample of a known population, and releases it repeatedly.

Each mechanism of the study releases the same sample. The reference is another sample, drawn before the population drifted.
Seed and case determine the population; together with the replicate's number they determine both samples and all noise. The
truth, direct estimates and their errors are computed in this module.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.errors import FitError
from dpdist.core.records import TOTAL, Codes, Floats, Frame
from dpdist.core.table_cells import Cells, cross
from dpdist.estimation.estimators import STATISTICS as ALL_STATISTICS
from dpdist.estimation.estimators import Interval, counts_and_means, record_sums, stratum_sizes, t_interval
from dpdist.estimation.variance import Stage
from dpdist.job import Job
from dpdist.release import run
from dpdist.studies.kinds.files_arms import DIRECT
from dpdist.studies.kinds.files_settings import STATISTICS, FileCase, FilesStudy
from dpdist.studies.kinds.populations import inclusion, informative_size, systematic
from dpdist.studies.kinds.protocol import Replicate, Result
from dpdist.studies.kinds.sample_jobs import WEIGHT, arm_job, tabulated_job

SIZE = "size of unit"


class Measured(NamedTuple):
    """The truth by cell, and a sample's direct estimates; their errors under the design, and given the cells' sizes n.

    `given_n` are standard errors that treat the number of records in each cell as fixed. All arrays are (cell,).
    """

    cells: Cells
    truth: dict[str, Floats]
    direct: dict[str, Interval]
    given_n: dict[str, Floats]


def repeated(study: FilesStudy, case: FileCase, number: int, job: Job, rows: pd.DataFrame) -> Replicate:
    """Runs every mechanism of a case at each of its ε.

    `rows` is the population; a column `SIZE`, if present, has its sizes.

    For a mechanism whose fit fails, the only measure is `refused` = 1.
    """
    key = study.key_of(case.name)
    base = tabulated_job(job, case)
    before = sized(rows, base, key.generator("size"))
    now = drifted(before, case, base)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="dpdist-") as name:
        folder, own = Path(name), key.child(str(number))
        current = sampled(now, round((case.sample or 0) / case.drift), own.generator("current"))
        current.to_parquet(folder / "current.parquet")
        sampled(before, case.sample or 0, own.generator("reference")).to_parquet(folder / "reference.parquet")
        measured = measure(base, now, current)
        runs = [(arm, epsilon) for arm in study.arms_of(case) for epsilon in study.grid_of(arm)]
        for epsilon in dict.fromkeys(epsilon for _, epsilon in runs):
            results += [Result(DIRECT, epsilon, *found) for found in compared(measured, measured.direct)]
        for place, (arm, epsilon) in enumerate(runs):
            said = arm_job(base, case, arm, epsilon, str(folder / "reference.parquet"))
            try:
                run(
                    said,
                    folder / f"ws-{place}",
                    input=folder / "current.parquet",
                    study=own.child(f"{arm.label} {epsilon}"),
                )
            except FitError:
                results.append(Result(arm.label, epsilon, "refused", 1.0))
                continue
            published = released(folder / f"ws-{place}", said, measured.cells)
            results += [Result(arm.label, epsilon, *found) for found in compared(measured, published, errors=True)]
    return Replicate(results, [])


def sized(rows: pd.DataFrame, job: Job, rng: np.random.Generator) -> pd.DataFrame:
    """The population with outcomes limited to public bounds.

    A population without sizes of units gets sizes that grow with the outcome.
    """
    y = np.clip(rows[job.outcomes[0]].to_numpy(float), *(job.outcome_column.bounds or (-np.inf, np.inf)))
    size = rows[SIZE].to_numpy(float) if SIZE in rows else informative_size(y, rng)
    return rows.assign(**{job.outcomes[0]: y, SIZE: size})


def drifted(rows: pd.DataFrame, case: FileCase, job: Job) -> pd.DataFrame:
    """The current population: sizes s become s**power, and outcomes drift · ȳ · (y/ȳ)**power, limited to public bounds."""
    name, size = job.outcomes[0], rows[SIZE].to_numpy(float)
    y = rows[name].to_numpy(float)
    typical = y.mean()
    y = np.clip(case.drift * typical * (y / typical) ** case.power, *(job.outcome_column.bounds or (-np.inf, np.inf)))
    return rows.assign(**{name: y, SIZE: size**case.power})


def sampled(rows: pd.DataFrame, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """A systematic sample of n units with probability proportional to size; weights are inverse inclusion probabilities."""
    chance = inclusion(rows[SIZE].to_numpy(float), n)
    taken = systematic(chance, rng)
    return rows.iloc[taken].drop(columns=SIZE).assign(**{WEIGHT: 1.0 / chance[taken]}).reset_index(drop=True)


def measure(job: Job, population: pd.DataFrame, sample: pd.DataFrame) -> Measured:
    """Truth and direct estimates in the table's cells. Direct errors take records as PSUs, in one stratum.

    For the errors given n, each cell of the table is a stratum.
    """
    outcome, table = job.outcomes[0], job.tables[0]
    whole, row = frame_of(job, population)
    cells = cross(whole, table.by, table.margins)
    true = record_sums(row, np.ones(len(row)), population[outcome].to_numpy(float), len(whole))
    count, total = cells.membership @ true.a, cells.membership @ true.b
    with np.errstate(invalid="ignore", divide="ignore"):
        truth = {"count": count, "mean": total / count, "total": total}
    frame, row = frame_of(job, sample)
    sums = record_sums(row, sample[WEIGHT].to_numpy(float), sample[outcome].to_numpy(float), len(frame))
    df = cells.membership @ frame.count.astype(float) - 1.0
    designed, known = (
        counts_and_means(sums, each, cells, Stage.of(stratum_sizes(each), lonely="certainty"))
        for each in (frame, Frame(frame.codes, frame.levels, frame.count, (), table.by))
    )
    df = np.where(df > 0, df, np.nan)
    direct = {str(name): t_interval(*found, df) for name, found in zip(ALL_STATISTICS, designed, strict=True)}
    given_n = {str(name): np.sqrt(found.variance) for name, found in zip(ALL_STATISTICS, known, strict=True)}
    return Measured(cells, truth, direct, given_n)


def frame_of(job: Job, rows: pd.DataFrame) -> tuple[Frame, Codes]:
    """The frame of the table's columns, and each record's row in it, (record,)."""
    levels = {name: tuple(job.columns[name].levels or ()) for name in job.tables[0].by}
    sizes = [len(known) for known in levels.values()]
    own = [pd.Categorical(rows[name].astype(str), list(map(str, known))).codes for name, known in levels.items()]
    row = np.ravel_multi_index([codes.astype(np.int64) for codes in own], sizes).astype(np.int32)
    every = np.indices(sizes).reshape(len(sizes), -1)
    codes = {name: column.astype(np.int32) for name, column in zip(levels, every, strict=True)}
    return Frame(codes, levels, np.bincount(row, minlength=every.shape[1]).astype(np.int64), (), ()), row


def released(workspace: Path, job: Job, cells: Cells) -> dict[str, Interval]:
    """Published figures by the default estimator, in the order of the cells."""
    table = job.tables[0]
    rows = pd.read_parquet(workspace / "public" / "tables" / f"{table.name}.parquet")
    default = "parameters" if (rows["estimator"] == "parameters").any() else "records"
    rows = rows[rows["estimator"] == default]
    order = pd.MultiIndex.from_tuples(cells.labels) if len(table.by) > 1 else pd.Index([label[0] for label in cells.labels])
    found = {}
    for name in STATISTICS:
        own = rows[rows["statistic"] == name].set_index(list(table.by)).loc[order]
        found[name] = Interval(*(own[c].to_numpy(float) for c in ("estimate", "standard_error", "df", "lower", "upper")))
    return found


def compared(measured: Measured, intervals: dict[str, Interval], errors: bool = False) -> Iterator[tuple[str, float]]:
    """Errors and coverage relative to the truth, for each cell and over cells.

    With `errors`, it also yields distances from the direct estimates. Cells without an estimate are left out, as are cells
    where the truth is 0 or not defined. Coverage leaves out cells without an interval.
    """
    for name in STATISTICS:
        own, true, direct = intervals[name], measured.truth[name], measured.direct[name]
        there = np.isfinite(true) & (true != 0) & np.isfinite(own.value)
        held = ((own.lower <= true) & (true <= own.upper)).astype(float)
        told = there & np.isfinite(own.lower) & np.isfinite(own.upper)
        for place in np.flatnonzero(there):
            cell = " / ".join(measured.cells.labels[place])
            yield f"{name} error {cell}", float(own.value[place] / true[place] - 1.0)
            if told[place]:
                yield f"{name} covered {cell}", float(held[place])
        yield f"{name}_coverage", float(held[told].mean())
        grand = measured.cells.labels.index((TOTAL,) * len(measured.cells.by))
        yield f"{name}_grand", float(abs(own.value[grand] - true[grand]) / own.standard_error[grand])
        scales = {"": direct.standard_error} | ({"given_": measured.given_n[name]} if name == "count" else {})
        for prefix, scale in scales.items() if errors else ():
            known = there & np.isfinite(direct.value) & (scale > 0)
            sizes = np.abs(own.value - direct.value)[known] / scale[known]
            yield f"{name}_{prefix}median", float(np.median(sizes))
            yield f"{name}_{prefix}max", float(sizes.max())
