"""The whole path: what a run leaves, that it can be checked, repeated, resumed and published again."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import xarray as xr
from public_files import public_files, statement_of
from simulated_doctorates import simulated

import dpdist
from dpdist import release as release_module
from dpdist.core.confidential import Confidential
from dpdist.job import Job
from dpdist.publish.released import read_released
from dpdist.runtime import strata, tasks

JOB = (
    simulated(20000, 1500, 7)
    + """\
universe: [{column: field, keep: [biology, physical_sciences, psychology, engineering]}]
survey: {weight: weight, design_strata: [field]}
strata: [field]
outcome: salary
model: {family: lognormal, predictors: [sex]}
mechanism: {name: weighted}
budget: {epsilon: "10.8"}
synthetic_sets: 3
sampler: {draws: 300}
tables:
  - {name: salaries, by: [field, sex], statistics: [count, {mean: salary}]}
  - {name: all, statistics: [count]}
compare: [laplace, laplace_composed]
"""
)


def job(text: str = JOB, **runtime: Any) -> Job:
    parsed = dpdist.parse_job(text)
    return parsed.model_copy(update={"runtime": parsed.runtime.model_copy(update=runtime)})


def public_bytes(workspace: Path) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in public_files(workspace).items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("runs") / "finished"
    dpdist.run(job(), workspace)
    return workspace


@pytest.mark.quick
def test_a_run_leaves_what_is_promised(finished: Path) -> None:
    public = {
        *(f"tables/{name}.{kind}" for name in ("salaries", "all") for kind in ("csv", "wide.csv", "parquet")),
        *(f"synthetic/set-{k}.{kind}" for k in (1, 2, 3) for kind in ("csv", "parquet")),
        *(f"released/set-{k}.json" for k in (1, 2, 3)),
        *(f"released/{name}" for name in ("job.json", "promise.json", "proof.json", "frame.parquet", "seed")),
        "tables.xlsx",
        "codebook.json",
        "index.html",
        "statement.json",
        "manifest.json",
    }
    assert set(public_bytes(finished)) == public
    confidential = finished / "confidential"
    for name in ("strata.parquet", "bounds.parquet", "posterior.zarr", "log_lik.zarr", "records", "key", "log"):
        assert (confidential / name).exists(), name
    assert {p.name for p in (confidential / "evaluation").iterdir()} == {"salaries.parquet", "all.parquet"}
    assert stat.S_IMODE(confidential.stat().st_mode) == 0o700
    assert stat.S_IMODE((confidential / "key").stat().st_mode) == 0o600
    assert {p.name for p in finished.iterdir() if not p.name.startswith(".")} == {"public", "confidential"}


def test_the_manifest_covers_every_public_file(finished: Path) -> None:
    manifest = json.loads((finished / "public" / "manifest.json").read_text())
    there = public_bytes(finished)
    there.pop("manifest.json")
    assert manifest["files"] == there
    assert "runtime" not in manifest["job"]
    assert "input" not in manifest["job"]


def test_a_dozen_lines_of_numpy_give_the_stored_bounds(finished: Path) -> None:
    """F, α and Δ again from the stored draws and the records, by the formulas alone (METHODS §1, §3)."""
    confidential, target = finished / "confidential", 1.8
    records = pd.read_feather(confidential / "records" / "records.arrow")
    frame = pq.read_table(confidential / "records" / "frame.parquet").to_pandas()
    records = records.join(frame[["field", "sex"]], on="frame").set_index("record")
    bounds = pq.read_table(confidential / "bounds.parquet").to_pandas().set_index("record")
    largest = {}
    for fit, group in {"unweighted": "unweighted", "weighting": "weighting", "final": "posterior"}.items():
        draws = xr.open_zarr(confidential / "posterior.zarr", group=group, consolidated=False).load()
        for label, rows in records.groupby("field"):
            theta = draws.sel(stratum=label, chain=0)
            z = np.log(rows[["outcome", "weight"]].to_numpy())
            x = np.column_stack([np.ones(len(rows)), rows["sex"] == "female"])
            r = z - np.einsum("ij,sjk->sik", x, theta["coefficients"].to_numpy())
            precision = np.linalg.inv(theta["covariance"].to_numpy())
            f = -0.5 * np.einsum("sij,sjk,sik->si", r, precision, r) + 0.5 * np.log(np.linalg.det(precision))[:, None]
            for record, value in zip(rows.index, np.abs(f - np.log(2 * np.pi)).max(axis=0), strict=True):
                largest[fit, record] = value
    by = {fit: np.array([largest[fit, record] for record in bounds.index]) for fit in ("unweighted", "weighting", "final")}
    alpha = np.minimum(1, 0.999 * target / by["weighting"])
    np.testing.assert_allclose(bounds["unweighted_record_bound"], by["unweighted"], rtol=1e-9)
    np.testing.assert_allclose(bounds["privacy_weight"], alpha, rtol=1e-9)
    np.testing.assert_allclose(bounds["record_bound"], by["final"], rtol=1e-9)
    np.testing.assert_allclose(bounds["weighted_record_bound"], alpha * by["final"], rtol=1e-9)
    assert (bounds["weighted_record_bound"] >= bounds["privacy_weight"] * by["final"]).all()
    strata = pq.read_table(confidential / "strata.parquet").to_pandas().set_index("stratum")
    assert (strata["database_bound"] <= target).all()
    np.testing.assert_allclose(
        bounds.groupby("stratum")["weighted_record_bound"].max(), strata["database_bound"].sort_index()
    )
    np.testing.assert_allclose(strata["epsilon_local"], 2 * strata["database_bound"])
    assert (strata["epsilon_local_range"] < strata["epsilon_local"]).all()


def test_the_tensor_holds_the_final_fit_and_its_maxima_are_the_bounds(finished: Path) -> None:
    store = dpdist.open_log_lik(finished)
    assert store["log_lik"].dims == ("chain", "draw", "record")
    bounds = pq.read_table(finished / "confidential" / "bounds.parquet").to_pandas().set_index("record")
    tensor = store["log_lik"].load()
    real = tensor["record"] >= 0
    largest = np.abs(tensor[..., real]).max(dim=("chain", "draw"))
    np.testing.assert_allclose(bounds.loc[largest["record"], "record_bound"], largest, rtol=1e-9)
    assert np.isnan(tensor[..., ~real]).all()
    assert sorted(tensor["record"].to_numpy()[real]) == sorted(bounds.index)
    for k, (start, length) in enumerate(zip(store["offset"].to_numpy(), store["length"].to_numpy(), strict=True)):
        own = tensor["record"].to_numpy()[start : start + length]
        assert set(bounds.loc[own, "stratum"]) == {store["stratum"].to_numpy()[k]}


def test_arviz_reads_the_posterior_and_finds_its_draws_independent(finished: Path) -> None:
    """300 draws, and as a control the same ones with each held for four steps."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

        posterior = xr.open_zarr(finished / "confidential" / "posterior.zarr", group="posterior", consolidated=False).load()
        drawn = posterior[["covariance"]]
        held = drawn.isel(draw=np.arange(300) // 4 * 4).assign_coords(draw=drawn["draw"])
        sizes, control = (arviz.ess(arviz.convert_to_inference_data(draws))["covariance"] for draws in (drawn, held))
    assert sizes.size == 4 * 4
    assert (sizes > 150).all()
    assert (control < 150).all()


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


def figures(path: Path) -> Iterator[float]:
    if path.suffix in (".parquet", ".arrow"):
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_feather(path)
        yield from table.select_dtypes("number").to_numpy(dtype=float).ravel()
    elif path.suffix == ".json":
        yield from numbers(json.loads(path.read_text()))


def test_no_confidential_figure_is_in_the_public_folder(finished: Path) -> None:
    """Every non-integer figure of the confidential tables and records, looked up among all public figures."""
    confidential = finished / "confidential"
    secret: set[float] = set()
    for name in ("strata.parquet", "bounds.parquet", "records/records.arrow"):
        secret |= set(figures(confidential / name))
    for path in (confidential / "evaluation").iterdir():
        table = pd.read_parquet(path)
        secret |= set(table[["direct", "direct_se", "laplace", "laplace_composed"]].to_numpy().ravel())
    published = {v for path in (finished / "public").rglob("*") for v in figures(path)}
    secret = {v for v in secret if np.isfinite(v) and v != round(v)}
    assert len(secret) > 5000
    assert not secret & published
    seed = (finished / "public" / "released" / "seed").read_text().strip()
    assert seed != (confidential / "key").read_text().strip()


def test_publish_needs_only_what_was_released(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "public" / "released", tmp_path / "public" / "released")
    dpdist.publish(tmp_path)
    assert public_bytes(tmp_path) == public_bytes(finished)


def test_publishing_a_confidential_value_is_a_type_error(finished: Path) -> None:
    release = read_released(finished / "public" / "released")
    with pytest.raises(TypeError, match="cannot be released"):
        replace(release, promise=Confidential({"epsilon": "1"}))


@pytest.mark.quick
@pytest.mark.parametrize(
    "runtime",
    [
        {"executor": "serial"},
        pytest.param({"executor": "dask", "workers": 1}, marks=pytest.mark.long),
        {"executor": "dask", "workers": 2},
    ],
)
def test_replay_gives_identical_public_bytes_on_every_executor(
    finished: Path, tmp_path: Path, runtime: dict[str, Any]
) -> None:
    dpdist.run(job(**runtime), tmp_path / "again", replay=finished / "confidential")
    assert public_bytes(tmp_path / "again") == public_bytes(finished)


def test_without_replay_every_run_draws_anew(finished: Path, tmp_path: Path) -> None:
    dpdist.run(job(), tmp_path / "other")
    other, first = public_bytes(tmp_path / "other"), public_bytes(finished)
    changed = {name for name in first if first[name] != other[name]}
    assert {"released/seed", "released/set-1.json", "synthetic/set-1.parquet", "tables/salaries.csv"} <= changed
    assert {"released/job.json", "released/frame.parquet"}.isdisjoint(changed)
    statements = [json.loads(public_files(folder)["statement.json"]) for folder in (tmp_path / "other", finished)]
    differing = {name for name in statements[0] if statements[0][name] != statements[1].get(name)}
    assert differing <= {"beyond_direct", "cautions", "caution_codes"}, "which follow from the figures"


def test_replay_on_another_job_is_refused_and_writes_nothing(finished: Path, tmp_path: Path) -> None:
    other = dpdist.parse_job(JOB.replace("10.8", "10.9"))
    with pytest.raises(dpdist.WorkspaceError, match="differencing attack") as refused:
        dpdist.run(other, tmp_path / "again", replay=finished / "confidential")
    assert refused.value.exit_code == 2
    assert not (tmp_path / "again" / "public").exists()
    assert not (tmp_path / "again" / "confidential" / "key").exists()


def test_a_workspace_belongs_to_one_job(finished: Path) -> None:
    before = public_bytes(finished)
    with pytest.raises(dpdist.WorkspaceError, match=r"seed: 7 then, 8 now\) and another input file"):
        dpdist.run(dpdist.parse_job(JOB.replace("seed: 7", "seed: 8")), finished)
    assert public_bytes(finished) == before


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def test_an_interrupted_run_resumes_without_repeating_finished_strata(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    protect = tasks.protect_small

    def two_and_no_more(fit: Any, stratum: int) -> Any:
        if len(done) == 2:
            raise Killed
        done.append(stratum)
        return protect(fit, stratum)

    monkeypatch.setattr(tasks, "protect_small", two_and_no_more)
    with pytest.raises(Killed):
        dpdist.run(job(), tmp_path, replay=finished / "confidential")
    assert not (tmp_path / "public").exists()
    again: list[int] = []

    def counted(fit: Any, stratum: int) -> Any:
        again.append(stratum)
        return protect(fit, stratum)

    monkeypatch.setattr(tasks, "protect_small", counted)
    dpdist.run(job(), tmp_path)
    assert sorted(done + again) == [0, 1, 2, 3]
    assert public_bytes(tmp_path) == public_bytes(finished)


SMALL = (
    JOB.replace("sample: 1500", "sample: 120").replace("synthetic_sets: 3", "synthetic_sets: 1").replace('"10.8"', '"1.2"')
    + 'public_frame: {accepted: "simulated records"}\n'
)


def test_a_stratum_that_misses_the_target_takes_the_declared_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(dpdist.FitError) as refused:
        dpdist.run(dpdist.parse_job(SMALL), tmp_path / "refuse")
    assert refused.value.exit_code == 1
    assert "fallback: pool" in str(refused.value)
    assert not (tmp_path / "refuse" / "public").exists()

    pooled = dpdist.parse_job(
        SMALL.replace("{name: weighted}", "{name: weighted, fallback: pool}").replace('"1.2"', '"3.6"')
    )
    with pytest.raises(dpdist.FitError):
        dpdist.run(dpdist.parse_job(SMALL.replace('"1.2"', '"3.6"')), tmp_path / "refuse again")
    dpdist.run(pooled, tmp_path / "pool")
    assert list(json.loads((tmp_path / "pool/public/released/set-1.json").read_text())["strata"]) == ["all"]
    strata = pd.read_parquet(tmp_path / "pool/confidential/strata.parquet")
    assert list(strata["stratum"]) == ["all"]
    assert strata["database_bound"].item() <= 1.8

    proper = dpdist.parse_job(
        SMALL.replace("{name: weighted}", "{name: weighted, fallback: proper_prior}").replace('"1.2"', '"3.6"')
    )
    noted: list[Mapping[str, int | str]] = []
    with monkeypatch.context() as patch:
        patch.setattr("dpdist.runtime.tasks.note", lambda event, unit: noted.append(unit))
        dpdist.run(proper, tmp_path / "proper")
    own = [unit["stratum"] for unit in noted if unit["fit"] == "strata"]
    assert own == [0, 1, 2, 3], "a log of workers does not tell which strata failed"
    strata = pd.read_parquet(tmp_path / "proper/confidential/strata.parquet")
    assert len(strata) == 4
    assert "proper" in set(strata["fit"])
    assert (strata["database_bound"] <= 1.8).all()


def test_rule_none_promises_nothing_and_says_so(tmp_path: Path) -> None:
    text = JOB.replace("{name: weighted}", "{name: weighted, weights: none}")
    dpdist.run(dpdist.parse_job(text), tmp_path)
    said = statement_of(tmp_path)
    assert (said["guarantee"], said["epsilon"], said["adjacency"]) == ("none", None, None)


def test_fbp_and_fbs_publish_the_same_tables_from_parameters(finished: Path, tmp_path: Path) -> None:
    text = JOB.replace("predictors: [sex]}", "predictors: [sex], synthesis: fbp}")
    run = dpdist.run(dpdist.parse_job(text), tmp_path)
    sets = [pd.read_parquet(run / "synthetic" / f"set-{k}.parquet") for k in (1, 2, 3)]
    assert (sets[0].groupby(["field", "sex"], observed=True)["weight"].nunique() == 1).all()
    table = pd.read_parquet(run / "tables" / "salaries.parquet")
    total = table[(table["field"] == "Total") & (table["sex"] == "Total")].set_index(["statistic", "estimator"])["estimate"]
    weights = np.mean([s["weight"].sum() for s in sets])
    assert total["count", "records"] == pytest.approx(weights)
    assert total["count", "parameters"] == pytest.approx(weights)


def test_estimates_from_records_are_those_of_the_published_microdata(finished: Path) -> None:
    sets = [pd.read_parquet(finished / "public" / "synthetic" / f"set-{k}.parquet") for k in (1, 2, 3)]
    table = pd.read_parquet(finished / "public" / "tables" / "salaries.parquet")
    mine = table[(table["estimator"] == "records") & (table["field"] == "biology") & (table["sex"] == "female")]
    inside = [s[(s["field"] == "biology") & (s["sex"] == "female")] for s in sets]
    count = np.mean([s["weight"].sum() for s in inside])
    mean = np.mean([np.average(s["salary"], weights=s["weight"]) for s in inside])
    assert mine.set_index("statistic")["estimate"].to_dict() == pytest.approx({"count": count, "mean": mean})


def test_the_evaluation_agrees_with_a_pandas_oracle(finished: Path) -> None:
    records = pd.read_feather(finished / "confidential" / "records" / "records.arrow")
    frame = pd.read_parquet(finished / "confidential" / "records" / "frame.parquet")
    records = records.join(frame[["field", "sex"]], on="frame")
    rows = pd.read_parquet(finished / "confidential" / "evaluation" / "salaries.parquet")
    rows = rows.set_index(["field", "sex", "statistic"])
    inside = records[records["sex"] == "male"]
    assert rows.loc[("Total", "male", "count"), "direct"] == pytest.approx(inside["weight"].sum())
    mean = np.average(inside["outcome"], weights=inside["weight"])
    assert rows.loc[("Total", "male", "mean"), "direct"] == pytest.approx(mean)
    variance = 0.0
    for _, stratum in records.groupby("field"):
        u = (
            np.where(stratum["sex"] == "male", stratum["weight"] * (stratum["outcome"] - mean), 0.0)
            / inside["weight"].sum()
        )
        variance += len(u) * np.var(u, ddof=1)
    assert rows.loc[("Total", "male", "mean"), "direct_se"] == pytest.approx(np.sqrt(variance))
    assert rows.loc[("Total", "Total", "count"), "truth"] < 20000


def test_a_release_of_data_of_the_models_own_law_gets_a_good_verdict(finished: Path) -> None:
    """The same sentence says `do not publish` of real salaries (test_real_files)."""
    text = dpdist.report(finished, confidential=True)
    assert "CONFIDENTIAL VERDICT: no fault found in the intervals" in text
    assert "Do not publish" not in text


POOLING = SMALL.replace("{name: weighted}", "{name: weighted, fallback: pool}").replace('"1.2"', '"3.6"')


SELDOM = ("create_stores", "gather_strata", "evaluate")


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dpdist.run(dpdist.parse_job(POOLING), workspace := tmp_path_factory.mktemp("pooled") / "whole")
    return workspace


@pytest.mark.parametrize(
    "at", ["protect_all", "publish_folder", *(pytest.param(at, marks=pytest.mark.long) for at in SELDOM)]
)
def test_a_pooled_release_resumes_wherever_it_was_killed(
    at: str, pooled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = release_module if hasattr(release_module, at) else strata
    real = getattr(module, at)

    def killed(*given: Any) -> Any:
        if getattr(getattr(given[0], "address", None), "name", "pooled") == "pooled":
            raise Killed
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(module, at, killed)
        with pytest.raises(Killed):
            dpdist.run(dpdist.parse_job(POOLING), tmp_path / "cut", replay=pooled / "confidential")
    for _ in range(2):
        dpdist.run(dpdist.parse_job(POOLING), tmp_path / "cut")
        assert public_bytes(tmp_path / "cut") == public_bytes(pooled)


def survey_file(folder: Path, records: pd.DataFrame) -> Path:
    records.to_parquet(folder / "survey.parquet")
    return folder / "survey.parquet"


OWN = """
dataset: own
period: "1"
columns: {columns}
survey: {{weight: weight}}
strata: {strata}
outcome: salary
model: {{family: lognormal, predictors: {predictors}}}
mechanism: {{name: weighted}}
budget: {{epsilon: "10.8"}}
synthetic_sets: 3
sampler: {{draws: 200}}
tables: [{{name: t, statistics: [count]}}]
"""


def lognormal_records(n: int, seed: int, **columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    salary = np.exp(11 + 0.4 * rng.standard_normal(n))
    return pd.DataFrame({**columns, "salary": salary, "weight": 1e7 / salary * np.exp(0.4 * rng.standard_normal(n))})


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
def test_a_group_of_one_record_is_refused_rather_than_released_from_rounding_error(seed: int, tmp_path: Path) -> None:
    """Its bound does not fall with its weight, so the search would end only where the arithmetic does."""
    path = survey_file(tmp_path, lognormal_records(500, seed, x=["a"] + ["b"] * 499))
    text = OWN.format(columns="{x: {levels: [b, a]}, salary: {bounds: [0, 10000000]}}", strata="[]", predictors="[x]")
    text += 'public_frame: {accepted: "simulated records"}\n'
    with pytest.raises(dpdist.FitError) as refused:
        dpdist.run(dpdist.parse_job(text), tmp_path / "ws", path)
    assert "p = 2" in str(refused.value)
    assert not (tmp_path / "ws" / "public").exists()


def test_strata_whose_labels_would_be_the_same_are_refused(tmp_path: Path) -> None:
    records = lognormal_records(200, 1, a=["p", "p / q"] * 100, b=["q / r", "r"] * 100)
    columns = "{a: {levels: [p, p / q]}, b: {levels: [q / r, r]}, salary: {bounds: [0, 10000000]}}"
    text = OWN.format(columns=columns, strata="[a, b]", predictors="[]")
    with pytest.raises(dpdist.JobError, match="p / q / r"):
        dpdist.run(dpdist.parse_job(text), tmp_path / "ws", survey_file(tmp_path, records))
    assert not (tmp_path / "ws").exists()


@pytest.mark.parametrize("name", ["public", "confidential"])
def test_a_folder_of_somebody_elses_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("years of work")
    with pytest.raises(dpdist.WorkspaceError, match="no run has made"):
        dpdist.run(job(), tmp_path)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()] == [f"{name}/thesis.txt"]


def test_publish_puts_a_broken_swap_right(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "public", tmp_path / ".public.old")
    dpdist.publish(tmp_path)
    assert public_bytes(tmp_path) == public_bytes(finished)
