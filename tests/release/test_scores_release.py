"""Releases of the score model end to end on a simulated pair of files (skewed, rounded, top-coded, zeros); bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from edited_text import edited
from public_files import statement_of
from scipy.special import gammaincinv, ndtr

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.release import cautions

JOB = """
dataset: scored
period: "2021"
input: {{path: {folder}/{current}}}
columns:
  field: {{levels: [arts, law, medicine]}}
  sex: {{levels: [f, m]}}
  salary: {{bounds: [0, 150000], outside: clip}}
survey: {{weight: weight}}
strata: [field]
outcome: salary
model: {{family: scores, predictors: [sex]}}
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "10.8"}}
synthetic_sets: 3
reference: {{path: {folder}/{reference}, period: "2020", provenance: public-use file of 2020}}
sampler: {{name: exact, draws: 200}}
tables:
  - {{name: salaries, by: [field, sex], statistics: [count, {{mean: salary}}]}}
compare: [reference_only]
record: {{log_lik: always}}
runtime: {{executor: serial}}
"""
WEIGHTED = "weighted, weights: fixed_point, aim: 0.3"


def survey(seed: int, n: int = 6000, drift: float = 1.0) -> pd.DataFrame:
    """Skewed weights, salaries that fall with them; rounded, top-coded, some of them 0."""
    rng = np.random.default_rng(seed)
    field, sex, z = rng.choice(3, n, p=[0.2, 0.3, 0.5]), rng.choice(2, n), rng.standard_normal(n)
    place = ndtr(-0.4 * z + np.sqrt(1.0 - 0.4**2) * rng.standard_normal(n))
    log_salary = 10.2 + 0.2 * field + 0.1 * sex + 0.5 * gammaincinv(2.0, place)
    salary = np.exp(log_salary) * (rng.random(n) > 0.03) * drift
    return pd.DataFrame(
        {
            "field": np.array(["arts", "law", "medicine"])[field],
            "sex": np.array(["f", "m"])[sex],
            "salary": np.minimum(np.round(salary, -3), 150_000.0),
            "weight": np.exp(4.0 + 0.3 * field + 1.2 * z) * drift,
        }
    )


def job(folder: Path, edit: tuple[str, str] = ("", ""), **said: str) -> Job:
    plain = {"current": "now.parquet", "reference": "before.parquet", "mechanism": WEIGHTED}
    text = JOB.format(folder=folder, **(plain | said))
    return parse_job(edited(text, edit))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    survey(11).to_parquet(folder / "now.parquet")
    survey(12).to_parquet(folder / "before.parquet")
    survey(13, drift=1.1).to_parquet(folder / "drifted.parquet")
    return folder


@pytest.fixture(scope="module")
def workspace(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scored") / "ws"
    dpdist.run(job(files), folder)
    return folder


def errors(workspace: Path, column: str = "synthetic") -> pd.DataFrame:
    """|error| / direct SE by statistic."""
    found = pd.read_parquet(workspace / "confidential" / "evaluation" / "salaries.parquet")
    return found.set_index("statistic")[f"{column}_error_in_se"].groupby("statistic").agg(["median", "max"])


def test_tables_lie_within_direct_errors_where_a_lognormal_law_misses(workspace: Path, files: Path, tmp_path: Path) -> None:
    """12 cells: the median of |error|/SE is below 1 and no cell is off by 3; the lognormal model, the control, is."""
    assert (errors(workspace)["median"] < 1.0).all()
    assert (errors(workspace)["max"] < 3.0).all()
    plain = "\n".join(line for line in JOB.splitlines() if not line.startswith(("reference", "compare")))
    plain = plain.replace("family: scores", "family: lognormal").replace("outside: clip", "outside: clip, zeros: drop")
    dpdist.run(parse_job(plain.format(folder=files, current="now.parquet", mechanism="weighted")), tmp_path / "plain")
    assert errors(tmp_path / "plain")["max"].max() > 4.0, "control"


def test_drift_of_scale_is_followed_up_to_the_public_top_code(files: Path, tmp_path: Path) -> None:
    dpdist.run(job(files, current="drifted.parquet", mechanism="unweighted"), tmp_path / "ws")
    assert (errors(tmp_path / "ws")["median"] < 1.5).all()
    assert errors(tmp_path / "ws")["median"].max() < 0.5 * errors(tmp_path / "ws", "reference_only")["median"].max()


def test_the_guarantee_is_asymptotic_with_weights_frozen_on_the_reference(workspace: Path) -> None:
    said = statement_of(workspace)
    assert (said["guarantee"], said["epsilon"], said["epsilon_per_set"]) == ("asymptotic", "10.8", "3.6")
    assert any("fixed function of the record" in text for text in said["assumptions"])
    assert any("no bound for every file" in text for text in said["assumptions"])
    assert any("distributions.parquet" in text for text in said["public"])
    strata = pd.read_parquet(workspace / "confidential" / "strata.parquet")
    assert (strata["database_bound"] <= 1.8).all()
    bounds = pd.read_parquet(workspace / "confidential" / "bounds.parquet")
    assert bounds["privacy_weight"].median() > 0.9


def test_synthetic_values_are_the_references_own(workspace: Path, files: Path) -> None:
    """Salaries stay rounded, zeros stay zeros, nothing lies beyond the range of the reference."""
    made, before = (
        pd.read_parquet(p) for p in (workspace / "public" / "synthetic" / "set-1.parquet", files / "before.parquet")
    )
    assert set(made["salary"]) <= set(before["salary"])
    assert (made["salary"] == 0).mean() == pytest.approx(0.03, abs=0.012)
    assert (made["salary"] == 150_000).mean() == pytest.approx((before["salary"] == 150_000).mean(), rel=0.3)
    assert made["weight"].between(before["weight"].min(), before["weight"].max()).all()


def test_without_weights_nothing_is_promised_and_the_reference_still_serves(files: Path, tmp_path: Path) -> None:
    """A release's median of 12 cells is .6 ± .25: the mean of three is above 1 in 2 of 1,000 sets of draws."""
    medians = []
    for name in ("first", "second", "third"):
        dpdist.run(job(files, mechanism="unweighted"), tmp_path / name)
        statement = statement_of(tmp_path / name)
        assert statement["guarantee"] == "none"
        medians.append(errors(tmp_path / name)["median"])
    assert (sum(medians) / len(medians) < 1.0).all()


def test_yes_or_no_outcomes_have_parts_and_weights_of_their_own(tmp_path: Path) -> None:
    """A vote that goes with the weight. Three sets at ε = 3.6: the median cell is off by a direct error or so."""
    for name, seed in (("now", 11), ("before", 12)):
        rows = survey(seed)
        voted = np.random.default_rng(seed + 10).random(len(rows)) < np.where(rows["weight"] > 70, 0.8, 0.4)
        rows.assign(salary=np.where(voted, "yes", "no")).to_parquet(tmp_path / f"{name}.parquet")
    edit = ("{bounds: [0, 150000], outside: clip}", '{bounds: [0, 1], codes: {"no": 0, "yes": 1}}')
    dpdist.run(job(tmp_path, edit), tmp_path / "ws")
    assert (errors(tmp_path / "ws")["median"] < 1.5).all()
    assert (errors(tmp_path / "ws")["max"] < 4.0).all()
    made = pd.read_parquet(tmp_path / "ws" / "public" / "synthetic" / "set-1.parquet")
    assert set(made["salary"]) == {0.0, 1.0}


def changed(rows: pd.DataFrame, **columns: object) -> pd.DataFrame:
    return rows.assign(**columns)


BAD = {
    "weights that are equal": (lambda r: changed(r, weight=7.0), "the same for all records"),
    "one salary": (lambda r: changed(r, salary=5e4), "the same for all records"),
    "a salary that is infinite": (lambda r: changed(r, salary=r["salary"].where(r.index != 7, np.inf)), "not finite"),
}


@pytest.mark.parametrize("which", ["current", "reference"])
@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_scored_is_refused_before_anything_is_written(
    name: str, which: str, files: Path, tmp_path: Path
) -> None:
    make, found = BAD[name]
    make(survey(1 if which == "current" else 2)).to_parquet(files / "bad.parquet")
    with pytest.raises(DataError, match=found) as told:
        dpdist.run(job(files, **{which: "bad.parquet"}), tmp_path / "ws")
    assert "bad.parquet" in str(told.value)
    assert not (tmp_path / "ws").exists()


def test_a_salary_beyond_its_public_bounds_is_refused_unless_the_job_clips(files: Path) -> None:
    rows = survey(1)
    rows.loc[7, "salary"] = 2e5
    rows.to_parquet(files / "high.parquet")
    assert dpdist.validate(job(files, current="high.parquet")).census.removed == {"salary: outside its bounds, clipped": 1}
    with pytest.raises(DataError, match="outside the public bounds"):
        dpdist.validate(job(files, (", outside: clip", ""), current="high.parquet"))


def test_a_cell_without_reference_records_is_named(files: Path, tmp_path: Path) -> None:
    rows = survey(2)
    rows[(rows["field"] != "law") | (rows["sex"] != "f")].to_parquet(files / "without.parquet")
    with pytest.raises(DataError, match="field = law and sex = f"):
        dpdist.run(job(files, reference="without.parquet"), tmp_path / "ws")
    assert not (tmp_path / "ws").exists()


def test_cells_that_borrow_are_named_in_plan_and_statement(files: Path, tmp_path: Path, workspace: Path) -> None:
    """40 women of law in the reference. Others are not named, nor is anyone where all have enough."""
    rows = survey(12)
    few = (rows["field"] == "law") & (rows["sex"] == "f")
    rows[~few | (few.cumsum() <= 40)].to_parquet(files / "few.parquet")
    told = "".join(map(str, cautions(dpdist.plan(job(files, reference="few.parquet")))))
    assert "fewer than 100 reference records" in told
    assert "law / f (40)" in told
    dpdist.run(job(files, reference="few.parquet", mechanism="unweighted"), tmp_path / "ws")
    found, usual = (statement_of(each) for each in (tmp_path / "ws", workspace))
    of_all = [each for each in found["borrowing"]["cells"] if "outcome" in each["own_weight"]]
    assert [(each["stratum"], each["cell"], each["reference_records"]) for each in of_all] == [("law", "f", 40)]
    assert 0.0 <= of_all[0]["own_weight"]["outcome"] < 1.0
    assert any("`borrowing`" in step for step in found["post_processing"])
    assert not [each for each in usual.get("borrowing", {}).get("cells", []) if "outcome" in each["own_weight"]], "control"
    assert "borrow part of their distributions" not in "".join(map(str, cautions(dpdist.plan(job(files))))), "control"


WRONG = [
    (("\nreference", "\n# reference"), "add reference"),
    (("predictors: [sex]", "predictors: [sex], synthesis: fbp"), "no closed form"),
    (("predictors: [sex]", "predictors: [sex], prior: {name: proper}"), r"the prior of 'scores' is fixed \(line"),
    (("survey: {weight: weight}\n", ""), "name the weight column"),
    ((WEIGHTED, "censor_uw"), "'scores' is fitted only in closed form"),
    (("name: exact, draws: 200", "name: stan"), "'scores' has no stan sampler"),
]


@pytest.mark.parametrize(("edit", "found"), WRONG)
def test_contradictions_are_named(edit: tuple[str, str], found: str, files: Path) -> None:
    if edit[0].startswith("\nreference"):
        edit = (f"\nreference: {{path: {files}/before.parquet", f"\n#{{path: {files}/before.parquet")
    with pytest.raises(JobError, match=found):
        job(files, edit)


def test_where_the_reference_needs_no_privacy_weights_none_is_below_1(files: Path, tmp_path: Path, workspace: Path) -> None:
    dpdist.run(job(files, ('epsilon: "10.8"', 'epsilon: "400"')), tmp_path / "ws")
    found, usual = (pd.read_parquet(each / "confidential" / "bounds.parquet") for each in (tmp_path / "ws", workspace))
    assert (found["privacy_weight"] == 1.0).all()
    assert (usual["privacy_weight"] < 1.0).any(), "control"
