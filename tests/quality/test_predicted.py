"""Errors are predicted by running the mechanism on public records: they are those of a run, at no cost."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import invoke, succeed

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.errors import JobError
from dpdist.core.keys import Key
from dpdist.job.loading import parse_job
from dpdist.models.protocol import ErrorsOfCells
from dpdist.opening.results import open_evaluation
from dpdist.quality.errors import number_of_statistics
from dpdist.quality.predicted import prediction as predicting
from dpdist.quality.predicted.prediction import (
    NOT_PREDICTED,
    AtEpsilon,
    ErrorPrediction,
    predicted,
    predicted_before,
)
from dpdist.quality.predicted.replicates import DirectFigures, ReplicateFigures, direct_of
from dpdist.quality.predicted.scores import FALSE_ALARM, FIGURES, named_above
from dpdist.quality.predicted.words import alarms, epsilon_for, in_words, not_predicted, proposals, worth
from dpdist.quality.summary import errors_in_words, in_words as verdict_in_words, verdicts

CELLS = {"a": 1500, "b": 700, "c": 300, "d": 120}
JOB = """
dataset: people
period: "2024"
input: {path: current.parquet}
columns:
  region: {levels: [a, b, c, d]}
  income: {bounds: [0, 400000], outside: clip}
  weight: {bounds: [0.5, 300], outside: clip}
survey: {weight: weight}
outcome: income
mechanism: {name: tables}
reference: {path: earlier.parquet, provenance: simulated, period: "2022"}
budget: {epsilon: "1", adjacency: substitution}
tables: [{name: incomes, by: [region], statistics: [count, {mean: income}]}]
runtime: {executor: serial}
"""
FIRST_YEAR = JOB.replace('reference: {path: earlier.parquet, provenance: simulated, period: "2022"}\n', "")


def people(seed: int, constant: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    region = np.repeat(list(CELLS), list(CELLS.values()))
    weight = np.full(len(region), 40.0) if constant else np.exp(rng.normal(3.3, 0.6, len(region)))
    return pd.DataFrame({"region": region, "income": np.exp(rng.normal(10.3, 0.6, len(region))), "weight": weight})


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predictions that tests share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPDIST_CACHE", str(cache))
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed).to_parquet(f"{name}.parquet")
    return tmp_path


@pytest.fixture
def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing was predicted before."""
    monkeypatch.setenv("DPDIST_CACHE", str(folder / "cache"))
    return folder / "cache"


def medians(prediction: ErrorPrediction) -> list[list[float]]:
    return [[one.median for one in at.statistics] for at in prediction.curve.values()]


def command(*words: str) -> tuple[int, str]:
    ended = invoke(*words)
    return ended.exit_code, ended.output


def test_a_run_errs_as_its_plan_predicts(folder: Path) -> None:
    """Medians of 5 cells over 4 draws of noise and one draw of files: a factor of 2.5 either way. Control: at an ε of a
    twentieth errors are predicted, and measured, at least twice as large."""
    medians = dict[str, tuple[float, float]]()
    for epsilon in ("1", "0.05"):
        job = parse_job(JOB.replace('"1"', f'"{epsilon}"'))
        (of_counts, of_means) = predicted(dpdist.plan(job)).statistics()
        assert (of_counts.name, of_means.name) == ("count", "mean")
        errors = list[pd.DataFrame]()
        for draw in range(4):
            dpdist.run(job, folder / f"{epsilon}-{draw}", study=Key(bytes(32)).child(str(draw)))
            errors.append(open_evaluation(folder / f"{epsilon}-{draw}")["incomes"])
        rows = pd.concat(errors)
        measured = rows.groupby("statistic")["synthetic_error_in_se"].median()
        for one in (of_counts, of_means):
            assert 1 / 2.5 < one.median / measured[one.name] < 2.5, (epsilon, one, measured)
        medians[epsilon] = of_counts.median, float(measured["count"])
    assert all(low > 2.0 * high for low, high in zip(medians["0.05"], medians["1"], strict=True))


def test_a_prediction_is_computed_once_and_follows_from_what_is_public(own_cache: Path) -> None:
    """Other records of the same sizes give the same prediction. Controls: another ε, another reference, other sizes."""
    plan = dpdist.plan(parse_job(JOB))
    assert predicted_before(plan) is None
    first = predicted(plan)
    assert predicted_before(plan) is not None
    assert len(list((own_cache / "predictions").glob("*.parquet"))) == 1
    people(77).to_parquet("current.parquet")
    again = predicted_before(dpdist.plan(parse_job(JOB)))
    assert again is not None
    assert medians(again) == medians(first)
    people(1).iloc[1:].to_parquet("current.parquet")
    assert predicted_before(dpdist.plan(parse_job(JOB))) is None
    people(1).to_parquet("current.parquet")
    assert predicted_before(dpdist.plan(parse_job(JOB.replace('"1"', '"2"')))) is None
    people(3).to_parquet("earlier.parquet")
    assert predicted_before(dpdist.plan(parse_job(JOB))) is None


def test_a_damaged_prediction_is_made_again(own_cache: Path) -> None:
    plan = dpdist.plan(parse_job(JOB))
    first = predicted(plan)
    (path,) = (own_cache / "predictions").glob("*.parquet")
    path.write_bytes(b"PAR1 cut off")
    assert predicted_before(plan) is None
    assert medians(predicted(plan)) == medians(first)


def test_secret_sizes_enter_no_prediction() -> None:
    """Under add_remove the sizes of replicates are the reference's. Control: under substitution the file's."""
    halved = people(1).iloc[::2]
    before = [
        medians(predicted(dpdist.plan(parse_job(JOB.replace("substitution", kind)))))
        for kind in ("add_remove", "substitution")
    ]
    halved.to_parquet("current.parquet")
    after = [
        medians(predicted(dpdist.plan(parse_job(JOB.replace("substitution", kind)))))
        for kind in ("add_remove", "substitution")
    ]
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_plan_as_json_has_the_predicted_errors_beside_the_reference_alone() -> None:
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    shown = succeed("plan", "job.yaml", "--json")
    made = json.loads(shown.splitlines()[-1])
    count, mean = made["predicted"]
    assert [one["statistic"] for one in (count, mean)] == ["count", "mean"]
    assert mean["outcome"] == "income"
    for one in (count, mean):
        assert 0.0 < one["median"] < one["largest"]
        assert one["reference_alone"] > 0.0
        assert one["coverage"] is None, "formulas predict errors, not intervals"
        assert one["over_4"] >= 0.0
    assert {one["epsilon"] for one in made["curve"]} == {0.5, 1.0, 2.0, 4.0}
    medians = [one["median"] for one in made["curve"] if one["statistic"] == "count"]
    assert medians == sorted(medians, reverse=True)


def test_plan_as_json_has_the_coverage_of_replicates() -> None:
    """Replicates of a public file have intervals; every statistic has a share of them, and no reference to compare."""
    Path("job.yaml").write_text(FIRST_YEAR, encoding="utf-8")
    shown = succeed("plan", "job.yaml", "--public", "earlier.parquet", "--json")
    count, mean = json.loads(shown.splitlines()[-1])["predicted"]
    for one in (count, mean):
        assert 0.0 <= one["coverage"] <= 1.0
        assert one["reference_alone"] is None


def opened_page(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[str, dict[str, Any]]:
    """The page that `plan --open` writes and opens, and the plan as JSON."""
    launched = list[str]()
    monkeypatch.setattr("typer.launch", lambda url: launched.append(url) or 0)
    shown = succeed("plan", "job.yaml", "--open", "--json", *words)
    assert launched == [Path("job.plan.html").absolute().as_uri()]
    return Path("job.plan.html").read_text(encoding="utf-8"), json.loads(shown.splitlines()[-1])


def test_the_page_of_a_plan_has_the_figures_of_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every predicted figure and every point of the curve. Control: those of another ε are not these."""
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    html, made = opened_page(monkeypatch)
    assert made["page"] == str(Path("job.plan.html").absolute())
    grids = {head.partition(",")[0]: rows for head, rows in figures_of(html)}
    for one, figures in zip(made["predicted"], grids["At the job's ε"], strict=True):
        expected = [
            one["cells"],
            *(one[name] for name in FIGURES if name not in {"given_n", "relative", "largest_relative"}),
        ]
        # Formulas predict no coverage, and the page has no column for what no table has.
        expected = [figure for figure in expected if figure is not None]
        assert figures[: len(expected)] == pytest.approx(expected)
        others = [other["median"] for other in made["curve"] if other["statistic"] == one["statistic"]]
        assert len(set(others)) == 4, "control"
    medians = [[one["median"] for one in made["curve"] if one["statistic"] == statistic] for statistic in ("count", "mean")]
    assert grids["Median error by ε"] == [pytest.approx(curve) for curve in medians]
    assert html.count('<path class="curve g') == 2
    assert html.count('<path class="curve alone g') == 2
    (worthwhile,) = worth(predicted(dpdist.plan(parse_job(JOB))))
    assert worthwhile[1:] in html
    assert set(re.findall(r"\w+://[^\"]*", html)) == {"http://www.w3.org/2000/svg"}, "it loads nothing"


def test_the_first_line_of_a_plan_says_whether_the_release_beats_its_reference() -> None:
    """At an ε of a thousandth it does not, and the line says from which ε on it would; at 50 it does. Also in JSON."""
    for epsilon, first in (
        ("0.001", "not clearly, if the survey has not changed: at ε = 0.001"),
        ("50", "yes: at ε = 50"),
    ):
        Path("job.yaml").write_text(JOB, encoding="utf-8")
        shown = succeed("plan", "job.yaml", "--set", f"budget.epsilon={epsilon}")
        line = " ".join(shown[shown.index("better than the reference") :].split())
        assert shown.index("better than the reference") < shown.index("records")
        assert line.startswith(f"better than the reference {first}"), line
        answered = json.loads(
            command("plan", "job.yaml", "--set", f"budget.epsilon={epsilon}", "--json")[1].splitlines()[-1]
        )
        assert answered["better_than_reference"].startswith(first)


def test_the_page_of_counts_that_the_design_fixes_has_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed, constant=True).to_parquet(f"{name}.parquet")
    fixed = JOB.replace("{weight: weight}", "{weight: weight, design_strata: [region]}")
    Path("job.yaml").write_text(fixed, encoding="utf-8")
    html, made = opened_page(monkeypatch)
    grids = {head.partition(",")[0]: rows for head, rows in figures_of(html)}
    count = made["predicted"][0]
    assert count["median"] is None
    assert grids["At the job's ε"][0][-2:] == pytest.approx([count["relative"], count["largest_relative"]])
    assert "% of the figure" in html


def test_the_page_of_a_plan_without_a_public_file_has_the_reason_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("job.yaml").write_text(FIRST_YEAR, encoding="utf-8")
    html, made = opened_page(monkeypatch)
    assert f"Not known before the run, because {made['predicted'][0]['why']}" in html
    assert "<table" not in html
    assert "<svg" not in html
    assert "<table" in opened_page(monkeypatch, "--public", "earlier.parquet")[0], "control"


def test_a_single_figure_has_no_page() -> None:
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    code, shown = command("plan", "job.yaml", "--open", "--for-error", ".5")
    assert code == 2
    assert "leave one of them out" in shown
    assert not Path("job.plan.html").exists()


def figures_of(html: str) -> list[tuple[str, list[list[float]]]]:
    """Captions and rows of figures of a page's tables, without those of ε alone."""
    made = list[tuple[str, list[list[float]]]]()
    for table in html.split("<table ")[1:]:
        caption, _, body = table.partition("<caption>")[2].partition("</caption>")
        rows = body.partition("<tbody>")[2].partition("</tbody>")[0].split("<tr>")[1:]
        made.append((unescape(caption), [[float(value) for value in re.findall(r'data-v="([^"]+)"', row)] for row in rows]))
    return made


def test_without_a_public_file_nothing_is_predicted_and_the_reason_stands() -> None:
    """`largest` is null, not a figure that is not meant. Control: with a public file the same job has figures."""
    Path("job.yaml").write_text(FIRST_YEAR, encoding="utf-8")
    made = json.loads(command("plan", "job.yaml", "--json")[1].splitlines()[-1])
    assert all(one["median"] is None and "no public file" in one["why"] for one in made["predicted"])
    shown = succeed("plan", "job.yaml", "--json", "--public", "earlier.parquet")
    made = json.loads(shown.splitlines()[-1])
    assert all(one["median"] > 0.0 for one in made["predicted"])
    assert all(one["reference_alone"] is None for one in made["predicted"])


def test_a_public_file_that_is_the_input_or_stands_beside_a_reference_is_refused() -> None:
    Path("job.yaml").write_text(FIRST_YEAR, encoding="utf-8")
    code, shown = command("plan", "job.yaml", "--public", "current.parquet")
    assert (code, "it is the current file" in shown) == (2, True), shown
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    code, shown = command("plan", "job.yaml", "--public", "earlier.parquet")
    assert (code, "the job has a reference already" in shown) == (2, True), shown


@pytest.mark.parametrize("statistics", ["[{mean: answered}]", "[count, {mean: answered}, {mean: income}, {total: income}]"])
def test_an_outcome_of_one_value_has_no_predicted_error_and_says_so(statistics: str) -> None:
    """The plan said `medians from nan (t0) to nan (t1)`. The second case has a line for each kind of figure."""
    for name in ("current", "earlier"):
        pd.read_parquet(f"{name}.parquet").assign(answered=1.0).to_parquet(f"{name}.parquet")
    tables = ", ".join(
        f"{{name: t{k}, by: {by}, statistics: {statistics}}}" for k, by in enumerate(("[region]", "[]", "[[region]]"))
    )
    text = JOB.replace("  weight: {b", "  answered: {bounds: [0, 1], outside: clip}\n  weight: {b").replace(
        "outcome: income", "outcome: [answered, income]"
    )
    job = parse_job(f"{text[: text.index('tables:')]}tables: [{tables}]\nruntime: {{executor: serial}}\n")
    words = list(in_words(predicted(dpdist.validate(job))))
    said = [line for line in words if "answered" in line]
    assert not any("nan" in line for line in words), words
    assert said
    assert all("no direct standard error to compare with" in line for line in said)
    others = [line for line in words if "income" in line]
    assert all("median" in line for line in others), "control: other figures have their errors"


def test_a_statistic_of_one_table_has_one_median() -> None:
    """The plan said `1 tables: medians from .59 (t) to .59 (t)`. Control: a statistic of several tables has two."""
    tables = ", ".join(f"{{name: t{k}, by: {by}, statistics: [count]}}" for k, by in enumerate(["[region]", "[]"] * 5))
    tables += ", {name: incomes, by: [region], statistics: [{total: income}]}"
    job = parse_job(f"{JOB[: JOB.index('tables:')]}tables: [{tables}]\nruntime: {{executor: serial}}\n")
    of_income, of_count = (
        next(line for line in in_words(predicted(dpdist.validate(job))) if line.startswith(name))
        for name in ("total of income", "count")
    )
    assert re.match(r"total of income \(1 table, incomes\): median error [\d.]+; ", of_income)
    assert "between" not in of_income
    assert re.match(r"count \(10 tables\): median error between [\d.]+ \(table t\d\) and ", of_count)


def test_the_epsilon_for_an_error_is_smaller_for_a_larger_error() -> None:
    """Its prediction there is about the wanted error; replicates are few, so a factor of 2 is allowed."""
    plan = dpdist.plan(parse_job(JOB))
    loose, tight = (epsilon_for(plan, error) for error in (1.0, 0.2))
    assert loose < tight
    there = predicted(dpdist.plan(parse_job(JOB.replace('"1"', f'"{float(tight):g}"')))).statistics()
    assert max(one.median for one in there) < 0.4
    with pytest.raises(JobError, match="no table 'wages'"):
        epsilon_for(plan, 0.5, "wages")
    with pytest.raises(JobError, match="even at ε = 64"):
        epsilon_for(plan, 1e-6)


def test_counts_that_the_design_fixes_have_relative_errors() -> None:
    """One weight in both files: direct errors given the design are 0. Control: weights that vary have direct errors."""
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed, constant=True).to_parquet(f"{name}.parquet")
    fixed = JOB.replace("{weight: weight}", "{weight: weight, design_strata: [region]}")
    prediction = predicted(dpdist.plan(parse_job(fixed)))
    count, mean = prediction.statistics()
    assert count.fixed == count.cells == 5
    assert np.isnan(count.median)
    assert 0.0 <= count.relative < 0.05
    assert mean.fixed == 0
    assert any("5 cells are fixed by the design" in line for line in in_words(prediction))
    described = prediction.described()[0]
    assert described["median"] is None
    assert described["relative"] is not None


def test_public_totals_are_proposed_where_the_design_fixes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Controls: totals that are declared, and weights that vary, for which nothing is proposed."""
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed, constant=True).to_parquet(f"{name}.parquet")
    fixed = JOB.replace("{weight: weight}", "{weight: weight, design_strata: [region]}")
    Path("job.yaml").write_text(fixed, encoding="utf-8")
    line = (
        "the design fixes the counts of 5 of 5 cells, so their direct estimates have no sampling error. If these totals "
        "are public, state rake: [{"
    )
    html, made = opened_page(monkeypatch)
    assert any(line in caution for caution in made["cautions"])
    assert line in unescape(html)
    totals = ", ".join(f"{label}: {40 * n}" for label, n in CELLS.items())
    raked = parse_job(f"{fixed}rake: [{{by: [region], totals: {{{totals}}}}}]\n")
    prediction = predicted(dpdist.plan(raked))
    assert prediction.statistics()[0].fixed == 5
    assert list(proposals(prediction)) == []
    assert prediction.statistics()[0].relative == pytest.approx(0.0, abs=1e-9)
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed).to_parquet(f"{name}.parquet")
    assert list(proposals(predicted(dpdist.plan(parse_job(fixed))))) == []


def rows_of(error: np.ndarray, replicates: int) -> pd.DataFrame:
    """Rows of one statistic with these errors, (replicate, cell)."""
    cells = error.shape[1]
    frames = [
        pd.DataFrame({"cell": [f"c{k}" for k in range(cells)], "error": np.abs(error[r])}).assign(replicate=r)
        for r in range(replicates)
    ]
    common = {"table": "t", "statistic": "count", "name": "count", "outcome": None, "records": 100.0}
    return pd.concat(frames).assign(**common, relative=np.nan, given_n=np.nan, held=np.nan, alone=np.nan)


@pytest.mark.parametrize(("replicates", "cells"), [(4, 25), pytest.param(2, 200, marks=pytest.mark.long)])
def test_alarms_have_the_stated_rate_and_name_published_cells(replicates: int, cells: int) -> None:
    """200 files without a cell whose error is above 1: FALSE_ALARM of them have an alarm, and twice as many are five
    deviations of chance. Detection: one cell of 12 direct errors is named in most files."""
    rng, job, named, detected = np.random.default_rng(5), parse_job(JOB), 0, 0
    for number in range(200):
        error = rng.laplace(0.0, np.sqrt(0.5), (replicates, cells))
        named += bool(list(alarms(ErrorPrediction(job, {1.0: AtEpsilon.of([rows_of(error, replicates)])}))))
        if number < 40:
            error[:, 3] *= 12.0
            lines = list(map(str, alarms(ErrorPrediction(job, {1.0: AtEpsilon.of([rows_of(error, replicates)])}))))
            detected += any("(c3" in line for line in lines)
    assert named / 200 < FALSE_ALARM + 5.0 * np.sqrt(FALSE_ALARM * (1 - FALSE_ALARM) / 200)
    assert detected / 40 > 0.6
    assert named_above(replicates, cells) >= 2.0


def test_files_without_drift_and_with_one_weight_give_no_alarm() -> None:
    """The plan said "noise would drown 364 of 364 means" of releases that were off by .1 %."""
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed, constant=True).to_parquet(f"{name}.parquet")
    for text in (JOB, JOB.replace("{weight: weight}", "{weight: weight, design_strata: [region]}")):
        assert list(alarms(predicted(dpdist.plan(parse_job(text))))) == []


@pytest.mark.usefixtures("own_cache")
def test_a_model_that_predicts_its_errors_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors are normal with its standard deviations. Control: without the method the mechanism is run."""
    job = parse_job(JOB)
    plan = dpdist.plan(job)
    (table,) = job.tables
    sizes, normal = np.array([0.1, 0.2, 0.4, 0.8, 0.3]), np.full(5, np.inf)

    def predicted_errors(model: object, learned: object) -> list[ErrorsOfCells]:
        assert learned is not None
        return [ErrorsOfCells("incomes", statistic, sizes, 2.0 * sizes, normal) for statistic in table.statistics[:1]]

    run = list[int]()
    of_replicates = predicting._of_replicates
    monkeypatch.setattr(predicting, "_of_replicates", lambda *given: run.append(1) or of_replicates(*given))
    monkeypatch.setattr(type(plan.model), "predicted_errors", predicted_errors, raising=False)
    prediction = predicted(plan)
    assert not run
    assert "not predicted: mean of income" in list(in_words(prediction))
    *_, without = prediction.described()
    assert (without["statistic"], without["median"], without["why"]) == ("mean", None, NOT_PREDICTED)
    (count,) = prediction.statistics()
    assert 0.2 < count.largest <= 5.0 * max(sizes)
    assert 0.05 < count.median < 0.4
    monkeypatch.delattr(type(plan.model), "predicted_errors")
    people(9).to_parquet("earlier.parquet")
    whole = predicted(dpdist.plan(parse_job(JOB)))
    assert run
    assert not list(not_predicted(whole))


@pytest.mark.usefixtures("own_cache")
def test_a_model_that_predicts_errors_and_nothing_more_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """`predicted_errors` alone, on a model that learns nothing from records. Control: without it the mechanism is run."""
    lognormal = "mechanism: {name: sanitized_statistics}\nmodel: {family: lognormal}"
    text = JOB.replace("mechanism: {name: tables}", lognormal).replace("bounds: [0, 400000]", "bounds: [1, 400000]")
    job, sizes = parse_job(text), np.full(5, 0.2)
    model, run = type(dpdist.plan(job).model), list[int]()
    of_replicates = predicting._of_replicates
    monkeypatch.setattr(predicting, "_of_replicates", lambda *given: run.append(1) or of_replicates(*given))
    assert predicted(dpdist.plan(job)).why == ""
    assert run

    def predicted_errors(model: object, learned: object) -> list[ErrorsOfCells]:
        (table,) = job.tables
        return [ErrorsOfCells("incomes", one, sizes, 2.0 * sizes, np.full(5, np.inf)) for one in table.statistics]

    people(9).to_parquet("earlier.parquet")
    monkeypatch.setattr(model, "predicted_errors", predicted_errors, raising=False)
    run.clear()
    found = predicted(dpdist.plan(job)).statistics()
    assert not run
    assert max(one.largest for one in found) <= 5.0 * 0.2


def test_a_release_of_one_weight_compares_no_count_with_a_sampling_error(folder: Path) -> None:
    """All counts stood as beyond direct errors, with the ratio 99, of releases that were off by .1 %.

    Four releases of files without drift, one of a small ε. `publish/test_predicted_errors.py` has figures that are named.
    """
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed, constant=True).to_parquet(f"{name}.parquet")
    for draw in range(4):
        job = parse_job(JOB.replace('"1"', '"0.05"' if draw == 0 else '"1"'))
        release = dpdist.run(job, folder / f"release-{draw}", study=Key(bytes(32)).child(str(draw)))
        assert "count" not in str(release.statement.get("beyond_direct", {}))


@pytest.mark.parametrize("constant", [False, True])
def test_a_plan_and_a_verdict_say_the_same_of_one_release(folder: Path, constant: bool) -> None:
    """The plan's arithmetic on the current records and the published tables, beside the verdict on the evaluation.

    With one weight in every stratum the design fixes counts. Control: another release of the file has other errors."""
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed, constant).to_parquet(f"{name}.parquet")
    strata = "{weight: weight, design_strata: [region]}"
    job = parse_job(JOB.replace("{weight: weight}", strata) if constant else JOB)
    rows, crosstab = people(1, constant), dpdist.plan(job).crosstab
    row = np.repeat(np.arange(4, dtype=np.int32), list(CELLS.values()))
    records = Records.of_outcomes(rows[["income"]].to_numpy(), rows["weight"].to_numpy(), row)
    lines = list[list[str]]()
    for draw in range(2):
        dpdist.run(job, folder / f"release-{draw}", study=Key(bytes(32)).child(str(draw)))
        table, made = pd.read_parquet(folder / f"release-{draw}/public/tables/incomes.parquet"), []
        for figures in DirectFigures.of(direct_of(job, crosstab, records)):
            unknown = np.full(len(figures.value), np.nan)
            made.append(ReplicateFigures(figures, figures.error, unknown, unknown).errors_of(table))
        prediction = ErrorPrediction(job, {1.0: AtEpsilon.of([pd.concat(made).assign(replicate=0)])})
        rows = open_evaluation(folder / f"release-{draw}")["incomes"]
        judged = verdicts({"incomes": rows}, False, number_of_statistics(rows))
        for one, verdict in zip(prediction.statistics(), judged.values(), strict=True):
            assert verdict is not None
            assert one.errors == pytest.approx(verdict.errors, rel=1e-6, nan_ok=True)
        lines.append([errors_in_words(name, verdict.errors) for name, verdict in judged.items() if verdict is not None])
        for line, (name, verdict) in zip(lines[-1], judged.items(), strict=True):
            assert verdict is not None
            assert line in verdict_in_words(name, verdict)
            assert sum(line in planned for planned in in_words(prediction)) == 1
    assert lines[0] != lines[1], "control"
