"""Keys of jobs under `tables`, end to end: at a large budget figures are the direct ones, and standard errors follow."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyreadstat
import pytest
from public_files import statement_of

import dpdist
from dpdist.audit.auditing import audit, refuse_losses
from dpdist.core.errors import DataError, JobError, WorkspaceError
from dpdist.core.progress import silent
from dpdist.core.records import UNIT
from dpdist.estimation.donors import Donors
from dpdist.mechanisms.tables import sensitivity
from dpdist.mechanisms.tables.cells import ResidualCells
from dpdist.planning.making import make_plan
from dpdist.privacy.guarantees import Moved
from dpdist.publish.folder import publish
from dpdist.publish.released import read_released
from dpdist.quality.predicted.alternatives import alternatives
from dpdist.quality.predicted.prediction import predicted

LEVELS = {"kind": ["k0", "k1", "k2", "k3"], "region": ["r0", "r1", "r2"], "sex": ["f", "m"]}
WEIGHTS = {"k0": 3.0, "k1": 24.0, "k2": 170.0, "k3": 1200.0}
TABLES = [["kind", "region"], ["kind", "sex"], ["region", "sex"], ["sex"]]
PUBLIC = {"weight": "weight", "design_weights": {"by": ["kind"], "weights": WEIGHTS}}
MEASURED = {"weight": "weight"}
EXACT = {"epsilon": "10000", "adjacency": "substitution"}


@cache
def people(seed: int, spread: float = 0.0, records: int = 2_000) -> pd.DataFrame:
    """Weights are public by kind, or have this spread of logarithms beside. Callers change none of them."""
    rng = np.random.default_rng(seed)
    columns = {name: rng.choice(levels, records) for name, levels in LEVELS.items()}
    middle = 10.0 + 0.2 * (columns["sex"] == "m") + 0.3 * (columns["kind"] == "k3") + 0.1 * (columns["region"] == "r2")
    frame = pd.DataFrame(columns | {"income": np.clip(np.exp(rng.normal(middle, 0.5)), 0.0, 400_000.0)})
    frame["hours"] = np.clip(rng.normal(38.0 + 2.0 * (columns["sex"] == "m"), 8.0), 0.0, 80.0)
    frame["kids"] = rng.poisson(1.2 + 0.5 * (columns["sex"] == "m")).clip(0, 9).astype(float)
    frame["county"] = frame["region"] + rng.choice(["a", "b"], records)
    frame["household"] = np.arange(records) // 3
    weight = frame["kind"].map(WEIGHTS) * np.exp(spread * rng.standard_normal(records))
    return frame.assign(weight=weight.clip(1.0, 4_000.0))


def tables(sets: list[list[str]], outcome: str = "income", *more: Any) -> list[dict[str, Any]]:
    statistics = ["count", {"mean": outcome}, {"total": outcome}, *more]
    return [{"name": f"t{k}", "by": by, "statistics": statistics} for k, by in enumerate(sets)]


def job(folder: Path, survey: dict[str, Any], spread: float = 0.0, **keys: Any) -> dpdist.Job:
    """Four tables of counts, means and totals of incomes; `keys` go over the job's own, and `columns` beside them."""
    for seed, name in enumerate(("now", "before"), start=1):
        rows = people(seed, spread)
        (rows if survey else rows.drop(columns="weight")).to_parquet(folder / f"{name}.parquet")
    columns: dict[str, Any] = {name: {"levels": levels} for name, levels in LEVELS.items()}
    columns["income"] = {"bounds": [0, 400_000], "outside": "clip"}
    columns |= {"weight": {"bounds": [1, 4_000], "outside": "clip"}} if survey else {}
    columns |= keys.pop("columns", {})
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
        "tables": tables(TABLES),
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
    statement = statement_of(public)
    assert statement["protected"] == (["income"] if known else ["income", "weight"])
    records = pd.read_parquet(next((public / "synthetic").glob("*.parquet")))
    if survey == PUBLIC:
        assert np.allclose(records["weight"], records["kind"].astype(str).map(WEIGHTS), rtol=1e-12)


HOURS: dict[str, Any] = {"outcome": ["income", "hours"], "columns": {"hours": {"bounds": [0, 80], "outside": "clip"}}}


@pytest.mark.parametrize(
    ("survey", "spread", "keys"),
    [({}, 0.0, {}), (PUBLIC, 0.0, {}), (MEASURED, 0.6, HOURS)],
    ids=["no weight", "public weights", "measured weights, two outcomes"],
)
def test_figures_are_direct_at_a_large_budget(
    tmp_path: Path, survey: dict[str, Any], spread: float, keys: dict[str, Any]
) -> None:
    """For two outcomes, what records add and what publication computes rest on one prediction."""
    by_outcome = tables(TABLES, "income", {"mean": "hours"}) if keys else tables(TABLES)
    dpdist.run(job(tmp_path, survey, spread, tables=by_outcome, **keys), tmp_path / "made")
    rows = people(1, spread)
    check_exact(tmp_path / "made", rows if survey else rows.assign(weight=1.0), TABLES)
    if keys:
        for number, by in enumerate(TABLES):
            table = shown(tmp_path / "made", number, by, "hours")["estimate", "mean"].to_numpy()
            right = direct(rows, by, "hours")
            assert (np.abs(table - right["mean"]) <= 0.2 * right["se mean"]).all()


def test_weights_of_zero_count_in_no_table_where_their_bounds_hold_0(tmp_path: Path) -> None:
    """A third of the records has the weight 0, and counts in the sample sizes. Control: from 1 on they are refused."""
    columns = {"weight": {"bounds": [0, 4_000], "outside": "clip"}}
    loaded, other = job(tmp_path, MEASURED, 0.6, columns=columns), job(tmp_path, MEASURED, 0.6)
    for seed, name in enumerate(("now", "before"), start=1):
        rows = people(seed, 0.6)
        rows.assign(weight=rows["weight"].where(np.arange(len(rows)) % 3 > 0, 0.0)).to_parquet(tmp_path / f"{name}.parquet")
    dpdist.run(loaded, tmp_path / "made")
    rows = pd.read_parquet(tmp_path / "now.parquet")
    check_exact(tmp_path / "made", rows, TABLES)
    assert pd.read_parquet(tmp_path / "made" / "public" / "released" / "frame.parquet")["count"].sum() == len(rows)
    with pytest.raises(DataError, match="zero weights") as refused:
        dpdist.validate(other)
    assert "let the public bounds of 'weight' begin at 0" in str(refused.value)


def test_no_weight_is_read_where_weights_are_public_and_outcomes_attain_the_distance(tmp_path: Path) -> None:
    """Outcomes at both ends of their range at the smallest limit. Control: measured weights change what records add."""
    rng = np.random.default_rng(0)
    for survey in (PUBLIC, MEASURED):
        model = make_plan(job(tmp_path, survey), None, silent).model
        assert isinstance(model, ResidualCells)
        cell = np.repeat(np.arange(len(model.count)), 20)
        weight = np.exp(rng.normal(4.0, 1.0, len(cell))) if model.weight is None else model.weight[cell]
        outcomes = np.exp(rng.normal(10.0, 0.5, (len(cell), 1)))
        system = model.with_donors(Donors.of(cell, weight, outcomes)).plan
        limits, base = system.asked.first, np.arange(len(model.count))
        limits = replace(limits, outcome=limits.outcome / 100.0)
        ends = [np.full((len(base), 1), end) for end in (0.0, 400_000.0)]
        added = [
            limits.contributions(base, weight, end, system.file.prediction)
            for end in ends
            for weight in (np.full(len(base), 2.0), np.full(len(base), 3_000.0))
        ]
        assert (np.array_equal(added[0], added[1]) and np.array_equal(added[2], added[3])) == (survey == PUBLIC)
        if survey == PUBLIC:
            assert not added[0][:, 0].any()
            assert np.abs(added[0] - added[2]).sum(axis=1).max() == 2 * UNIT


def raked(rows: pd.DataFrame, totals: dict[str, dict[str, float]]) -> pd.DataFrame:
    weight = rows["weight"].copy()
    for _ in range(200):
        for column, of_levels in totals.items():
            weight *= rows[column].map(of_levels) / weight.groupby(rows[column]).transform("sum")
    return rows.assign(weight=weight)


def test_public_totals_are_met_and_other_figures_are_those_of_raked_weights(tmp_path: Path) -> None:
    """Every table is measured crossed with the totals' columns. Control: unraked weights have other figures."""
    rows, sets = people(1, 0.6), [["region"], ["sex"]]
    totals = {
        column: {level: round(weight * factor, 3) for (level, weight), factor in zip(of.items(), factors, strict=True)}
        for column, factors in {"sex": (1.2, 0.9), "kind": (1.5, 0.7, 1.1, 0.0)}.items()
        for of in [rows.groupby(column)["weight"].sum().to_dict()]
    }
    totals["kind"]["k3"] = sum(totals["sex"].values()) - sum(totals["kind"].values())
    rake = [{"by": [column], "totals": of_levels} for column, of_levels in totals.items()]
    dpdist.run(job(tmp_path, MEASURED, 0.6, rake=rake, tables=tables([*sets, ["kind"]])), tmp_path / "made")
    check_exact(tmp_path / "made", raked(rows, totals), sets)
    table = shown(tmp_path / "made", 1, ["sex"])
    assert table["estimate", "count"].to_numpy() == pytest.approx(list(totals["sex"].values()), rel=1e-6)
    assert (table["standard_error", "count"] < 1e-6 * table["estimate", "count"]).all()
    unraked, table = direct(rows, ["region"]), shown(tmp_path / "made", 0, ["region"])
    assert (np.abs(table["estimate", "mean"].to_numpy() - unraked["mean"]) > 0.2 * unraked["se mean"]).any()


def test_every_stratum_has_a_system_of_its_own_and_tables_add_them_up(tmp_path: Path) -> None:
    sets = [["region", "kind"], ["kind", "sex"], ["sex"]]
    loaded = job(tmp_path, MEASURED, 0.6, strata=["region"], tables=tables(sets))
    dpdist.run(loaded, tmp_path / "made")
    check_exact(tmp_path / "made", people(1, 0.6), sets)
    measured = pd.read_parquet(tmp_path / "made" / "public" / "measurements.parquet")
    assert measured.groupby("table")["cell region"].nunique().max() == 3
    prediction = predicted(dpdist.plan(loaded), times=(Fraction(1),))
    assert {one.statistic.split()[0] for one in prediction.statistics()} == {"count", "mean", "total"}


def test_a_hierarchy_measures_its_finest_columns_alone(tmp_path: Path) -> None:
    """Control: without it the coarser columns are measured as well."""
    sets = [["county"], ["region"], ["region", "sex"], ["county", "sex", "kind"]]
    counties = {"county": {"levels": [f"r{k}{half}" for k in range(3) for half in "ab"]}}
    geography = {"hierarchies": {"geography": ["region", "county"]}}
    numbers = []
    for keys in (geography, {}):
        loaded = job(tmp_path, MEASURED, 0.6, columns=dict(counties), tables=tables(sets), **keys)
        model = make_plan(loaded, None, silent).model
        assert isinstance(model, ResidualCells)
        numbers.append(model.names)
    finest, coarser = "county x sex x kind", "region x sex"
    assert numbers == [("all records", finest), ("all records", coarser, finest)]


def test_imprecise_figures_are_withheld(tmp_path: Path) -> None:
    dpdist.run(job(tmp_path, MEASURED, 0.6, withhold_above=0.05), tmp_path / "made")
    table = pd.read_parquet(tmp_path / "made" / "public" / "tables" / "t0.parquet").query("estimator == 'parameters'")
    withheld = table["withheld_because"].notna()
    assert withheld.any()
    assert table["estimate"].isna()[withheld].all()
    assert table["estimate"].notna()[~withheld].all()


def test_gates_units_and_copied_columns(tmp_path: Path) -> None:
    """Control: a gate that no release meets withholds it."""
    gates = [{"measure": "largest", "limit": 4.0, "of": "count"}, {"measure": "coverage", "limit": 0.5, "of": "count"}]
    keys: dict[str, Any] = {
        "accept": {"epsilon": "5000", "gates": gates},
        "budget": {"epsilon": "20000", "adjacency": "zero_out"},
        "privacy_unit": {"column": "household", "most": 3},
        "microdata": {"columns": ["hours"]},
        "withhold_above": None,
        "publish": "always",
    }
    dpdist.run(job(tmp_path, MEASURED, 0.6, **keys), tmp_path / "made")
    public = tmp_path / "made" / "public"
    statement = statement_of(public)
    assert [gate["accepted"] for gate in statement["acceptance"]["gates"]] == [True, True]
    assert statement["microdata"]["copied"] == ["hours"]
    records = pd.read_parquet(next((public / "synthetic").glob("*.parquet")))
    assert set(records["hours"]) <= set(people(2)["hours"])
    never = {"accept": {"epsilon": "5000", "gates": [{"measure": "largest", "limit": 1e-6, "of": "count"}]}}
    with pytest.raises(JobError, match="exceeds the limit"):
        dpdist.run(job(tmp_path, MEASURED, 0.6, **(keys | never)), tmp_path / "never")


def derived(rows: pd.DataFrame, kind: str, sex: str, statistic: str, variable: str) -> float:
    """A figure of the file itself, by the text of its statistic."""
    of_kind = rows[rows["kind"] == kind]
    few = of_kind[of_kind["sex"] == sex]
    w, incomes = few["weight"], few["income"]
    if statistic == "count":
        return float(w.sum())
    if statistic == "mean":
        return float(np.average(few[variable], weights=w))
    if statistic == "ratio":
        return float((w @ incomes) / (w @ few["kids"]))
    if statistic.startswith("share"):
        return float(w.sum() / of_kind["weight"].sum())
    if statistic.startswith("difference"):
        other = of_kind[of_kind["sex"] == "f"]
        return float(np.average(incomes, weights=w) - np.average(other["income"], weights=other["weight"]))
    if statistic.startswith("proportion"):
        return float(w[incomes > 30_000].sum() / w.sum())
    ordered = few.sort_values("income")
    return float(ordered["income"][ordered["weight"].cumsum() >= 0.5 * w.sum()].iloc[0])


@pytest.mark.parametrize("kind", ["csv", "dta", "sav"])
def test_references_of_other_formats_teach_what_a_parquet_file_teaches(tmp_path: Path, kind: str) -> None:
    """Two outcomes, one of them whole, with all derived statistics over a universe."""
    statistics = [
        *("count", {"mean": "income"}, {"mean": "kids"}, {"ratio": ["income", "kids"]}, {"share": "sex"}),
        {"difference": {"mean": "income"}, "from": {"sex": "f"}},
        {"quantile": "income", "at": 0.5},
        {"proportion": "income", "above": 30_000},
    ]
    keys: dict[str, Any] = {
        "columns": {"kids": {"bounds": [0, 9], "whole": True, "outside": "clip"}},
        "outcome": ["income", "kids"],
        "tables": [{"name": "t0", "by": ["kind", "sex"], "universe": {"region": ["r0", "r1"]}, "statistics": statistics}],
    }
    job(tmp_path, MEASURED, 0.6)
    before = pd.read_parquet(tmp_path / "before.parquet")
    if kind == "csv":
        before.to_csv(tmp_path / "before.csv", index=False)
    else:
        getattr(pyreadstat, f"write_{kind}")(before, str(tmp_path / f"before.{kind}"))
    reference = {"path": str(tmp_path / f"before.{kind}"), "provenance": "simulated"}
    dpdist.run(job(tmp_path, MEASURED, 0.6, reference=reference, **keys), tmp_path / "made")
    rows = people(1, 0.6)
    rows, table = rows[rows["region"].isin(["r0", "r1"])], pd.read_parquet(tmp_path / "made/public/tables/t0.parquet")
    table = table.query("estimator == 'parameters' and kind != 'Total' and sex != 'Total'")
    table = table[~table["suppressed"]]
    assert (table["standard_error"] > 0.0).all()
    found = {name: few.set_index(["kind", "sex"]) for name, few in table.groupby(["statistic", "variable"], dropna=False)}
    for (statistic, variable), few in found.items():
        right = few.index.map(lambda cell, name=statistic, of=variable: derived(rows, *cell, name, of)).to_numpy(float)
        # The shape of outcomes is the reference's, which is another sample.
        most = 5.0 if statistic.startswith(("quantile", "proportion")) else 0.2
        assert (np.abs(few["estimate"].to_numpy() - right) <= most * few["standard_error"].to_numpy()).all(), statistic
    assert len(found) == 8
    records = pd.read_parquet(next((tmp_path / "made" / "public" / "synthetic").glob("*.parquet")))
    assert (records["kids"] == np.rint(records["kids"])).all()


@pytest.mark.parametrize("noise", ["laplace", pytest.param("gaussian", marks=pytest.mark.long)])
def test_an_audit_finds_the_claim_attained_and_halved_noise(
    tmp_path: Path, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records with the largest weights and incomes, and others at the far bounds in their place."""
    delta = {"delta": "1e-6"} if noise == "gaussian" else {}
    budget = {"epsilon": "1", "adjacency": "substitution"} | delta
    keys = {"mechanism": {"name": "tables", "noise": noise}, "budget": budget, "tables": tables([["kind"], ["sex"]])}
    dpdist.run(job(tmp_path, MEASURED, 0.6, **keys), tmp_path / "made")
    audited = audit(tmp_path / "made", 9)
    (found,) = audited.disclose_to_custodian().itertuples()
    assert (found.records, found.exceeded, found.left_out) == (9, 0, 0)
    assert 0.5 < found.largest_share <= 1.0 + 1e-6
    refuse_losses(tmp_path / "made", audited)
    monkeypatch.setattr(sensitivity, "MOVED", Moved(*(distance / 2 for distance in sensitivity.MOVED)))
    with pytest.raises(WorkspaceError, match="lose more than the claimed"):
        refuse_losses(tmp_path / "made", audit(tmp_path / "made", 9))


STRICT = "use adjacency: substitution or zero_out without exchange: anywhere"
GATE = {"accept": {"epsilon": "1", "gates": [{"measure": "largest", "limit": 4.0, "of": "count"}]}}
SECRET = {"budget": {"epsilon": "10", "adjacency": "add_remove"}}
GAUSSIAN: dict[str, Any] = {
    "mechanism": {"name": "tables", "noise": "gaussian"},
    "budget": {"epsilon": "10", "adjacency": "zero_out", "delta": "1e-6"},
}
NESTED = {"hierarchies": {"geography": ["region", "county"]}}
TOTALS = {"rake": [{"by": ["sex"], "totals": {"f": 1e5, "m": 1e5}}]}


@pytest.mark.parametrize(
    ("survey", "keys", "message", "remedy"),
    [
        (MEASURED, {"synthetic_sets": 2}, "releases one estimate of all tables", "write 1"),
        (MEASURED, GATE | GAUSSIAN, "gates are measured under pure ε", "use noise: laplace"),
        ({}, SECRET, "counts would be whole numbers of records", STRICT),
        (PUBLIC, SECRET, "with public weights, a count follows from a number of records", STRICT),
        (PUBLIC, TOTALS, "raking would change weights that are public", "leave rake or design_weights out"),
        (MEASURED, SECRET | TOTALS, "raking depends on the public number of records", "use zero_out"),
        (
            MEASURED,
            SECRET | {"strata": ["region"]},
            "keeps sample sizes secret, and this key publishes them",
            "use zero_out",
        ),
        (
            MEASURED,
            SECRET | {"predictors": {"protect": {"epsilon": "1"}}},
            "its own sums measure secret numbers of records",
            "leave epsilon out",
        ),
        (MEASURED, {"predictors": {"protect": {}}}, "neighbours have the same sample counts", "add_remove"),
        (MEASURED, {"mechanism": {"name": "tables", "strategy": "auto"}}, "unknown key", "strategy"),
        (MEASURED, {"mechanism": {"name": "tables", "shrinkage": False}}, "has no shrinkage", "leave it out"),
        (MEASURED, {"record": {"log_lik": "always"}}, "has no posterior", "write never or auto"),
    ],
)
def test_what_is_refused_says_what_was_found_and_how_to_mend_it(
    tmp_path: Path, survey: dict[str, Any], keys: dict[str, Any], message: str, remedy: str
) -> None:
    with pytest.raises(JobError, match=message) as met:
        job(tmp_path, survey, **keys)
    assert remedy in " ".join(str(met.value).split())


@pytest.mark.parametrize("keys", [{"strata": ["region"]}, TOTALS], ids=["strata", "public totals"])
def test_alternatives_of_strata_and_totals_are_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Control: without them there are alternatives."""
    assert alternatives(dpdist.plan(job(tmp_path, MEASURED, 0.6, tables=tables([["sex"], ["kind"]]))))
    with pytest.raises(JobError, match="do not follow from formulas"):
        alternatives(dpdist.plan(job(tmp_path, MEASURED, 0.6, **keys)))


@pytest.mark.parametrize(
    "keys",
    [
        {"reference": None},
        {
            "mechanism": {"name": "tables", "noise": "gaussian"},
            "budget": {"rho": "1000", "delta": "1e-6", "adjacency": "zero_out"},
            "privacy_unit": {"column": "household", "most": 3},
        },
    ],
    ids=["no reference", "households under zCDP"],
)
def test_weights_that_the_job_states_to_be_constant_stay_so_in_synthetic_records(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    """Weights are measured, and one by cell."""
    survey = {"weight": "weight", "weights_constant_in": ["kind"]} | (
        {"psu": "household"} if "privacy_unit" in keys else {}
    )
    dpdist.run(job(tmp_path, survey, tables=tables([["kind"]]), **keys), tmp_path / "made")
    right, table = direct(people(1), ["kind"]), shown(tmp_path / "made", 0, ["kind"])
    assert table["estimate", "count"].to_numpy() == pytest.approx(
        right["count"], rel=1e-3 if "privacy_unit" in keys else 1e-2
    )
    assert (np.abs(table["estimate", "mean"].to_numpy() - right["mean"]) <= 0.2 * right["se mean"]).all()
    records = pd.read_parquet(next((tmp_path / "made" / "public" / "synthetic").glob("*.parquet")))
    assert (records.groupby("kind", observed=True)["weight"].nunique() == 1).all()


@pytest.mark.parametrize(
    ("survey", "keys"),
    [
        (PUBLIC, {"privacy_unit": {"column": "household", "most": 3}}),
        (
            MEASURED,
            {
                "accept": GATE["accept"] | {"epsilon": "9000"},
                "tables": tables([["county", "kind"], ["region"], ["region", "sex"]]),
            }
            | NESTED,
        ),
    ],
    ids=["public weights of households", "gates and hierarchies"],
)
def test_keys_hold_where_an_earlier_release_is_the_reference(
    tmp_path: Path, survey: dict[str, Any], keys: dict[str, Any]
) -> None:
    spread, budget = 0.6 if survey == MEASURED else 0.0, {"epsilon": "30000", "adjacency": "zero_out"}
    columns = {"county": {"levels": [f"r{k}{half}" for k in range(3) for half in "ab"]}}

    def next_job(**more: Any) -> dpdist.Job:
        return job(tmp_path, survey, spread, columns=dict(columns), budget=budget, **keys, **more)

    dpdist.run(next_job(), tmp_path / "first")
    later = next_job(reference={"release": str(tmp_path / "first" / "public")}, period="2")
    dpdist.run(later, tmp_path / "made")
    check_exact(tmp_path / "made", people(1, spread), [list(table.by) for table in later.tables])


SETS = [["kind", "sex"], ["region", "sex"], ["sex"]]


def seldom(*case: Any) -> Any:
    """A case whose keys are tested with a reference, too."""
    return pytest.param(*case, marks=pytest.mark.long)


HOUSEHOLDS = {"privacy_unit": {"column": "household", "most": 3}, "budget": {"epsilon": "60000", "adjacency": "zero_out"}}
GATES: dict[str, Any] = {
    "accept": {"epsilon": "5000", "gates": [{"measure": "largest", "limit": 4.0, "of": "count"}]},
    "budget": {"epsilon": "60000", "adjacency": "zero_out"},
}
EXACT_GAUSSIAN: dict[str, Any] = {
    "mechanism": {"name": "tables", "noise": "gaussian"},
    "budget": {"rho": "100000000", "delta": "1e-6", "adjacency": "zero_out"},
}


@pytest.mark.parametrize(
    ("survey", "spread", "keys"),
    [
        seldom({}, 0.0, {}),
        (PUBLIC, 0.0, {}),
        seldom(PUBLIC, 0.0, HOUSEHOLDS),
        (MEASURED, 0.6, {"strata": ["region"]}),
        (MEASURED, 0.6, {"reference": {"histogram": {"epsilon": "2000"}}}),
        (MEASURED, 0.6, HOUSEHOLDS),
        seldom(MEASURED, 0.6, GATES),
        seldom(MEASURED, 0.6, EXACT_GAUSSIAN),
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


@pytest.mark.parametrize(
    ("keys", "message", "remedy"),
    [
        (SECRET, "predicts weights and outcomes", "add reference"),
        ({"microdata": {"columns": ["hours"]}}, "reference", "reference"),
        ({"tables": tables(SETS, "income", {"quantile": "income", "at": 0.5})}, "needs a public reference file", "path"),
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
