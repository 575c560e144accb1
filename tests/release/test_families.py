"""Releases of every family end to end: input to tables, with closed forms of the released parameters as oracles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
from public_files import statement_of

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.job import FAMILIES, MODELS, SAMPLERS
from dpdist.job.loading import parse_job

GROUPS, N = ("north", "south"), 300

JOB = """
dataset: sample
period: "2021"
input: {{path: {path}}}
columns:
  region: {{levels: [north, south]}}
  y: {{bounds: {bounds}}}
strata: [region]
outcome: y
model: {{family: {family}}}
mechanism: {{name: weighted, weights: {weights}}}
budget: {{epsilon: "{epsilon}"}}
synthetic_sets: 3
sampler: {sampler}
tables:
  - {{name: values, by: [region], statistics: [count, {{mean: y}}]}}
compare: [laplace]
record: {{log_lik: always}}
"""


class Case(NamedTuple):
    """A family, its outcomes in a group of the file, its mean given described parameters."""

    family: str
    bounds: str
    sampler: str
    draw: Callable[[np.random.Generator, int], np.ndarray]
    mean: Callable[[dict[str, Any]], float]
    epsilon: str = "30"


def value(said: dict[str, Any], name: str) -> float:
    return float(np.ravel(said[name]["values"])[0])


CASES = [
    Case(
        "poisson",
        "[0, 100000]",
        "{name: exact, draws: 400}",
        lambda rng, k: rng.poisson(20 + 5 * k, N),
        lambda said: value(said, "rate"),
    ),
    Case(
        "bernoulli",
        "[0, 1]",
        "{name: exact, draws: 400}",
        lambda rng, k: rng.random(N) < 0.3 + 0.2 * k,
        lambda said: value(said, "probability"),
    ),
    Case(
        "beta",
        "[0, 1]",
        "{name: grid, draws: 400}",
        lambda rng, k: rng.beta(2, 4 - k, N),
        lambda said: value(said, "mean"),
    ),
    Case(
        "negative_binomial",
        "[0, 1000000]",
        "{name: grid, draws: 400}",
        lambda rng, k: rng.negative_binomial(5, 5 / (25 + 10 * k), N),
        lambda said: value(said, "mean"),
    ),
]


def file_of(case: Case, folder: Path) -> Path:
    rng = np.random.default_rng(7)
    outcome = np.concatenate([np.asarray(case.draw(rng, k), dtype=float) for k in range(2)])
    path = folder / "sample.parquet"
    pq.write_table(pa.table({"region": np.repeat(np.array(GROUPS, dtype=object), N), "y": outcome}), path)
    return path


def job_of(case: Case, path: Path, weights: str = "fixed_point", **replaced: str) -> dpdist.Job:
    said = {"family": case.family, "bounds": case.bounds, "sampler": case.sampler, "epsilon": case.epsilon} | replaced
    return parse_job(JOB.format(path=path, weights=weights, **said))


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.family)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path]:
    folder = tmp_path_factory.mktemp(request.param.family)
    dpdist.run(job_of(request.param, file_of(request.param, folder)), folder / "work")
    return request.param, folder / "work"


def released_sets(workspace: Path) -> list[dict[str, Any]]:
    return [json.loads((workspace / "public" / "released" / f"set-{k}.json").read_text())["strata"] for k in (1, 2, 3)]


def test_published_means_are_the_released_parameters_means(release: tuple[Case, Path]) -> None:
    case, workspace = release
    table = pd.read_csv(workspace / "public" / "tables" / "values.csv")
    means = table[(table["statistic"] == "mean") & (table["estimator"] == "parameters")].set_index("region")["estimate"]
    for region in GROUPS:
        expected = np.mean([case.mean(said[region]) for said in released_sets(workspace)])
        assert means[region] == pytest.approx(expected, rel=1e-6)


def test_counts_without_weights_are_numbers_of_records_and_carry_no_weight_column(release: tuple[Case, Path]) -> None:
    _, workspace = release
    table = pd.read_csv(workspace / "public" / "tables" / "values.csv")
    counts = table[table["statistic"] == "count"]
    np.testing.assert_allclose(counts["estimate"], np.where(counts["region"] == "Total", 2 * N, N))
    synthetic = pd.read_parquet(workspace / "public" / "synthetic" / "set-1.parquet")
    assert list(synthetic.columns) == ["region", "y"]
    assert len(synthetic) == 2 * N


def test_standard_errors_of_gridded_families_come_from_the_spread_between_sets(release: tuple[Case, Path]) -> None:
    case, workspace = release
    said = statement_of(workspace)["standard_errors"][0]
    assert ("repeating the search for privacy weights" in said) == (case.family in ("poisson", "bernoulli"))
    if case.family in ("poisson", "bernoulli"):
        return
    table = pd.read_csv(workspace / "public" / "tables" / "values.csv")
    means = table[(table["statistic"] == "mean") & (table["estimator"] == "parameters")].set_index("region")
    for region in GROUPS:
        drawn = [case.mean(said[region]) for said in released_sets(workspace)]
        assert means["standard_error"][region] == pytest.approx(np.sqrt((1 + 1 / 3) * np.var(drawn, ddof=1)), rel=1e-6)
    assert (means["df"] == 2).all()


def test_the_bound_meets_the_target_and_the_tensor_gives_the_bounds(release: tuple[Case, Path]) -> None:
    case, workspace = release
    strata = pd.read_parquet(workspace / "confidential" / "strata.parquet")
    assert (strata["database_bound"] <= float(case.epsilon) / 3 / 2).all()
    bounds = pd.read_parquet(workspace / "confidential" / "bounds.parquet").set_index("record")
    tensor = dpdist.open_log_lik(workspace)["log_lik"].load()
    real = tensor["record"] >= 0
    largest = np.abs(tensor[..., real]).max(dim=("chain", "draw"))
    np.testing.assert_allclose(bounds.loc[largest["record"], "record_bound"], largest, rtol=1e-9)


def test_the_posterior_is_kept_with_named_dimensions(release: tuple[Case, Path]) -> None:
    _, workspace = release
    posterior = xr.open_zarr(workspace / "confidential" / "posterior.zarr", group="posterior", consolidated=False)
    for array in posterior.data_vars.values():
        assert array.dims[:3] == ("chain", "draw", "stratum")
        assert array.sizes["draw"] == 400
        assert np.isfinite(array).all()


def test_every_family_has_what_its_facts_promise() -> None:
    capability = {"exact": "draw", "grid": "draw_on_grid", "stan": "stan_data"}
    assert set(FAMILIES) == set(MODELS)
    for family, model in MODELS.items():
        assert set(SAMPLERS[family]) == {name for name, method in capability.items() if hasattr(model, method)}, family


WRONG = [
    ("poisson", "[0, 100]", 2.5, "values that are not whole numbers"),
    ("bernoulli", "[0, 1]", 0.5, "values that are not whole numbers"),
    ("beta", "[0, 1]", 1.0, "values that are too large"),
    ("beta", "[0, 1]", 0.0, "zeros"),
]


@pytest.mark.parametrize(("family", "bounds", "wrong", "found"), WRONG)
def test_outcomes_that_a_family_cannot_take_are_refused(
    family: str, bounds: str, wrong: float, found: str, tmp_path: Path
) -> None:
    path = tmp_path / "sample.parquet"
    usual = 0.25 if family == "beta" else 1.0
    pq.write_table(pa.table({"region": ["north", "south", "north", "south"], "y": [usual, usual, wrong, usual]}), path)
    case = next(case for case in CASES if case.family == family)
    with pytest.raises(DataError) as told:
        dpdist.validate(job_of(case, path, bounds=bounds))
    assert found in str(told.value)
    assert "row 3" in str(told.value)


CONTRADICTIONS = [
    ("poisson", {"sampler": "{name: grid}"}, "'poisson' has no grid sampler"),
    ("beta", {"sampler": "{name: exact}"}, "'beta' has no exact sampler"),
    ("beta", {"bounds": "[0, 2]"}, "bounds outside the range of 'beta'"),
    ("poisson", {"bounds": "[-1, 5]"}, "bounds outside the range of 'poisson'"),
    ("poisson", {"sampler": "{name: exact, chains: 2}"}, "makes independent draws, so it has no chains"),
]


@pytest.mark.parametrize(("family", "said", "found"), CONTRADICTIONS)
def test_contradictions_of_family_and_sampler_are_named(family: str, said: dict[str, str], found: str) -> None:
    case = next(case for case in CASES if case.family == family)
    with pytest.raises(JobError, match=found):
        job_of(case, Path("none.parquet"), **said)


def test_shares_of_0_and_1_may_be_clipped_into_bounds_and_nothing_else(tmp_path: Path) -> None:
    case, path = next(case for case in CASES if case.family == "beta"), tmp_path / "sample.parquet"
    pq.write_table(pa.table({"region": ["north", "south"] * 2, "y": [0.0, 1.0, 0.5, 0.2]}), path)
    said = {"family": "beta", "bounds": "[0.01, 0.99], outside: clip", "epsilon": "30", "sampler": case.sampler}
    text = JOB.format(path=path, weights="none", **said)
    assert dpdist.validate(parse_job(text)).census.removed == {"y: outside its bounds, clipped": 2}
    pq.write_table(pa.table({"region": ["north", "south"] * 2, "y": [0.0, 1.5, 0.5, 0.2]}), path)
    with pytest.raises(DataError, match="too large"):
        dpdist.validate(parse_job(text))
