"""References under Stan: a lognormal release with a centred clamp, and users' programs that clamp, or say that they do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from public_files import statement_of

import dpdist
from dpdist.core.errors import ProgramError
from dpdist.job import Job
from dpdist.job.loading import parse_job

pytestmark = pytest.mark.usefixtures("stan_cache")

N = 300
JOB = """
dataset: salaries
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  sex: {{levels: [female, male]}}
  salary: {{bounds: [0, 1000000]}}
{survey}
outcome: salary
model: {model}
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "{epsilon}"}}
{reference}
sampler: {{name: stan, chains: 1, warmup: 200, draws: 100}}
tables:
  - {{name: salaries, by: [sex], statistics: [count, {{mean: salary}}]}}
"""
LOGNORMAL = "{family: lognormal, predictors: [sex], prior: {name: proper}}"
USER = "{{family: user, program: clamping.stan, parameters: {{mu: [], sigma: []}}, data: {{wrong: {wrong}}}}}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("salaries")
    for seed, name in ((1, "now"), (2, "before")):
        rng = np.random.default_rng(seed)
        male = rng.random(N) < 0.5
        log_salary = rng.normal(11.0 + 0.2 * male, 0.4)
        weight = np.exp(rng.normal(4.0 - 0.3 * (log_salary - 11.0), 0.3))
        sex = np.where(male, "male", "female").astype(object)
        pq.write_table(pa.table({"sex": sex, "salary": np.exp(log_salary), "weight": weight}), folder / f"{name}.parquet")
    return folder


def job(files: Path, model: str = LOGNORMAL, mechanism: str = "centred", epsilon: str = "4", reference: bool = True) -> Job:
    said = f"reference: {{path: {files}/before.parquet}}" if reference else ""
    survey = "survey: {weight: weight}" if model == LOGNORMAL else ""
    text = JOB.format(folder=files, model=model, mechanism=mechanism, epsilon=epsilon, reference=said, survey=survey)
    text = text if model == LOGNORMAL else text.replace("by: [sex], ", "")
    return parse_job(text, "job", Path(__file__).parent)


@pytest.fixture(scope="module")
def lognormal(files: Path, stan_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("lognormal") / "work"
    dpdist.run(job(files), workspace)
    return workspace


def test_a_lognormal_release_is_centred_at_the_reference_within_the_clamp(lognormal: Path) -> None:
    said = statement_of(lognormal)
    assert (said["guarantee"], said["epsilon"], said["delta"]) == ("strict for exact draws", "4", None)
    assert 0.5 < said["reference"]["power"]["all"] <= 1
    strata = pd.read_parquet(lognormal / "confidential" / "strata.parquet")
    assert 0.5 < strata["database_bound"][0] <= 2.0
    assert strata["epsilon_local_range"][0] <= 4.0


def test_its_table_is_near_the_direct_one(lognormal: Path) -> None:
    """Within 10 %: five standard errors of a draw of power .7 from 150 records of a sex."""
    table = pd.read_csv(lognormal / "public" / "tables" / "salaries.csv")
    means = table[(table["statistic"] == "mean") & (table["estimator"] == "parameters")]
    evaluated = pd.read_parquet(lognormal / "confidential" / "evaluation" / "salaries.parquet")
    direct = evaluated[evaluated["statistic"] == "mean"].set_index("sex")["direct"]
    assert np.allclose(means.set_index("sex")["estimate"], direct.loc[means["sex"]], rtol=0.1)


@pytest.mark.slow
def test_a_users_program_that_clamps_has_a_strict_release(files: Path, tmp_path: Path) -> None:
    dpdist.run(job(files, USER.format(wrong=0), epsilon="2"), tmp_path / "work")
    said = statement_of(tmp_path / "work")
    assert said["guarantee"] == "strict for exact draws"
    power = said["reference"]["power"]["all"]
    assert power == pytest.approx(1 / 1.5, abs=0.01)
    bounds = pd.read_parquet(tmp_path / "work" / "confidential" / "bounds.parquet")
    np.testing.assert_allclose(bounds["privacy_weight"], power, rtol=1e-9)
    assert bounds["weighted_record_bound"].max() <= 1.0
    released = json.loads((tmp_path / "work" / "public" / "released" / "set-1.json").read_text())["strata"]["all"]
    now = np.log(pq.read_table(files / "now.parquet").column("salary").to_numpy())
    assert released["mu"]["values"] == pytest.approx(now.mean(), abs=5 * 0.4 / np.sqrt(N * power))
    assert released["sigma"]["values"] == pytest.approx(now.std(), rel=0.3)


@pytest.mark.parametrize("mechanism", ["censor_uw", "censor_w"])
@pytest.mark.long
def test_a_users_program_may_clamp_without_a_reference(mechanism: str, files: Path, tmp_path: Path) -> None:
    dpdist.run(job(files, USER.format(wrong=0), mechanism, "1", reference=False), tmp_path / "work")
    said = statement_of(tmp_path / "work")
    assert said["guarantee"] == ("asymptotic" if mechanism == "censor_w" else "strict for exact draws")
    assert any("exp(clamp(alpha(log_lik − reference), ±clamp))" in assumption for assumption in said["assumptions"])
    bounds = pd.read_parquet(tmp_path / "work" / "confidential" / "bounds.parquet")
    assert bounds["weighted_record_bound"].max() == pytest.approx(0.5)
    assert (bounds["privacy_weight"] * bounds["record_bound"] > 0.5).any()


@pytest.mark.parametrize("wrong", [1, 2], ids=["a tenth too wide", "not centred"])
def test_a_program_that_does_not_clamp_as_it_must_is_refused_on_the_reference(
    wrong: int, files: Path, tmp_path: Path
) -> None:
    with pytest.raises(ProgramError, match="does not use the clamped log likelihood of a record"):
        dpdist.run(job(files, USER.format(wrong=wrong)), tmp_path / "work")
    assert not (tmp_path / "work" / "public").exists()


def test_a_program_without_clamp_is_refused_before_anything_is_written(files: Path, tmp_path: Path) -> None:
    program = (Path(__file__).parent / "clamping.stan").read_text()
    stripped = program.replace("  vector[N] reference;\n  real<lower=0> clamp;\n", "").replace("clamp : clamp", "1 : 1")
    (tmp_path / "unclamped.stan").write_text(stripped.replace("(wrong == 2 ? 0 * reference : reference)", "0"))
    said = job(files, USER.format(wrong=0), mechanism="censor_uw", reference=False).model_dump(mode="json")
    program_said = {"name": "unclamped.stan", "text": (tmp_path / "unclamped.stan").read_text()}
    unclamped = Job.model_validate({**said, "model": {**said["model"], "program": program_said}})
    with pytest.raises(ProgramError, match="takes no clamp or reference") as told:
        dpdist.run(unclamped, tmp_path / "work")
    assert "fmin(fmax(alpha[n]" in str(told.value)
    assert not (tmp_path / "work").exists()
