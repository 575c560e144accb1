"""Predicted over measured errors of tables of files, real and simulated, with a reference and without one.

`pytest -m slow -s tests/studies/test_predicted_errors_of_files.py` prints the tables of docs/explanation/accuracy.md again.
A file is split into halves at random, SPLITS times: the public one predicts, and the other one is released DRAWS times. So
measured medians are over several draws of files and noise. `nscg package` is a package of tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from first_year import FILES as SIMULATED, job_text, rows_of as simulated
from test_unseen_files import SURVEYS, job as survey_job, read
from trucks import JOB as OF_TRUCKS, trucks

import dpdist
from dpdist.core.keys import Key
from dpdist.job import Job
from dpdist.job.loading import load_job, parse_job
from dpdist.opening.results import open_evaluation
from dpdist.quality.errors import FAR_RECORDS
from dpdist.quality.predicted.prediction import ErrorPrediction, predicted, with_epsilon

pytestmark = [pytest.mark.slow, pytest.mark.real_data]
SPLITS, DRAWS = 2, 2
EPSILONS = ("0.3", "1", "4")
WITHIN = {"median": (0.67, 1.5), "largest": (0.5, 2.0)}
SHARE = 0.9
"""Share of ratios that must be within these limits."""
PACKAGED = ("degree_field", "sex", "highest_degree", "age_group")
PACKAGE = "nscg package"


def halves(rows: pd.DataFrame, job: Job, rng: np.random.Generator, folder: Path) -> None:
    """Writes public.parquet and current.parquet; only base cells with records in both are kept."""
    first = rng.random(len(rows)) < 0.5
    cell = rows.groupby([rows[name].astype(str) for name in job.cell_columns], sort=False).ngroup().to_numpy()
    both = np.isin(cell, np.intersect1d(cell[first], cell[~first]))
    rows[first & both].to_parquet(folder / "public.parquet")
    rows[~first & both].to_parquet(folder / "current.parquet")


def nscg(folder: Path) -> Job:
    return load_job("nscg_strict", _settings(folder, 0.1, 20_000.0))


def tax(folder: Path) -> Job:
    return load_job("tax_wages_strict", _settings(folder, 1.0, 10_000.0))


def of_trucks(folder: Path) -> Job:
    paths = (
        f"\nreference: {{path: {folder}/public.parquet, provenance: simulated}}\ninput: {{path: {folder}/current.parquet}}"
    )
    return parse_job(
        OF_TRUCKS.replace("{name: tables}", "{name: tables}" + paths).replace("by: [state, type]", "by: [type]")
    )


def _settings(folder: Path, low: float, high: float) -> list[str]:
    paths = [f"reference.path={folder}/public.parquet", f"input.path={folder}/current.parquet", "compare=[]"]
    return [*paths, f"columns.weight={{bounds: [{low}, {high}], outside: clip}}"]


def paths_in(folder: Path) -> str:
    """Keys of a job that name both halves."""
    return (
        f"reference: {{path: {folder}/public.parquet, provenance: the other half}}\n"
        f"input: {{path: {folder}/current.parquet}}\n"
    )


def of_survey(name: str, folder: Path) -> Job:
    halved = [pd.read_parquet(folder / f"{half}.parquet") for half in ("public", "current")]
    return survey_job(SURVEYS[name], "tables", paths_in(folder), *halved)


def of_simulated(name: str, folder: Path) -> Job:
    return parse_job(job_text(name, paths_in(folder)))


def package(folder: Path) -> Job:
    """Every pair of four columns of the graduates."""
    rows = pd.concat([pd.read_parquet(folder / f"{half}.parquet") for half in ("public", "current")])
    keys = {
        "dataset": "graduates",
        "period": "2",
        "input": {"path": f"{folder}/current.parquet"},
        "columns": {name: {"levels": sorted(set(rows[name].astype(str)))} for name in PACKAGED}
        | {"salary": {"bounds": [0, 150_000], "outside": "clip"}, "weight": {"bounds": [0.1, 20_000], "outside": "clip"}},
        "survey": {"weight": "weight"},
        "outcome": "salary",
        "mechanism": {"name": "tables"},
        "budget": {"epsilon": "1", "adjacency": "substitution"},
        "reference": {"path": f"{folder}/public.parquet", "provenance": "the other half"},
        "public_frame": {"accepted": "the file is public"},
        "tables": [{"name": "t", "every_pair_of": PACKAGED, "statistics": ["count", {"mean": "salary"}]}],
        "runtime": {"executor": "serial"},
    }
    return parse_job(json.dumps(keys))


FILES: dict[str, Callable[[Path], Job]] = {
    "nscg": nscg,
    "tax": tax,
    "ses": partial(of_survey, "ses"),
    "recs": partial(of_survey, "recs"),
    "trucks": of_trucks,
    **{name: partial(of_simulated, name) for name in SIMULATED},
    PACKAGE: package,
}


def rows_of(name: str, data: Path) -> pd.DataFrame:
    if name in SIMULATED:
        return pd.concat([simulated(name, seed) for seed in (1, 2)], ignore_index=True)
    if name == "trucks":
        return trucks()
    rows = read(SURVEYS["nscg" if name == PACKAGE else name], data)
    return rows if name != "tax" else rows[rows["state"].isin(["CA", "TX", "NY", "FL", "OH", "PA"])].reset_index(drop=True)


def measured(job: Job, folder: Path, key: Key) -> pd.DataFrame:
    """Median and largest error of a release, by table and statistic, as its evaluation has them."""
    dpdist.run(job, folder, study=key)
    evaluation, made = open_evaluation(folder), []
    for table in job.tables:
        rows = evaluation[table.name]
        for statistic, part in rows.groupby("statistic", sort=False):
            error = part["synthetic_error_in_se"]
            made.append((table.name, statistic, error.median(), error[part["records"] >= FAR_RECORDS].max()))
    return pd.DataFrame(made, columns=["table", "statistic", "median", "largest"])


def compared(name: str, data: Path, folder: Path, first_year: bool) -> pd.DataFrame:
    """Ratios of predicted to measured errors by ε, table and statistic."""
    rows, ratios = rows_of(name, data), []
    for epsilon in EPSILONS:
        predictions, errors = list[ErrorPrediction](), list[pd.DataFrame]()
        for split in range(SPLITS):
            place = folder / f"{name}-{epsilon}-{split}"
            place.mkdir()
            key = Key(bytes(32)).child(f"{name} {split}")
            for half in ("public", "current"):  # jobs read levels from both
                rows.to_parquet(place / f"{half}.parquet")
            halves(rows, FILES[name](place), key.generator("halves"), place)
            job = with_epsilon(FILES[name](place), Fraction(epsilon))
            public = None
            if first_year:
                job, public = job.model_copy(update={"reference": None}), place / "public.parquet"
                job = dpdist.Job.model_validate(job.model_dump(exclude_unset=True))
            predictions.append(predicted(dpdist.plan(job), public=public, times=(Fraction(1),)))
            errors += [measured(job, place / f"run-{draw}", key.child(str(draw))) for draw in range(DRAWS)]
        means = pd.concat(errors).groupby(["table", "statistic"], sort=False)
        measured_errors = means.agg(median=("median", "mean"), largest=("largest", "median"))
        measured_errors = measured_errors.rename_axis(["table", "name"])
        rows_of_statistics = [one._asdict() for prediction in predictions for one in prediction.statistics()]
        by_name = pd.DataFrame(rows_of_statistics).groupby(["table", "name"], sort=False)
        expected = by_name.agg(median=("median", "mean"), largest=("largest", "median"))
        ratio = (expected / measured_errors).assign(epsilon=epsilon, file=name)
        both = ratio.join(expected.add_prefix("predicted_")).join(measured_errors.add_prefix("measured_"))
        print(both.round(2).to_string())
        ratios.append(ratio.reset_index())
    return pd.concat(ratios, ignore_index=True)


@pytest.mark.parametrize("first_year", [False, True])
def test_predicted_errors_are_those_that_are_measured(first_year: bool, data: Path, tmp_path: Path) -> None:
    names = [name for name in FILES if name != PACKAGE or not first_year]
    ratios = pd.concat([compared(name, data, tmp_path, first_year) for name in names])
    print(ratios.groupby("name")["median"].describe().round(2).to_string())
    print(f"medians within .8 to 1.25: {ratios['median'].between(0.8, 1.25).mean():.2f}")
    for figure, (low, high) in WITHIN.items():
        within = ratios[figure].between(low, high)
        print(f"{figure}: {within.mean():.2f} of {len(within)} within [{low}, {high}]")
        print(ratios[~within].to_string())
        assert within.mean() >= SHARE
