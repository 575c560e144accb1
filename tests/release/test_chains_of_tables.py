"""Chains of `tables` by strata, under zCDP, of other orders of columns, and begun without a public file."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from public_files import public_files, statement_of
from sized_package import people, sized_job

import dpdist
from dpdist.core.errors import DataError, JobError, WorkspaceError
from dpdist.estimation.crosstab_table import read_job
from dpdist.job import epsilon_of, rho_of
from dpdist.mechanisms.tables import cells, measurements
from dpdist.opening import verifying
from dpdist.opening.rederiving import rederivation
from dpdist.opening.verifying import problems
from dpdist.privacy.claims import NOT_REFUSED
from dpdist.quality.predicted.prediction import predicted
from dpdist.survey.earlier_release import Costs

PACKAGE = Path(__file__).parents[1] / "fixtures" / "package_of_0_2"
LEVELS, RECORDS = (3, 4, 2), 3_000
LAPLACE: dict[str, Any] = {"epsilon": "2", "adjacency": "substitution"}
ZCDP: dict[str, Any] = {"rho": "1/2", "delta": "1e-6", "adjacency": "substitution"}
GAUSSIAN = {"mechanism": {"name": "tables", "noise": "gaussian"}}


def run(folder: Path, number: int, reference: dict[str, Any], **keys: Any) -> Path:
    """The workspace of a period. Outcomes grow by a tenth from period to period."""
    job, workspace = folder / f"job{number}", folder / f"ws{number}"
    job.mkdir()
    settings = {"mechanism": {"name": "tables"}, "reference": reference, "period": str(2020 + number), "budget": LAPLACE}
    path = sized_job(job, LEVELS, [["c0", "c1"], ["c1", "c2"]], RECORDS, **settings | keys)
    survey(number).to_parquet(job / "current.parquet")
    dpdist.run(path, workspace)
    return workspace


def survey(number: int) -> pd.DataFrame:
    rows = people(LEVELS, RECORDS, 1, 10 + number)
    return rows.assign(y0=(rows["y0"] * 1.1**number).clip(upper=1000.0))


def begun(folder: Path, **keys: Any) -> dict[str, Any]:
    """The reference of a second period, whose first had a public file."""
    survey(0).to_parquet(folder / "public.parquet")
    first = run(folder, 1, {"path": str(folder / "public.parquet"), "period": "2020"}, **keys)
    return {"release": str(first / "public")}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return begun(tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def first_by_strata(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return begun(tmp_path_factory.mktemp("strata"), strata=["c2"])


@pytest.fixture(scope="module")
def second_by_strata(first_by_strata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("second"), 2, first_by_strata, strata=["c2"])


@pytest.fixture(scope="module")
def first_of_bins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a first period without a public file."""
    folder = tmp_path_factory.mktemp("bins")
    run(folder, 1, {"histogram": {"epsilon": "1/3"}})
    return folder


def history(workspace: Path) -> dict[str, Any]:
    return dict(json.loads((workspace / "public" / "released" / "history.json").read_text())["strata"])


def far(workspace: Path, number: int) -> float:
    """The largest distance of a published mean by c0 and c1 from the direct one, in its standard errors."""
    table = pd.read_parquet(workspace / "public" / "tables" / "t-c0-c1.parquet")
    rows = table[(table["estimator"] == "parameters") & (table["statistic"] == "mean") & (table["c0"] != "Total")]
    rows = rows[rows["c1"] != "Total"].set_index(["c0", "c1"]).sort_index()
    records = survey(number)
    sums = records.assign(wy=records["w"] * records["y0"]).groupby(["c0", "c1"], observed=True)[["w", "wy"]].sum()
    sums.index = sums.index.set_levels([level.astype(str) for level in sums.index.levels])
    direct = (sums["wy"] / sums["w"]).loc[rows.index]
    return float(((rows["estimate"] - direct) / rows["standard_error"]).abs().max())


def test_strata_have_totals_of_their_own(second_by_strata: Path) -> None:
    """By c2, with a chain of two releases. Control: another period's file is farther away."""
    second = second_by_strata
    every = history(second)
    assert {label: [one["period"] for one in periods] for label, periods in every.items()} == {
        "l0": ["2021", "2022"],
        "l1": ["2021", "2022"],
    }
    for code, periods in enumerate(every.values()):
        assert {row[2] for one in periods for row in one["codes"]} == {code}
    assert problems(second / "public") == []
    assert far(second, 2) < 5.0 < far(second, 8)


def test_strata_of_other_levels_are_refused(first_by_strata: dict[str, Any], tmp_path: Path) -> None:
    """The levels of c2 in another order: its totals would be those of the other stratum."""
    first, tables = first_by_strata, [["c0", "c1"], ["c1", "c2"]]
    job = tmp_path / "other"
    job.mkdir()
    keys = {"mechanism": {"name": "tables"}, "reference": first, "period": "2022", "budget": LAPLACE, "strata": ["c2"]}
    path = sized_job(job, LEVELS, tables, RECORDS, **keys)
    survey(2).to_parquet(job / "current.parquet")
    text = json.loads(path.read_text())
    text["columns"]["c2"]["levels"].reverse()
    path.write_text(json.dumps(text))
    with pytest.raises(DataError, match=r"columns\.c2"):
        dpdist.run(path, tmp_path / "ws-other")


def test_a_stratum_that_a_period_lacked_is_refused_with_a_remedy(
    first_by_strata: dict[str, Any], second_by_strata: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three periods has no record of one stratum. Control: a second that has goes on from the first."""
    keys: dict[str, Any] = {"strata": ["c2"]}
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "survey", lambda number, every=survey: every(number).query("c2 == 'l0'"))
        second = run(tmp_path, 2, first_by_strata, **keys)
    assert list(history(second)) == ["l0"]
    with pytest.raises(DataError, match="stratum l1") as refused:
        run(tmp_path, 3, {"release": str(second / "public")}, **keys)
    assert "begin again with a public file" in str(refused.value)
    assert list(history(second_by_strata)) == ["l0", "l1"]


def test_losses_under_zcdp_add_up_in_rho(first: dict[str, Any], tmp_path: Path) -> None:
    """A release under pure ε = 2 is 2-zCDP. Control: the ε of both do not add up to the chain's."""
    second = run(tmp_path, 2, first, **GAUSSIAN, budget=ZCDP)
    third = run(tmp_path, 3, {"release": str(second / "public")}, **GAUSSIAN, budget=ZCDP)
    delta = Fraction(1, 10**6)
    for workspace, rho in ((second, Fraction(5, 2)), (third, Fraction(3))):
        reference = statement_of(workspace)["reference"]
        assert Fraction(reference["chain_rho"]) == Fraction(reference["chain_substitution_rho"]) == rho
        assert Fraction(reference["chain_delta"]) == delta
        assert Fraction(reference["chain_epsilon"]) == epsilon_of(rho, delta)
        assert Fraction(reference["chain_epsilon"]) != 2 + epsilon_of(Fraction(1, 2), delta)
        assert (
            f"the total loss is at most ε = {reference['chain_epsilon']} at δ = 0.000001"
            in statement_of(workspace)["guarantee_in_words"]
        )
        assert problems(workspace / "public") == []
    assert [one.get("rho") for one in statement_of(third)["reference"]["chain"]] == [None, "0.5"]


def test_a_release_whose_job_states_epsilon_and_delta_goes_on(tmp_path: Path) -> None:
    """Its ρ is rounded down, so that a smaller ε follows from it than the job states. Control: an ε that is too small."""
    budget = {"epsilon": "1", "delta": "1e-6", "adjacency": "substitution"}
    first = run(tmp_path, 1, {"path": str(tmp_path / "job1" / "earlier.parquet")}, **GAUSSIAN, budget=budget)
    second = run(tmp_path, 2, {"release": str(first / "public")}, **GAUSSIAN, budget=budget)
    rho, delta = rho_of(Fraction(1), Fraction(1, 10**6)), Fraction(1, 10**6)
    assert epsilon_of(rho, delta) < 1
    assert Fraction(statement_of(second)["reference"]["chain_rho"]) == 2 * rho
    assert problems(second / "public") == []
    costs = {"adjacency": "substitution", "rho": str(rho), "substitution_rho": str(rho), "delta": "0.000001"}
    assert Costs.model_validate(costs | {"epsilon": "1", "substitution_epsilon": "1"})
    with pytest.raises(ValueError, match="follow from rho"):
        Costs.model_validate(costs | {"epsilon": "0.99", "substitution_epsilon": "0.99"})


def test_columns_may_come_in_another_order(first: dict[str, Any], tmp_path: Path) -> None:
    """At ε = .02 the second release has the first one's means at ε = 2. Control: in the first release's own order, too."""
    budget = {"epsilon": "0.02", "adjacency": "substitution"}
    tables = [{"name": "t", "by": [["c1", "c2"], ["c0", "c1"]], "statistics": ["count", {"mean": "y0"}]}]
    for number, keys in ((2, {"tables": tables}), (3, {})):
        assert far(run(tmp_path, number, first, budget=budget, **keys), 1) < 5.0


def test_a_chain_begins_without_a_reference(first_of_bins: Path, tmp_path: Path) -> None:
    """Bins and effects in the first period, whose sums predict the second one, and both the third.

    Control: another period's file is farther away.
    """
    first = first_of_bins / "ws1"
    second = run(tmp_path, 2, {"release": str(first / "public")})
    third = run(tmp_path, 3, {"release": str(second / "public")})
    for number, workspace in ((1, first), (2, second), (3, third)):
        assert problems(workspace / "public") == []
        assert far(workspace, number) < 5.0
    assert far(third, 9) > 5.0
    assert [len(one["counts"]) > 0 for one in history(third)["all"]] == [True, False, False]
    texts = json.dumps(statement_of(third), ensure_ascii=False)
    assert "noisy counts" in texts
    assert "released/donors.parquet" not in texts
    assert NOT_REFUSED not in statement_of(third)["assumptions"], "there is no such file"
    before = public_files(third)
    dpdist.publish(third)
    assert public_files(third) == before
    plan = dpdist.plan(tmp_path / "job3" / "job.json")
    assert predicted(plan).why == ""


def test_sums_are_published_under_the_limits_of_their_measurement_alone(
    first: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that chooses other limits is refused. Control: this one publishes the same again."""
    workspace = Path(first["release"]).parent
    before = public_files(workspace)
    dpdist.publish(workspace)
    assert public_files(workspace) == before
    monkeypatch.setattr(measurements, "PLANNED_DRIFT", 0.2)
    cells.PLANS.clear()
    cells.SUMS.clear()
    with pytest.raises(WorkspaceError, match="limits that differ from those under which the noisy sums were measured"):
        dpdist.publish(workspace)
    assert public_files(workspace) == before
    (fault,) = problems(workspace / "public")
    assert fault.startswith("released/set-1.json: this version of dpdist chooses limits that differ"), fault
    monkeypatch.setattr(verifying, "version_of", lambda package: "99.0")
    assert problems(workspace / "public") == [], "of another version it is no fault"
    (told,) = [text for text in verifying.remade(workspace / "public").unchecked if "chooses limits that differ" in text]
    assert told.startswith("that released/set-1.json is as this version makes it from released/")
    cells.PLANS.clear()


def test_a_package_of_an_earlier_version_brings_the_records_of_its_reference(tmp_path: Path) -> None:
    """Its reference had the records of `people` under seed 2: errors are predicted as from this file. Control: another."""
    found = list[list[float]]()
    people((2, 3), 400, 1, 2).to_parquet(tmp_path / "same.parquet")
    people((2, 3), 400, 1, 9).to_parquet(tmp_path / "other.parquet")
    references = (
        {"release": str(PACKAGE)},
        *({"path": str(tmp_path / f"{name}.parquet"), "period": "2022"} for name in ("same", "other")),
    )
    for number, reference in enumerate(references):
        folder = tmp_path / f"package{number}"
        folder.mkdir()
        path = sized_job(folder, (2, 3), [["c0", "c1"]], 400, reference=reference, period="2025")
        people((2, 3), 400, 1, 5).to_parquet(folder / "current.parquet")
        prediction = predicted(dpdist.plan(path))
        assert prediction.why == ""
        found.append(
            [figure for one in prediction.statistics() for figure in (one.median, one.largest, one.reference_alone)]
        )
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert found[0] != pytest.approx(found[2], rel=1e-3)
    dpdist.run(tmp_path / "package0" / "job.json", tmp_path / "ws")
    assert problems(tmp_path / "ws" / "public") == []
    assert [one["period"] for one in statement_of(tmp_path / "ws")["reference"]["chain"]] == ["2024"]


def test_another_budget_is_named_without_the_histograms_that_follow_it(first_of_bins: Path, tmp_path: Path) -> None:
    """Control: another part of it for histograms is named, too."""
    path, job = tmp_path / "job.json", json.loads((first_of_bins / "job1" / "job.json").read_text())
    for epsilon, named in (("1/2", ["budget"]), ("1/4", ["budget", "reference"])):
        other = {"budget": {**LAPLACE, "epsilon": "3"}, "reference": {"histogram": {"epsilon": epsilon}}}
        path.write_text(json.dumps(job | other))
        with pytest.raises(JobError) as refused:
            dpdist.publish(first_of_bins / "ws1", job=path)
        assert [one.where for one in refused.value.problems] == named


@pytest.mark.parametrize(("factor", "found"), [(1.0, False), (0.9, True)])
def test_noise_of_a_former_mechanism_loses_what_its_record_states(factor: float, found: bool, tmp_path: Path) -> None:
    """A package of dpdist 0.2 whose noisy figures have a tenth less noise than its proof record. Control: its own."""
    public = tmp_path / "public"
    shutil.copytree(PACKAGE, public)
    figures = pd.read_parquet(public / "measurements.parquet")
    figures.assign(scale=figures["scale"] * factor).to_parquet(public / "measurements.parquet")
    statement = statement_of(public) | {"protected_by": "0.2.0"}
    answer = rederivation(public, read_job(public, "released/job.json"), statement)
    assert answer.derived
    assert [str(one).startswith("measurements.parquet: noise") for one in answer.faults] == [True] * found


def test_counts_of_bins_of_a_former_mechanism_answer_their_own_query(tmp_path: Path) -> None:
    """A package begun without a reference had figures of bins, too. Control: sums with a tenth less noise are found."""
    public = tmp_path / "public"
    shutil.copytree(PACKAGE, public)
    record = json.loads((public / "released/proof.json").read_text())
    histograms = {"name": "counts of histograms", "scale": "4", "times": 1, "in_parts": False}
    record["queries"].append({**record["queries"][0], **histograms})
    (public / "released/proof.json").write_text(json.dumps(record))
    statement = statement_of(public) | {"protected_by": "0.2.0"}
    figures = pd.read_parquet(public / "measurements.parquet")
    bins = figures.head(1).assign(statistic="count in bins of pay", scale=4.0, lattice=1.0, measurement=10**6)
    for factor, found in ((1.0, False), (0.9, True)):
        sums = figures.assign(scale=figures["scale"] * factor)
        pd.concat([sums, bins]).to_parquet(public / "measurements.parquet")
        answer = rederivation(public, read_job(public, "released/job.json"), statement)
        noise = [str(one) for one in answer.faults if str(one).startswith("measurements.parquet: noise")]
        assert bool(noise) == found, noise


def test_a_stored_job_of_a_former_mechanism_is_refused_by_name(tmp_path: Path) -> None:
    job = read_job(PACKAGE, "released/job.json")
    for use in (dpdist.validate, dpdist.plan, lambda job: dpdist.run(job, tmp_path / "ws")):
        with pytest.raises(JobError, match=r"'table_package' was removed in dpdist 0\.3"):
            use(job)
