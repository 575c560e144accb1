"""The shipped jobs on the survey files they are for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import invoke, succeed
from edited_text import edited
from public_files import statement_of
from scipy.sparse import csr_array

from dpdist.cli.report import report
from dpdist.core.errors import JobError
from dpdist.estimation import direct as statistics
from dpdist.estimation.direct import DesignSample
from dpdist.job.loading import find_job, parse_job
from dpdist.release import run

HOLDING = True
"""Verdicts decide on releases: see conftest."""

JOBS = {"nscg_salaries": ("nscg2013", 7, 24), "tax_wages": ("cps_taxunits", 51, 260)}


@pytest.mark.real_data
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.long
def test_a_shipped_job_runs_on_its_file(job: str, data: Path, tmp_path: Path) -> None:
    file, strata, cells = JOBS[job]
    # The verdict on the first job refuses, and holds its release.
    name, code = ("held", 4) if job == "nscg_salaries" else ("public", 0)
    folder = tmp_path / name
    done = invoke("run", job, "--workspace", tmp_path, "--input", data / f"{file}.parquet")
    assert done.exit_code == code, done.output
    statement = statement_of(folder)
    assert statement["epsilon"] == "10.8"
    assert any("assumed public" in fact and "zeros" in fact for fact in statement["public"])
    bounds = pd.read_parquet(tmp_path / "confidential" / "strata.parquet")
    assert len(bounds) == strata
    assert (bounds["database_bound"] <= 1.8).all()
    (table,) = (folder / "tables").glob("*.parquet")
    published = pd.read_parquet(table)
    assert len(published) == cells * 2 * 2
    assert published["estimate"].notna().all()
    top = pd.read_parquet(folder / "synthetic" / "set-1.parquet")
    assert len(top) == bounds["rows"].sum()
    text = " ".join(report(tmp_path, confidential=True).split())
    verdict = text[text.index("CONFIDENTIAL VERDICT") :]
    if job == "nscg_salaries":
        assert verdict.startswith("CONFIDENTIAL VERDICT: do not publish")
        assert (
            "fewer than 90 %" in verdict
            or "differs from its direct estimate by more than chance" in verdict
            or "it is biased" in verdict
        )


@pytest.mark.long
@pytest.mark.real_data
def test_the_health_survey_is_evaluated_under_its_design_of_two_psus_a_stratum(data: Path, tmp_path: Path) -> None:
    file = data / "nhanes2015.parquet"
    succeed("run", "nhanes_bmi", "--workspace", tmp_path, "--input", file)
    rows = pd.read_parquet(file)
    rows = rows[(rows["examined"] == "Yes") & rows["bmi"].notna() & (rows["age"] >= 20)]
    sample = DesignSample.of(rows["weight_exam"].to_numpy(), rows["stratum"].to_numpy(), rows["psu"].to_numpy())
    mean = statistics.mean(sample, csr_array(np.ones((1, len(rows)))), rows["bmi"].to_numpy(float))
    found = pd.read_parquet(tmp_path / "confidential" / "evaluation" / "bmi.parquet")
    whole = found[(found["sex"] == "Total") & (found["age_group"] == "Total") & (found["statistic"] == "mean")].iloc[0]
    assert whole["direct"] == pytest.approx(mean.value[0], rel=1e-9)
    assert whole["direct_se"] == pytest.approx(mean.standard_error[0], rel=1e-9)
    assert whole["direct_df"] == 15
    said = statement_of(tmp_path)["standard_errors"]
    assert any("The model ignores clustering by psu" in text for text in said)


RECS = """
dataset: recs
period: "2015"
columns:
  division:
    levels: [New England, Middle Atlantic, East North Central, West North Central, South Atlantic, East South Central,
             West South Central, Mountain North, Mountain South, Pacific]
  total_dollars: {bounds: [0, 100000]}
survey:
  weight: weight
  replicate_weights: {kind: fay, prefix: brr_, number: 96, fay: 0.5}
outcome: total_dollars
model: {family: lognormal, predictors: [division]}
mechanism: {name: weighted}
budget: {epsilon: "3.6"}
tables: [{name: bills, by: [division], statistics: [count, {mean: total_dollars}, {total: total_dollars}]}]
sampler: {name: exact, draws: 200}
record: {log_lik: never}
"""


@pytest.mark.real_data
def test_replicate_weights_give_the_published_error_of_the_energy_survey(data: Path, tmp_path: Path) -> None:
    """Mean bill 1,859 dollars, BRR error 15.6 (data README); and R's figures for every division."""
    run(parse_job(RECS), tmp_path, input=data / "recs2015.parquet")
    found = pd.read_parquet(tmp_path / "confidential" / "evaluation" / "bills.parquet")
    golden = pd.read_csv(Path(__file__).parents[1] / "survey" / "golden" / "golden.csv", dtype={"domain": str})
    golden = golden[golden["case"] == "recs2015"].set_index(["statistic", "domain"])
    for name in ("mean", "total"):
        mine = found[found["statistic"] == name]
        expected = golden.loc[[(name, division) for division in mine["division"]]]
        np.testing.assert_allclose(mine["direct"], expected["value"], rtol=1e-9)
        np.testing.assert_allclose(mine["direct_se"], expected["se"], rtol=1e-9)
        assert (mine["direct_df"] == 95).all()
    whole = found[(found["division"] == "Total") & (found["statistic"] == "mean")].iloc[0]
    assert whole["direct"] == pytest.approx(1859, abs=0.5)
    assert whole["direct_se"] == pytest.approx(15.6, abs=0.05)


def vote_job(**edits: str) -> str:
    text = find_job("vote_turnout").read_text(encoding="utf-8")
    return edited(text, *edits.values())


SERIAL = ("executor: dask, workers: 2", "executor: serial")
LATEST = ("strata: [year", "universe: [{column: year, keep: [2022, 2024]}]\nstrata: [year")


@pytest.mark.real_data
@pytest.mark.parametrize(
    "edits", [{"latest": LATEST, "serial": SERIAL}, pytest.param({}, marks=pytest.mark.slow)], ids=["102", "816"]
)
@pytest.mark.long
def test_turnout_is_released_by_state_and_year(data: Path, tmp_path: Path, edits: dict[str, tuple[str, str]]) -> None:
    (tmp_path / "job.yaml").write_text(vote_job(**edits), encoding="utf-8")
    command = ["run", str(tmp_path / "job.yaml"), "--workspace", str(tmp_path / "ws")]
    succeed(*command, "--input", data / "cps_vote.parquet")
    bounds = pd.read_parquet(tmp_path / "ws" / "confidential" / "strata.parquet")
    assert len(bounds) == (102 if edits else 816)
    assert (bounds["database_bound"] <= 1.0).all()
    found = pd.read_parquet(tmp_path / "ws" / "confidential" / "evaluation" / "turnout.parquet")
    cells = found[(found["statistic"] == "mean") & (found["state"] != "Total") & (found["year"] != "Total")]
    assert cells["direct"].notna().sum() == len(bounds)
    assert cells["synthetic_error_in_se"].median() < 1.5
    rows = pd.read_parquet(data / "cps_vote.parquet", columns=["year", "state", "voted"]).dropna()
    ohio = rows[(rows["state"] == "OH") & (rows["year"] == 2022)]["voted"] == "Yes"
    direct = cells[(cells["state"] == "OH") & (cells["year"] == "2022")]["direct"].iloc[0]
    assert direct == pytest.approx(ohio.mean(), rel=1e-12)


def test_what_lognormal_cannot_do_is_refused_with_the_families_that_can() -> None:
    with pytest.raises(JobError) as refused:
        parse_job(vote_job(family=("family: bernoulli", "family: lognormal")))
    assert "'lognormal' takes values above 0, and 'No' is coded 0" in str(refused.value)
    assert "families that can take it are bernoulli, " in str(refused.value)


@pytest.mark.real_data
def test_direct_estimates_of_the_tax_file_are_those_of_its_codebook(data: Path) -> None:
    """Wages of 6.75 trillion dollars (data README)."""
    units = pd.read_parquet(data / "cps_taxunits.parquet", columns=["weight", "wages"])
    assert (units["weight"] * units["wages"]).sum() == pytest.approx(6.75e12, rel=1e-3)
