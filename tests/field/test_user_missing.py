"""Codes of missing values, as SPSS declares them and as Stata's .a and .b, have labels and are no levels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyreadstat
import pytest
from command_line import succeed

import dpdist

LABELS = {1: "North", 2: "South", 3: "East"}
TO_FILL = {"income": "[0, 20000], outside: clip", "weight": "[1, 60], outside: clip"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One survey of 500 records as files of SPSS, Stata, CSV with gaps, and CSV with the codes."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    region, sex = rng.choice([1.0, 2.0, 3.0, 8.0, 9.0], 500, p=[0.4, 0.3, 0.2, 0.05, 0.05]), ["M", "F", "X"]
    sexes = rng.choice(sex, 500, p=[0.48, 0.48, 0.04])
    income = np.where(rng.random(500) < 0.1, -9.0, rng.gamma(2, 900, 500).round(-1))
    records = pd.DataFrame({"region": region, "sex": sexes, "income": income, "weight": rng.uniform(5, 50, 500).round(2)})
    labels = {"region": {**LABELS, 8: "Don't know", 9: "Refused"}, "sex": {"M": "Men", "F": "Women", "X": "Refused"}}
    ranges = {"region": [{"lo": 8, "hi": 9}], "income": [-9], "sex": ["X"]}
    pyreadstat.write_sav(records, "data.sav", variable_value_labels=labels, missing_ranges=ranges)
    answered = records[records["income"] != -9]
    pyreadstat.write_sav(answered, "answered.sav", variable_value_labels=labels, missing_ranges=ranges)
    answered.to_csv("codes.csv", index=False)
    gaps = answered.assign(
        region=answered["region"].where(answered["region"] < 8), sex=answered["sex"].where(answered["sex"] != "X")
    )
    gaps.to_csv("gaps.csv", index=False)
    lettered = records.assign(sex=records["sex"].map({"M": 1.0, "F": 2.0, "X": 1.0})).astype(object)
    for code, letter in ((8, "a"), (9, "b")):
        lettered.loc[region == code, "region"] = letter
    lettered = lettered[income != -9]
    of_letters = {"region": {**LABELS, "a": "Don't know", "b": "Refused"}, "sex": {1: "Men", 2: "Women"}}
    pyreadstat.write_dta(lettered, "data.dta", missing_user_values={"region": ["a", "b"]}, variable_value_labels=of_letters)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "book", "sexes"),
    [
        *(("answered.sav", "data.sav", ("F", "M")), ("codes.csv", "data.sav", ("F", "M"))),
        *(("gaps.csv", "data.sav", ("F", "M")), ("data.dta", "data.dta", (1, 2))),
    ],
)
def test_a_job_from_init_validates_with_missing_codes_as_missing(
    file: str, book: str, sexes: tuple[object, ...], files: Path
) -> None:
    """With bounds filled in, and nothing else: levels are those of answers, and the others are missing in every file."""
    said = ["init", file, "--codebook", book, "--outcome", "income", "--weight", "weight", "--table", "region,sex"]
    succeed(*said, "--period", "2024", "--out", "job.yaml", "-y")
    text = Path("job.yaml").read_text(encoding="utf-8")
    for name, domain in TO_FILL.items():
        text = text.replace(f"# TODO fill: {name}: {{bounds: […, …], outside: clip}}", f"{name}: {{bounds: {domain}}}")
    Path("job.yaml").write_text(text, encoding="utf-8")
    job = dpdist.load_job("job.yaml")
    assert job.columns["region"].levels == ("1", "2", "3", "Not reported")
    assert (
        set(job.columns["sex"].levels or ()) - {"Not reported"} == set(map(str, sexes))
        or job.columns["sex"].levels == sexes
    )
    assert "Refused" not in text
    succeed("validate", "job.yaml")


def test_records_of_missing_codes_are_those_by_hand(files: Path) -> None:
    """Complete cases: 165, 132 and 100 records with weights of 4492.21, 3631.79 and 2802.58."""
    job = """
dataset: usermissing
period: "2024"
input: {path: data.sav}
columns:
  region: {levels: [1, 2, 3], missing: drop}
  sex: {levels: [M, F], missing: drop}
  income: {bounds: [0, 20000], outside: clip, missing: drop}
survey: {weight: weight}
outcome: income
mechanism: {name: laplace}
budget: {epsilon: "1000"}
tables:
  - {name: pay, by: [region], statistics: [count, {mean: income}]}
  - {name: both, by: [region, sex], statistics: [count]}
runtime: {executor: serial}
"""
    dpdist.run(job, files / "work")
    direct = pd.read_parquet(files / "work" / "confidential" / "evaluation" / "pay.parquet").set_index(
        ["region", "statistic"]
    )
    counts = [direct.loc[(region, "count"), "direct"] for region in ("1", "2", "3")]
    means = [direct.loc[(region, "mean"), "direct"] for region in ("1", "2", "3")]
    assert counts == pytest.approx([4492.21, 3631.79, 2802.58])
    assert means == pytest.approx([1775.013813, 1995.617203, 1676.383404])
