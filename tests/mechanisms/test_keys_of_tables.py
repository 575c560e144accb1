"""Keys of jobs under `tables`, end to end: at a large budget figures are the direct ones, and standard errors follow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.progress import silent
from dpdist.core.records import UNIT
from dpdist.estimation.donors import Donors
from dpdist.mechanisms.tables.post import ResidualCells
from dpdist.planning.making import make_plan
from dpdist.publish.folder import publish
from dpdist.publish.released import read_released

LEVELS = {"kind": ["k0", "k1", "k2", "k3"], "region": ["r0", "r1", "r2"], "sex": ["f", "m"]}
WEIGHTS = {"k0": 3.0, "k1": 24.0, "k2": 170.0, "k3": 1200.0}
TABLES = [["kind", "region"], ["kind", "sex"], ["region", "sex"], ["sex"]]
PUBLIC = {"weight": "weight", "design_weights": {"by": ["kind"], "weights": WEIGHTS}}
MEASURED = {"weight": "weight"}
EXACT = {"epsilon": "10000", "adjacency": "substitution"}


def people(seed: int, spread: float = 0.0, records: int = 2_000) -> pd.DataFrame:
    """Weights are public by kind, or have this spread of logarithms beside."""
    rng = np.random.default_rng(seed)
    columns = {name: rng.choice(levels, records) for name, levels in LEVELS.items()}
    middle = 10.0 + 0.2 * (columns["sex"] == "m") + 0.3 * (columns["kind"] == "k3") + 0.1 * (columns["region"] == "r2")
    frame = pd.DataFrame(columns | {"income": np.clip(np.exp(rng.normal(middle, 0.5)), 0.0, 400_000.0)})
    frame["hours"] = np.clip(rng.normal(38.0 + 2.0 * (columns["sex"] == "m"), 8.0), 0.0, 80.0)
    weight = frame["kind"].map(WEIGHTS) * np.exp(spread * rng.standard_normal(records))
    return frame.assign(weight=weight.clip(1.0, 4_000.0))


def job(folder: Path, survey: dict[str, Any], spread: float = 0.0, **keys: Any) -> dpdist.Job:
    """Four tables of counts, means and totals of incomes; `keys` go over the job's own."""
    for seed, name in enumerate(("now", "before"), start=1):
        rows = people(seed, spread)
        (rows if survey else rows.drop(columns="weight")).to_parquet(folder / f"{name}.parquet")
    columns: dict[str, Any] = {name: {"levels": levels} for name, levels in LEVELS.items()}
    columns["income"] = {"bounds": [0, 400_000], "outside": "clip"}
    columns |= {"weight": {"bounds": [1, 4_000], "outside": "clip"}} if survey else {}
    statistics = ["count", {"mean": "income"}, {"total": "income"}]
    own = {
        "dataset": "people",
        "publish": "always",
        "period": "1",
        "input": {"path": str(folder / "now.parquet")},
        "columns": columns,
        "survey": survey,
        "outcome": "income",
        "mechanism": {"name": "tables"},
        "budget": EXACT,
        "reference": {"path": str(folder / "before.parquet"), "provenance": "simulated"},
        "tables": [{"name": f"t{k}", "by": by, "statistics": statistics} for k, by in enumerate(TABLES)],
        "runtime": {"executor": "serial"},
    }
    return dpdist.parse_job(json.dumps(own | keys))


def direct(rows: pd.DataFrame, by: list[str], outcome: str = "income") -> pd.DataFrame:
    """Counts, means and totals of the file, and standard errors given numbers of records, by cell."""
    found = {}
    for cell, few in rows.groupby(by):
        w, y = few["weight"], few[outcome]
        mean = np.average(y, weights=w)
        found[cell if isinstance(cell, tuple) else (cell,)] = {
            "count": w.sum(),
            "mean": mean,
            "total": w @ y,
            "se count": np.sqrt(len(few)) * w.std(ddof=0),
            "se mean": np.sqrt((w**2 * (y - mean) ** 2).sum()) / w.sum(),
            "se total": np.sqrt(len(few)) * (w * y).std(ddof=0),
        }
    return pd.DataFrame.from_dict(found, orient="index")


def shown(made: Path, number: int, by: list[str], outcome: str = "income") -> pd.DataFrame:
    """A table's cells without margins: (cell, (estimate or standard error, statistic)), from parameters."""
    table = pd.read_parquet(made / "public" / "tables" / f"t{number}.parquet").query("estimator == 'parameters'")
    table = table[(table[by].astype(str) != "Total").all(axis=1)].astype(dict.fromkeys(by, str))
    table = table[table["variable"].isna() | (table["variable"] == outcome) | (table["statistic"] == "count")]
    return table.pivot_table(index=by, columns="statistic", values=["estimate", "standard_error"])


def check_exact(made: Path, rows: pd.DataFrame, tables: list[list[str]], outcome: str = "income") -> None:
    """Every figure is within .2 direct standard errors, and none has an error that is none."""
    for number, by in enumerate(tables):
        right, table = direct(rows, by, outcome), shown(made, number, by, outcome)
        assert len(right) == len(table)
        for statistic in table["estimate"].columns:
            error = np.maximum(right[f"se {statistic}"], 1e-9 * right[statistic].abs())
            missed = np.abs(table["estimate", statistic].to_numpy() - right[statistic])
            assert (missed <= 0.2 * error).all(), (by, statistic)
            assert np.isfinite(table["standard_error", statistic]).all()
    publish(read_released(made / "public" / "released"), made / "again")
    for path in (made / "public" / "tables").iterdir():
        assert path.read_bytes() == (made / "again" / "tables" / path.name).read_bytes()


@pytest.mark.parametrize("survey", [{}, PUBLIC, MEASURED], ids=["no weight", "public weights", "measured weights"])
def test_counts_are_exact_where_weights_are_public(tmp_path: Path, survey: dict[str, Any]) -> None:
    """At ε = 1, where the control, measured weights, has counts that err. Half of the means err by less than a tenth."""
    loaded = job(tmp_path, survey, budget={"epsilon": "1", "adjacency": "substitution"})
    dpdist.run(loaded, tmp_path / "made")
    rows, public = people(1), tmp_path / "made" / "public"
    rows = rows if survey else rows.assign(weight=1.0)
    known, means = survey != MEASURED, list[float]()
    for number, by in enumerate(TABLES):
        right, table = direct(rows, by), shown(tmp_path / "made", number, by)
        assert np.allclose(table["estimate", "count"], right["count"], rtol=1e-9) == known
        means += (table["estimate", "mean"].to_numpy() / right["mean"] - 1.0).abs().tolist()
        assert (table["standard_error", "mean"] > 0.0).all()
    assert np.median(means) < 0.1
    statistics = set(pd.read_parquet(public / "measurements.parquet")["statistic"])
    assert statistics == {"outcome residuals", *([] if known else ["weight residuals"])}
    statement = json.loads((public / "statement.json").read_text(encoding="utf-8"))
    assert statement["protected"] == (["income"] if known else ["income", "weight"])
    records = pd.read_parquet(next((public / "synthetic").glob("*.parquet")))
    if survey == PUBLIC:
        assert np.allclose(records["weight"], records["kind"].astype(str).map(WEIGHTS), rtol=1e-12)


@pytest.mark.parametrize("survey", [{}, PUBLIC], ids=["no weight", "public weights"])
def test_means_under_public_weights_are_direct_at_a_large_budget(tmp_path: Path, survey: dict[str, Any]) -> None:
    dpdist.run(job(tmp_path, survey), tmp_path / "made")
    rows = people(1)
    check_exact(tmp_path / "made", rows if survey else rows.assign(weight=1.0), TABLES)


def test_no_weight_is_read_where_weights_are_public_and_outcomes_attain_the_distance(tmp_path: Path) -> None:
    """Outcomes at both ends of their range at the smallest limit. Control: measured weights change what records add."""
    rng = np.random.default_rng(0)
    for survey in (PUBLIC, MEASURED):
        model = make_plan(job(tmp_path, survey), None, silent).model
        assert isinstance(model, ResidualCells)
        cell = np.repeat(np.arange(len(model.count)), 20)
        weight = np.exp(rng.normal(4.0, 1.0, len(cell))) if model.weight is None else model.weight[cell]
        outcomes = np.exp(rng.normal(10.0, 0.5, (len(cell), 1)))
        system = model.with_donors(Donors.of(cell, weight, outcomes)).system
        limits, base = system.first, np.arange(len(model.count))
        limits = replace(limits, outcome=limits.outcome / 100.0)
        ends = [np.full((len(base), 1), end) for end in (0.0, 400_000.0)]
        added = [
            limits.contributions(base, weight, end, system.prediction)
            for end in ends
            for weight in (np.full(len(base), 2.0), np.full(len(base), 3_000.0))
        ]
        assert (np.array_equal(added[0], added[1]) and np.array_equal(added[2], added[3])) == (survey == PUBLIC)
        if survey == PUBLIC:
            assert not added[0][:, 0].any()
            assert np.abs(added[0] - added[2]).sum(axis=1).max() == 2 * UNIT
