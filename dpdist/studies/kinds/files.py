"""Studies of whole releases: of public files split into parts, and of repeated samples of known populations."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpdist.core.keys import Key
from dpdist.core.records import TOTAL
from dpdist.job import Job, Reference, budget_text
from dpdist.job.families import FAMILIES
from dpdist.job.reference import FileReference, HistogramsAlone, ReleaseReference
from dpdist.mechanisms.registry import mechanism_of
from dpdist.release import run
from dpdist.studies.kinds.files_settings import COMPARISONS, RELEASE, FileCase, FilesArm, FilesStudy
from dpdist.studies.kinds.populations import DESCRIBED, UNITS, population
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, Result, SimulatedKind, randomness
from dpdist.studies.kinds.repeated_samples import SIZE, arm_job, file_records, job_of_case, repeated, tabulated_job
from dpdist.studies.kinds.table_errors import COVERAGE_TITLE, STATISTICS, chain_epsilon, errors_in_direct_se, ratio

RELEASES = (
    "from {}: what is compared with direct estimates tells of these files' records, and may be shown because the "
    "files are public. Of files that are not, errors like these stay in a workspace's confidential folder."
)


OF_POPULATIONS = "from releases of samples from simulated populations. Nothing here comes from a respondent."


ARMS = (
    ("reference_tables", "the published estimates of releases", "the reference", "strict"),
    ("reference_only", "the reference's means at the current public sizes", "the reference", "no current data"),
    ("laplace_finest", "clipped sums of base cells + Laplace noise", "a quantile of the reference's weights", "none"),
    (
        "laplace_composed",
        "direct + Laplace noise of the file's own sensitivity, ε shared by its figures",
        "–",
        "none",
    ),
    ("direct", "survey-weighted estimates of the sample, not protected", "–", "none"),
)


BY_SAMPLES = ("direct", "survey-weighted estimates of the samples, not protected", "–", "none")


class Files(SimulatedKind):
    settings = FilesStudy
    heads = ("Label", "What it is", "Fixed on", "Guarantee class")

    @property
    def captions(self) -> Mapping[str, Caption]:
        return {**errors_in_direct_se(), **chain_epsilon(), **_around_the_truth()}

    def replicate(self, study: FilesStudy, case: int, number: int) -> Replicate:
        return releases(study, study.cases[case], number)

    def by_cell(self, study: Any, results: pd.DataFrame) -> pd.DataFrame:
        return ratios(results)

    def facts(self, study: FilesStudy) -> list[Fact]:
        return [
            (
                "Data",
                [sources(study), *(f"{case.name}: {_source(case)}; {_split(case)}" for case in study.cases)],
            ),
            ("Replicates", [f"R = {study.replicates}: {_replicates(study)}"]),
            ("ε", [", ".join(study.grid) + " of every release"]),
            randomness(study),
        ]

    def arms(self, study: FilesStudy) -> list[tuple[str, ...]]:
        others = [arm for arm in ARMS if any(case.split != "pps" for case in study.cases) and arm[0] != "direct"]
        tried = [_arm(study, arm) for arm in study.mechanisms if arm.label not in {arm[0] for arm in others}]
        return [*others, *tried, BY_SAMPLES if tried else ARMS[-1]]

    def made_of(self, study: FilesStudy) -> str:
        return RELEASES.format(sources(study)) if any(case.file for case in study.cases) else OF_POPULATIONS


def _around_the_truth() -> dict[str, Caption]:
    ratio_reading = (
        "Root mean squared error about the file's or population's figures over replicates, cell by cell, over the direct "
        "estimate's; means and standard deviations here are over cells and margins."
    )
    covered = (
        "Nominal .90, with the standard errors that the release publishes: proportion of cells and margins whose interval "
        "holds the figure of the whole file or population (of counts of `samples`, a sample's part of it)."
    )
    by_cell = (
        "Nominal .90: proportion of replicates whose interval holds the population's figure, cell by cell; means and "
        "standard deviations here are over cells and margins."
    )
    grand = "|Published figure of all records − the population's|, in published standard errors."
    captions: dict[str, Caption] = {}
    for name in STATISTICS:
        captions |= {
            f"{name}_ratio_direct": ratio(name, "direct", ratio_reading),
            f"{name}_coverage": Caption(COVERAGE_TITLE.format(name), covered),
            f"{name}_cell_coverage": Caption(COVERAGE_TITLE.format(name).replace("cells", "replicates"), by_cell),
            f"{name}_grand": Caption(f"|error| of the {name} of all records in published standard errors", grand),
        }
    return captions


def sources(study: FilesStudy) -> str:
    kinds = {"public files": any(case.file for case in study.cases)}
    kinds |= {"simulated populations": any(case.population for case in study.cases)}
    return " and ".join(name for name, there in kinds.items() if there)


def _source(case: FileCase) -> str:
    if case.population is not None:
        return f"{UNITS:,} simulated units, {DESCRIBED[case.population]}"
    above = f", outcomes above {case.above:g}" if case.above is not None else ""
    return f"{case.file} under job {case.job}{', by ' + ' × '.join(case.by) if case.by else ''}{above}"


def _replicates(study: FilesStudy) -> str:
    if all(case.split == "pps" for case in study.cases):
        return "samples, and references, of the same population"
    split = {case.split != "periods" for case in study.cases}
    chains, splits = "chains of releases of the same files, under noise of their own", "splits of each file"
    return splits if split == {True} else chains if split == {False} else f"{splits}; {chains}"


def _split(case: FileCase) -> str:
    if case.split == "pps":
        return _sample(case)
    drift = f", the current one times {case.drift:g}" if case.drift != 1.0 else ""
    how = {
        "halves": f"one half is the other's reference{drift}",
        "samples": f"two disjoint samples of {100 * case.share:g} %, one the other's reference; the file is the truth",
        "periods": f"a release for every {case.column}, each the next one's reference, {_first(case)}",
    }
    return f"{how[case.split]}; {case.adjacency}"


def _first(case: FileCase) -> str:
    if case.first is None:
        return "the first period's file public"
    return f"the first fixed on histograms of its own at {budget_text(case.first)} of its ε"


def _sample(case: FileCase) -> str:
    changed = [f"outcomes and weights times {case.drift:g}"] if case.drift != 1.0 else []
    changed += [f"outcomes and weights to the power {case.power:g} about their means"] if case.power != 1.0 else []
    now = f"; now {', '.join(changed)}" if changed else ""
    return f"PPS samples of {case.sample:,}, another such sample the reference{now}; the population is the truth"


def _arm(study: FilesStudy, arm: FilesArm) -> tuple[str, ...]:
    family = f", {arm.family}" if arm.family is not None else ""
    law = f", {arm.synthesis.upper()}" if arm.family is not None and FAMILIES[arm.family].synthesis else ""
    sets = f", {arm.synthetic_sets} sets" if arm.synthetic_sets > 1 else ""
    share = f"histograms of the sample itself, {budget_text(arm.histogram)} of ε" if arm.histogram is not None else "–"
    fixed_on = "another sample" if arm.reference == "sample" else share
    return arm.label, f"{arm.mechanism}{family}{law}{sets}", fixed_on, _promise(study, arm)


def _promise(study: FilesStudy, arm: FilesArm) -> str:
    case = next(case for case in study.cases if case.split == "pps" and arm in study.arms_of(case))
    job = arm_job(tabulated_job(job_of_case(case), case), case, arm, study.grid_of(arm)[0], "another sample")
    return f"{mechanism_of(job).promise(job).per_set.name}, {arm.adjacency}"


def releases(study: FilesStudy, case: FileCase, number: int) -> Replicate:
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
            figures = measured(case, job, rows, part, epsilon, Path(folder), key.child(f"{number} {epsilon}"))
            results += [Result(name, epsilon, measure, value) for name, measure, value in figures]
    return Replicate(results, [])


def read(study: FilesStudy, case: FileCase, job: Job) -> pd.DataFrame:
    """The records of the job's universe, within bounds. Raises `StudyError` without the file."""
    rows = file_records(study.path_of(str(case.file), f"cases.{case.name}.file"), job, case.complete)
    return rows if case.above is None else rows[rows[job.outcomes[0]] > case.above].reset_index(drop=True)


def _pair(
    case: FileCase, job: Job, rows: pd.DataFrame, part: np.ndarray, epsilon: str, folder: Path, key: Key
) -> Iterator[tuple[str, str, float]]:
    share = 0.5 if case.split == "halves" else case.share
    earlier, current = rows[part < share], rows[(part >= share) & (part < 2.0 * share)]
    earlier.to_parquet(folder / "earlier.parquet")
    _drifted(current, case, job).to_parquet(folder / "current.parquet")
    reference = FileReference(path=str(folder / "earlier.parquet"))
    run_job = _job(case, job, epsilon, reference)
    run(run_job, folder / "ws", input=folder / "current.parquet", study=key)
    if case.split == "halves":
        yield from _sizes(_evaluated(folder / "ws", run_job))
    else:
        yield from _around(folder / "ws", run_job, rows, len(current) / len(rows))


def _periods(
    case: FileCase, job: Job, rows: pd.DataFrame, part: np.ndarray, epsilon: str, folder: Path, key: Key
) -> Iterator[tuple[str, str, float]]:
    """Means over the chain's releases; measures `last_` are of the last release."""
    periods = sorted(rows[case.column].unique())
    reference: Reference | None = None
    if case.first is not None:
        share = budget_text(case.first * Fraction(epsilon))
        reference = HistogramsAlone.model_validate({"histogram": {"epsilon": share}})
    figures = []
    for period in periods:
        path = folder / f"{period}.parquet"
        rows[rows[case.column] == period].to_parquet(path)
        if reference is None:
            reference = FileReference(path=str(path))
            continue
        period_job = _job(case, job, epsilon, reference).model_copy(update={"period": str(period)})
        run(period_job, folder / f"ws-{period}", input=path, study=key.child(str(period)))
        figures.append(list(_sizes(_evaluated(folder / f"ws-{period}", period_job))))
        reference = ReleaseReference(release=str(folder / f"ws-{period}" / "public"))
    for name, measure in dict.fromkeys((name, measure) for sizes in figures for name, measure, _ in sizes):
        values = [value for sizes in figures for n, m, value in sizes if (n, m) == (name, measure)]
        yield name, measure, float(np.mean(values))
        yield name, measure.replace("_", "_last_", 1), values[-1]
    spent = json.loads((folder / f"ws-{periods[-1]}" / "public" / "statement.json").read_text(encoding="utf-8"))
    yield RELEASE, "chain_epsilon", float(Fraction(spent["reference"]["chain_epsilon"]))


def _job(case: FileCase, job: Job, epsilon: str, reference: Reference) -> Job:
    compare: tuple[str, ...] = COMPARISONS if reference.paid is None else ("laplace_composed",)
    terms: dict[str, Any] = job.model_dump(mode="json") | {
        "reference": reference.model_dump(mode="json", exclude_none=True)
    }
    terms |= {"budget": {"epsilon": epsilon, "adjacency": case.adjacency}, "compare": compare}
    if job.survey.weight in terms["columns"]:
        terms["columns"][job.survey.weight]["outside"] = "error" if reference.paid is None else "clip"
    return Job.model_validate(terms | {"runtime": {"executor": "serial"}})


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
        rows = evaluation[evaluation["statistic"] == statistic]
        for name in (RELEASE, *COMPARISONS):
            column = f"{'synthetic' if name == RELEASE else name}_error_in_se"
            if column in rows and rows[column].notna().any():
                yield name, f"{statistic}_median", float(rows[column].median())
                yield name, f"{statistic}_max", float(rows[column].max())
                error = rows["direct_se_given_n"].where(rows["direct_se_given_n"] > 0)
                given = (rows["synthetic" if name == RELEASE else name] - rows["direct"]).abs() / error
                if statistic == "count" and given.notna().any():
                    yield name, "count_given_median", float(given.median())
                    yield name, "count_given_max", float(given.max())


def _around(workspace: Path, job: Job, rows: pd.DataFrame, share: float) -> Iterator[tuple[str, str, float]]:
    """Errors and coverage about the whole file's figures, of which a sample's counts have their share."""
    outcome, weight = job.outcomes[0], job.survey.weight
    y = np.clip(rows[outcome].to_numpy(float), *(job.outcome_column.bounds or (-np.inf, np.inf)))
    w = np.ones(len(rows)) if weight is None else rows[weight].to_numpy(float)
    texts = {name: rows[name].astype(str).to_numpy() for name in job.cell_columns}
    for table in job.tables:
        published = pd.read_parquet(workspace / "public" / "tables" / f"{table.name}.parquet")
        published = published[published["estimator"] == "parameters"].reset_index(drop=True)
        figures = pd.read_parquet(workspace / "confidential" / "evaluation" / f"{table.name}.parquet")
        figures = figures.merge(published[[*table.by, "statistic", "lower", "upper"]], on=[*table.by, "statistic"])
        inside: dict[str, list[bool]] = {}
        for _, row in figures[figures["statistic"].isin(STATISTICS)].iterrows():
            in_cell = np.ones(len(rows), dtype=bool)
            for name in table.by:
                in_cell &= (texts[name] == row[name]) if row[name] != TOTAL else True
            true = (
                w[in_cell].sum() * share
                if row["statistic"] == "count"
                else float(np.average(y[in_cell], weights=w[in_cell]))
            )
            cell = " / ".join(row[name] for name in table.by)
            for name in (RELEASE, *COMPARISONS, "direct"):
                column = "synthetic" if name == RELEASE else name
                if column in row:
                    yield name, f"{row['statistic']} error {cell}", float(row[column] / true - 1.0)
            inside.setdefault(row["statistic"], []).append(row["lower"] <= true <= row["upper"])
        for statistic, held in inside.items():
            yield RELEASE, f"{statistic}_coverage", float(np.mean(held))


def ratios(results: pd.DataFrame) -> pd.DataFrame:
    """RMSE relative to the direct estimate's, and coverage over replicates, if the truth is known.

    Columns: case, mechanism, epsilon, cell, measure, value.
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
    """Rows of single cells; `statistic` and `cell` come from the measure's name."""
    cells = results[results["measure"].str.contains(f" {what} ")]
    split = cells["measure"].str.split(f" {what} ", n=1, expand=True).reindex(columns=[0, 1])
    return cells.assign(statistic=split[0].astype(str), cell=split[1].astype(str), value=cells["value"].astype(float))
