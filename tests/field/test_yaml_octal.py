"""Codes with zeros in front, unquoted in a job: PyYAML reads 010 as 8, and `outside: clip` merged departments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.errors import DataError

JOB = """
dataset: octal
period: 2023_24
input: {path: data.csv}
columns:
  dep: {levels: [001, 002, 010, 011]}
  income: {bounds: [0, 020000], outside: clip}
  weight: {bounds: [1, 60], outside: clip}
survey: {weight: weight}
outcome: income
mechanism: {name: tables}
budget: {epsilon: "1000", adjacency: substitution}
tables:
  - {name: pay, by: [dep], statistics: [count, {mean: income}]}
runtime: {executor: serial}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    rng = np.random.default_rng(6)
    records = pd.DataFrame(
        {"dep": rng.choice(["001", "002", "010", "011"], 600), "income": rng.gamma(2, 900, 600).round(-1)}
    )
    records.assign(weight=rng.uniform(5, 50, 600).round(2)).to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    return tmp_path / "job.yaml"


def test_codes_are_the_texts_of_the_file_and_bounds_are_decimal(job: Path) -> None:
    """The direct counts are those by hand: 3773.89, 4225.95, 3677.49 and 4619.19."""
    read = dpdist.load_job(job)
    assert (read.period, read.columns["income"].bounds) == ("2023_24", (0.0, 20_000.0))
    dpdist.run(job, job.parent / "work")
    direct = pd.read_parquet(job.parent / "work" / "confidential" / "evaluation" / "pay.parquet")
    counts = direct[(direct["statistic"] == "count") & (direct["dep"] != "Total")].set_index("dep")["direct"]
    assert dict(counts.round(2)) == {"001": 3773.89, "002": 4225.95, "010": 3677.49, "011": 4619.19}


def test_a_file_whose_codes_have_no_zeros_is_refused(job: Path) -> None:
    """8 and 9 are not 010 and 011."""
    records = pd.read_csv(job.parent / "data.csv", dtype=str)
    records.assign(dep=records["dep"].map({"001": "1", "002": "2", "010": "8", "011": "9"})).to_csv(
        job.parent / "data.csv", index=False
    )
    with pytest.raises(DataError, match="not declared levels"):
        dpdist.run(job, job.parent / "work")
