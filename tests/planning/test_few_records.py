"""A file without a reference has enough records for noisy counts of bins, or is refused before its budget is spent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.errors import JobError

JOB = """
dataset: clinic
period: "1"
columns:
  ward: {{levels: [a, b]}}
  cost: {{bounds: [0, 100000], outside: clip}}
  weight: {{bounds: [1, 1000], outside: clip}}
survey: {{weight: weight}}
outcome: cost
mechanism: {{name: tables}}
budget: {{epsilon: "{epsilon}", adjacency: substitution}}
tables: [{{name: t, by: [ward], statistics: [count, {{mean: cost}}]}}]
runtime: {{executor: serial}}
{more}
"""
RECORDS = 160
"""Their counts have noise of scale 26.7 at ε = 1: two columns, of which another record moves two counts each, at .9/6."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("few") / "file.parquet"
    rows = {"ward": rng.choice(["a", "b"], RECORDS), "cost": np.exp(rng.normal(7.0, 1.0, RECORDS))}
    pd.DataFrame({**rows, "weight": np.exp(rng.normal(4.0, 0.5, RECORDS))}).to_parquet(path)
    return path


def run(file: Path, epsilon: float, folder: Path, more: str = "") -> pd.DataFrame:
    dpdist.run(dpdist.parse_job(JOB.format(epsilon=epsilon, more=more)), folder, file, counted=False)
    return pd.read_parquet(folder / "confidential" / "evaluation" / "t.parquet")


@pytest.mark.parametrize(("more", "fault"), [("", "160 records,"), ("strata: [ward]", " in stratum ")])
def test_few_records_without_a_reference_are_refused(more: str, fault: str, file: Path, tmp_path: Path) -> None:
    """At ε = 1. Control: at ε = 8 they are enough."""
    with pytest.raises(JobError, match=r"reference\.histogram") as refused:
        run(file, 1.0, tmp_path / "refused", more)
    (problem,) = refused.value.problems
    assert fault in problem.fault
    assert "noise of scale 26.7" in problem.fault
    assert problem.allowed == "at least 214 records"
    assert not (tmp_path / "refused" / "public").exists()
    run(file, 8.0, tmp_path / "enough", more)


@pytest.mark.long
def test_figures_of_fewer_records_would_be_wrong(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 6 records a scale, a fifth of intervals of all records end below half of the direct figure or begin above 1.5 of
    it: 2 of 48, at least (missed in less than 1 of 1,000 runs). Control: with 24, none does in ten releases.
    """

    def far(epsilon: float, releases: int) -> int:
        found = pd.concat([run(file, epsilon, tmp_path / f"{epsilon} {number}") for number in range(releases)])
        of_all = found[(found["ward"] == "Total") & found["statistic"].isin(["count", "mean"])]
        below = of_all["synthetic_upper"] < 0.5 * of_all["direct"]
        return int((below | (of_all["synthetic_lower"] > 1.5 * of_all["direct"])).sum())

    assert far(4.0, 10) == 0, "control"
    monkeypatch.setattr("dpdist.planning.making.FEWEST_OVER_SCALE", 0.0)
    assert far(1.0, 24) >= 2
