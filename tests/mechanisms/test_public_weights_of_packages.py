"""Packages where a job declares public weights: counts without noise, no sum of weights, and what is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from named_draws import named

import dpdist
from dpdist.core.errors import JobError
from dpdist.job.loading import parse_job
from dpdist.publish.folder import publish
from dpdist.publish.released import read_released
from dpdist.quality.predicted.prediction import predicted
from dpdist.release import run

LEVELS = {"kind": ["k0", "k1", "k2", "k3"], "region": ["r0", "r1", "r2"], "sex": ["f", "m"], "age": ["young", "old"]}
WEIGHTS = dict(zip(LEVELS["kind"], (3.0, 24.0, 170.0, 1200.0), strict=True))
TABLES = [
    ["kind", "region"],
    ["kind", "sex"],
    ["kind", "age"],
    ["region", "sex"],
    ["region", "age"],
    ["sex", "age"],
    ["kind"],
    ["region"],
    ["sex"],
    ["region", "sex", "age"],
]
DECLARED = {"design_weights": {"by": ["kind"], "weights": WEIGHTS}}


def people(seed: int, weighted: bool = True, n: int = 3000) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {name: rng.choice(levels, n) for name, levels in LEVELS.items()}
    middle = 10.0 + 0.2 * (columns["sex"] == "m") + 0.3 * (columns["kind"] == "k3") + 0.1 * (columns["region"] == "r2")
    frame = pd.DataFrame(columns | {"income": np.clip(np.exp(rng.normal(middle, 0.5)), 0.0, 400_000.0)})
    return frame.assign(weight=frame["kind"].map(WEIGHTS)) if weighted else frame


def job(folder: Path, survey: dict[str, object], reference: bool = True, **budget: str) -> str:
    """Ten tables, of which some do not cross the columns of public weights."""
    people(1, bool(survey)).to_parquet(folder / "now.parquet")
    people(2, bool(survey)).to_parquet(folder / "before.parquet")
    columns: dict[str, object] = {name: {"levels": levels} for name, levels in LEVELS.items()}
    columns["income"] = {"bounds": [0, 400_000], "outside": "clip"}
    statistics = ["count", {"mean": "income"}, {"total": "income"}]
    keys = {
        "dataset": "people",
        "publish": "always",
        "period": "1",
        "input": {"path": str(folder / "now.parquet")},
        "columns": columns | ({"weight": {"bounds": [1, 2000], "outside": "clip"}} if survey else {}),
        "survey": survey,
        "outcome": "income",
        "mechanism": {"name": "table_package"},
        "budget": {"epsilon": "1", "adjacency": "substitution"} | budget,
        "tables": [{"name": f"t{k}", "by": by, "statistics": statistics} for k, by in enumerate(TABLES)],
        "runtime": {"executor": "serial"},
    }
    of_file = {"path": str(folder / "before.parquet"), "provenance": "simulated"}
    return json.dumps(keys | ({"reference": of_file} if reference else {}))


def errors(made: Path, weight: pd.Series[float]) -> pd.DataFrame:
    """Relative errors and standard errors of every table's figures beside the file's own, (figure,)."""
    rows, parts = people(1).assign(weight=weight), []
    rows["total"] = rows["weight"] * rows["income"]
    for number, by in enumerate(TABLES):
        table = pd.read_parquet(made / "public" / "tables" / f"t{number}.parquet").query("estimator == 'parameters'")
        table = table[(table[by].astype(str) != "Total").all(axis=1)].astype(dict.fromkeys(by, str))
        sums = rows.groupby(by)[["weight", "total"]].sum()
        truth = pd.DataFrame({"count": sums["weight"], "mean": sums["total"] / sums["weight"], "total": sums["total"]})
        wide = table.pivot_table(index=by, columns="statistic", values="estimate")
        assert len(wide) == len(truth)
        parts.append((wide / truth - 1.0).abs())
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize(
    "survey", [{}, {"weight": "weight"} | DECLARED, {"weight": "weight"}], ids=["none", "public", "measured"]
)
def test_ten_tables_have_exact_counts_where_weights_are_public(
    survey: dict[str, object], reference: bool, tmp_path: Path
) -> None:
    """Half of the means err by less than a tenth. Control: measured weights leave counts with errors, and a sum of weights.

    The noise has a fixed key.
    """
    loaded = parse_job(job(tmp_path, survey, reference))
    with named("public weights of packages"):
        run(loaded, tmp_path / "made", counted=False)
    public, public_weights = tmp_path / "made" / "public", survey != {"weight": "weight"}
    weights = people(1)["weight"] if survey else pd.Series(1.0, index=range(3000))
    relative = errors(tmp_path / "made", weights)
    assert (relative["count"].max() < 1e-9) == public_weights
    if public_weights:
        assert relative[["mean", "total"]].max().max() < 1.0
        assert relative["mean"].median() < 0.1
    statistics = set(pd.read_parquet(public / "measurements.parquet")["statistic"])
    assert ("a" in statistics) != public_weights
    statement = json.loads((public / "statement.json").read_text(encoding="utf-8"))
    assert statement["protected"] == (["income"] if public_weights else ["income", "weight"])
    assert any("adds its clipped, centred outcome to" in text for text in statement["assumptions"]) == public_weights
    declared = "design_weights" in survey
    assert ("weight" in statement["not_protected"]) == declared
    assert any("the weights of records by kind, which the job lists" in fact for fact in statement["public"]) == declared
    records = pd.read_parquet(next((public / "synthetic").glob("*.parquet")))
    if declared:
        assert np.allclose(records["weight"], records["kind"].astype(str).map(WEIGHTS), rtol=1e-12)
    for number, by in enumerate(TABLES):
        table = pd.read_parquet(public / "tables" / f"t{number}.parquet")
        wide = table.pivot_table(index=[*by, "statistic"], columns="estimator", values="estimate", observed=True)
        np.testing.assert_allclose(wide["records"], wide["parameters"], rtol=1e-9)
        assert np.isfinite(table["standard_error"]).all()
    publish(read_released(public / "released"), tmp_path / "again")
    for path in (public / "tables").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / "tables" / path.name).read_bytes()
    if reference and public_weights:
        prediction = predicted(dpdist.plan(loaded), times=(Fraction(1),))
        by_statistic = {one.statistic.split()[0]: one.median for one in prediction.statistics()}
        assert by_statistic["count"] < 1e-6 < by_statistic["mean"]


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"adjacency": "add_remove"}, "public weights make a count from a number of records"),
        ({"exchange": "anywhere"}, "public weights make a count from a number of records"),
    ],
)
def test_public_weights_beside_secret_numbers_are_refused_with_a_remedy(
    budget: dict[str, str], message: str, tmp_path: Path
) -> None:
    """Control: under a measured weight the same jobs are accepted."""
    parse_job(job(tmp_path, {"weight": "weight"}, **budget))
    with pytest.raises(JobError, match=message) as met:
        parse_job(job(tmp_path, {"weight": "weight"} | DECLARED, **budget))
    assert "survey.design_weights" in str(met.value)
    assert "leave them out" in str(met.value)
