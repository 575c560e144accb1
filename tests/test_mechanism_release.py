"""A release of shares under every mechanism, end to end, and what each says that it guarantees."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpdist
from dpdist.errors import JobError
from dpdist.jobfile import parse_job

REGIONS, N, SETS = ("north", "south"), 200, 2

JOB = """
dataset: shares
period: "2021"
input: {{path: {path}}}
columns:
  region: {{levels: [north, south]}}
  y: {{bounds: [0, 1]{column}}}
strata: [region]
model: {{family: beta, outcome: y}}
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}}}
synthetic_sets: 2
sampler: {{name: {sampler}, draws: 200}}
tables:
  - {{name: shares, by: [region], statistics: [count, {{mean: y}}]}}
record: {{log_lik: always}}
"""

CLASSES = {
    "weighted": "asymptotic",
    "unweighted": "none",
    "weighted_e": "asymptotic",
    "censor_w": "asymptotic",
    "censor_uw": "strict",
}
CLAMPED = ("censor_w", "censor_uw")


def text(mechanism: str, path: Path = Path("none.parquet"), **said: str) -> str:
    plain = {"epsilon": "12", "adjacency": "zero_out", "sampler": "grid", "column": ""}
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
    keys_of: Callable[[str], AbstractContextManager[None]],
) -> tuple[str, Path]:
    workspace = tmp_path_factory.mktemp(request.param) / "work"
    with keys_of("tests/test_mechanism_release"):
        dpdist.run(parse_job(text(request.param, shares)), workspace)
    return request.param, workspace


def statement(workspace: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((workspace / "public" / "statement.json").read_text())
    return said


def test_the_statement_says_which_class_of_guarantee_was_promised(release: tuple[str, Path]) -> None:
    mechanism, workspace = release
    said = statement(workspace)
    assert (said["guarantee"], said["mechanism"]["name"]) == (CLASSES[mechanism], mechanism)
    promised = said["guarantee"] != "none"
    assert said["epsilon"] == ("12" if promised else None)
    assert said["epsilon_per_set"] == ("6" if promised else None)
    assert said["substitution_epsilon"] == ("24" if promised else None)
    if said["guarantee"] == "strict":
        assert float(Fraction(said["delta"])) <= 1e-8


def test_no_more_is_spent_than_was_promised(release: tuple[str, Path]) -> None:
    """Control: the unweighted posterior, which promises nothing, spends more than 6 a set."""
    mechanism, workspace = release
    bound = pd.read_parquet(workspace / "confidential" / "strata.parquet")["database_bound"]
    assert (2 * bound <= 6).all() != (mechanism == "unweighted")


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


def test_publishing_again_gives_the_same_bytes(release: tuple[str, Path]) -> None:
    _, workspace = release
    before = {path: path.read_bytes() for path in (workspace / "public").rglob("*") if path.is_file()}
    dpdist.publish(workspace)
    assert before == {path: path.read_bytes() for path in (workspace / "public").rglob("*") if path.is_file()}


WRONG = [
    ("censor_uw", {"column": ", missing: drop"}, "the number of records left after"),
    ("censor_uw, fallback: pool", {}, "whether a fallback is taken depends on the records"),
    ("censor_uw, weights: linear", {}, "leaves every privacy weight at 1"),
    ("unweighted, weights: linear", {}, "leaves every privacy weight at 1"),
    ("censor_w, weights: fixed_point", {}, "take linear or inverse"),
    ("weighted_e, weights: none", {}, "take linear or inverse"),
    ("weighted_e, weights: {rule: linear, reweight: 0.9}", {}, "before re-weighting"),
    ("censor_uw", {"adjacency": "add_remove"}, "add_remove cannot be promised"),
]


@pytest.mark.parametrize(("mechanism", "said", "found"), WRONG)
def test_contradictions_of_mechanisms_are_named(mechanism: str, said: dict[str, str], found: str) -> None:
    with pytest.raises(JobError, match=found):
        parse_job(text(mechanism, **said))


def test_a_clamp_needs_another_sampler_than_closed_forms_and_a_proper_prior() -> None:
    poisson = text("censor_uw", sampler="exact").replace("beta", "poisson").replace("[0, 1]", "[0, 100]")
    with pytest.raises(JobError, match="no closed form is left"):
        parse_job(poisson)
    lognormal = (
        text("censor_uw", sampler="stan").replace("beta", "lognormal").replace("strata:", "survey: {weight: w}\nstrata:")
    )
    with pytest.raises(JobError, match="improper prior"):
        parse_job(lognormal)


def test_constants_that_are_left_out_are_those_of_the_paper() -> None:
    """[G] §4 with METHODS §4's silent step: LW with c = 1, re-weighted by .95 in Censor_w only."""
    weights = {name: parse_job(text(name)).mechanism.weights for name in CLASSES}
    assert (weights["censor_w"].rule, weights["censor_w"].c, weights["censor_w"].reweight) == ("linear", 1.0, 0.95)
    assert (weights["weighted_e"].rule, weights["weighted_e"].c, weights["weighted_e"].reweight) == ("linear", 1.0, None)
    assert (weights["weighted"].rule, weights["censor_uw"].rule, weights["unweighted"].rule) == (
        "fixed_point",
        "none",
        "none",
    )
