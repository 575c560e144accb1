"""Keys of jobs under `tables` without a reference, end to end: at a large budget figures are the direct ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_keys_of_tables import MEASURED, PUBLIC, check_exact, direct, job, people, raked, shown, tables

import dpdist
from dpdist.core.errors import JobError

SETS = [["kind", "sex"], ["region", "sex"], ["sex"]]
HOUSEHOLDS = {"privacy_unit": {"column": "household", "most": 3}, "budget": {"epsilon": "60000", "adjacency": "zero_out"}}
GATES: dict[str, Any] = {
    "accept": {"epsilon": "5000", "gates": [{"measure": "largest", "limit": 4.0, "of": "count"}]},
    "budget": {"epsilon": "60000", "adjacency": "zero_out"},
}
GAUSSIAN: dict[str, Any] = {
    "mechanism": {"name": "tables", "noise": "gaussian"},
    "budget": {"rho": "100000000", "delta": "1e-6", "adjacency": "zero_out"},
}
HOURS: dict[str, Any] = {"outcome": ["income", "hours"], "columns": {"hours": {"bounds": [0, 80], "outside": "clip"}}}


@pytest.mark.parametrize(
    ("survey", "spread", "keys"),
    [
        ({}, 0.0, {}),
        (PUBLIC, 0.0, {}),
        (PUBLIC, 0.0, HOUSEHOLDS),
        (MEASURED, 0.6, {"strata": ["region"]}),
        (MEASURED, 0.6, {"reference": {"histogram": {"epsilon": "2000"}}}),
        (MEASURED, 0.6, HOUSEHOLDS),
        (MEASURED, 0.6, GATES),
        (MEASURED, 0.6, GAUSSIAN),
        (MEASURED, 0.6, HOURS),
    ],
    ids=[
        "no-weight",
        "public-weights",
        "public-households",
        "strata",
        "histogram",
        "households",
        "gates",
        "zcdp",
        "outcomes",
    ],
)
def test_keys_hold_without_a_reference(tmp_path: Path, survey: dict[str, Any], spread: float, keys: dict[str, Any]) -> None:
    budget = {"epsilon": "20000", "adjacency": "substitution"}
    own = {"reference": None, "tables": tables(SETS), "budget": budget} | keys
    dpdist.run(job(tmp_path, survey, spread, **own), tmp_path / "made")
    rows = people(1, spread)
    check_exact(tmp_path / "made", rows if survey else rows.assign(weight=1.0), SETS)


def test_public_totals_are_met_without_a_reference(tmp_path: Path) -> None:
    rows = people(1, 0.6)
    totals = {"sex": {level: 1.1 * weight for level, weight in rows.groupby("sex")["weight"].sum().items()}}
    rake = [{"by": ["sex"], "totals": totals["sex"]}]
    keys = {"rake": rake, "tables": tables([["kind"], ["sex"]]), "reference": None}
    dpdist.run(job(tmp_path, MEASURED, 0.6, **keys), tmp_path / "made")
    check_exact(tmp_path / "made", raked(rows, totals), [["kind"]])
    table = shown(tmp_path / "made", 1, ["sex"])
    assert table["estimate", "count"].to_numpy() == pytest.approx(list(totals["sex"].values()), rel=1e-6)


def test_universes_and_hierarchies_need_no_reference(tmp_path: Path) -> None:
    sets = [["county"], ["region", "sex"]]
    keys: dict[str, Any] = {
        "columns": {"county": {"levels": [f"r{k}{half}" for k in range(3) for half in "ab"]}},
        "hierarchies": {"geography": ["region", "county"]},
        "tables": [table | {"universe": {"kind": ["k0", "k1"]}} for table in tables(sets)],
        "reference": None,
    }
    dpdist.run(job(tmp_path, MEASURED, 0.6, **keys), tmp_path / "made")
    rows = people(1, 0.6)
    check_exact(tmp_path / "made", rows[rows["kind"].isin(["k0", "k1"])], sets)


def test_weights_that_are_constant_in_a_column_need_no_reference(tmp_path: Path) -> None:
    survey = {"weight": "weight", "weights_constant_in": ["kind"]}
    dpdist.run(job(tmp_path, survey, tables=tables([["kind"]]), reference=None), tmp_path / "made")
    right, table = direct(people(1), ["kind"]), shown(tmp_path / "made", 0, ["kind"])
    assert table["estimate", "count"].to_numpy() == pytest.approx(right["count"], rel=1e-2)
    assert (np.abs(table["estimate", "mean"].to_numpy() - right["mean"]) <= 0.2 * right["se mean"]).all()
    records = pd.read_parquet(next((tmp_path / "made" / "public" / "synthetic").glob("*.parquet")))
    assert (records.groupby("kind", observed=True)["weight"].nunique() == 1).all()


SECRET = {"budget": {"epsilon": "10", "adjacency": "add_remove"}}


@pytest.mark.parametrize(
    ("keys", "message", "remedy"),
    [
        (SECRET, "predicts weights and outcomes", "add reference"),
        ({"microdata": {"columns": ["hours"]}}, "reference", "reference"),
        ({"tables": tables(SETS, "income", {"quantile": "income", "at": 0.5})}, "from the records of a reference", "path"),
    ],
    ids=["secret numbers", "copied columns", "quantiles"],
)
def test_what_needs_a_reference_says_so(tmp_path: Path, keys: dict[str, Any], message: str, remedy: str) -> None:
    with pytest.raises(JobError, match=message) as met:
        job(tmp_path, MEASURED, 0.6, **({"reference": None} | keys))
    assert remedy in " ".join(str(met.value).split())


def test_columns_of_one_value_are_published_as_they_are(tmp_path: Path) -> None:
    """All weights are at their lower bound, and all outcomes are 0."""
    loaded = job(tmp_path, MEASURED, reference=None, tables=tables([["kind"]]))
    people(1).assign(weight=1.0, income=0.0).to_parquet(tmp_path / "now.parquet")
    dpdist.run(loaded, tmp_path / "made")
    table = shown(tmp_path / "made", 0, ["kind"])
    right = people(1).groupby("kind").size()
    assert table["estimate", "count"].to_numpy() == pytest.approx(right.to_numpy(), abs=1.0)
    assert table["estimate", "mean"].to_numpy() == pytest.approx(0.0, abs=50.0)
