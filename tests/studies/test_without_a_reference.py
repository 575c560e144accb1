"""Random halves of public files without a reference: do published intervals hold the halves' own direct estimates?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.records import TOTAL

Named = Callable[[str], AbstractContextManager[None]]
SPLITS = 3
LEAST_HELD = 0.85
JOB = """
dataset: halves
period: "1"
input: {{path: {folder}/now.parquet}}
columns:
  {by[0]}: {{levels: {levels[0]}}}
  {by[1]}: {{levels: {levels[1]}}}
  outcome: {{bounds: {bounds}, outside: clip}}
  weight: {{bounds: {weight}, outside: clip}}
survey: {{weight: weight}}
outcome: outcome
mechanism: {{name: tables}}
budget: {{epsilon: "1", adjacency: substitution}}
reference: {{histogram: {{epsilon: "0.3"}}}}
tables:
  - {{name: one, by: [{by[0]}, {by[1]}], statistics: [count, {{mean: outcome}}]}}
runtime: {{executor: serial}}
"""


class Case(NamedTuple):
    file: str
    outcome: Callable[[pd.DataFrame], pd.Series]
    by: tuple[str, str]
    bounds: str
    weight: str


CASES = {
    "insurance": Case(
        *("nhis2003", lambda rows: (rows["uninsured"] == "Yes").astype(float).where(rows["uninsured"].notna())),
        *(("ethnicity", "age_group"), "[0, 1]", "[500, 25000]"),
    ),
    "energy": Case(
        *("recs2015", lambda rows: rows["total_dollars"], ("region", "housing_type"), "[0, 15000]", "[500, 150000]"),
    ),
    "earnings": Case(
        *("cps_asec2012", lambda rows: 2080.0 * rows["hourly_wage"], ("education", "sex"), "[0, 820000]", "[50, 10000]"),
    ),
}


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("name", CASES)
def test_intervals_hold_direct_estimates_and_totals_are_near(
    name: str, data: Path, tmp_path: Path, noise_of: Named
) -> None:
    """Nominal .90, over cells, margins and splits.

    The mean error of figures of all records is at most two published standard errors. Control: quarters of the intervals
    hold fewer.
    """
    case = CASES[name]
    rows = pd.read_parquet(data / f"{case.file}.parquet")
    rows = rows.assign(outcome=case.outcome(rows).astype(float))[[*case.by, "weight", "outcome"]].dropna()
    levels = [sorted(rows[column].astype(str).unique()) for column in case.by]
    job = dpdist.parse_job(JOB.format(**case._asdict() | {"folder": tmp_path, "levels": levels}))
    found = []
    for split in range(SPLITS):
        half = rows[np.random.default_rng(split).random(len(rows)) < 0.5]
        half.astype(dict.fromkeys(case.by, str)).to_parquet(tmp_path / "now.parquet")
        with noise_of(f"{name} {split}"):
            dpdist.run(job, tmp_path / f"{split}")
        found.append(pd.read_parquet(tmp_path / f"{split}" / "confidential" / "evaluation" / "one.parquet"))
    table = pd.concat(found)
    for statistic in ("count", "mean"):
        own = table[(table["statistic"] == statistic) & table["direct"].notna() & table["synthetic"].notna()]
        held = (own["synthetic_lower"] <= own["direct"]) & (own["direct"] <= own["synthetic_upper"])
        grand = own[(own[list(case.by)] == TOTAL).all(axis=1)]
        error = abs((grand["synthetic"] / grand["direct"] - 1.0).mean())
        apart = abs(((grand["synthetic"] - grand["direct"]) / grand["synthetic_se"]).mean())
        size = own["synthetic_error_in_se"]
        print(
            f"{name} {statistic}: held {held.mean():.2f}, errors {size.median():.2f} / {size.max():.1f}, "
            f"all {error:.3f}, {apart:.1f} of its stated errors",
            flush=True,
        )
        assert held.mean() >= LEAST_HELD
        assert apart <= 2.0
        middle, half_width = own["synthetic"], (own["synthetic_upper"] - own["synthetic_lower"]) / 2.0
        assert ((own["direct"] - middle).abs() <= half_width / 4.0).mean() < 0.85
