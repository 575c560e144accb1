"""The applications of [G] §5, [V] §5 and [T] on simulated files: laws, predictors, units, and pictures of single records.

Draws have fixed seeds. A tolerance of four standard errors is missed by chance by less than one seed in 10,000.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpdist.core.errors import StudyError
from dpdist.studies.generators import AGES, SHARES, CountOutcomes, Salaries
from dpdist.studies.kinds import load_study, parse_study
from dpdist.studies.kinds.populations import placed_survey
from dpdist.studies.kinds.simulation import simulated_file
from dpdist.studies.kinds.tables import TablesStudy, job_of
from dpdist.studies.run import run

MATHEMATICIANS = Salaries(median=80_000, spread=0.49, sex=0.15, age=0.6, weeks=0.6, bound=600_000, unit=600_000)
N = 200_000

EFFECTS = "sex: 0.15, age: 0.6, weeks: 0.6"
LAW = f"name: salaries, parameters: {{median: 80000, spread: 0.49, {EFFECTS}, bound: 600000, unit: 600000}}"
STUDY = f"""\
study: small
title: Small
seed: 5
replicates: 2
cases: [{{name: salaries, generator: {{{LAW}}}, n: 150, family: beta}}]
epsilons: ["5"]
draws: 400
mechanisms: [{{name: unweighted}}, {{name: censor_uw}}, {{name: perturbed_histogram}}]
measures: [database_bound, max_ecdf, mean, q90]
figures:
  - {{kind: densities, title: Densities}}
"""


def test_the_law_of_salaries_has_about_the_figures_of_table_2() -> None:
    """[G] prints 91,019, 80,000, 51,000 and 150,000: within 6 % of each."""
    printed = {"mean": 91_019, "median": 80_000, "q15": 51_000, "q90": 150_000}
    truth = MATHEMATICIANS.truth()
    assert [name for name, figure in printed.items() if abs(truth[name] / figure - 1.0) > 0.06] == []


@pytest.mark.parametrize(
    "law",
    [MATHEMATICIANS, CountOutcomes(100.0, 0.15, 0.4), CountOutcomes(0.7, 0.15, 1.0)],
    ids=["salaries", "counts", "few"],
)
def test_the_truth_of_a_law_is_that_of_its_draws(law: Salaries | CountOutcomes) -> None:
    """A quantile q is right if the shares below and up to it hold p, but for four standard errors, .0046. Salaries are
    rounded to thousands: the shares half a thousand away count."""
    y = law.sample(N, np.random.default_rng(1)).outcome * law.unit
    truth, slack = law.truth(), 500.0 if isinstance(law, Salaries) else 0.0
    assert y.mean() == pytest.approx(truth["mean"], abs=4.0 * y.std() / np.sqrt(N) + slack / 100.0)
    for name, p in (("q15", 0.15), ("median", 0.5), ("q90", 0.9)):
        assert (y < truth[name] - slack).mean() - 0.0046 < p < (y <= truth[name] + slack).mean() + 0.0046


def test_the_check_of_truth_sees_a_wrong_law() -> None:
    """Negative control: a spread of .52 in place of .49 moves q90 by 3,400 dollars."""
    wrong = Salaries(80_000, 0.52, 0.15, 0.6, 0.6, 600_000, 600_000).truth()["q90"]
    y = MATHEMATICIANS.sample(N, np.random.default_rng(1)).outcome * MATHEMATICIANS.unit
    assert (y < wrong - 500.0).mean() - 0.0046 > 0.9


def test_salaries_follow_the_predictors() -> None:
    y, codes = MATHEMATICIANS.sample(N, np.random.default_rng(2))
    for name, shares in SHARES.items():
        assert np.bincount(codes[name], minlength=len(shares)) / N == pytest.approx(shares, abs=0.005)
    log = np.log(y * MATHEMATICIANS.unit)
    assert log[codes["sex"] == 0].mean() - log[codes["sex"] == 1].mean() == pytest.approx(0.15, abs=0.015)
    oldest = codes["age"] == len(AGES) - 1
    assert log[oldest].mean() - log[codes["age"] == 0].mean() == pytest.approx(0.6, abs=0.04)
    assert 0.0 < y.min() < y.max() < 1.0


def case_of(text: str):
    return parse_study(text).cases[0]


def test_a_file_has_the_predictors_of_its_model_alone() -> None:
    alone = simulated_file(case_of(STUDY), np.random.default_rng(3))
    given = simulated_file(case_of(STUDY.replace("family: beta}", "family: beta_regression}")), np.random.default_rng(3))
    assert len(alone.crosstab) == 1 < len(given.crosstab)
    assert np.array_equal(alone.outcome, given.outcome)
    sampled = MATHEMATICIANS.sample(150, np.random.default_rng(3))
    for name, codes in sampled.codes.items():
        assert np.array_equal(given.crosstab.codes[name][given.records.row], codes)
    assert np.array_equal(np.bincount(given.records.row), given.crosstab.count)


def test_figures_of_location_are_told_in_dollars(tmp_path: Path) -> None:
    folder = run(parse_study(STUDY), tmp_path / "out")
    found = pd.read_csv(folder / "summary.csv").set_index(["mechanism", "measure"])["mean"]
    for mechanism in ("data", "unweighted"):
        assert 70_000 < found[mechanism, "mean"] < 115_000
        assert 120_000 < found[mechanism, "q90"] < 200_000
    assert found["censor_uw", "database_bound"] <= 2.5
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "salaries by sex, age and weeks" in page
    assert "Densities" in page


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("spread: 0.49", "spread: 0.2", "explain more than the spread"),
        ("unit: 600000", "unit: 0", "unit must be greater than 0"),
        (LAW, "name: beta, parameters: {a: 1, b: 3}", "beta has none: use another law or family"),
        ("family: beta_regression", "family: scores", "its model is one of beta"),
        ("draws: 400", "draws: 300", "too few for a fit by 4 Markov chains: give 400 or more"),
        ("title: Densities", 'title: Densities, epsilons: ["4"]', "names '4'"),
    ],
)
def test_a_wrong_application_is_refused(old: str, new: str, told: str) -> None:
    text = STUDY.replace("family: beta}", "family: beta_regression}")
    assert old in text
    with pytest.raises(StudyError, match=told):
        parse_study(text.replace(old, new, 1))


def small_tables() -> TablesStudy:
    study = load_study("doctorate_tables")
    assert isinstance(study, TablesStudy)
    case = study.cases[0].model_dump(mode="json") | {"population": 20_000, "sample": 2000}
    said = study.model_dump(mode="json") | {"cases": [case], "draws": 100, "runtime": {"executor": "serial"}}
    return TablesStudy.model_validate(said)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(small_tables(), tmp_path_factory.mktemp("tables") / "out", replicates=2)


def column(folder: Path, mechanism: str, name: str) -> np.ndarray:
    kept = pd.read_parquet(folder / "parts" / "doctorates-records.parquet")
    return kept[(kept.mechanism == mechanism) & (kept.column == name)]["value"].to_numpy()


def test_the_first_replicate_keeps_what_the_pictures_show(tables: Path) -> None:
    study = small_tables()
    survey = placed_survey(job_of(study, study.cases[0], study.key_of("doctorates", 1), study.mechanisms[0]))
    assert np.array_equal(column(tables, "direct", "weight"), survey.records.weight)
    for arm in study.mechanisms:
        before, after = (column(tables, arm.label, f"{name}_record_bound") for name in ("unweighted", "weighted"))
        assert len(before) == len(after) == 2000
        assert after.max() <= 1.8 < before.max(), "half of ε = 3.6; without weights it is exceeded"
    assert np.array_equal(column(tables, "fbs", "weighted_record_bound"), column(tables, "fbp", "weighted_record_bound"))


def test_smoothed_weights_vary_less_than_drawn_ones_and_fall_with_salaries(tables: Path) -> None:
    """Given the salary and the cell, a smoothed weight has no noise: log w has hardly a residual on log y."""

    def left(label: str) -> tuple[float, float]:
        y, w = (np.log(column(tables, label, name)) for name in ("outcome", "weight"))
        slope = np.cov(y, w)[0, 1] / y.var(ddof=1)
        return float((w - slope * y).std()), float(slope)

    noisy, _ = left("direct")
    for label in ("fbs", "fbp"):
        residual, slope = left(label)
        assert slope < -0.5
        assert residual < 0.6 * noisy


def test_fbp_draws_smaller_salaries_than_fbs(tables: Path) -> None:
    """Weights fall with salaries, so the population has lower ones: the shift is Σ_yw, about −.12 in logarithms."""
    fbs, fbp = (np.log(column(tables, label, "outcome")).mean() for label in ("fbs", "fbp"))
    assert fbs - fbp > 0.08


def test_the_page_of_tables_has_its_pictures(tables: Path) -> None:
    page = (tables / "index.html").read_text(encoding="utf-8")
    assert page.count("<svg") == len(small_tables().figures)
    assert "smoothed weights" in page


@pytest.mark.long
@pytest.mark.parametrize("family", ["beta_regression", "poisson_regression"])
def test_a_regression_runs_with_predictors(family: str, tmp_path: Path) -> None:
    """Compiled programs. Means by age follow the file's: their correlation over nine ages is above .5, by chance never."""
    text = STUDY.replace("family: beta}", f"family: {family}}}").replace("n: 150", "n: 400")
    if family == "poisson_regression":
        text = text.replace(LAW, "name: counts, parameters: {mean: 100, sex: 0.15, age: 0.4}")
        text = text.replace(", {name: censor_uw}, {name: perturbed_histogram}", "")
    study = parse_study(text)
    folder = run(study, tmp_path / "out", replicates=1)
    kept = pd.read_parquet(folder / "parts" / "salaries-records.parquet")
    synthetic = kept[(kept.mechanism == "unweighted") & (kept.column == "outcome")]["value"].to_numpy()
    file = simulated_file(study.cases[0], study.key_of("salaries", 1).generator("data"))
    told = file.outcome * study.cases[0].generator.generator().unit
    age = file.crosstab.codes["age"][file.records.row]
    met = [a for a in range(len(AGES)) if (age == a).sum() > 5]
    means = [[values[age == a].mean() for a in met] for values in (synthetic, told)]
    assert np.corrcoef(*means)[0, 1] > 0.5
    assert synthetic.mean() == pytest.approx(told.mean(), rel=0.15)
