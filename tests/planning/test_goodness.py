"""How a family's fit to a public reference is judged: laws that fit pass, others do not, and a job may refuse them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import invoke
from edited_text import edited
from public_files import statement_of

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.errors import JobError
from dpdist.core.records import Crosstab, Floats
from dpdist.estimation.direct import SamplingDesign
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.planning.goodness_of_fit import FEWEST_JUDGED, GoodnessOfFit, compare

JOB = """
dataset: gated
period: "2021"
columns:
  field: {levels: [arts, law, medicine]}
  sex: {levels: [f, m]}
  salary: {bounds: [1, 100000000], outside: clip}
survey: {weight: weight}
outcome: salary
model: {family: lognormal}
mechanism: {name: sanitized_statistics}
budget: {epsilon: "1", adjacency: zero_out}
reference: {path: before.parquet, period: "2020"}
tables:
  - {name: salaries, by: [field, sex], statistics: [count, {mean: salary}]}
runtime: {executor: serial}
"""
TILTED = [
    ("model: {family: lognormal}", "model: {family: lognormal, predictors: [field, sex]}"),
    ("mechanism: {name: sanitized_statistics}", "mechanism: {name: weighted}"),
    ('epsilon: "1"', 'epsilon: "10.8"'),
]
N = 3000


def lognormal(rng: np.random.Generator, n: int) -> Floats:
    return np.exp(rng.normal(0.0, 0.5, n))


def gamma(rng: np.random.Generator, n: int) -> Floats:
    return rng.gamma(0.7, 1.0, n) + 1e-3


def atoms(rng: np.random.Generator, n: int) -> Floats:
    """Two values that most have, and a tail."""
    return np.where(rng.random(n) < 0.6, rng.choice([0.1, 3.0], n), lognormal(rng, n))


def heavy(rng: np.random.Generator, n: int) -> Floats:
    return lognormal(rng, n) * np.where(rng.random(n) < 0.03, 30.0, 1.0)


LAWS = {"gamma": gamma, "atoms": atoms, "heavy": heavy}


def survey(seed: int, law: Callable[[np.random.Generator, int], Floats] = lognormal, n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    field, sex = rng.choice(3, n, p=[0.2, 0.3, 0.5]), rng.choice(2, n)
    y = 30_000.0 * np.exp(0.2 * field + 0.1 * sex) * law(rng, n)
    w = 50.0 * np.exp(0.3 * field) * (y / 30_000.0) ** -0.4 * np.exp(rng.normal(0.0, 0.3, n))
    named = {"field": np.array(["arts", "law", "medicine"])[field], "sex": np.array(["f", "m"])[sex]}
    return pd.DataFrame({**named, "salary": y, "weight": w})


def text(*edits: tuple[str, str]) -> str:
    return edited(JOB, *edits)


def judged(rows: pd.DataFrame, said: Job) -> GoodnessOfFit:
    """Of records in memory."""
    codes = {name: pd.Categorical(rows[name], said.columns[name].levels).codes for name in ("field", "sex")}
    order = np.lexsort(list(codes.values())[::-1])
    key = np.column_stack([column[order] for column in codes.values()])
    distinct, row, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    levels = {name: said.columns[name].levels or () for name in codes}
    crosstab = Crosstab({name: distinct[:, k].astype(np.int32) for k, name in enumerate(codes)}, levels, count, (), ())
    y, w = (rows[name].to_numpy()[order] for name in ("salary", "weight"))
    records = Records.of_outcomes(y, w, row.reshape(-1).astype(np.int32))
    return compare(said, crosstab, records, np.ones(len(crosstab), dtype=bool), SamplingDesign(), [None])


@pytest.mark.parametrize("edits", [(), TILTED], ids=["sanitized", "tilted"])
def test_a_law_that_fits_passes(edits: tuple[tuple[str, str], ...]) -> None:
    """False alarms at the default of .8: none in 25 lognormal files of 3,000 or of 300 records (nor in 120 before)."""
    said = parse_job(text(*edits))
    for n in (3000, 300):
        scores = [judged(survey(seed, n=n), said).score for seed in range(100, 125)]
        assert all(score is not None and score >= said.fit.warn_below for score in scores), (n, scores)
    assert list(judged(survey(1), said).cautions(said)) == []


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("edits", [(), TILTED], ids=["sanitized", "tilted"])
def test_a_law_that_does_not_fit_is_named_with_its_figures(law: str, edits: tuple[tuple[str, str], ...]) -> None:
    said = parse_job(text(*edits))
    for seed in (1, 2, 3):
        found = judged(survey(seed, LAWS[law], 12_000), said)
        assert found.score is not None
        assert found.score < said.fit.warn_below
        (caution,) = (one.text for one in found.cautions(said))
        worst = min(found.misfits, key=lambda each: each.within)
        assert caution.startswith("The lognormal distribution does not fit the reference: ")
        assert f"{worst.within:.2f} of 12 cells" in caution
        assert f"largest {worst.largest:.2g} at salaries: " in caution


BETA = """
dataset: gated
period: "2021"
columns:
  field: {levels: [arts, law, medicine]}
  sex: {levels: [f, m]}
  salary: {bounds: [0, 1]}
outcome: salary
model: {family: beta}
mechanism: {name: weighted}
budget: {epsilon: "1"}
reference: {path: before.parquet}
tables:
  - {name: all, statistics: [count, {mean: salary}]}
"""


def test_a_law_without_a_weight_is_judged_by_its_means_on_a_grid() -> None:
    """A beta law passes, and two clusters near both ends do not. Counts are exact: they have no error to judge by."""
    said, rng = parse_job(BETA), np.random.default_rng(1)
    rows = survey(1, n=2000).assign(weight=1.0)
    (mean,) = judged(rows.assign(salary=rng.beta(2.0, 3.0, 2000)), said).misfits
    assert (mean.statistic, mean.within) == ("mean of salary", 1.0)
    clusters = np.where(rng.random(2000) < 0.85, rng.beta(1.0, 60.0, 2000), rng.beta(60.0, 8.0, 2000)).clip(1e-4, 0.999)
    found = judged(rows.assign(salary=clusters), said)
    assert found.score == 0.0
    assert found.misfits[0].largest > 4.0


def test_the_figures_are_those_of_the_law_by_hand() -> None:
    """Cell by cell: n exp(m_w + s_ww/2) for a count, exp(m_y + s_yw + s_yy/2) for a mean, under one covariance of logs
    within base cells; distances in the errors of Σ w and of a ratio given the cells' sizes. The outcome's bounds limit the
    law's mean a little, far beyond all records as they are."""
    said, rows = parse_job(text()), survey(5, gamma, 2000)
    logs = np.log(rows[["salary", "weight"]])
    by = [rows["field"], rows["sex"]]
    inner = logs - logs.groupby(by).transform("mean")
    s = inner.T.to_numpy() @ inner.to_numpy() / (len(rows) - 6)
    off: dict[str, list[float]] = {"count": [], "mean": []}
    for _, own in rows.groupby(["field", "sex"]):
        n, w, y = len(own), own["weight"], own["salary"]
        m = np.log(own[["salary", "weight"]]).mean().to_numpy()
        ratio = np.average(y, weights=w)
        u = w * (y - ratio) / w.sum()
        off["count"].append(abs(n * np.exp(m[1] + s[1, 1] / 2) - w.sum()) / np.sqrt(n * w.var()))
        off["mean"].append(abs(np.exp(m[0] + s[0, 1] + s[0, 0] / 2) - ratio) / np.sqrt(n * u.var()))
    bare = said.model_copy(update={"tables": (said.tables[0].model_copy(update={"margins": False}),)})
    found = {each.statistic: each for each in judged(rows, bare).misfits}
    for statistic, name in (("count", "count"), ("mean", "mean of salary")):
        assert found[name].cells == 6
        assert found[name].median == pytest.approx(np.median(off[statistic]), rel=1e-4)
        assert found[name].largest == pytest.approx(max(off[statistic]), rel=1e-4)
        assert found[name].within == np.mean(np.array(off[statistic]) <= 2.0)


def test_cells_of_few_records_are_not_judged() -> None:
    rows = survey(6, n=400)
    few = rows[(rows["field"] == "arts") & (rows["sex"] == "f")].index[FEWEST_JUDGED - 1 :]
    (count, _) = judged(rows.drop(few), parse_job(text())).misfits
    assert count.cells == 11
    tiny = judged(survey(6, n=9), parse_job(text(*TILTED)))
    assert tiny.score is None
    (caution,) = (one.text for one in tiny.cautions(parse_job(text(*TILTED))))
    assert "not judged: no cell of the reference has 10 records" in caution


@pytest.fixture
def files(tmp_path: Path) -> Path:
    survey(1, lognormal, 900).to_parquet(tmp_path / "now.parquet")
    survey(2, lognormal, 900).to_parquet(tmp_path / "fits.parquet")
    survey(2, gamma, 3000).to_parquet(tmp_path / "gamma.parquet")
    return tmp_path


def job(folder: Path, reference: str, *edits: tuple[str, str]) -> Job:
    return parse_job(text(("before.parquet", str(folder / reference)), *edits))


REFUSING = ("runtime:", "fit: {refuse_below: .8}\nruntime:")


def test_a_job_may_refuse_a_misfit_before_anything_is_spent(files: Path) -> None:
    """Control: the same demand is met by a reference that the law fits, and a lower one by the other."""
    with pytest.raises(JobError) as refused:
        dpdist.run(job(files, "gamma.parquet", REFUSING), files / "ws", files / "now.parquet")
    (problem,) = refused.value.problems
    assert problem.where == "fit.refuse_below"
    assert "the lognormal distribution on the reference: 0." in problem.fault
    assert "cells within 2 standard errors for mean of salary" in problem.fault
    assert problem.allowed == "at least 0.8 for every statistic"
    assert not any((files / "ws").rglob("*.parquet"))
    for said in (
        job(files, "fits.parquet", REFUSING),
        job(files, "gamma.parquet", (REFUSING[0], "fit: {refuse_below: .05}\nruntime:")),
    ):
        assert dpdist.plan(said, files / "now.parquet").goodness is not None


def test_plan_validate_and_statement_tell_the_fit(files: Path) -> None:
    for name, fits in (("fits.parquet", True), ("gamma.parquet", False)):
        said, path = job(files, name), files / f"{name}.yaml"
        path.write_text(text(("before.parquet", str(files / name))), encoding="utf-8")
        shown = {
            command: " ".join(invoke(command, path, "--input", files / "now.parquet").output.split())
            for command in ("plan", "validate")
        }
        dpdist.run(said, files / f"ws {name}", files / "now.parquet")
        statement = statement_of(files / f"ws {name}")
        fit = statement["reference"]["fit"]
        assert fit["law"] == "lognormal"
        assert {each["statistic"] for each in fit["statistics"]} == {"count", "mean of salary"}
        assert (fit["score"] >= 0.8) is fits
        assert ("The lognormal distribution does not fit the reference" in " ".join(statement["cautions"])) is not fits
        assert all(("distribution_misfits" in told) is not fits for told in shown.values())
        assert f"fit to reference {fit['score']:.2f} of 12 cells within 2 standard errors" in shown["plan"]


def test_designs_with_psus_or_replicates_are_judged_by_their_errors(files: Path) -> None:
    """And a reference whose design strata hold a single record is no hindrance."""
    rng = np.random.default_rng(8)
    for name in ("now", "fits"):
        rows = pd.read_parquet(files / f"{name}.parquet")
        rows["town"] = rng.choice(list("abcdefghij"), len(rows))
        rows["region"] = np.where((rows.index == 0) & (name == "fits"), "alone", "rest")
        rows.loc[1:2, "region"] = "alone" if name == "now" else "rest"
        again = {f"r{k}": rows["weight"] * rng.choice([0.5, 1.5], len(rows)) for k in range(1, 9)}
        rows.assign(**again).to_parquet(files / f"{name}.parquet")
    scores = {}
    for design in (
        "psu: town",
        "replicate_weights: {kind: fay, fay: 0.5, prefix: r, number: 8}",
        "design_strata: [region], lonely_psu: certainty",
        "design_strata: []",
    ):
        region = ("columns:\n", "columns:\n  region: {levels: [alone, rest]}\n")
        said = job(files, "fits.parquet", ("{weight: weight}", f"{{weight: weight, {design}}}"), region)
        found = dpdist.plan(said, files / "now.parquet").goodness
        assert found is not None
        scores[design] = found.score
    assert all(score is not None and score >= 0.8 for score in scores.values()), scores


def test_a_demand_where_nothing_is_measured_is_refused() -> None:
    alone = text(('reference: {path: before.parquet, period: "2020"}\n', ""), REFUSING, *TILTED)
    with pytest.raises(JobError, match="a family's fit is measured on the records of a reference, and the job names none"):
        parse_job(alone)
    tables = text(("model: {family: lognormal}\n", ""), ("sanitized_statistics", "tables"), REFUSING)
    with pytest.raises(JobError, match="'tables' is not a parametric law"):
        parse_job(tables)
    assert parse_job(tables.replace("fit: {refuse_below: .8}\n", "")).fit.warn_below == 0.8
