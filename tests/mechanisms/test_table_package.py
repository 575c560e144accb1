"""A release of many tables from one budget: tables agree, with records too, and no empty cross is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import scipy

import dpdist
import dpdist.packages.large as large
import dpdist.packages.package as packages
from dpdist.core.errors import DataError, JobError
from dpdist.core.keys import Key
from dpdist.job.loading import parse_job
from dpdist.mechanisms.table_package import post
from dpdist.mechanisms.table_package.post import WORDS, PackageCells, _prepared
from dpdist.mechanisms.table_package.sensitivity import WHOLE
from dpdist.models.outputs import ReleaseView
from dpdist.planning import making, plan
from dpdist.publish.folder import publish
from dpdist.publish.noisy_figures import NoiseErrors
from dpdist.publish.released import read_released
from dpdist.release import run
from dpdist.survey.reference_file import ReferenceFile
from dpdist.testing.small import CLIPPED_WEIGHT, COLUMNS, survey

TABLES = [
    {
        "name": "t",
        "by": ["field", "sex"],
        "margins": True,
        "statistics": ["count", {"mean": "salary"}, {"total": "salary"}],
    },
    {"name": "u", "by": ["sex"], "margins": True, "statistics": ["count", {"total": "salary"}]},
]


UNWEIGHTED = {name: COLUMNS[name] for name in ("field", "sex", "salary")}


def job(folder: Path, **keys: Any) -> str:
    """A job whose reference has no record of one cross that the current file has."""
    survey(1).to_parquet(folder / "current.parquet")
    earlier = survey(2)
    earlier[~((earlier["field"] == "law") & (earlier["sex"] == "m"))].to_parquet(folder / "earlier.parquet")
    return json.dumps(
        {
            "dataset": "small",
            "publish": "always",
            "period": "2019",
            "input": {"path": str(folder / "current.parquet")},
            "columns": {name: COLUMNS[name] for name in ("field", "sex", "salary")} | {"weight": CLIPPED_WEIGHT},
            "survey": {"weight": "weight"},
            "outcome": "salary",
            "mechanism": {"name": "table_package"},
            "budget": {"epsilon": "4", "adjacency": "substitution"},
            "reference": {"path": str(folder / "earlier.parquet"), "period": "2017"},
            "tables": TABLES,
        }
        | keys
    )


@pytest.mark.parametrize("strategy", ["base_cells", "per_table"])
def test_tables_and_records_agree_where_a_cross_has_no_reference_record(strategy: str, tmp_path: Path) -> None:
    """Control: under `reference_tables` the same job is refused, for the reference lacks a cross."""
    run(parse_job(job(tmp_path, mechanism={"name": "table_package", "strategy": strategy})), tmp_path / "made")
    public = tmp_path / "made" / "public"
    measured = pd.read_parquet(public / "measurements.parquet")["table"]
    assert set(measured) == {"base cells" if strategy == "base_cells" else "field x sex", "all cells"}
    sets = "all of field, sex together" if strategy == "base_cells" else "field x sex"
    (relations,) = [t for t in json.loads((public / "statement.json").read_text())["post_processing"] if "Relations" in t]
    assert f"Relations of salary and weight with columns are measured by: {sets}; the whole. Any other" in relations
    by_name = {name: pd.read_parquet(public / "tables" / f"{name}.parquet") for name in ("t", "u")}
    for table in by_name.values():
        assert np.isfinite(table["standard_error"]).all()
        wide = table.pivot_table(
            index=[c for c in ("field", "sex", "statistic") if c in table], columns="estimator", values="estimate"
        )
        np.testing.assert_allclose(wide["records"], wide["parameters"], rtol=1e-9)
    shown = [by_name[name][by_name[name]["estimator"] == "parameters"] for name in ("t", "u")]
    for statistic in ("count", "total"):
        crossed, single = (
            frame[frame["statistic"] == statistic].set_index([c for c in ("field", "sex") if c in frame])["estimate"]
            for frame in shown
        )
        np.testing.assert_allclose(crossed.xs("Total", level="field").loc[single.index], single, rtol=1e-9)
        added = crossed[crossed.index.get_level_values("field") != "Total"].groupby("sex").sum()
        np.testing.assert_allclose(added.loc[single.index], single, rtol=1e-9)
    with pytest.raises(Exception, match="no record of"):
        run(parse_job(job(tmp_path, mechanism={"name": "reference_tables"})), tmp_path / "refused")


def test_ratios_shares_and_differences_of_a_package_follow_from_its_sums(tmp_path: Path) -> None:
    """Control: errors of two cells are not added up as if they were independent."""
    statistics = ["count", {"mean": "salary"}, {"share": "sex"}, {"difference": {"mean": "salary"}, "from": {"sex": "m"}}]
    statistics += [{"ratio": ["salary", "visits"]}, {"total": "salary"}, {"total": "visits"}]
    table = {"name": "t", "by": ["field", "sex"], "margins": True, "statistics": statistics}
    text = json.loads(job(tmp_path, outcome=["salary", "visits"], tables=[table]))
    text["columns"]["visits"] = COLUMNS["visits"]
    run(parse_job(json.dumps(text)), tmp_path / "made")
    made = pd.read_parquet(tmp_path / "made" / "public" / "tables" / "t.parquet")
    shown = made[made["estimator"] == "parameters"].assign(of=made["statistic"] + " " + made["variable"].fillna(""))
    figure, error = (
        shown.pivot_table(index=["field", "sex"], columns="of", values=v) for v in ("estimate", "standard_error")
    )
    of_sex, ratio, difference = "share across sex ", "ratio salary / visits", "difference of mean from sex m salary"
    np.testing.assert_allclose(figure[ratio], figure["total salary"] / figure["total visits"], rtol=1e-9)
    np.testing.assert_allclose(figure[of_sex].xs("Total", level="sex"), 1.0, rtol=1e-9)
    means, errors = (values["mean salary"].unstack("sex") for values in (figure, error))
    subtracted, its_error = (values[difference].unstack("sex") for values in (figure, error))
    np.testing.assert_allclose(subtracted["f"], means["f"] - means["m"], rtol=1e-9)
    apart = np.hypot(errors["Total"], errors["m"])
    assert (its_error["Total"] < 0.9 * apart).all(), "men are a part of all"
    assert (its_error["f"] > 0.5 * errors["f"]).all()


def test_weights_of_zero_are_summed_where_their_public_bounds_hold_0(tmp_path: Path) -> None:
    """A third of the records have none. The count of all errs by less than 4 of its standard errors: false alarms of
    noise are below 1 in 10,000. Control: under bounds above 0, and under another mechanism, the same file is refused.
    """
    text, counted = json.loads(job(tmp_path)), 0.0
    for name in ("earlier", "current"):
        records = pd.read_parquet(tmp_path / f"{name}.parquet")
        weight = records["weight"].where(np.arange(len(records)) % 3 > 0, 0.0)
        records.assign(weight=weight).to_parquet(tmp_path / f"{name}.parquet")
        counted = weight.sum()
    with pytest.raises(DataError, match="zero weights"):
        run(parse_job(json.dumps(text)), tmp_path / "above")
    text["columns"]["weight"] = {"bounds": [0, 100], "outside": "clip"}
    run(parse_job(json.dumps(text)), tmp_path / "made")
    table = pd.read_parquet(tmp_path / "made" / "public" / "tables" / "u.parquet")
    whole = table[(table["statistic"] == "count") & (table["sex"] == "Total")].iloc[0]
    assert abs(whole["estimate"] - counted) < 4.0 * whole["standard_error"]
    with pytest.raises(DataError, match="zero weights"):
        run(parse_job(json.dumps(text | {"mechanism": {"name": "reference_tables"}})), tmp_path / "refused")


def test_a_median_of_a_package_needs_a_reference(tmp_path: Path) -> None:
    """Control: with a reference the same job is valid."""
    tables = [{"name": "t", "by": ["sex"], "statistics": ["count", {"median": "salary"}]}]
    dpdist.validate(parse_job(job(tmp_path, tables=tables)))
    with pytest.raises(JobError) as refused:
        parse_job(job(tmp_path, tables=tables, reference=None))
    (problem,) = refused.value.problems
    assert problem.where == "tables.0.statistics.1"
    assert "from the records of a reference" in problem.fault


@pytest.mark.parametrize("centred", [False, True])
def test_factors_of_measurements_follow_from_the_released_limits(centred: bool, tmp_path: Path) -> None:
    """As the columns' definitions say, from measurements.parquet and the base cells' limits. Control: the group's largest
    limit, which stood there, gives others."""
    keys = {"mechanism": {"name": "table_package", "strategy": "per_table"}, "budget": {"epsilon": "1/20"}}
    run(parse_job(job(tmp_path, **keys)), tmp_path / "made")
    release = read_released(tmp_path / "made" / "public" / "released")
    model = cast(PackageCells, release.model(0))
    theta = release.theta(model, 0, 0)
    theta = theta.__class__({**theta.values, "centred": np.array([[float(centred)]])})
    package = model.prepared(theta)
    m, u, r = theta["limits"][0].T
    others = list[bool]()
    for number, (made, figures) in enumerate(
        zip(package.measurements, post.figures(release, model, 0, theta), strict=True)
    ):
        matrix = package.aggregations[number].matrix
        group = np.asarray(matrix.argmax(axis=0)).reshape(-1)
        ends = np.array([figures.limits(k, 1) for k in range(matrix.shape[0])], dtype=float)
        centre, cap, width = ends[group].T
        f = 1024.0 * np.minimum(u / cap, 1.0)
        most, offset = cap * width, np.where(np.isnan(centre), 0.0, m - centre)
        over = np.maximum(most, u * (r + np.abs(offset)))
        assert np.isnan(centre).all() != centred
        for factors, exact in ((made.of_weight, f), (made.of_outcome[0], 1024.0 * u * r / over)):
            assert np.abs(np.asarray(factors.sum(axis=0)) - np.floor(exact + 1e-9)).max() <= 1.0
        assert np.abs(np.asarray(made.of_level[0].sum(axis=0)) - np.trunc(1024.0 * u * offset / over)).max() <= 1.0
        largest = np.asarray((matrix @ scipy.sparse.diags_array(u)).max(axis=1).todense()).reshape(-1)[group]
        others.append(bool((np.abs(f - 1024.0 * u / largest) > 1.0).any()))
    assert any(others)


def test_without_a_reference_a_package_is_released_from_its_own_histograms(tmp_path: Path) -> None:
    """It was refused. Both rounds together lose the budget exactly, and no text claims a reference's records. Control:
    with a reference there are donors, and one query."""
    stated = {}
    for name, reference in (("with", {"path": str(tmp_path / "earlier.parquet")}), ("without", None)):
        run(parse_job(job(tmp_path, reference=reference)), tmp_path / name)
        public = tmp_path / name / "public"
        proof = json.loads((public / "released" / "proof.json").read_text())
        losses = [Fraction(q["distance"]["same_x"]) / Fraction(q["scale"]) for q in proof["queries"]]
        claimed = "record of the reference" in (public / "statement.json").read_text()
        stated[name] = (public / "released" / "donors.parquet").exists(), len(losses), claimed
        assert sum(losses) == 4
        table = pd.read_parquet(public / "tables" / "t.parquet")
        assert np.isfinite(table["standard_error"]).all()
        wide = table.pivot_table(index=["field", "sex", "statistic"], columns="estimator", values="estimate")
        np.testing.assert_allclose(wide["records"], wide["parameters"], rtol=1e-9)
        measured = pd.read_parquet(public / "measurements.parquet")
        bins = measured[measured["statistic"].str.startswith("count in bins of")]
        released = json.loads((public / "released" / "set-1.json").read_text())["strata"]["all"]
        assert len(bins) == np.size(released.get("counts", []))  # they stood in set-1.json alone, without ends
        assert bins["value"].sum() == pytest.approx(np.sum(released.get("counts", [])))
        for _, of_one in bins.groupby(["table", "statistic"]):
            left, right = (of_one["centre"] + side * of_one["half_width"] for side in (-1, 1))
            np.testing.assert_allclose(left.to_numpy()[1:], right.to_numpy()[:-1])
        publish(read_released(public / "released"), tmp_path / f"{name} again")
        again = pd.read_parquet(tmp_path / f"{name} again" / "tables" / "t.parquet")
        pd.testing.assert_frame_equal(table, again)
    assert stated == {"with": (True, 1, True), "without": (False, 5, False)}


def test_secret_sizes_are_estimated_with_all_tables_under_the_whole_budget(tmp_path: Path) -> None:
    """Numbers of records are near the file's, and records agree with tables that are made again. An exchange
    for any other record has twice the noise. Control: under public sizes the frame has the file's own."""
    scales = {}
    kinds = {"off": {"adjacency": "add_remove"}, "anywhere": {"adjacency": "substitution", "exchange": "anywhere"}}
    for kind, entry in (kinds | {"same_x": {"adjacency": "substitution"}}).items():
        run(parse_job(job(tmp_path, budget={"epsilon": "4", **entry})), tmp_path / kind)
        public = tmp_path / kind / "public"
        (query,) = json.loads((public / "released" / "proof.json").read_text())["queries"]
        assert Fraction(query["distance"][kind]) / Fraction(query["scale"]) == 4
        scales[kind] = Fraction(query["scale"])
        table = pd.read_parquet(public / "tables" / "t.parquet")
        assert np.isfinite(table["standard_error"]).all()
        wide = table.pivot_table(index=["field", "sex", "statistic"], columns="estimator", values="estimate")
        np.testing.assert_allclose(wide["records"], wide["parameters"], rtol=1e-9)
        publish(read_released(public / "released"), tmp_path / f"{kind} again")
        again = pd.read_parquet(tmp_path / f"{kind} again" / "tables" / "t.parquet")
        pd.testing.assert_frame_equal(table, again)
        counts = (
            pd.read_parquet(public / "released" / "frame.parquet").groupby(["field", "sex"], observed=True)["count"].sum()
        )
        shown = survey(1).groupby(["field", "sex"], observed=True).size()
        far = np.abs(counts.to_numpy() - shown.to_numpy()).max()
        assert far == 0 if kind == "same_x" else far < 60
        measured = set(pd.read_parquet(public / "measurements.parquet")["statistic"])
        assert measured == ({"a", "q"} if kind == "same_x" else {"a", "above", "below"})
    assert scales["anywhere"] == scales["same_x"] == 2 * scales["off"]


ADD_REMOVE = {"epsilon": "4", "adjacency": "add_remove"}
ANYWHERE = {"epsilon": "4", "adjacency": "substitution", "exchange": "anywhere"}


def test_protected_predictors_of_households_lose_the_budget(tmp_path: Path) -> None:
    """They were refused. Every column is protected, and a household of two loses what a record loses without one.

    Control: without a unit the noise is half.
    """
    scales = {}
    for name, unit in (("record", {}), ("household", {"privacy_unit": {"column": "home", "most": 2}})):
        made = parse_job(job(tmp_path, budget=ADD_REMOVE, predictors={"protect": {}}, **unit))
        shown = survey(1)
        shown.assign(home=[f"h{number // 2}" for number in range(len(shown))]).to_parquet(tmp_path / "current.parquet")
        run(made, tmp_path / name)
        public = tmp_path / name / "public"
        (query,) = json.loads((public / "released/proof.json").read_text())["queries"]
        scales[name] = Fraction(query["scale"]) / Fraction(query["distance"]["off"])
        assert np.isfinite(pd.read_parquet(public / "tables" / "t.parquet")["standard_error"]).all()
        statement = json.loads((public / "statement.json").read_text())
        assert "protected_predictors" not in statement  # no counts have noise of their own
        assert {"field", "sex", "the number of records, in all and in every cell"} <= {*statement["protected"]}
    assert scales["household"] == 2 * scales["record"] == Fraction(2, 4)


@pytest.mark.parametrize(
    ("keys", "where", "texts"),
    [
        (
            {"budget": ADD_REMOVE, "predictors": {"protect": {"epsilon": "1"}}},
            "predictors.protect.epsilon",
            "leave epsilon out",
        ),
        (
            {"budget": ANYWHERE, "predictors": {"protect": {"columns": ["sex"]}}},
            "predictors.protect.columns",
            "those by field stay public",
        ),
        ({"predictors": {"protect": {}}}, "predictors", "take budget.adjacency: add_remove"),
        (
            {
                "budget": ADD_REMOVE,
                "predictors": {"protect": {}},
                "mechanism": {"name": "laplace_strict"},
                "reference": None,
            },
            "predictors.protect.epsilon",
            "state a part of budget.epsilon, or take reference_tables or table_package",
        ),
        (
            {"budget": ANYWHERE | {"delta": "1e-9"}, "mechanism": {"name": "table_package", "noise": "gaussian"}},
            "mechanism.noise",
            "take noise: laplace, or adjacency: add_remove",
        ),
        ({"budget": ADD_REMOVE, "survey": {}, "columns": UNWEIGHTED}, "survey.weight", "name a weight column"),
        ({"budget": ADD_REMOVE, "reference": None}, "reference", "add reference"),
    ],
)
def test_what_secret_sizes_do_not_combine_with_is_refused_when_the_job_is_read(
    keys: dict[str, Any], where: str, texts: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError) as refused:
        parse_job(job(tmp_path, **keys))
    shown = [one for one in refused.value.problems if one.where == where]
    assert [one for one in shown if texts in f"{one.fault} {one.remedy}"], refused.value


def test_too_many_sums_of_secret_sizes_are_refused_by_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run refused them, after it learned from the reference. No text has free memory. Control: fewer are planned."""
    made = parse_job(job(tmp_path, budget=ADD_REMOVE))
    dpdist.plan(made)
    monkeypatch.setattr(post, "available_memory", lambda: 1000)
    with pytest.raises(JobError, match=r"GB of memory, more than is free\. So drop") as refused:
        dpdist.plan(made)
    assert "are free" not in str(refused.value)
    monkeypatch.setattr(post, "MOST_SUMS", 4)
    with pytest.raises(JobError, match="may have 4 where numbers of records are secret"):
        dpdist.plan(made)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_without_a_reference_several_outcomes_share_the_budget_and_are_near_the_file(noise: str, tmp_path: Path) -> None:
    """Both were refused: several outcomes, and Gaussian noise. All queries together lose what the job states: ε exactly,
    and ρ but for σ rounded up. Files' figures are within 6 stated errors, which normal and Laplace errors of 32 figures
    pass in fewer than 1 in 10,000 runs. Control: figures a half
    too large are not.
    """
    gaussian = noise == "gaussian"
    outcomes = ["salary", "share", "voted"]
    columns = {name: COLUMNS[name] for name in ("field", "sex", *outcomes)} | {"weight": CLIPPED_WEIGHT}
    statistics = ["count", *({"mean": name} for name in outcomes)]
    tables = [{"name": "t", "by": ["field", "sex"], "statistics": statistics}]
    keys = {"reference": None, "outcome": outcomes, "columns": columns, "tables": tables}
    budget = {"epsilon": "40", "adjacency": "substitution"} | ({"delta": "1e-6"} if gaussian else {})
    made = parse_job(job(tmp_path, **keys, budget=budget, mechanism={"name": "table_package", "noise": noise}))
    run(made, tmp_path / "made")
    queries = json.loads((tmp_path / "made/public/released/proof.json").read_text())["queries"]
    (counts,) = (query for query in queries if query["name"] == "counts of histograms")
    moved = 2 * (1 + len(outcomes))
    if gaussian:
        losses = [Fraction(q["squared_distance"]["same_x"]) / Fraction(q["scale"]) ** 2 / 2 for q in queries]
        assert 0.999 < sum(losses) / made.budget.concentrated <= 1
        assert moved <= Fraction(counts["squared_distance"]["same_x"]) < moved * Fraction("1.001")
    else:
        assert sum(Fraction(q["distance"]["same_x"]) / Fraction(q["scale"]) for q in queries) == 40
        assert Fraction(counts["distance"]["same_x"]) == moved
    shown = pd.read_parquet(tmp_path / "made/confidential/evaluation/t.parquet")
    apart = abs(shown["synthetic"] - shown["direct"]) / shown["synthetic_se"]
    assert len(apart) >= 30
    assert (apart <= 6.0).all()
    assert (abs(1.5 * shown["synthetic"] - shown["direct"]) > 6.0 * shown["synthetic_se"]).any()


def test_a_package_too_large_for_dense_matrices_is_released_as_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its errors have fewer draws than others', which ended publication after all was spent.

    Errors are those of the small package, but for what quantiles of 100 draws leave: less than 6 times a tenth, which
    fewer than 1 in 10,000 runs pass.
    """
    errors = []
    for name, most in (("small", 6_000), ("large", 4)):
        monkeypatch.setattr(large, "MOST_SUMS", most)
        _prepared.cache_clear()
        run(parse_job(job(tmp_path)), tmp_path / name)
        table = pd.read_parquet(tmp_path / name / "public" / "tables" / "t.parquet")
        errors.append(table[(table["estimator"] == "parameters") & (table["statistic"] == "count")]["standard_error"])
        assert np.isfinite(errors[-1]).all()
    _prepared.cache_clear()
    np.testing.assert_allclose(errors[1], errors[0], rtol=0.6)


def test_a_plan_tells_how_many_records_of_the_reference_stand_for_levels_alone(tmp_path: Path) -> None:
    """Those of crosses that the file lacks, a sixth of small surveys' weights. Control: a file with all crosses."""
    made = parse_job(job(tmp_path))
    whole = dpdist.validate(made)
    assert isinstance(whole.reference, ReferenceFile)
    assert "levels" not in plan.reference(whole, whole.reference)
    earlier, path = pd.read_parquet(tmp_path / "earlier.parquet"), tmp_path / "current.parquet"
    current = pd.read_parquet(path)
    current[current["field"] != "law"].to_parquet(path)
    less = dpdist.validate(made)
    assert isinstance(less.reference, ReferenceFile)
    shown = plan.reference(less, less.reference)
    assert f"of which {(earlier['field'] == 'law').sum()} are in crosses that the file lacks: they" in shown


def test_a_package_beyond_memory_is_refused_by_the_plan_with_the_largest_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation called it valid, and a run refused it once it had learned from the reference. Control: free memory."""
    made = parse_job(job(tmp_path))
    dpdist.validate(made)
    monkeypatch.setattr(post, "available_memory", lambda: 50_000)
    with pytest.raises(JobError, match=r"base cells in .* measured tables needs about .* fit"):
        dpdist.validate(made)


def test_a_package_without_reference_that_is_too_large_is_refused_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: the same job is planned where so many sums may be measured."""
    made = parse_job(job(tmp_path, reference=None))
    dpdist.plan(made)
    monkeypatch.setattr(post, "MOST_SUMS", 4)
    with pytest.raises(JobError, match="sums to measure, and a package may have 4"):
        dpdist.plan(made)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_weights_that_have_grown_beyond_their_limits_are_a_caution(factor: float, tmp_path: Path) -> None:
    """The larger half of all weights grow. The count is then far more than its interval off. Control: the same weights."""
    made = parse_job(job(tmp_path, withhold_above=None))
    for seed, name in enumerate(("current", "earlier"), start=1):
        drawn = survey(seed, 3000)
        weight = (drawn["weight"] / 4.0).clip(1, 25)
        grown = np.where((weight > weight.median()) & (name == "current"), factor * weight, weight)
        drawn.assign(weight=grown).to_parquet(tmp_path / f"{name}.parquet")
    run(made, tmp_path / "made")
    statement = json.loads((tmp_path / "made/public/statement.json").read_text())
    cautions = [text for text in statement["cautions"] if "clipping limits" in text]
    assert len(cautions) == (factor > 1.0), statement["cautions"]


@pytest.mark.parametrize("weights", ["census", "by cell", "unequal"])
def test_weights_that_are_equal_in_the_reference_are_a_caution(weights: str, tmp_path: Path) -> None:
    """No noisy sum tells the file's weights then. Counts were 200 errors off, and nothing said so. Control: others."""
    made = parse_job(job(tmp_path, withhold_above=None))
    path = tmp_path / "earlier.parquet"
    drawn = pd.read_parquet(path)
    equal = {
        "census": np.ones(len(drawn)),
        "by cell": drawn.groupby(["field", "sex"])["weight"].transform("mean") / 3.0,
        "unequal": drawn["weight"],
    }
    drawn.assign(weight=equal[weights]).to_parquet(path)
    run(made, tmp_path / "made")
    cautions = json.loads((tmp_path / "made/public/statement.json").read_text())["cautions"]
    assert any("weights are nearly equal" in text for text in cautions) == (weights != "unequal"), cautions
    shown = pd.concat(map(pd.read_parquet, (tmp_path / "made/confidential/evaluation").glob("*.parquet")))
    counts = shown[shown["statistic"] == "count"]
    off = ((counts["synthetic"] - counts["direct"]).abs() / counts["synthetic_se"]).max()
    assert (off > 10.0) == (weights != "unequal"), off


@pytest.mark.parametrize("heavy", ["both", "current", "earlier", "without"])
def test_all_weight_in_one_cell_is_released_soundly_or_with_a_caution(heavy: str, tmp_path: Path) -> None:
    """Weights of one cell are 400 times the others': in the file and its reference, in one of them, or without a reference.

    Where both agree, 18 figures are within 6 stated errors, which normal or Laplace errors pass in fewer than 1 in 10,000
    runs. Where they do not, no noisy sum tells the weights beyond the limits: counts were 17 and 200 errors off, and
    nothing said so.
    """
    keys = json.loads(job(tmp_path, withhold_above=None))
    keys["columns"]["weight"] = {"bounds": [0.01, 500], "outside": "clip"}
    for seed, name in enumerate(("current", "earlier"), start=1):
        drawn = survey(seed, 3000)
        one = (drawn["field"] == "law") & (drawn["sex"] == "f")
        factor = 1.0 if heavy in {"current", "earlier"} - {name} else np.where(one, 8.0, 0.02)
        drawn.assign(weight=(factor * drawn["weight"]).clip(0.01, 500)).to_parquet(tmp_path / f"{name}.parquet")
    if heavy == "without":
        del keys["reference"]
    run(parse_job(json.dumps(keys)), tmp_path / "made")
    cautions = json.loads((tmp_path / "made/public/statement.json").read_text())["cautions"]
    shown = pd.concat(map(pd.read_parquet, (tmp_path / "made/confidential/evaluation").glob("*.parquet")))
    errors = (shown["synthetic"] - shown["direct"]).abs() / shown["synthetic_se"]
    if heavy in ("both", "without"):
        assert errors.max() <= 6.0
    assert any("beyond the clipping limits" in text for text in cautions) == (heavy in ("current", "earlier")), cautions


@pytest.mark.parametrize("outcomes", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["base_cells", "per_table"])
def test_outcomes_that_are_constant_in_the_reference_are_released_within_the_budget(
    outcomes: int, strategy: str, tmp_path: Path
) -> None:
    """At mid-range nothing is learned of them: with two, exact sums passed under noise that was far too small."""
    names = [f"score{number}" for number in range(outcomes)]
    keys = json.loads(job(tmp_path))
    for number, name in enumerate(("current", "earlier")):
        made = survey(1 + number).assign(**dict.fromkeys(names, 0.0))
        made.to_parquet(tmp_path / f"{name}.parquet")
    score = {"bounds": [-1, 1], "outside": "clip"}
    keys["columns"] = {n: c for n, c in keys["columns"].items() if n != "salary"} | dict.fromkeys(names, score)
    means = [{"mean": name} for name in names]
    keys |= {
        "outcome": names if outcomes > 1 else names[0],
        "tables": [{"name": "t", "by": ["field", "sex"], "statistics": ["count", *means]}],
        "mechanism": {"name": "table_package", "strategy": strategy},
        "public_frame": {"accepted": "made up"},
        "withhold_above": None,
    }
    run(parse_job(json.dumps(keys)), tmp_path / "made")
    described = json.loads((tmp_path / "made/public/released/set-1.json").read_text())["strata"]["all"]
    if outcomes > 1:
        assert all(sum(parts) == pytest.approx(1.0) and min(parts) > 0 for parts in described["outcome_parts"])
    assert sum(described["shares"]) == 1.0


def test_sums_that_are_not_exact_are_refused_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 4.2 million records, here by a smaller limit. Control: a limit that the sum of all records just reaches."""
    made = parse_job(job(tmp_path))
    records = len(survey(1))
    monkeypatch.setattr(making, "LARGEST_SCORE", WHOLE * records)
    dpdist.plan(made)
    monkeypatch.setattr(making, "LARGEST_SCORE", WHOLE * records - 1)
    with pytest.raises(JobError, match=r"a sum of up to .* units, which is not exact"):
        dpdist.plan(made)


@pytest.mark.parametrize(("seed", "epsilon"), [(1, "4"), (2, "1/20")])
def test_records_have_all_tables_and_levels_add_up(seed: int, epsilon: str, tmp_path: Path) -> None:
    """Random packages over nested columns, with noise up to many times a cell. Control: one weight a thousandth larger."""
    rng = np.random.default_rng(seed)
    states = [f"s{number}" for number in range(7)]
    within = {state: f"r{rng.integers(3)}" for state in states}
    levels = {"region": ["r0", "r1", "r2"], "state": states, "age": ["young", "old"], "job": ["none", "part", "full"]}

    def drawn() -> pd.DataFrame:
        made = pd.DataFrame({name: rng.choice(texts, 600) for name, texts in levels.items()})
        of_state = rng.normal(0.0, 0.5, 7)[made["state"].str[1].astype(int)]
        pay = np.clip(np.exp(rng.normal(9.0 + of_state, 0.8)), 0, 50_000)
        return made.assign(region=made["state"].map(within), pay=pay, weight=rng.gamma(2.0, 20.0, 600).clip(1, 300))

    keys = json.loads(job(tmp_path))
    for name in ("current", "earlier"):
        drawn().to_parquet(tmp_path / f"{name}.parquet")
    pairs = [["region", "age"], ["state", "age"], ["state", "job"], ["age", "job"], ["region", "age", "job"]]
    chosen = [["state"], ["region"], *(pairs[number] for number in rng.choice(5, 3, replace=False))]
    entry = {"name": "t", "by": chosen, "statistics": ["count", {"mean": "pay"}, {"total": "pay"}]}
    keys |= {
        "columns": {name: {"levels": texts} for name, texts in levels.items()}
        | {"pay": {"bounds": [0, 50_000], "outside": "clip"}, "weight": {"bounds": [1, 300], "outside": "clip"}},
        "outcome": "pay",
        "budget": {"epsilon": epsilon, "adjacency": "substitution"},
        "hierarchies": {"place": ["region", "state"]},
        "tables": [entry],
        "public_frame": {"accepted": "made up"},
        "withhold_above": None,
    }
    run(parse_job(json.dumps(keys)), tmp_path / "made")
    public = tmp_path / "made" / "public"
    records = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    assert records["weight"].min() >= 0
    assert records["pay"].between(0, 50_000).all()

    def furthest(people: pd.DataFrame) -> float:
        """Largest relative distance of the records' own weighted sums from any released figure."""
        far = []
        for by in chosen:
            table = pd.read_parquet(public / "tables" / f"{'-'.join(['t', *by])}.parquet")
            table = table[table["estimator"] == "parameters"]
            for cell, figures in table.groupby(by, observed=True):
                kept = people
                for name, level in zip(by, cell, strict=True):
                    kept = kept if level == "Total" else kept[kept[name] == level]
                if kept.empty:
                    continue
                sums = kept["weight"].sum(), (kept["weight"] * kept["pay"]).sum()
                expected = {"count": sums[0], "total": sums[1], "mean": sums[1] / sums[0]}
                released = figures.set_index("statistic")["estimate"]
                assert released["count"] >= 0
                assert 0 <= released["mean"] <= 50_000
                far += [abs(released[name] - value) / max(value, 1e-9) for name, value in expected.items()]
        return max(far)

    assert furthest(records) < 1e-9
    assert furthest(records.assign(weight=records["weight"] * np.where(records.index == 0, 1 + 1e-3, 1.0))) > 1e-9
    nested = ("state", "region")
    levelled = [
        pd.read_parquet(public / "tables" / f"t-{name}.parquet").query("estimator == 'parameters'") for name in nested
    ]
    for statistic in ("count", "total"):
        states_of, regions = (
            table[table["statistic"] == statistic].set_index(name)["estimate"]
            for name, table in zip(nested, levelled, strict=True)
        )
        added = states_of.drop("Total").groupby(within).sum()
        np.testing.assert_allclose(added, regions.loc[added.index], rtol=1e-9)


@pytest.mark.parametrize("strategy", ["auto", "top_down"])
def test_levels_of_a_hierarchy_add_up_in_a_release(strategy: str, tmp_path: Path) -> None:
    """A field's figures are the sums of its branches', and the released folder gives the same tables again.

    Control: only `top_down` measures sets that are no table's own.
    """
    text = json.loads(job(tmp_path, mechanism={"name": "table_package", "strategy": strategy}))
    for name in ("current", "earlier"):
        path = tmp_path / f"{name}.parquet"
        frame = pd.read_parquet(path)
        branch = frame["field"].astype(str) + np.where(frame["salary"].rank() % 3 == 0, " old", " new")
        frame.assign(branch=branch).to_parquet(path)
    text["columns"]["branch"] = {"levels": ["arts new", "arts old", "law new", "law old"]}
    text["hierarchies"] = {"subject": ["field", "branch"]}
    by = [["branch", "sex"], ["field", "sex"]]
    text["tables"] = [{"name": "t", "by": by, "margins": True, "statistics": ["count", {"total": "salary"}]}]
    run(parse_job(json.dumps(text)), tmp_path / "made")
    public, again = tmp_path / "made" / "public", tmp_path / "again"
    publish(read_released(public / "released"), again)
    measured = set(pd.read_parquet(public / "measurements.parquet")["table"])
    assert bool(measured - {"branch x sex", "field x sex", "base cells", "all cells"}) == (strategy == "top_down"), measured
    shown = []
    for name in ("branch", "field"):
        path = Path("tables") / f"t-{name}-sex.parquet"
        assert (public / path).read_bytes() == (again / path).read_bytes()
        table = pd.read_parquet(public / path).query(f"estimator == 'parameters' and {name} != 'Total'")
        shown.append(table.assign(field=table[name].astype(str).str.split().str[0]))
    branches, fields = (one.groupby(["field", "sex", "statistic"], observed=True)["estimate"].sum() for one in shown)
    assert len(fields) == 12
    np.testing.assert_allclose(branches.loc[fields.index], fields, rtol=1e-9)


@pytest.mark.parametrize(
    ("survey", "words", "other"),
    [
        ({"weight": "weight"}, "Weights in a base cell are tilted", "one weight"),
        (
            {"weight": "weight", "weights_constant_in": ["field", "sex"]},
            "All records of a combination of field, sex have one weight",
            "tilted",
        ),
        ({}, "every record has the weight 1", "tilted"),
    ],
)
def test_words_on_donors_are_those_of_the_jobs_weights(
    survey: dict[str, Any], words: str, other: str, tmp_path: Path
) -> None:
    """Weights that no record has, or that cells have in common, were said to be tilted."""
    keys = {"survey": survey} | ({"tables": TABLES[:1]} if survey else {"columns": UNWEIGHTED})
    texts = WORDS.post_processing(cast(ReleaseView, SimpleNamespace(job=parse_job(job(tmp_path, **keys)), donors={})))
    donor = "weight and outcome" if "tilted" in words else "outcome"
    assert any(text.startswith(f"A synthetic record takes its {donor} from one ") for text in texts)
    assert any(words in text for text in texts)
    assert not any(other in text for text in texts)


def test_publishing_builds_a_model_and_its_package_once_whatever_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model was built eight times a table, and the objective of a chosen package computed again. Control: a run builds
    several, and computes the objective to choose."""
    built = list[str]()

    def counted(owner: Any, name: str) -> None:
        made = getattr(owner, name)

        def count(*given: Any, **named: Any) -> Any:
            built.append(name)
            return made(*given, **named)

        monkeypatch.setattr(owner, name, count)

    counted(PackageCells, "build")
    counted(packages, "wanted_of")
    run(parse_job(job(tmp_path)), tmp_path / "made")
    assert built.count("build") > 1
    assert "wanted_of" in built
    before = {path.name: path.read_bytes() for path in (tmp_path / "made" / "public" / "tables").iterdir()}
    built.clear()
    _prepared.cache_clear()
    publish(read_released(tmp_path / "made" / "public" / "released"), tmp_path / "again")
    assert built == ["build"]
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "again" / "tables").iterdir()}


def test_the_custodians_page_draws_no_errors_that_publication_has_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drew all of them again: a third of a large run's time. Control: another seed of publication draws its own."""
    drawn = list[str]()

    def counted(posterior: Any, draws: int, rng: Any, *given: Any) -> Any:
        drawn.append("sample")
        return by_sample(posterior, draws, rng, *given)

    by_sample = post.by_sample
    monkeypatch.setattr(post, "by_sample", counted)
    run(parse_job(job(tmp_path)), tmp_path / "made")
    assert drawn == ["sample"]
    released = read_released(tmp_path / "made" / "public" / "released")
    (first,) = (NoiseErrors.of(released).drawn or {}).values()
    assert drawn == ["sample"]
    post._redrawn.cache_clear()
    (again,) = (NoiseErrors.of(released).drawn or {}).values()
    for one, other in zip(first.laws, again.laws, strict=True):
        np.testing.assert_array_equal(one.product, other.product)
    NoiseErrors.of(replace(released, seed=Key.from_os()))
    assert drawn == ["sample"] * 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mechanism": {"name": "table_package", "strategy": "best"}}, "no strategy"),
        ({"strata": ["field"]}, "measures the tables of the whole file"),
        ({"budget": {"epsilon": "4", "adjacency": "add_remove"}, "survey": {}, "columns": UNWEIGHTED}, "without weights"),
        ({"budget": {"epsilon": "4", "adjacency": "add_remove"}, "reference": None}, "only where numbers of records"),
        (
            {
                "budget": {"epsilon": "4", "delta": "1e-6", "adjacency": "substitution", "exchange": "anywhere"},
                "mechanism": {"name": "table_package", "noise": "gaussian"},
            },
            "not known to be attained",
        ),
        ({"synthetic_sets": 2}, "releases one package"),
        ({"reference": {"release": "earlier"}}, "or from noisy histograms of the current file alone"),
    ],
)
def test_what_is_not_built_is_refused_with_a_remedy(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=message):
        parse_job(job(tmp_path, **keys))


def test_noise_too_large_for_exact_sums_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    """Such a run was charged, and ended while noise was drawn. Control: at ten times that ε it is released."""
    tables = [{"name": "t", "by": [["field", "sex"], ["sex"]], "statistics": ["count"]}]
    small = {"tables": tables, "budget": {"epsilon": "1/3000", "adjacency": "substitution"}}
    with pytest.raises(JobError, match=r"noise of scale .* beside which sums are not exact"):
        run(parse_job(job(tmp_path, **small)), tmp_path / "refused")
    assert not list((tmp_path / "refused").glob("confidential/noise*"))
    run(
        parse_job(job(tmp_path, **small | {"budget": {"epsilon": "1/300", "adjacency": "substitution"}})), tmp_path / "made"
    )
