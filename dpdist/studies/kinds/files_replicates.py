"""Runs one replicate of a study of files: splits a file, runs releases of the parts, and compares their figures.

Seed, case and replicate determine the split and all noise.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpdist.core.errors import Problem, StudyError
from dpdist.core.keys import Key
from dpdist.core.records import TOTAL
from dpdist.job import Job, Reference, budget_text
from dpdist.job.reference import FileReference, HistogramsAlone, ReleaseReference
from dpdist.release import run
from dpdist.studies.kinds.files_settings import COMPARISONS, RELEASE, STATISTICS, FileCase, FilesStudy
from dpdist.studies.kinds.populations import population
from dpdist.studies.kinds.protocol import Replicate, Result
from dpdist.studies.kinds.repeated_samples import SIZE, repeated
from dpdist.studies.kinds.sample_jobs import job_of_case


def releases(study: FilesStudy, case: FileCase, number: int) -> Replicate:
    """Runs all releases of a case at every ε."""
    key = study.key_of(case.name)
    if case.population is not None:
        units = population(case.population, key.generator("population")).rename(columns={"size": SIZE})
        return repeated(study, case, number, job_of_case(case), units)
    job = job_of_case(case)
    rows = read(study, case, job)
    if case.split == "pps":
        return repeated(study, case, number, job, rows)
    part = key.child(str(number)).generator("split").random(len(rows))
    results = []
    for epsilon in study.grid:
        with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
            measured = _periods if case.split == "periods" else _pair
            found = measured(case, job, rows, part, epsilon, Path(folder), key.child(f"{number} {epsilon}"))
            results += [Result(name, epsilon, measure, value) for name, measure, value in found]
    return Replicate(results, [])


def read(study: FilesStudy, case: FileCase, job: Job) -> pd.DataFrame:
    """Reads the case's file, and applies the job's universe and bounds. Raises `StudyError` if there is no such file."""
    path = Path(study.data or ".") / str(case.file)
    if not path.is_file():
        problem = Problem(f"cases.{case.name}.file", f"no file {case.file}", "a Parquet file", "name its folder by --data")
        raise StudyError(study.study, [problem])
    rows = pd.read_parquet(path)
    for keep in job.universe:
        rows = rows[rows[keep.column].isin(keep.keep)]
    if case.above is not None:
        rows = rows[rows[job.outcomes[0]] > case.above]
    return rows.dropna(subset=list(case.complete)).reset_index(drop=True)


def _pair(
    case: FileCase, job: Job, rows: pd.DataFrame, part: np.ndarray, epsilon: str, folder: Path, key: Key
) -> Iterator[tuple[str, str, float]]:
    share = 0.5 if case.split == "halves" else case.share
    earlier, current = rows[part < share], rows[(part >= share) & (part < 2.0 * share)]
    earlier.to_parquet(folder / "earlier.parquet")
    _drifted(current, case, job).to_parquet(folder / "current.parquet")
    reference = FileReference(path=str(folder / "earlier.parquet"))
    said = _job(case, job, epsilon, reference)
    run(said, folder / "ws", input=folder / "current.parquet", study=key)
    if case.split == "halves":
        yield from _sizes(_evaluated(folder / "ws", said))
    else:
        yield from _around(folder / "ws", said, rows, len(current) / len(rows))


def _periods(
    case: FileCase, job: Job, rows: pd.DataFrame, part: np.ndarray, epsilon: str, folder: Path, key: Key
) -> Iterator[tuple[str, str, float]]:
    """Yields measures as means over the chain's releases; those with `last_` in their name are of the last release."""
    periods = sorted(rows[case.column].unique())
    reference: Reference | None = None
    if case.first is not None:
        share = budget_text(case.first * Fraction(epsilon))
        reference = HistogramsAlone.model_validate({"histogram": {"epsilon": share}})
    found = []
    for period in periods:
        path = folder / f"{period}.parquet"
        rows[rows[case.column] == period].to_parquet(path)
        if reference is None:
            reference = FileReference(path=str(path))
            continue
        said = _job(case, job, epsilon, reference).model_copy(update={"period": str(period)})
        run(said, folder / f"ws-{period}", input=path, study=key.child(str(period)))
        found.append(list(_sizes(_evaluated(folder / f"ws-{period}", said))))
        reference = ReleaseReference(release=str(folder / f"ws-{period}" / "public"))
    for name, measure in dict.fromkeys((name, measure) for each in found for name, measure, _ in each):
        values = [value for each in found for n, m, value in each if (n, m) == (name, measure)]
        yield name, measure, float(np.mean(values))
        yield name, measure.replace("_", "_last_", 1), values[-1]
    spent = json.loads((folder / f"ws-{periods[-1]}" / "public" / "statement.json").read_text(encoding="utf-8"))
    yield RELEASE, "chain_epsilon", float(Fraction(spent["reference"]["chain_epsilon"]))


def _job(case: FileCase, job: Job, epsilon: str, reference: Reference) -> Job:
    compare: tuple[str, ...] = COMPARISONS if reference.paid is None else ("laplace_composed",)
    said: dict[str, Any] = job.model_dump(mode="json") | {"reference": reference.model_dump(mode="json", exclude_none=True)}
    said |= {"budget": {"epsilon": epsilon, "adjacency": case.adjacency}, "compare": compare}
    if job.survey.weight in said["columns"]:
        said["columns"][job.survey.weight]["outside"] = "error" if reference.paid is None else "clip"
    return Job.model_validate(said | {"runtime": {"executor": "serial"}})


def _drifted(rows: pd.DataFrame, case: FileCase, job: Job) -> pd.DataFrame:
    if case.drift == 1.0:
        return rows
    moved = {name: rows[name] * case.drift for name in (*job.outcomes, *filter(None, [job.survey.weight]))}
    for name, column in job.outcome_columns.items():
        moved[name] = np.clip(moved[name], *(column.bounds or (-np.inf, np.inf)))
    return rows.assign(**moved)


def _evaluated(workspace: Path, job: Job) -> pd.DataFrame:
    names = [workspace / "confidential" / "evaluation" / f"{table.name}.parquet" for table in job.tables]
    return pd.concat([pd.read_parquet(name) for name in names])


def _sizes(evaluation: pd.DataFrame) -> Iterator[tuple[str, str, float]]:
    for statistic in STATISTICS:
        own = evaluation[evaluation["statistic"] == statistic]
        for name in (RELEASE, *COMPARISONS):
            column = f"{'synthetic' if name == RELEASE else name}_error_in_se"
            if column in own and own[column].notna().any():
                yield name, f"{statistic}_median", float(own[column].median())
                yield name, f"{statistic}_max", float(own[column].max())
                error = own["direct_se_given_n"].where(own["direct_se_given_n"] > 0)
                given = (own["synthetic" if name == RELEASE else name] - own["direct"]).abs() / error
                if statistic == "count" and given.notna().any():
                    yield name, "count_given_median", float(given.median())
                    yield name, "count_given_max", float(given.max())


def _around(workspace: Path, job: Job, rows: pd.DataFrame, share: float) -> Iterator[tuple[str, str, float]]:
    """Errors and coverage relative to the figures of the whole file.

    A sample's counts are compared with its share of the file's counts.
    """
    outcome, weight = job.outcomes[0], job.survey.weight
    y = np.clip(rows[outcome].to_numpy(float), *(job.outcome_column.bounds or (-np.inf, np.inf)))
    w = np.ones(len(rows)) if weight is None else rows[weight].to_numpy(float)
    texts = {name: rows[name].astype(str).to_numpy() for name in job.cell_columns}
    for table in job.tables:
        published = pd.read_parquet(workspace / "public" / "tables" / f"{table.name}.parquet")
        published = published[published["estimator"] == "parameters"].reset_index(drop=True)
        found = pd.read_parquet(workspace / "confidential" / "evaluation" / f"{table.name}.parquet")
        found = found.merge(published[[*table.by, "statistic", "lower", "upper"]], on=[*table.by, "statistic"])
        inside: dict[str, list[bool]] = {}
        for _, row in found[found["statistic"].isin(STATISTICS)].iterrows():
            own = np.ones(len(rows), dtype=bool)
            for name in table.by:
                own &= (texts[name] == row[name]) if row[name] != TOTAL else True
            true = w[own].sum() * share if row["statistic"] == "count" else float(np.average(y[own], weights=w[own]))
            cell = " / ".join(row[name] for name in table.by)
            for name in (RELEASE, *COMPARISONS, "direct"):
                column = "synthetic" if name == RELEASE else name
                if column in row:
                    yield name, f"{row['statistic']} error {cell}", float(row[column] / true - 1.0)
            inside.setdefault(row["statistic"], []).append(row["lower"] <= true <= row["upper"])
        for statistic, held in inside.items():
            yield RELEASE, f"{statistic}_coverage", float(np.mean(held))


def ratios(results: pd.DataFrame) -> pd.DataFrame:
    """Ratios and coverage by cell, where the truth is known: case, mechanism, epsilon, cell, measure, value.

    A ratio is an arm's RMSE divided by the RMSE of the direct estimate. Coverage is the share of replicates whose interval
    contains the truth.
    """
    columns = ["case", "mechanism", "epsilon", "cell", "measure", "value"]
    errors, held = by_cell(results, "error"), by_cell(results, "covered")
    by = ["case", "epsilon", "statistic", "cell"]
    mean = errors.assign(square=errors["value"] ** 2).groupby([*by, "mechanism"], sort=False)["square"].mean().reset_index()
    direct = mean[mean["mechanism"] == "direct"].drop(columns="mechanism").rename(columns={"square": "direct"})
    both = mean[mean["mechanism"] != "direct"].merge(direct, on=by)
    both = both.assign(measure=both["statistic"] + "_ratio_direct", value=np.sqrt(both["square"] / both["direct"]))
    share = held.groupby([*by, "mechanism"], sort=False)["value"].mean().reset_index()
    share = share.assign(measure=share["statistic"] + "_cell_coverage")
    return pd.concat([both[columns], share[columns]], ignore_index=True)


def by_cell(results: pd.DataFrame, what: str) -> pd.DataFrame:
    """Rows of results for single cells, with the statistic and the cell from the measure's name. `what` is in that name."""
    own = results[results["measure"].str.contains(f" {what} ")]
    split = own["measure"].str.split(f" {what} ", n=1, expand=True).reindex(columns=[0, 1])
    return own.assign(statistic=split[0].astype(str), cell=split[1].astype(str), value=own["value"].astype(float))
