"""Values near the largest float64 under `outside: clip`: a run has no overflow, and publishes what clipped values give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_release import LAPLACE_JOB as JOB, survey

import dpdist
from dpdist.core.records import Floats
from dpdist.job.loading import parse_job
from dpdist.privacy.adjacency import domain

PACKAGE = """
dataset: zeros
period: "2021"
columns:
  sex: {{levels: [f, m]}}
  salary: {{bounds: [0, 200000], outside: clip}}
  weight: {{bounds: [{low}, 60], outside: {outside}}}
survey: {{weight: weight}}
outcome: salary
mechanism: {{name: {mechanism}}}
reference: {{path: before.parquet, period: "2020", provenance: simulated}}
budget: {{epsilon: "3"}}
tables: [{{name: t, by: [sex], statistics: [count]}}]
"""


@pytest.mark.parametrize("column", ["salary", "weight"])
def test_a_value_of_1e308_overflows_nowhere(column: str, tmp_path: Path) -> None:
    """Warnings are errors in tests: the direct estimates warned of an overflow. Control: the clipped file's release."""
    file = survey(400)
    far = file.assign(**{column: np.where(file.index == 3, 1e308, file[column])})
    far = far.assign(salary=np.where(far.index == 5, -1e308, far["salary"]))
    bounds = {"salary": (0.0, 200_000.0), "weight": (1.0, 60.0)}
    clipped = far.assign(**{name: far[name].clip(*ends) for name, ends in bounds.items()})
    direct = list[Floats]()
    for name, rows in {"far": far, "clipped": clipped}.items():
        dpdist.run(JOB, tmp_path / name, rows)
        evaluated = pd.read_parquet(tmp_path / name / "confidential" / "evaluation" / "counts.parquet")
        assert np.isfinite(evaluated["direct"].to_numpy(float)).all()
        direct.append(evaluated["direct"].to_numpy(float))
    assert np.abs(direct[0]).max() > 1e40 > np.abs(direct[1]).max(), "the custodian sees that values were clipped"


@pytest.mark.parametrize(
    ("low", "outside", "mechanism", "words"),
    [
        (0, "clip", "tables", "0 or more"),
        (1, "clip", "tables", "above 0"),
    ],
)
def test_the_domain_says_whether_weights_of_0_are_in_it(low: int, outside: str, mechanism: str, words: str) -> None:
    job = parse_job(PACKAGE.format(low=low, outside=outside, mechanism=mechanism))
    (line,) = (line for line in domain(job) if line.startswith("weight:"))
    assert line.startswith(f"weight: not missing, finite, {words},")
