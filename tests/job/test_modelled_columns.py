"""Tables and synthetic records are about columns that the model distinguishes, and about no other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from edited_text import edited

import dpdist
from dpdist.core.errors import JobError
from dpdist.job import SAMPLERS, Job
from dpdist.job.loading import load_job, parse_job

JOB = """
dataset: tiny
period: "1"
columns:
  sex: {levels: [f, m]}
  town: {levels: [north, south]}
  salary: {bounds: [0, 10000000]}
survey: {weight: weight, design_strata: [town]}
outcome: salary
model: {family: lognormal, predictors: [sex]}
mechanism: {name: MECHANISM}
budget: {epsilon: "10.8"}
sampler: {draws: 200}
tables: [{name: t, by: [sex], statistics: [count, {mean: salary}]}]
record: {log_lik: never}
"""
JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """South has ten times the weights of north: records that carry a town by chance would have wrong totals."""
    rng, n = np.random.default_rng(1), 400
    town = np.resize(["north", "north", "south"], n)
    numbers = {
        "salary": np.exp(rng.normal(11, 0.4, n)),
        "weight": np.exp(rng.normal(3, 0.2, n)) * (1 + 9 * (town == "south")),
    }
    path = tmp_path_factory.mktemp("modelled") / "survey.parquet"
    pd.DataFrame({"sex": np.resize(["f", "m"], n), "town": town, **numbers}).to_parquet(path)
    return path


def job(mechanism: str = "weighted", *changes: tuple[str, str]) -> Job:
    text = JOB.replace("MECHANISM", mechanism)
    return parse_job(edited(text, *changes))


@pytest.mark.parametrize("mechanism", ["weighted", "unweighted", "weighted_e"])
def test_a_table_by_a_column_that_is_neither_predictor_nor_stratum_is_refused(mechanism: str) -> None:
    by_town = ("by: [sex]", "by: [sex, town]")
    with pytest.raises(JobError) as refused:
        job(mechanism, by_town)
    (problem,) = refused.value.problems
    assert (problem.where, problem.allowed) == ("tables.0.by.1", "sex")
    assert "strata or model.predictors" in problem.remedy
    for seen in (("predictors: [sex]", "predictors: [sex, town]"), ("outcome:", "strata: [town]\noutcome:")):
        assert job(mechanism, by_town, seen).cell_columns == ("sex", "town")


def test_a_clamp_on_a_likelihood_is_no_other_case() -> None:
    changes = [("predictors: [sex]", "predictors: [sex], prior: {name: proper}"), ("by: [sex]", "by: [town]")]
    with pytest.raises(JobError, match="does not use 'town'"):
        job("censor_uw", *changes)


def test_cells_of_noisy_tables_are_what_these_distinguish() -> None:
    changes = [("model: {family: lognormal, predictors: [sex]}\n", "")]
    changes += [("sampler: {draws: 200}", "reference: {path: before.parquet}"), ("by: [sex]", "by: [town]")]
    changes += [("10000000]", "10000000], outside: clip")]
    assert job("tables", *changes).modelled_columns == ("town",)


@pytest.mark.parametrize(
    ("predictors", "columns"),
    [("[sex]", ["sex", "salary", "weight"]), ("[sex, town]", ["sex", "town", "salary", "weight"])],
)
def test_design_strata_enter_synthetic_records_only_where_they_are_modelled(
    predictors: str, columns: list[str], survey: Path, tmp_path: Path
) -> None:
    dpdist.run(job("weighted", ("predictors: [sex]", f"predictors: {predictors}")), tmp_path / "ws", survey)
    public = tmp_path / "ws" / "public"
    assert pq.read_schema(public / "synthetic" / "set-1.parquet").names == columns
    assert "town" in pq.read_schema(public / "released" / "frame.parquet").names


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_of_the_shipped_jobs_one_has_a_design_stratum_that_is_not_modelled(path: Path) -> None:
    said = load_job(path)
    assert set(said.categories) - set(said.modelled_columns) == ({"stratum"} if path.stem == "nhanes_bmi" else set())


FAMILIES = {
    "lognormal": "exact",
    "poisson": "exact",
    "bernoulli": "exact",
    "beta": "grid",
    "negative_binomial": "grid",
    "negative_binomial_mixture": "stan",
    "beta_regression": "stan",
    "poisson_regression": "stan",
}


@pytest.mark.parametrize(("family", "sampler"), FAMILIES.items())
def test_the_default_sampler_is_the_first_that_the_family_has(family: str, sampler: str) -> None:
    text = JOB.replace("MECHANISM", "weighted").replace("sampler: {draws: 200}\n", "").replace("10000000", "1")
    text = text.replace("family: lognormal", f"family: {family}").replace("record: {log_lik: never}", "")
    if family != "lognormal":
        text = text.replace("weight: weight, ", "")
    if not family.endswith("regression") and family != "lognormal":
        text = text.replace(", predictors: [sex]", "").replace("outcome:", "strata: [sex]\noutcome:")
    said = parse_job(text)
    assert said.sampler.name == said.public["sampler"]["name"] == sampler
    assert said.identity == parse_job(text + f"sampler: {{name: {sampler}}}\n").identity
    assert parse_job(text + "sampler: {name: auto}\n").identity == said.identity


def test_a_clamp_leaves_no_closed_form_for_the_default() -> None:
    text = JOB.replace("MECHANISM", "censor_uw").replace("predictors: [sex]", "predictors: [sex], prior: {name: proper}")
    assert parse_job(text).sampler.name == "stan"


def test_what_has_no_posterior_is_published_as_before() -> None:
    """The identity of jobs that said nothing was that of exact, and stays it."""
    assert {load_job(path).sampler.name for path in JOBS if load_job(path).mechanism.adds_noise} == {"exact"}
    assert "histogram" not in SAMPLERS


def test_the_statement_names_the_sampler_that_was_taken(survey: Path, tmp_path: Path) -> None:
    dpdist.run(job(), tmp_path / "ws", survey)
    for name in ("statement.json", "released/job.json"):
        assert json.loads((tmp_path / "ws" / "public" / name).read_text())["sampler"]["name"] == "exact"
