"""Repeated informative samples: a simulated population and a file end to end, beside an independent computation."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from dpdist.core.errors import StudyError
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.estimation.estimators import Interval
from dpdist.job import Job
from dpdist.studies.file import load_study, parse_study
from dpdist.studies.kinds import repeated_samples
from dpdist.studies.kinds.files import ratios
from dpdist.studies.kinds.files_settings import FilesStudy
from dpdist.studies.kinds.populations import CELLS, TOP_CODE, inclusion, population, population_job, systematic
from dpdist.studies.kinds.repeated_samples import SIZE, compared, measure, sampled, sized
from dpdist.studies.run import run
from dpdist.studies.verdicts import findings

STRICT = ("reference_tables", "reference_tables_zero_out")
JOB = """
dataset: simulated
period: "0"
columns:
  field: {levels: [arts, law, none]}
  sex: {levels: [f, m]}
  pay: {bounds: [0, 90000], outside: clip}
universe: [{column: sex, keep: [f, m]}]
survey: {weight: weight}
outcome: pay
mechanism: {name: reference_tables}
budget: {epsilon: "1"}
reference: {path: none.parquet}
tables:
  - {name: pay, by: [sex], statistics: [count, {mean: pay}]}
"""
STUDY = """
kind: files
study: tiny
title: Tiny samples
seed: 3
replicates: 1
epsilons: ["1", "0.0001"]
mechanisms:
  - {{label: strict, mechanism: {{name: reference_tables}}, adjacency: substitution, epsilons: ["1"]}}
  - {{label: unfixed, mechanism: {{name: reference_tables}}, reference: none, histogram: "1/3", epsilons: ["1"]}}
  - {{label: fbs, mechanism: {{name: weighted, weights: fixed_point}}, family: lognormal, reference: none,
     epsilons: ["0.0001"]}}
cases:
  - {{name: breaker, population: weight_atoms, split: pps, sample: 900, drift: 1.2, mechanisms: [strict]}}
  - {{name: filed, file: staff.parquet, job: {job}, split: pps, sample: 700, by: [field], above: 0,
     weight_bounds: [1, 900]}}
limits:
  - {{title: Coverage, measures: [count_coverage], at_least: 0.0, at_most: 1.0, mechanisms: [strict]}}
  - {{title: Own, measures: [count_coverage], at_least: 0.5, at_most: 1.0, mechanisms: [direct]}}
  - {{title: Never, measures: [count_max], over: all, at_most: -1, mechanisms: [strict]}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study's results; `kept` holds what every release read and published. The releases themselves are as always."""
    folder, rng, real = tmp_path_factory.mktemp("repeated"), np.random.default_rng(5), repeated_samples.run
    field = rng.choice(["arts", "law"], 6000, p=[0.3, 0.7])
    pay = np.exp(rng.normal(10.3, 0.6, 6000) + 0.3 * (field == "law")) * (rng.random(6000) > 0.1)
    staff = pd.DataFrame({"field": field, "sex": rng.choice(["f", "m", "x"], 6000), "pay": pay, "weight": 7.0})
    staff.to_parquet(folder / "staff.parquet")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")

    def kept(job: Job, workspace: Path, **said: Any) -> Path | str:
        public = real(job, workspace, **said)
        to = folder / "kept" / f"{job.dataset} {'reference' if job.has_reference else 'histogram'}"
        shutil.copytree(Path(str(public)) / "tables", to)
        shutil.copy(said["input"], to / "current.parquet")
        return public

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated_samples, "run", kept)
        run(parse_study(STUDY.format(job=folder / "job.yaml")), folder / "out", data=folder)
    return folder


def truth_of(case: str, folder: Path) -> tuple[str, str, pd.DataFrame]:
    """Column of cells, outcome and population, made again."""
    if case == "breaker":
        key = Key((3).to_bytes(32, "big")).child("breaker")
        units = population("weight_atoms", key.generator("population"))
        return "cell", "y", units.assign(y=np.minimum(1.2 * units["y"], 1e6))
    staff = pd.read_parquet(folder / "staff.parquet")
    staff = staff[staff["sex"].isin(["f", "m"]) & (staff["pay"] > 0)]
    return "field", "pay", staff.assign(pay=staff["pay"].clip(upper=90_000))


def by_hand(found: pd.DataFrame, sample: pd.DataFrame, whole: pd.DataFrame, column: str, y: str) -> dict[str, list[float]]:
    """Distances in both scales and coverage, from Σ over records of a cell alone: no code of the package."""
    told: dict[str, list[float]] = {}
    strata = sample.groupby(column).indices
    for _, row in found.iterrows():
        name, level = row["statistic"], row[column]
        mine, all_units = (rows if level == "Total" else rows[rows[column] == level] for rows in (sample, whole))
        if not len(all_units):
            continue
        w, v = mine["weight"].to_numpy(), mine[y].to_numpy()
        direct = w.sum() if name == "count" else (w * v).sum() / w.sum()
        u = w if name == "count" else w * (v - direct) / w.sum()
        padded = np.concatenate([u, np.zeros(len(sample) - len(u))])
        se = np.sqrt(len(padded) * padded.var(ddof=1))
        cells = mine[column].to_numpy()
        given = np.sqrt(sum((cells == s).sum() * u[cells == s].var(ddof=1) for s in strata if (cells == s).sum() > 1))
        true = len(all_units) if name == "count" else all_units[y].mean()
        if level == "Total":
            told[f"{name}_grand"] = [abs(row["estimate"] - true) / row["standard_error"]]
        told.setdefault(f"{name}_distance", []).append(abs(row["estimate"] - direct) / se)
        told.setdefault(f"{name}_given_n", []).append(abs(row["estimate"] - direct) / given)
        told.setdefault(f"{name}_held", []).append(float(row["lower"] <= true <= row["upper"]))
        reach = scipy.stats.t.ppf(0.95, len(mine) - 1) * se
        told.setdefault(f"{name}_direct_held", []).append(float(abs(direct - true) <= reach))
    return told


@pytest.mark.parametrize(("case", "arm"), [("breaker", "strict"), ("filed", "strict"), ("filed", "unfixed")])
def test_measures_agree_with_an_independent_computation(folder: Path, case: str, arm: str) -> None:
    results = pd.read_parquet(folder / "out" / "replicates.parquet")
    column, y, whole = truth_of(case, folder)
    dataset, table = ("weight_atoms", "cells") if case == "breaker" else ("simulated", "pay")
    path = folder / "kept" / f"{dataset} {'reference' if arm == 'strict' else 'histogram'}"
    published, sample = pd.read_parquet(path / f"{table}.parquet"), pd.read_parquet(path / "current.parquet")
    assert len(sample) == (750 if case == "breaker" else 700), "weights drift by 1.2 where a sample is that much smaller"
    assert (sample["weight"].nunique() <= 60) == (case == "breaker"), "five weights in each of 12 cells"
    told = by_hand(published[published["estimator"] == "parameters"], sample, whole, column, y)
    seen = results[(results["case"] == case) & (results["epsilon"] == 1)].set_index(["mechanism", "measure"])["value"]
    for name in ("count", "mean"):
        distance, given = np.array(told[f"{name}_distance"]), np.array(told[f"{name}_given_n"])
        expected = {"median": np.median(distance), "max": distance.max(), "coverage": np.mean(told[f"{name}_held"])}
        expected["grand"] = told[f"{name}_grand"][0]
        if name == "count":
            expected |= {"given_median": np.median(given), "given_max": given.max()}
        for what, value in expected.items():
            assert seen[arm, f"{name}_{what}"] == pytest.approx(value, rel=1e-8)
        assert seen["direct", f"{name}_coverage"] == pytest.approx(np.mean(told[f"{name}_direct_held"]))
    median, largest = (seen[arm, f"count_given_{size}"] / seen[arm, f"count_{size}"] for size in ("median", "max"))
    assert min(median, largest) > 1.0
    assert (median if case == "breaker" else max(median, largest)) > 1.1, "of a sample of files one of them is the total"


def test_ratios_are_of_root_mean_squares_and_coverage_of_shares() -> None:
    """3 and 4 against 1 and 7: √(25/2) over √(50/2). Control: the mean of the ratios is another."""
    rows = [("strict", "mean error law", 3.0), ("strict", "mean error law", -4.0), ("direct", "mean error law", 1.0)]
    rows += [("direct", "mean error law", 7.0), ("strict", "mean covered law", 1.0), ("strict", "mean covered law", 0.0)]
    told = pd.DataFrame(rows, columns=["mechanism", "measure", "value"]).assign(case="filed", epsilon="1")
    found = ratios(told).set_index(["mechanism", "measure", "cell"])["value"]
    assert found["strict", "mean_ratio_direct", "law"] == pytest.approx(np.sqrt(0.5))
    assert found["strict", "mean_cell_coverage", "law"] == 0.5
    assert len(found) == 2
    assert ratios(told[:0]).empty


def test_what_cannot_be_released_is_counted_and_the_rest_goes_on(folder: Path) -> None:
    results = pd.read_parquet(folder / "out" / "replicates.parquet")
    fbs = results[results["mechanism"] == "fbs"]
    assert set(fbs["measure"]) == {"refused"}
    assert len(fbs) == 1
    assert "1 runs were refused" in (folder / "out" / "index.html").read_text(encoding="utf-8")


def test_the_page_says_what_its_own_rows_say(folder: Path) -> None:
    page = (folder / "out" / "index.html").read_text(encoding="utf-8")
    assert "Limit: at least 0 and at most 1, means over replicates with their 95 % intervals." in page
    assert "Kept in 0 of 2 results. Too few replicates to tell in 2." in page, "one replicate has no spread to go by"
    results = pd.read_parquet(folder / "out" / "replicates.parquet")
    worst = results[(results["measure"] == "count_max") & (results["mechanism"] == "strict")].set_index("case")["value"]
    for case, value in worst.items():
        assert f"{case} strict count_max {value:.2f}" in page
    assert "five distinct weights in a cell" in page
    assert "outcomes and weights times 1.2" in page
    assert "strict, substitution" in page
    assert "from public files and simulated populations: what is compared" in page


def test_findings_change_with_the_rows() -> None:
    study = parse_study(STUDY.format(job="job.yaml"))
    shared = {"case": "filed", "mechanism": "strict", "epsilon": "1", "measure": "count_coverage"}
    rows = pd.DataFrame([shared | {"replicate": 1, "value": 0.8}, shared | {"replicate": 2, "value": 0.9}])
    told = partial(findings, study.limits, same_at_every_epsilon=study.same_at_every_epsilon)
    assert "Kept in 1 of 1" in told(rows.assign(value=[0.84, 0.86]))[0].text
    assert "Kept in 0 of 1 results. Too few replicates to tell in 1." in told(rows)[0].text
    wide = told(rows.assign(value=[1.45, 1.46]))
    assert "Not in: filed strict count_coverage 1.46 ± 0.06." in wide[0].text
    assert wide[2].text == "Nothing of it was measured."
    own = rows.assign(mechanism="direct", value=2.0)
    both = told(pd.concat([own, own.assign(epsilon="0.0001")]))
    assert "Kept in 0 of 1 results. Not in: filed direct count_coverage 2.00." in both[1].text, "counted once"


def stretched(own: Interval, width: float) -> Interval:
    lower, upper = (own.value + width * (end - own.value) for end in (own.lower, own.upper))
    return own._replace(lower=lower, upper=upper)


def test_intervals_of_the_right_width_cover_and_wrong_ones_are_seen() -> None:
    """Direct intervals of 40 samples of 1,000. Controls: a third, and twice the width."""
    job = Job.model_validate(population_job("smooth"))
    units = population("smooth", np.random.default_rng(1), 20_000).rename(columns={"size": SIZE})
    rows, found = sized(units, job, np.random.default_rng(2)), []
    for number in range(40):
        told = measure(job, rows, sampled(rows, 1000, np.random.default_rng([3, number])))
        for width in (1.0, 1 / 3, 2.0):
            mine = {name: stretched(own, width) for name, own in told.direct.items()}
            found.append({"width": width} | dict(compared(told, mine)))
    covered = pd.DataFrame(found).groupby("width")[["count_coverage", "mean_coverage"]].mean()
    assert (covered.loc[1.0] - 0.9).abs().max() < 0.03
    assert covered.loc[1 / 3].max() < 0.55
    assert covered.loc[2.0].min() > 0.97


def chances_seen(chance: Floats, draws: int) -> Floats:
    seen = np.zeros(len(chance))
    for number in range(draws):
        seen[systematic(chance, np.random.default_rng(number))] += 1
    return seen / draws


def test_samples_have_their_size_and_every_unit_its_chance() -> None:
    """A χ² of 4,000 samples. Control: against equal chances it is far off."""
    size = np.r_[np.geomspace(1.0, 30.0, 49), 1e4]
    chance = inclusion(size, 12)
    assert chance.sum() == pytest.approx(12)
    assert chance[-1] == 1.0
    assert np.ptp(chance[:-1] / size[:-1]) < 1e-12
    seen = chances_seen(chance, 4000)
    assert seen[-1] == 1.0
    assert {len(systematic(chance, np.random.default_rng(number))) for number in range(50)} == {12}

    def squares(expected: Floats) -> float:
        expected, found = expected[:-1], seen[:-1]
        return float((4000 * (found - expected) ** 2 / (expected * (1 - expected))).sum())

    assert squares(chance) < scipy.stats.chi2.ppf(0.999, 49)
    assert squares(np.full(50, 12 / 50)) > 10 * scipy.stats.chi2.ppf(0.999, 49)
    with pytest.raises(ValueError, match="leaves none out"):
        inclusion(size, 50)


def test_every_population_breaks_what_it_is_named_for() -> None:
    drawn = {name: population(name, np.random.default_rng(4)) for name in CELLS}
    for name, units in drawn.items():
        assert units["cell"].nunique() == CELLS[name]
    atoms = drawn["weight_atoms"].groupby("cell")["size"]
    assert set(atoms.nunique()) == {5}
    assert np.allclose(atoms.max() / atoms.min(), 80)
    assert (drawn["heavy_tails"]["y"] == 0).mean() == pytest.approx(0.25, abs=0.01)
    assert drawn["heavy_tails"]["y"].std() > 2 * drawn["heavy_tails"]["y"].mean() > 0
    assert 0.1 < (drawn["top_coded"]["y"] == TOP_CODE).mean() < 0.45
    numbers = drawn["small_cells"]["cell"].value_counts()
    assert numbers.max() > 20 * numbers.min()
    logs = np.log(drawn["smooth"].query("y > 0").groupby("cell")["y"].apply(lambda y: y / y.median()))
    assert scipy.stats.kurtosis(logs) == pytest.approx(0.0, abs=0.1)
    assert drawn["smooth"]["size"].nunique() > 0.99 * len(drawn["smooth"])


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (("population: weight_atoms, ", ""), "give file or population, one of them"),
        (("population: weight_atoms", "population: weight_atoms, job: job.yaml"), "job goes with file"),
        (("sample: 900, ", ""), "sample is a number of units"),
        (("mechanisms: [strict]}}\n  - ", "mechanisms: [stict]}}\n  - "), "did you mean 'strict'"),
        ((",\n     weight_bounds: [1, 900]", ""), "'unfixed' has no reference: case 'filed' needs weight_bounds"),
        ((", family: lognormal", ""), "'weighted' fits a likelihood: name its family"),
        (
            ("{{name: reference_tables}}, adjacency", "{{name: reference_tables}}, family: beta, adjacency"),
            "'reference_tables' fits no likelihood: leave family out",
        ),
        (("label: fbs", "label: direct"), "'direct' names the samples' own estimates"),
        (('reference: none, histogram: "1/3"', 'histogram: "1/3"'), "with reference: none"),
        (('histogram: "1/3", ', ""), "'reference_tables' needs a reference, or a histogram"),
        (("measures: [count_max]", "measures: [count_mux]"), "did you mean 'count_max'"),
        (("over: all, at_most: -1, ", ""), "give at_least, at_most or both"),
        (('epsilons: ["0.0001"]', 'epsilons: ["2"]'), "names '2'"),
        (("split: pps, sample: 700, by: [field], above: 0,", "split: halves, by: [field],"), "by is for split: pps"),
    ],
)
def test_studies_that_cannot_be_are_refused(edit: tuple[str, str], told: str) -> None:
    text, (old, new) = STUDY.format(job="job.yaml"), (part.replace("{{", "{").replace("}}", "}") for part in edit)
    assert old in text
    with pytest.raises(StudyError, match=told.replace("(", r"\(")):
        parse_study(text.replace(old, new))


def test_the_shipped_study_has_every_population_and_both_files() -> None:
    study = load_study("repeated_samples")
    assert isinstance(study, FilesStudy)
    assert {case.population for case in study.cases} == {*CELLS, None}
    files = {(case.file, case.n) for case in study.cases if case.population is None}
    assert files == {(file, n) for file in ("nscg2013.parquet", "cps_taxunits.parquet") for n in (3000, 5000)}
    assert {case.power != 1.0 or case.drift != 1.0 for case in study.cases} == {True, False}


@pytest.mark.slow
@pytest.mark.real_data
def test_what_the_study_shows(data: Path, tmp_path: Path) -> None:
    """Four samples a case, some ten minutes. What is asked for and does not hold yet is no limit here: the page says so
    from its own rows.

    Limits are three Monte Carlo errors of four samples away or more, as six samples a case have told: so one of its some
    forty comparisons fails by chance in at most one run of twenty. Where families are wrong the study must show it:
    controls on a population that breaks lognormal models.
    """
    study = load_study("repeated_samples").model_copy(update={"replicates": 4})
    run(study, tmp_path, data=data)
    found = pd.read_csv(tmp_path / "summary.csv").groupby(["mechanism", "case", "measure"])["mean"].mean()
    both = ["count_coverage", "mean_coverage"]
    unchanged = [case for case in study.case_names if case != "shape_drift"]
    for arm, low, high in (("direct", 0.85, 0.95), *((arm, 0.83, 0.95) for arm in STRICT)):
        covered = found[arm].unstack()[both].loc[unchanged].mean()
        assert ((low < covered) & (covered < high)).all(), (arm, covered)
    for arm in STRICT:
        assert (found[arm].unstack()[["count_median", "mean_median"]] < 1.0).all(axis=None)
        assert (found[arm].unstack().loc["shape_drift", both] > 0.65).all()
    unnamed = found["histogram"].unstack()
    assert unnamed[both].mean().min() > 0.85
    assert unnamed["count_median"].mean() < 0.6
    assert unnamed["count_grand"].mean() < 1.2
    assert found["histogram", "weight_atoms", "count_median"] < 1.5
    for case in ("weight_atoms", "small_cells"):
        assert found["scores", case, "mean_coverage"] > 0.75
    for arm in ("fbs", "fbp", "sanitized_statistics"):
        assert found[arm, "weight_atoms", "mean_median"] > 2.0
    assert found["sanitized_statistics", "weight_atoms", "mean_coverage"] < 0.5
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("Kept in ") == len(study.limits)  # type: ignore[union-attr]
