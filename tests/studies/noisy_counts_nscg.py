"""Tables of NSCG salaries whose sample counts are noisy: errors in direct standard errors, and how often intervals hold.

    python tests/studies/noisy_counts_nscg.py --data FOLDER [--replicates R]

Half of the file, about 35,700 records, is released with the other half as its reference. Intervals hold sampling error, so
they should hold their own half's direct estimates more often than .90, and the other half's, widened by its own error, as
often as that or more: part of a cell's shape is the other half's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this checkout

import numpy as np
import pandas as pd

import dpdist
from dpdist.job.loading import load_job

ARMS: dict[str, dict[str, Any]] = {
    "public": {"budget": {"epsilon": "1", "adjacency": "zero_out"}},
    "1/4": {"budget": {"epsilon": "1", "adjacency": "add_remove"}, "predictors": {"protect": {"epsilon": "1/4"}}},
    "1/10": {"budget": {"epsilon": "1", "adjacency": "add_remove"}, "predictors": {"protect": {"epsilon": "1/10"}}},
}
REACH = 1.6448536269514722
CELL = ["degree_field", "sex", "statistic"]


def job_of(arm: str, reference: Path) -> dict[str, Any]:
    said = load_job("nscg_salaries").model_dump(mode="json")
    more = {"salary": {"bounds": [0, 150000], "outside": "clip"}, "weight": {"bounds": [0, 4000], "outside": "clip"}}
    columns = said["columns"] | more
    said = {name: said[name] for name in ("dataset", "period", "universe", "survey", "outcome", "tables")}
    return (
        said
        | {
            "columns": columns,
            "mechanism": {"name": "reference_tables"},
            "reference": {"path": str(reference)},
            "runtime": {"executor": "serial"},
        }
        | ARMS[arm]
    )


def released(arm: str, now: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """Estimates from parameters beside direct ones of the same half, a row a cell and statistic."""
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        before.to_parquet(reference := Path(folder) / "before.parquet")
        now.to_parquet(current := Path(folder) / "now.parquet")
        dpdist.run(job_of(arm, reference), Path(folder) / "work", input=current, counted=False)
        evaluated = pd.read_parquet(Path(folder) / "work" / "confidential" / "evaluation" / "salaries.parquet")
        published = pd.read_parquet(Path(folder) / "work" / "public" / "tables" / "salaries.parquet")
    published = published[published["estimator"] == "parameters"]
    return published.merge(evaluated[[*CELL, "direct", "direct_se"]], on=CELL)


def judged(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Errors about the own half's direct estimates, and whether intervals hold the other half's, given its own error."""
    beside = other[[*CELL, "direct", "direct_se"]].rename(columns={"direct": "other", "direct_se": "other_se"})
    both = one.merge(beside, on=CELL)
    error = (both["estimate"] - both["direct"]).abs()
    apart = (both["estimate"] - both["other"]).abs()
    return both.assign(
        error=error / both["direct_se"],
        own_half=error <= REACH * both["standard_error"],
        other_half=apart <= REACH * np.hypot(both["standard_error"], both["other_se"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--replicates", type=int, default=3)
    said = parser.parse_args()
    rows = pd.read_parquet(Path(said.data) / "nscg2013.parquet")
    rows = rows[(rows["employment_status"] == "Employed") & (rows["salary"] > 0)].reset_index(drop=True)
    found = list[pd.DataFrame]()
    for number in range(said.replicates):
        first = np.random.default_rng(number).random(len(rows)) < 0.5
        other = released("public", rows[~first], rows[first])
        found += [judged(released(arm, rows[first], rows[~first]), other).assign(arm=arm) for arm in ARMS]
    print("| sample counts | statistic | median | largest | own half held | other half held |")
    for (arm, name), own in pd.concat(found).groupby(["arm", "statistic"]):
        held = f"{own['own_half'].mean():.2f} | {own['other_half'].mean():.2f}"
        print(f"| {arm} | {name} | {own['error'].median():.2f} | {own['error'].max():.1f} | {held} |")


if __name__ == "__main__":
    main()
