"""Releases of several outcomes, end to end: what is published and evaluated of each, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from edited_text import edited
from public_files import statement_of
from rich.console import Console
from simulated_doctorates import simulated

import dpdist
from dpdist.audit.auditing import audit
from dpdist.cli.report import report_text
from dpdist.core.errors import DataError, JobError
from dpdist.job import Job
from dpdist.job.checks import contradictions
from dpdist.survey.simulate import FIELDS, HOURS, HOURS_SD, HOURS_SLOPE, SEXES, Doctorates
from dpdist.survey.source import open_source

Z_LIMIT = 4.9
"""Two-sided normal tail 1e-6 a figure; some 40 figures a criterion."""
JOB = (
    simulated(20000, 1500, 7)
    + """\
  hours: {bounds: [0, 200]}
universe: [{column: field, keep: [biology, physical_sciences, psychology, engineering]}]
survey: {weight: weight, design_strata: [field]}
strata: [field]
outcome: [salary, hours]
model: {family: lognormal, predictors: [sex]}
mechanism: {name: weighted}
budget: {epsilon: "10.8"}
synthetic_sets: 3
sampler: {draws: 300}
tables:
  - {name: work, by: [field, sex], statistics: [count, {mean: salary}, {mean: hours}, {total: hours}]}
  - {name: hours, statistics: [{mean: hours}]}
compare: [laplace, laplace_composed, laplace_consistent]
"""
)
MODEL = "model: {family: lognormal, predictors: [sex]}\n"
THREE = "[salary, hours, age]"


def job(*changes: tuple[str, str], **runtime: Any) -> Job:
    text = edited(JOB, *changes)
    parsed = dpdist.parse_job(text)
    return parsed.model_copy(update={"runtime": parsed.runtime.model_copy(update=runtime)})


def sample(said: Job) -> pd.DataFrame:
    source = open_source(said)
    table = pa.Table.from_batches(source.batches(["field", "sex", "salary", "hours", "weight"])).to_pandas()
    kept = set(said.universe[0].keep) if said.universe else set(FIELDS)
    return table[table["field"].isin(kept)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("runs") / "several"
    dpdist.run(job(), workspace)
    return workspace


def test_a_report_shows_every_figure_on_a_screen_of_80_columns(finished: Path) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report_text(finished, False))
    shown = console.export_text()
    assert all(name in shown for name in ("count", "mean of", "total of", "salary", "hours")), "heads break between words"
    assert not [line for line in shown.splitlines() if "…" in line and not line.startswith("…")]


def test_errors_of_two_outcomes_are_never_merged(finished: Path) -> None:
    """A mean of hours and one of salaries have a table, worst cells and a verdict each, on a screen of 80 columns too."""
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report_text(finished, True))
    shown = console.export_text()
    verdicts = " ".join(shown[shown.index("CONFIDENTIAL VERDICT") :].split())
    for name in ("mean of salary", "mean of hours"):
        assert f"work, {name}: errors over" in shown
        assert f"work, {name}: worst cells" in shown
        assert f"work, {name}: 90 % intervals cover" in verdicts
    assert max(map(len, shown.splitlines())) <= 80
    assert not [line for line in shown.splitlines() if "…" in line and not line.startswith("…")]


def cell(table: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    for name, value in wanted.items():
        table = table[table[name].isna() if value is None else table[name] == value]
    return table


def test_every_outcome_stands_in_tables_and_records(finished: Path) -> None:
    table = pq.read_table(finished / "public/tables/work.parquet").to_pandas()
    whole = cell(table, field="Total", sex="Total", estimator="parameters")
    shown = list(zip(whole["statistic"], whole["variable"].fillna(""), strict=True))
    assert shown == [("count", ""), ("mean", "salary"), ("mean", "hours"), ("total", "hours")]
    count, salary, hours, total = whole["estimate"]
    assert hours == pytest.approx(total / count, rel=1e-3), "means over sets of ratios and their ratio"
    assert 30 < hours < 60
    assert 5e4 < salary < 2e5
    assert (whole["standard_error"] > 0).all()
    assert pq.read_table(finished / "public/tables/hours.parquet").to_pandas()["estimate"][0] == hours
    for k in (1, 2, 3):
        records = pq.read_table(finished / f"public/synthetic/set-{k}.parquet").to_pandas()
        assert list(records)[-3:] == ["salary", "hours", "weight"]
        assert np.corrcoef(np.log(records["salary"]), np.log(records["hours"]))[0, 1] > 0.3
    from_records = cell(table, field="Total", sex="Total", estimator="records", statistic="mean", variable="hours")
    sets = [pq.read_table(finished / f"public/synthetic/set-{k}.parquet").to_pandas() for k in (1, 2, 3)]
    means = [np.average(s["hours"], weights=s["weight"]) for s in sets]
    assert from_records["estimate"].item() == pytest.approx(np.mean(means), rel=1e-12)


def test_the_statement_and_the_released_job_name_every_outcome(finished: Path) -> None:
    statement = statement_of(finished)
    assert "(log salary, log hours, log weight)" in statement["model"]["parameters"]
    (step,) = (step for step in statement["post_processing"] if "public bounds" in step)
    assert ("salary: [" in step, "hours: [" in step) == (True, True)
    assert json.loads((finished / "public/released/job.json").read_text())["outcome"] == ["salary", "hours"]


def test_the_evaluation_has_direct_estimates_and_truth_of_every_outcome(finished: Path) -> None:
    rows, records = pd.read_parquet(finished / "confidential/evaluation/work.parquet"), sample(job())
    survey = Doctorates(job().input.simulate)  # type: ignore[arg-type]
    for field in ("biology", "engineering"):
        own = records[(records["field"] == field) & (records["sex"] == "female")]
        i, j = FIELDS.index(field), SEXES.index("female")
        for name, total in (("salary", survey.truth.totals["salary"]), ("hours", survey.truth.totals["hours"])):
            found = cell(rows, field=field, sex="female", statistic="mean", variable=name)
            assert found["direct"].item() == pytest.approx(np.average(own[name], weights=own["weight"]), rel=1e-12)
            assert found["truth"].item() == pytest.approx(total[i, j] / survey.truth.count[i, j], rel=1e-12)
            published = pq.read_table(finished / "public/tables/work.parquet").to_pandas()
            same = cell(published, field=field, sex="female", statistic="mean", variable=name, estimator="parameters")
            assert found["synthetic"].item() == same["estimate"].item()
            assert found["laplace"].item() != found["direct"].item()
    assert list(pd.read_parquet(finished / "confidential/evaluation/hours.parquet")["variable"]) == ["hours"]


def test_bounds_are_those_of_the_joint_density(finished: Path) -> None:
    """The final fit's record bounds against log_lik, which the model's own tests hold to SciPy."""
    bounds = pd.read_parquet(finished / "confidential/bounds.parquet")
    assert (bounds["weighted_record_bound"] <= 1.8).all()
    with dpdist.open_log_lik(finished) as store:
        values = store["log_lik"].to_numpy().reshape(300, -1)
        record = store["record"].to_numpy().ravel()
    largest = pd.Series(np.abs(values).max(axis=0), index=record)[bounds["record"]].to_numpy()
    np.testing.assert_allclose(bounds["record_bound"], largest, rtol=1e-8)


@pytest.mark.parametrize("synthesis", ["fbs", "fbp"])
def test_means_of_both_outcomes_find_the_truth(synthesis: str, tmp_path: Path) -> None:
    """Without privacy weights the model is true: every field's mean within Z_LIMIT errors. Selection grows with salary and
    hours grow with salary, so means without weights are too high: the negative control."""
    said = job(
        ("population: 20000, sample: 1500", "population: 60000, sample: 4000"),
        ("outcome: [salary, hours]", "outcome: [hours, salary]"),
        ("predictors: [sex]", f"predictors: [sex], synthesis: {synthesis}"),
        ("{name: weighted}", "{name: unweighted}"),
        ("synthetic_sets: 3", "synthetic_sets: 2"),
        ("compare: [laplace, laplace_composed, laplace_consistent]", "compare: []"),
    )
    dpdist.run(said, tmp_path)
    rows = pd.read_parquet(tmp_path / "confidential/evaluation/work.parquet")
    published = pq.read_table(tmp_path / "public/tables/work.parquet").to_pandas()
    records = sample(said)
    for estimator in ("parameters", "records"):
        for name in ("salary", "hours"):
            mine = cell(published, statistic="mean", variable=name, estimator=estimator, suppressed=False)
            true = cell(rows, statistic="mean", variable=name).dropna(subset="truth")
            both = mine.merge(true[["field", "sex", "truth"]], on=["field", "sex"])
            assert len(both) == 15
            assert ((both["estimate"] - both["truth"]).abs() / both["standard_error"]).max() < Z_LIMIT
            whole = cell(both, field="Total", sex="Total")
            plain = (records[name].mean() - whole["truth"].item()) / whole["standard_error"].item()
            assert plain > Z_LIMIT, "selection must matter"


def test_hours_are_a_regression_on_salary_with_streams_of_their_own() -> None:
    survey = Doctorates(job().input.simulate)  # type: ignore[arg-type]
    field, sex, salary, _ = next(iter(survey.population()))
    hours = np.log(survey.hours(0, field, sex, salary))
    own = (field == 0) & (sex == 0)
    slope, intercept = np.polyfit(np.log(salary[own] / 95e3), hours[own], 1)
    assert slope == pytest.approx(HOURS_SLOPE, abs=0.03)
    assert np.exp(intercept) == pytest.approx(HOURS, rel=0.02)
    left = hours[own] - intercept - slope * np.log(salary[own] / 95e3)
    assert left.std() == pytest.approx(HOURS_SD, rel=0.05)
    again = survey.hours(0, field, sex, salary)
    np.testing.assert_array_equal(np.log(again), hours)


def test_raked_totals_hold_for_every_outcome(tmp_path: Path) -> None:
    said = job(("synthetic_sets: 3", "synthetic_sets: 2\nrake: [{by: [sex], totals: {male: 9000, female: 6500}}]"))
    dpdist.run(said, tmp_path)
    table = pq.read_table(tmp_path / "public/tables/work.parquet").to_pandas()
    whole = cell(table, field="Total", sex="male")
    for estimator in ("parameters", "records"):
        one = cell(whole, estimator=estimator).set_index(["statistic", "variable"])["estimate"]
        assert one["count"].item() == pytest.approx(9000, rel=1e-9)
        assert one["total", "hours"] / one["mean", "hours"] == pytest.approx(9000, rel=5e-3)


def test_a_reference_of_the_same_outcomes_freezes_the_weights(tmp_path: Path) -> None:
    earlier = Doctorates(job().input.simulate.model_copy(update={"seed": 3}))  # type: ignore[union-attr]
    pq.write_table(pa.Table.from_batches(earlier.batches()), tmp_path / "earlier.parquet")
    reference = f'budget: {{epsilon: "10.8"}}\nreference: {{path: {tmp_path / "earlier.parquet"}}}'
    dpdist.run(
        job(('budget: {epsilon: "10.8"}', reference), ("{name: weighted}", "{name: weighted, aim: 0.5}")), tmp_path / "run"
    )
    bounds = pd.read_parquet(tmp_path / "run/confidential/bounds.parquet")
    assert bounds["weighted_record_bound"].max() <= 1.8
    assert bounds["privacy_weight"].std() > 0
    table = pq.read_table(tmp_path / "run/public/tables/hours.parquet").to_pandas()
    assert 30 < table["estimate"][0] < 60


def test_an_audit_takes_several_outcomes(finished: Path) -> None:
    found = audit(finished, records=2).disclose_to_custodian()
    assert found["records"].item() == 2 * 4
    assert found["largest_share"].item() > 0


@pytest.mark.parametrize(
    ("changes", "where", "says"),
    [
        ([("family: lognormal", "family: beta")], "outcome", "'beta' models one outcome.*lognormal"),
        ([("family: lognormal", "family: poisson_regression")], "outcome", "use family: lognormal"),
        ([("sampler: {draws: 300}", "sampler: {name: stan}")], "sampler.name", "use exact"),
        ([("{name: weighted}", "{name: censor_uw}")], "mechanism.name", "'censor_uw' takes one outcome"),
        (
            [(MODEL, ""), ("{name: weighted}", "{name: laplace_composed, sensitivity: public}")],
            "mechanism.name",
            "'laplace_composed' takes one outcome",
        ),
        ([("{name: weighted}", "{name: weighted, weights: cluster}")], "mechanism.weights", "'cluster' weights by"),
        ([("[salary, hours]", "[salary, salary]")], "outcome", "named twice"),
        ([("[salary, hours]", "[salary, age]")], "outcome", "column 'age' needs public bounds"),
        ([("[salary, hours]", "[salary, weight]")], "survey.weight", "'weight' is used as outcome"),
        ([("{total: hours}", "{mean: salary}")], "tables.0.statistics.3", "'mean of salary' is named twice"),
        ([("{total: hours}", "count")], "tables.0.statistics.3", "'count' is named twice"),
        ([("{total: hours}", "{total: sex}")], "tables.0.statistics.3", "{total: salary} or {total: hours}"),
        ([("hours: {bounds: [0, 200]}", "hours: {bounds: [-1, 200]}")], "columns.hours.bounds", "narrow them"),
        (
            [("predictors: [sex]", "predictors: [sex], prior: {name: proper, records: 2.1}"), ("[salary, hours]", THREE)],
            "model.prior.records",
            "more than 3 records",
        ),
    ],
)
def test_what_takes_one_outcome_refuses_several_by_name(changes: list[tuple[str, str]], where: str, says: str) -> None:
    with pytest.raises(JobError) as refused:
        job(*changes)
    told = [f"{p.fault}: {p.remedy}" for p in refused.value.problems if p.where == where]
    assert told, [p.where for p in refused.value.problems]
    assert pd.Series(told).str.contains(says.replace("{", r"\{").replace("}", r"\}")).any(), told


def test_an_outcome_is_a_name_or_names() -> None:
    for wrong in ("outcome: 3", "outcome: []", "outcome: [salary, 4]"):
        with pytest.raises(JobError) as refused:
            job(("outcome: [salary, hours]", wrong))
        assert [p.where for p in refused.value.problems] == ["outcome"]
    of_one = ("{mean: hours}, {total: hours}", "{total: salary}"), ("{mean: hours}", "{mean: salary}")
    assert job(("[salary, hours]", "[salary]"), *of_one).outcome == "salary"
    assert contradictions(job()) == []


def test_calibration_of_several_outcomes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="one outcome"):
        dpdist.calibrate(job(), tmp_path / "out.yaml", reference=tmp_path / "none.parquet", period="2016")


def test_every_outcome_is_checked_and_its_rules_hold(tmp_path: Path) -> None:
    records = sample(job()).reset_index(drop=True)
    records.loc[3, "hours"], records.loc[5, "hours"] = np.nan, 0.0
    records.to_parquet(tmp_path / "survey.parquet")
    at = (
        "input: {simulate: {kind: doctorates, population: 20000, sample: 1500, seed: 7}}",
        f"input: {{path: {tmp_path / 'survey.parquet'}}}",
    )
    with pytest.raises(DataError) as refused:
        dpdist.plan(job(at))
    assert sorted((p.where, p.fault) for p in refused.value.problems) == [("hours", "missing values"), ("hours", "zeros")]
    said = job(at, ("hours: {bounds: [0, 200]}", "hours: {bounds: [0, 200], missing: drop, zeros: drop}"))
    assert said.outcome_dependent_rules == ("hours: missing dropped", "hours: zeros dropped")
    assert dpdist.plan(said).crosstab.count.sum() == len(records) - 2
    records.assign(hours=40.0).to_parquet(tmp_path / "survey.parquet")
    with pytest.raises(DataError, match="same for all records"):
        dpdist.plan(job(at))
    few = records.dropna().groupby(["field", "sex"]).head(2)
    few[few["hours"] > 0].to_parquet(tmp_path / "survey.parquet")
    with pytest.raises(DataError, match=r"n > p \+ 2 = 4"):
        dpdist.plan(job(at))
