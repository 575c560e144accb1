"""A release of shares under every mechanism, end to end, and what each says that it guarantees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.job.loading import parse_job

REGIONS, N, SETS = ("north", "south"), 200, 2

JOB = """
dataset: shares
period: "2021"
input: {{path: {path}}}
columns:
  region: {{levels: [north, south]}}
  y: {{bounds: [0, 1]{column}}}
strata: [region]
outcome: y
model: {model}
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}}}
synthetic_sets: 2
{sampler}
tables:
  - {{name: shares, by: [region], statistics: [count, {{mean: y}}]}}
record: {{log_lik: {log_lik}}}
publish: always
"""

CLASSES = {
    "weighted": "asymptotic",
    "unweighted": "none",
    "weighted_e": "asymptotic",
    "censor_w": "asymptotic",
    "censor_uw": "strict for exact draws",
    "perturbed_histogram": "strict",
}
CLAMPED = ("censor_w", "censor_uw")
POSTERIORS = [name for name in CLASSES if name != "perturbed_histogram"]


def text(mechanism: str, path: Path = Path("none.parquet"), **said: str) -> str:
    plain = {"epsilon": "12", "adjacency": "zero_out", "column": "", "model": "{family: beta}", "log_lik": "always"}
    plain["sampler"] = "sampler: {name: grid, draws: 200}"
    if mechanism.startswith("perturbed_histogram"):
        plain |= {"model": "null", "log_lik": "auto", "sampler": "", "column": ", outside: clip"}
    return JOB.format(mechanism=mechanism, path=path, **{**plain, **said})


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, path = np.random.default_rng(3), tmp_path_factory.mktemp("shares") / "shares.parquet"
    y = np.concatenate([rng.beta(0.5, 3, N), rng.beta(0.5, 2, N)])
    pq.write_table(pa.table({"region": np.repeat(np.array(REGIONS, dtype=object), N), "y": y}), path)
    return path


@pytest.fixture(scope="module", params=CLASSES)
def release(
    request: pytest.FixtureRequest,
    shares: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path]:
    workspace = tmp_path_factory.mktemp(request.param) / "work"
    dpdist.run(parse_job(text(request.param, shares)), workspace)
    return request.param, workspace


def test_the_report_prints_what_is_protected_and_no_asymptotic_figure_like_a_strict_one(release: tuple[str, Path]) -> None:
    mechanism, workspace = release
    lines = dpdist.report(workspace).splitlines()
    (guarantee,) = [line for line in lines if line.startswith("guarantee ")]
    protects = [line for line in lines if line.startswith(("protects ", "meant to protect "))]
    assert bool(protects) == (CLASSES[mechanism] != "none")
    assert all(line.startswith("meant") == (CLASSES[mechanism] == "asymptotic") for line in protects)
    shown = "y of one record; published without noise: the sample counts"
    assert all(shown in line for line in protects)
    assert ("ε = 12 " in guarantee) == (CLASSES[mechanism] in ("strict", "strict for exact draws"))
    assert any(line.startswith("neighbours ") for line in lines) == bool(protects)
    assert any(line.startswith("not covered ") and "region" in line for line in lines)
    aimed = [line for line in lines if line.startswith("aimed at ")]
    assert bool(aimed) == (CLASSES[mechanism] == "asymptotic")
    assert any("not a differential-privacy guarantee" in line for line in lines) == bool(aimed)
    assert any(line.startswith("cautions ") for line in lines) == (mechanism != "perturbed_histogram")


@pytest.mark.parametrize("release", POSTERIORS, indirect=True)
def test_no_more_is_spent_than_was_promised(release: tuple[str, Path]) -> None:
    """Control: the unweighted posterior, which promises nothing, spends more than 6 a set."""
    mechanism, workspace = release
    bound = pd.read_parquet(workspace / "confidential" / "strata.parquet")["database_bound"]
    assert (2 * bound <= 6).all() != (mechanism == "unweighted")


@pytest.mark.parametrize("release", POSTERIORS, indirect=True)
def test_bounds_by_record_are_those_of_the_recorded_log_likelihood(release: tuple[str, Path]) -> None:
    mechanism, workspace = release
    bounds = pd.read_parquet(workspace / "confidential" / "bounds.parquet").set_index("record")
    tensor = dpdist.open_log_lik(workspace)["log_lik"].load()
    tensor = tensor[..., tensor["record"] >= 0]
    own = bounds.loc[tensor["record"]]
    largest = np.abs(tensor).max(dim=("chain", "draw"))
    np.testing.assert_allclose(own["record_bound"], largest, rtol=1e-9)
    weighted = own["privacy_weight"] * largest
    expected = np.minimum(weighted, 3) if mechanism in CLAMPED else weighted
    np.testing.assert_allclose(own["weighted_record_bound"], expected, rtol=1e-9, atol=1e-12)
    strata = pd.read_parquet(workspace / "confidential" / "strata.parquet")
    counted = strata["diagnostics"].map(lambda said: said["records_censored"]).sum()
    if mechanism in CLAMPED:
        assert counted == (weighted > 3).sum()
        assert counted > 0 or mechanism != "censor_uw"


@pytest.mark.parametrize("mechanism", CLASSES)
def test_a_file_of_one_record_is_refused_before_anything_is_written(mechanism: str, tmp_path: Path) -> None:
    """It has no variance, so no table of it has a standard error."""
    path = tmp_path / "one.parquet"
    pq.write_table(pa.table({"region": np.array(["north"], dtype=object), "y": [0.3]}), path)
    with pytest.raises(DataError, match="a single record"):
        dpdist.run(parse_job(text(mechanism, path)), tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_the_synthetic_file_has_the_public_counts_and_tables_have_errors(release: tuple[str, Path]) -> None:
    _, workspace = release
    for number in range(1, SETS + 1):
        synthetic = pd.read_parquet(workspace / "public" / "synthetic" / f"set-{number}.parquet")
        assert synthetic["region"].value_counts().to_dict() == dict.fromkeys(REGIONS, N)
        assert synthetic["y"].between(0, 1).all()
    table = pd.read_csv(workspace / "public" / "tables" / "shares.csv")
    means = table[table["statistic"] == "mean"]
    assert means["estimate"].between(0, 1).all()
    assert np.isfinite(means["standard_error"]).all()


WRONG = [
    ("censor_uw, weights: linear", {}, "leaves every privacy weight at 1"),
    ("unweighted, weights: linear", {}, "leaves every privacy weight at 1"),
    ("censor_w, weights: fixed_point", {}, "use one of cluster, inverse, linear"),
    ("weighted_e, weights: none", {}, "use one of cluster, inverse, linear"),
    ("weighted_e, weights: {rule: linear, reweight: 0.9}", {}, "before re-weighting"),
    ("censor_uw", {"model": "{family: histogram}"}, "'histogram' is not a likelihood"),
    ("censor_uw, bins: 8", {}, "has no bins"),
    ("perturbed_histogram", {"sampler": "sampler: {name: grid}"}, "does not draw from a posterior"),
    ("perturbed_histogram", {"log_lik": "always"}, "has no posterior"),
    ("perturbed_histogram", {"column": ""}, "state outside: clip"),
    ("censor_uw", {"adjacency": "add_remove"}, "cannot give a guarantee under add_remove"),
]


@pytest.mark.parametrize(("mechanism", "said", "found"), WRONG)
def test_contradictions_of_mechanisms_are_named(mechanism: str, said: dict[str, str], found: str) -> None:
    with pytest.raises(JobError, match=found):
        parse_job(text(mechanism, **said))


def test_a_clamp_needs_another_sampler_than_closed_forms_and_a_proper_prior() -> None:
    poisson = text("censor_uw", model="{family: poisson}", sampler="sampler: {name: exact}").replace("[0, 1]", "[0, 100]")
    with pytest.raises(JobError, match="which then has no closed form"):
        parse_job(poisson)
    lognormal = text("censor_uw", model="{family: lognormal}", sampler="sampler: {name: stan}")
    with pytest.raises(JobError, match="improper prior"):
        parse_job(lognormal.replace("strata:", "survey: {weight: w}\nstrata:"))


def test_constants_that_are_left_out_are_those_of_the_paper() -> None:
    """[G] §4 with METHODS §4's silent step: LW with c = 1, re-weighted by .95 in Censor_w only."""
    weights = {name: parse_job(text(name)).mechanism.weights for name in CLASSES}
    assert (weights["censor_w"].rule, weights["censor_w"].c, weights["censor_w"].reweight) == ("linear", 1.0, 0.95)
    assert (weights["weighted_e"].rule, weights["weighted_e"].c, weights["weighted_e"].reweight) == ("linear", 1.0, None)
    unadjusted = parse_job(text("censor_w, weights: {rule: linear, reweight: null}")).mechanism.weights
    assert (unadjusted.c, unadjusted.reweight) == (1.0, None), "what is said is not replaced"
    assert (weights["weighted"].rule, weights["censor_uw"].rule, weights["unweighted"].rule) == (
        "fixed_point",
        "none",
        "none",
    )


def counts(workspace: Path) -> np.ndarray:
    sets = [json.loads((workspace / "public" / "released" / f"set-{k + 1}.json").read_text()) for k in range(SETS)]
    return np.array([[said["strata"][region]["counts"]["values"] for region in REGIONS] for said in sets])


@pytest.fixture(scope="module")
def histogram(shares: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("histogram") / "work"
    dpdist.run(parse_job(text("perturbed_histogram", shares, epsilon="0.4")), workspace)
    return workspace


def test_a_histogram_releases_the_counts_and_the_noise_that_was_kept(histogram: Path, shares: Path) -> None:
    y = pq.read_table(shares).column("y").to_numpy()
    true = np.array([np.histogram(part, bins=6, range=(0, 1))[0] for part in np.split(y, 2)])
    noise = histogram / "confidential" / "noise"
    kept = [[np.load(noise / f"strata-{k:06d}-{number:03d}.npz")["noise"] for k in range(2)] for number in (1, 2)]
    np.testing.assert_array_equal(counts(histogram), true + np.array(kept))
    assert counts(histogram).shape == (SETS, 2, 6)
    assert np.ceil(np.log(N)) == 6


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_replay_of_noise_that_is_not_all_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the killed run has yet to draw would differ from what the replay draws; once finished, its bytes come again."""
    rng = np.random.default_rng(5)
    rows = {"region": rng.choice(REGIONS, 2 * N), "y": rng.beta(2.0, 3.0, 2 * N)}
    pq.write_table(pa.table(rows), tmp_path / "shares.parquet")
    said = parse_job(text("perturbed_histogram", tmp_path / "shares.parquet"))
    first, again = tmp_path / "first", tmp_path / "again"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpdist.runtime.strata.gather", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dpdist.run(said, first)
    with pytest.raises(dpdist.WorkspaceError, match="has not finished") as refused:
        dpdist.run(said, again, replay=first / "confidential")
    assert refused.value.exit_code == 2
    assert not again.exists()
    dpdist.run(said, first)
    dpdist.run(said, again, replay=first / "confidential")
    tables = [(each / "public" / "tables" / "shares.csv").read_bytes() for each in (first, again)]
    assert tables[0] == tables[1]
