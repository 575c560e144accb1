"""For `kinds.files` and `mechanisms`: draws one informative sample of a known population, and releases it repeatedly.

Every mechanism releases the same sample. The reference is another sample, drawn before the population drifted. Seed and
case determine the population; with the replicate's number they determine both samples and all noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.errors import FitError
from dpdist.core.records import TOTAL, Codes, Floats, Frame
from dpdist.core.table_cells import Cells, cross
from dpdist.estimation.estimators import STATISTICS as ALL_STATISTICS
from dpdist.estimation.estimators import Interval, counts_and_means, record_sums, stratum_sizes, t_interval
from dpdist.estimation.variance import Stage
from dpdist.job import Job, budget_text
from dpdist.job.families import FAMILIES
from dpdist.job.loading import load_job
from dpdist.release import run
from dpdist.studies.kinds.files_settings import DIRECT, FileCase, FilesArm, FilesStudy
from dpdist.studies.kinds.populations import inclusion, informative_size, population_job, systematic
from dpdist.studies.kinds.protocol import Replicate, Result
from dpdist.studies.kinds.table_errors import STATISTICS

WEIGHT = "weight"


FLOOR = 1.0
"""The smallest outcome for lognormal models, if a job's bounds begin below it."""


SIZE = "size of unit"


class Measured(NamedTuple):
    """By cell, (cell,): the truth, direct estimates, and their standard errors for fixed cell sizes n."""

    cells: Cells
    truth: dict[str, Floats]
    direct: dict[str, Interval]
    given_n: dict[str, Floats]


def repeated(study: FilesStudy, case: FileCase, number: int, job: Job, rows: pd.DataFrame) -> Replicate:
    """Runs every mechanism of a case at each ε; only `refused` = 1 if its fit fails.

    `rows` is the population, with sizes in the column `SIZE` if it has any.
    """
    key = study.key_of(case.name)
    base = tabulated_job(job, case)
    before = sized(rows, base, key.generator("size"))
    now = drifted(before, case, base)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="dpdist-") as name:
        folder, run_key = Path(name), key.child(str(number))
        current = sampled(now, round((case.sample or 0) / case.drift), run_key.generator("current"))
        current.to_parquet(folder / "current.parquet")
        sampled(before, case.sample or 0, run_key.generator("reference")).to_parquet(folder / "reference.parquet")
        measured = measure(base, now, current)
        runs = [(arm, epsilon) for arm in study.arms_of(case) for epsilon in study.grid_of(arm)]
        for epsilon in dict.fromkeys(epsilon for _, epsilon in runs):
            results += [Result(DIRECT, epsilon, *figure) for figure in compared(measured, measured.direct)]
        for place, (arm, epsilon) in enumerate(runs):
            arms_job = arm_job(base, case, arm, epsilon, str(folder / "reference.parquet"))
            try:
                run(
                    arms_job,
                    folder / f"ws-{place}",
                    input=folder / "current.parquet",
                    study=run_key.child(f"{arm.label} {epsilon}"),
                )
            except FitError:
                results.append(Result(arm.label, epsilon, "refused", 1.0))
                continue
            published = released(folder / f"ws-{place}", arms_job, measured.cells)
            results += [Result(arm.label, epsilon, *figure) for figure in compared(measured, published, errors=True)]
    return Replicate(results, [])


def sized(rows: pd.DataFrame, job: Job, rng: np.random.Generator) -> pd.DataFrame:
    """Outcomes within public bounds; missing sizes are made to grow with the outcome."""
    y = np.clip(rows[job.outcomes[0]].to_numpy(float), *(job.outcome_column.bounds or (-np.inf, np.inf)))
    size = rows[SIZE].to_numpy(float) if SIZE in rows else informative_size(y, rng)
    return rows.assign(**{job.outcomes[0]: y, SIZE: size})


def drifted(rows: pd.DataFrame, case: FileCase, job: Job) -> pd.DataFrame:
    """Sizes s become s**power, and outcomes drift · ȳ · (y/ȳ)**power, within public bounds."""
    name, size = job.outcomes[0], rows[SIZE].to_numpy(float)
    y = rows[name].to_numpy(float)
    typical = y.mean()
    y = np.clip(case.drift * typical * (y / typical) ** case.power, *(job.outcome_column.bounds or (-np.inf, np.inf)))
    return rows.assign(**{name: y, SIZE: size**case.power})


def sampled(rows: pd.DataFrame, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """A systematic sample of n units, proportional to size; weights are inverse probabilities."""
    chance = inclusion(rows[SIZE].to_numpy(float), n)
    taken = systematic(chance, rng)
    return rows.iloc[taken].drop(columns=SIZE).assign(**{WEIGHT: 1.0 / chance[taken]}).reset_index(drop=True)


def measure(job: Job, population: pd.DataFrame, sample: pd.DataFrame) -> Measured:
    """Truth and direct estimates. Records are PSUs of one stratum; for fixed n, every cell is a stratum."""
    outcome, table = job.outcomes[0], job.tables[0]
    whole, row = frame_of(job, population)
    cells = cross(whole, table.by, table.margins, table.universe)
    true = record_sums(row, np.ones(len(row)), population[outcome].to_numpy(float), len(whole))
    count, total = cells.membership @ true.a, cells.membership @ true.b
    with np.errstate(invalid="ignore", divide="ignore"):
        truth = {"count": count, "mean": total / count, "total": total}
    frame, row = frame_of(job, sample)
    sums = record_sums(row, sample[WEIGHT].to_numpy(float), sample[outcome].to_numpy(float), len(frame))
    df = cells.membership @ frame.count.astype(float) - 1.0
    designed, given_cells = (
        counts_and_means(sums, stratified, cells, Stage.of(stratum_sizes(stratified), lonely="certainty"))
        for stratified in (frame, Frame(frame.codes, frame.levels, frame.count, (), table.by))
    )
    df = np.where(df > 0, df, np.nan)
    direct = {str(name): t_interval(*estimate, df) for name, estimate in zip(ALL_STATISTICS, designed, strict=True)}
    given_n = {str(name): np.sqrt(estimate.variance) for name, estimate in zip(ALL_STATISTICS, given_cells, strict=True)}
    return Measured(cells, truth, direct, given_n)


def frame_of(job: Job, rows: pd.DataFrame) -> tuple[Frame, Codes]:
    levels = {name: tuple(job.columns[name].levels or ()) for name in job.tables[0].by}
    sizes = [len(texts) for texts in levels.values()]
    columns = [pd.Categorical(rows[name].astype(str), list(map(str, texts))).codes for name, texts in levels.items()]
    row = np.ravel_multi_index([codes.astype(np.int64) for codes in columns], sizes).astype(np.int32)
    every = np.indices(sizes).reshape(len(sizes), -1)
    codes = {name: column.astype(np.int32) for name, column in zip(levels, every, strict=True)}
    return Frame(codes, levels, np.bincount(row, minlength=every.shape[1]).astype(np.int64), (), ()), row


def released(workspace: Path, job: Job, cells: Cells) -> dict[str, Interval]:
    table = job.tables[0]
    rows = pd.read_parquet(workspace / "public" / "tables" / f"{table.name}.parquet")
    default = "parameters" if (rows["estimator"] == "parameters").any() else "records"
    rows = rows[rows["estimator"] == default]
    order = pd.MultiIndex.from_tuples(cells.labels) if len(table.by) > 1 else pd.Index([label[0] for label in cells.labels])
    intervals: dict[str, Interval] = {}
    for name in STATISTICS:
        of_statistic = rows[rows["statistic"] == name].set_index(list(table.by)).loc[order]
        intervals[name] = Interval(
            *(of_statistic[c].to_numpy(float) for c in ("estimate", "standard_error", "df", "lower", "upper"))
        )
    return intervals


def compared(measured: Measured, intervals: dict[str, Interval], errors: bool = False) -> Iterator[tuple[str, float]]:
    """Errors and coverage about the truth, by cell and over cells; with `errors`, also distances from direct estimates.

    Cells without an estimate, or with the truth 0, are left out. Coverage also leaves out cells without an interval.
    """
    for name in STATISTICS:
        published, true, direct = intervals[name], measured.truth[name], measured.direct[name]
        there = np.isfinite(true) & (true != 0) & np.isfinite(published.value)
        held = ((published.lower <= true) & (true <= published.upper)).astype(float)
        with_interval = there & np.isfinite(published.lower) & np.isfinite(published.upper)
        for place in np.flatnonzero(there):
            cell = " / ".join(measured.cells.labels[place])
            yield f"{name} error {cell}", float(published.value[place] / true[place] - 1.0)
            if with_interval[place]:
                yield f"{name} covered {cell}", float(held[place])
        yield f"{name}_coverage", float(held[with_interval].mean())
        grand = measured.cells.labels.index((TOTAL,) * len(measured.cells.by))
        yield f"{name}_grand", float(abs(published.value[grand] - true[grand]) / published.standard_error[grand])
        scales = {"": direct.standard_error} | ({"given_": measured.given_n[name]} if name == "count" else {})
        for prefix, scale in scales.items() if errors else ():
            with_error = there & np.isfinite(direct.value) & (scale > 0)
            sizes = np.abs(published.value - direct.value)[with_error] / scale[with_error]
            yield f"{name}_{prefix}median", float(np.median(sizes))
            yield f"{name}_{prefix}max", float(sizes.max())


def file_records(path: Path, job: Job, complete: Sequence[str]) -> pd.DataFrame:
    """Records of the job's universe with values in the columns `complete`."""
    rows = pd.read_parquet(path)
    for keep in job.universe:
        rows = rows[rows[keep.column].isin(keep.keep)]
    return rows.dropna(subset=list(complete)).reset_index(drop=True)


def job_of_case(case: FileCase) -> Job:
    """The file's job, or the simulated population's."""
    if case.population is not None:
        return Job.model_validate(population_job(case.population))
    return load_job(str(case.job))


def tabulated_job(job: Job, case: FileCase) -> Job:
    """The job with one table by the case's columns: counts and means, with margins."""
    table = job.tables[0]
    wanted = ["count", {"mean": job.outcomes[0]}]
    tabulated = {"name": table.name, "by": list(case.by or table.by), "margins": True, "statistics": wanted}
    return Job.model_validate(job.model_dump(mode="json") | {"tables": [tabulated], "compare": [], "rake": []})


def arm_job(job: Job, case: FileCase, arm: FilesArm, epsilon: str, reference: str) -> Job:
    """The job under an arm. A likelihood is fitted once for all cells, with the columns as predictors."""
    outcome, columns = job.outcomes[0], job.model_dump(mode="json")["columns"]
    if arm.family is not None and FAMILIES[arm.family].logs:
        low, high = job.outcome_column.bounds or (0.0, np.inf)
        columns[outcome]["bounds"] = [max(low, FLOOR), high]
    if case.weight_bounds is not None and arm.histogram is not None:
        columns[WEIGHT] = {"bounds": case.weight_bounds, "outside": "clip"}
    fixed_on: dict[str, Any] | None = {"path": reference} if arm.reference == "sample" else None
    if arm.histogram is not None:
        fixed_on = {"histogram": {"epsilon": budget_text(arm.histogram * Fraction(epsilon))}}
    predictors = list(job.cell_columns) if not arm.mechanism.sets_are_free else []
    model = {"family": arm.family, "predictors": predictors, "synthesis": arm.synthesis}
    changes = {
        "columns": columns,
        "survey": {"weight": WEIGHT},
        "strata": [],
        "outcome": outcome,
        "model": None if arm.family is None else model,
        "mechanism": arm.mechanism.model_dump(mode="json"),
        "budget": {"epsilon": epsilon, "adjacency": arm.adjacency},
        "synthetic_sets": arm.synthetic_sets,
        "reference": fixed_on,
        "calibration": None,
        "sampler": {},
        "record": {"log_lik": "never"},
        "runtime": {"executor": "serial"},
    }
    return Job.model_validate(job.model_dump(mode="json") | changes)
