"""What bounds cut off is stated to the custodian by its cost, before anything is spent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.cli.plan_text import for_custodian
from dpdist.job.loading import parse_job

JOB = """
dataset: shops
period: "2024"
columns:
  region: {levels: [north, south]}
  pay: {bounds: [0, 1000], outside: clip}
  weight: {bounds: [1, 10], outside: clip}
survey: {weight: weight}
outcome: pay
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: substitution}
reference: {histogram: {epsilon: "0.2"}}
tables: [{name: pay, by: [region], statistics: [count, {mean: pay}]}]
"""


@pytest.mark.parametrize("largest", [400.0, 100_000.0])
def test_one_clipped_record_is_stated_by_its_share_of_the_total(largest: float, tmp_path: Path) -> None:
    """One of 2,000 records. Control: without a value beyond the bounds nothing is said of sums or bounds."""
    pay = np.full(2000, 500.0)
    pay[7] = largest
    pd.DataFrame({"region": ["north", "south"] * 1000, "pay": pay, "weight": 5.0}).to_parquet(tmp_path / "now.parquet")
    lines = for_custodian(dpdist.validate(parse_job(JOB), tmp_path / "now.parquet"))
    if largest == 400.0:
        assert lines["clipped to bounds"].startswith("pay: 0 % of records; weight: 0 % of records (")
        assert "bounds too narrow" not in lines
        return
    cost = 100 * (largest - 1000.0) / (1999 * 500.0 + largest)
    assert lines["clipped to bounds"].startswith(f"pay: 0.05 % of records, which lowers its sum by {cost:.2g} %; ")
    assert "columns.pay.bounds (" in lines["bounds too narrow"]


def test_weights_beyond_their_bound_are_stated_by_the_population_that_is_lost(tmp_path: Path) -> None:
    """Every weight is twice its bound."""
    columns = {"region": ["north", "south"] * 1000, "pay": np.linspace(0.0, 1000.0, 2000), "weight": 20.0}
    pd.DataFrame(columns).to_parquet(tmp_path / "now.parquet")
    lines = for_custodian(dpdist.validate(parse_job(JOB), tmp_path / "now.parquet"))
    assert "weight: 100 % of records, which lowers its sum by 50 %" in lines["clipped to bounds"]
    assert "columns.weight.bounds (" in lines["bounds too narrow"]
