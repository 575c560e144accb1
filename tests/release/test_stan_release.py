"""Releases under Stan: the shipped jobs agree with the exact run, a user's program is run as its contract says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from public_files import statement_of

import dpdist
from dpdist.core.errors import JobError, ProgramError
from dpdist.job import Job
from dpdist.job.loading import find_job, parse_job

pytestmark = [pytest.mark.usefixtures("stan_cache"), pytest.mark.long]

POOLED = {
    "strata: [field]": "strata: []",
    "predictors: [sex]": "predictors: [field, sex]",
    "synthetic_sets: 3": "synthetic_sets: 4",
}
SMALL = {
    "population: 100000": "population: 30000",
    "sample: 10000": "sample: 3000",
    "executor: dask": "executor: serial",
    "draws: 250": "draws: 100",
}


def shipped(name: str, **changes: str) -> Job:
    text = find_job(name).read_text()
    for old, new in {**SMALL, **changes}.items():
        text = text.replace(old, new)
    return parse_job(text, name, find_job(name).parent)


def tables(workspace: Path) -> pd.DataFrame:
    found = pd.read_csv(workspace / "public" / "tables" / "salaries.csv")
    return found.set_index(["field", "sex", "statistic", "estimator"])


@pytest.fixture(scope="module")
def pair(stan_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The example by the exact sampler and by Stan, strata pooled into one fit, many sets: their errors are small."""
    folder = tmp_path_factory.mktemp("pair")
    dpdist.run(shipped("doctorates", **POOLED), folder / "exact")
    dpdist.run(shipped("doctorates_stan", **POOLED), folder / "stan")
    return folder / "exact", folder / "stan"


def test_tables_under_stan_agree_with_the_exact_ones(pair: tuple[Path, Path]) -> None:
    """Both err by draws around the same centre: differences within 4.5 of their own standard errors, which hold more than
    the draws' (54 figures: a false alarm in fewer than 1 of 1,000 runs); with another centre they are not."""
    exact, stan = (tables(workspace).xs("parameters", level="estimator") for workspace in pair)
    apart = (exact["estimate"] - stan["estimate"]).abs() / np.hypot(exact["standard_error"], stan["standard_error"])
    assert len(apart) == 54
    assert (apart < 4.5).all()
    other = (exact["estimate"] * 1.2 - stan["estimate"]).abs() / np.hypot(exact["standard_error"], stan["standard_error"])
    assert (other > 4.5).any()


def test_chains_are_kept_as_chains_and_diagnosed(pair: tuple[Path, Path]) -> None:
    _, stan = pair
    posterior = xr.open_zarr(stan / "confidential" / "posterior.zarr", group="posterior", consolidated=False)
    assert (posterior.sizes["chain"], posterior.sizes["draw"]) == (4, 100)
    store = dpdist.open_log_lik(stan)
    assert store["log_lik"].dims == ("chain", "draw", "record")
    assert store["log_lik"].shape[:2] == (4, 100)
    said = pd.read_parquet(stan / "confidential" / "strata.parquet")["diagnostics"][0]
    import arviz as az  # takes long, for few tests

    stored = float(az.rhat(posterior.load()).to_array().max())
    assert said["worst_rhat"] == pytest.approx(stored, abs=0.05), "of the same chains, which Stan holds in other parameters"
    assert said["min_ess_bulk"] > 100
    assert said["chains"] == 4
    assert not list((stan / "confidential").glob("scratch-*"))


def test_the_statement_names_the_sampler_and_its_caveat(pair: tuple[Path, Path]) -> None:
    exact, stan = (statement_of(workspace)["sampler"] for workspace in pair)
    assert exact["total_variation"] == 0
    assert stan["total_variation"] is None
    assert any("total variation" in caveat for caveat in stan["caveats"])
    assert (stan["name"], stan["chains"], stan["warmup"], stan["draws"]) == ("stan", 4, 500, 100)
    assert stan["diagnostics"]["policy"] == "warn"


def test_a_policy_that_fails_names_the_stratum_and_no_figure(tmp_path: Path) -> None:
    job = shipped(
        "doctorates_stan",
        **{"strata: [field]": "strata: []", "[field, sex], m": "[sex], m", "policy: warn": "policy: fail, ess: 100000"},
    )
    with pytest.raises(
        dpdist.core.errors.FitError, match="did not meet the job's limits on diagnostics, in 2 attempts"
    ) as told:
        dpdist.run(job, tmp_path / "work")
    assert "ESS" not in str(told.value)
    assert not (tmp_path / "work" / "public").exists()


@pytest.fixture(scope="module")
def pooling(stan_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("pooling") / "work"
    dpdist.run(shipped("doctorates_pooling"), workspace)
    return workspace


def densities(posterior: xr.Dataset, records: pd.DataFrame, fields: list[str], sexes: list[str]) -> np.ndarray:
    """log p of every record under every draw, (draw, record), in NumPy from the kept parameters."""
    drawn = {
        name: values.stack(s=("chain", "draw")).transpose("s", ...).to_numpy()[:, 0] for name, values in posterior.items()
    }
    field = records["field"].map(fields.index).to_numpy()
    sex = records["sex"].map(sexes.index).to_numpy()
    effects = np.concatenate([np.zeros_like(drawn["sex_effect"][:, :1]), drawn["sex_effect"]], axis=1)
    mean = drawn["field_mean"][:, field] + effects[:, sex]
    z = np.log(records[["salary", "weight"]].to_numpy())
    u, v = np.moveaxis((z - mean) / drawn["sigma"][:, None], -1, 0)
    rho = drawn["rho"][:, None]
    square = (u**2 - 2 * rho * u * v + v**2) / (1 - rho**2)
    return -np.log(2 * np.pi) - np.log(drawn["sigma"]).sum(axis=1)[:, None] - np.log(1 - rho**2) / 2 - square / 2


def test_a_users_log_likelihood_is_the_density_of_its_draws(pooling: Path) -> None:
    store = dpdist.open_log_lik(pooling)
    job = shipped("doctorates_pooling")
    source = pd.concat(batch.to_pandas() for batch in dpdist.plan(job).source.batches(("field", "sex", "salary", "weight")))
    record = store["record"].load().to_numpy()
    posterior = xr.open_zarr(pooling / "confidential" / "posterior.zarr", group="posterior", consolidated=False)
    fields, sexes = (list(map(str, job.columns[name].levels or ())) for name in ("field", "sex"))
    own = densities(posterior, source.reset_index(drop=True).iloc[record[record >= 0]], fields, sexes)
    kept = store["log_lik"].load().to_numpy().reshape(len(own), -1)[:, record >= 0]
    np.testing.assert_allclose(kept, own, rtol=1e-9, atol=1e-9)
    assert np.abs(own).max() > 3, "not a comparison of zeros"


def test_a_users_program_gives_records_but_no_table_from_parameters(pooling: Path) -> None:
    table = pd.read_csv(pooling / "public" / "tables" / "salaries.csv")
    assert set(table["estimator"]) == {"records"}
    assert len(table) == 54
    synthetic = pd.read_parquet(pooling / "public" / "synthetic" / "set-2.parquet")
    assert list(synthetic.columns) == ["field", "sex", "salary", "weight"]
    assert (synthetic["weight"] > 0).all()
    before = (pooling / "public" / "synthetic" / "set-2.parquet").read_bytes()
    dpdist.publish(pooling)
    assert (pooling / "public" / "synthetic" / "set-2.parquet").read_bytes() == before


def test_small_fields_are_drawn_towards_the_others(pooling: Path) -> None:
    """The released spread between fields is smaller than that of the fields' own means."""
    posterior = xr.open_zarr(pooling / "confidential" / "posterior.zarr", group="posterior", consolidated=False)
    assert posterior["field_mean"].dims == ("chain", "draw", "stratum", "field", "field_mean_2")
    assert list(posterior["field"].to_numpy())[:2] == ["biology", "computing"]


def test_parameters_that_the_program_does_not_have_are_refused_before_anything_is_spent() -> None:
    with pytest.raises(ProgramError, match=r"its parameters are not those of the job") as told:
        dpdist.validate(shipped("doctorates_pooling", **{"rho: []": "correlation: []"}))
    assert "rho (0 dimensions)" in str(told.value)


def test_a_program_that_is_not_there_is_named_with_its_line() -> None:
    with pytest.raises(JobError, match=r"'none.stan' cannot be read") as told:
        shipped("doctorates_pooling", **{"partial_pooling.stan": "none.stan"})
    assert "line" in str(told.value)


def test_a_program_that_does_not_compile_is_refused_by_validate(tmp_path: Path) -> None:
    text = find_job("doctorates_pooling").read_text()
    program = (find_job("doctorates_pooling").parent / "partial_pooling.stan").read_text()
    (tmp_path / "partial_pooling.stan").write_text(program.replace("vector[2] mu;", "vector[2] mu"))
    with pytest.raises(ProgramError, match="line"):
        dpdist.validate(parse_job(text, "job", tmp_path))


def log_lik_in_python(draws: dict[str, np.ndarray], data: dict[str, object]) -> np.ndarray:
    """A user's function: a bivariate normal of the logs with the same mean for all, far from the program's."""
    z = np.log(np.column_stack([np.asarray(data["y"]), np.asarray(data["w"])]))
    u, v = np.moveaxis((z - draws["mu"][:, None]) / draws["sigma"][:, None], -1, 0)
    return -np.log(2 * np.pi) - np.log(draws["sigma"]).sum(axis=1)[:, None] - (u**2 + v**2) / 2


def test_a_python_function_may_state_the_log_likelihood(tmp_path: Path) -> None:
    function = "log_lik: 'test_stan_release:log_lik_in_python'"
    changes = {"  data: {typical": f"  {function}\n  data: {{typical", "weights: fixed_point": "weights: none"}
    job = shipped("doctorates_pooling", **changes)
    dpdist.run(job, tmp_path / "work")
    posterior = xr.open_zarr(tmp_path / "work" / "confidential" / "posterior.zarr", group="posterior", consolidated=False)
    store = dpdist.open_log_lik(tmp_path / "work")
    record = store["record"].load().to_numpy()
    source = pd.concat(batch.to_pandas() for batch in dpdist.plan(job).source.batches(("salary", "weight")))
    chosen = source.reset_index(drop=True).iloc[record[record >= 0]]
    draws = {
        name: posterior[name].stack(s=("chain", "draw")).transpose("s", ...).to_numpy()[:, 0] for name in ("mu", "sigma")
    }
    own = log_lik_in_python(draws, {"y": chosen["salary"], "w": chosen["weight"]})
    kept = store["log_lik"].load().to_numpy().reshape(len(own), -1)[:, record >= 0]
    np.testing.assert_allclose(kept, own, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.real_data
def test_a_real_survey_under_stan_agrees_with_the_exact_run(data: Path, tmp_path: Path) -> None:
    """National Survey of College Graduates, a fit per field of degree: the differences are those of single draws."""
    text = find_job("nscg_salaries").read_text().replace("executor: dask, workers: 2", "executor: serial")
    assert "{name: exact, draws: 1000}" in text
    stan = text.replace("{name: exact, draws: 1000}", "{name: stan, chains: 4, warmup: 300, draws: 250}")
    found = []
    for name, said in (("exact", text), ("stan", stan)):
        dpdist.run(parse_job(said), tmp_path / name, input=data / "nscg2013.parquet")
        table = pd.read_csv(tmp_path / name / "public" / "tables" / "salaries.csv")
        found.append(table.set_index(["degree_field", "sex", "statistic", "estimator"]).xs("parameters", level="estimator"))
    exact, stan_ = found
    apart = (exact["estimate"] - stan_["estimate"]).abs() / np.hypot(exact["standard_error"], stan_["standard_error"])
    assert len(apart) == 48
    assert (apart < 4.5).all()


CLAMPED = {
    "name: weighted, weights: fixed_point": "name: censor_uw",
    "family: lognormal,": "family: lognormal, prior: {name: proper},",
    "strata: [field]": "strata: []",
    "by: [field, sex]": "by: [sex]",
    "sample: 10000": "sample: 200",
    "population: 100000": "population: 30000",
    "synthetic_sets: 3": "synthetic_sets: 1",
    '"10.8"': '"6"',
    "chains: 4, warmup: 500": "chains: 1, warmup: 150",
}


@pytest.fixture(scope="module")
def clamped(stan_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("clamped") / "work"
    text = find_job("doctorates_stan").read_text()
    for old, new in {**SMALL, **CLAMPED}.items():
        text = text.replace(old, new)
    dpdist.run(parse_job(text, "clamped"), workspace)
    return workspace


def test_a_clamped_likelihood_under_stan_keeps_every_record_within_the_clamp(clamped: Path) -> None:
    """M = ε/2 of a set; control: the same records' bounds without the clamp are over it."""
    said = statement_of(clamped)
    clamp = float(said["epsilon_per_set"]) / 2
    bounds = pd.read_parquet(clamped / "confidential" / "bounds.parquet")
    assert (bounds["weighted_record_bound"] <= clamp).all()
    assert (bounds["record_bound"] > clamp).any()
    assert (bounds["privacy_weight"] == 1).all()
    strata = pd.read_parquet(clamped / "confidential" / "strata.parquet")
    assert strata["diagnostics"][0]["records_censored"] == (bounds["record_bound"] > clamp).sum()


def test_a_clamp_under_stan_is_strict_for_exact_draws_only_and_says_so(clamped: Path) -> None:
    said = statement_of(clamped)
    assert (said["guarantee"], said["delta"]) == ("strict for exact draws", None)
    assert any("Markov chains" in assumption for assumption in said["assumptions"])
    assert any("Markov chains" in caveat for caveat in said["sampler"]["caveats"])
