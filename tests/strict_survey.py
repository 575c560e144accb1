"""A survey of skewed weights and outcomes in two periods, and a strict job of it with an earlier file as its reference."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pandas as pd
from edited_text import edited

from dpdist.job import Job
from dpdist.job.loading import parse_job

Named = Callable[[str], AbstractContextManager[None]]
JOB = """
dataset: strict
publish: always
withhold_above: null
period: "2021"
input: {{path: {folder}/{current}}}
columns:
  field: {{levels: [arts, law, medicine]}}
  sex: {{levels: [f, m]}}
  salary: {{bounds: [0, 150000], outside: clip}}
survey: {{weight: weight}}
outcome: salary
mechanism: {{name: tables}}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}}}
reference: {{path: {folder}/{reference}, period: "2020", provenance: public-use file of 2020}}
tables:
  - {{name: salaries, by: [field, sex], statistics: [count, {{mean: salary}}]}}
compare: [laplace_composed, laplace_finest, reference_only]
runtime: {{executor: serial}}
"""


def survey(seed: int, n: int = 6000, drift: float = 1.0) -> pd.DataFrame:
    """Skewed weights, skewed outcomes with zeros and a top-code."""
    rng = np.random.default_rng(seed)
    field, sex = rng.choice(3, n, p=[0.2, 0.3, 0.5]), rng.choice(2, n)
    salary = np.exp(rng.normal(10.6 + 0.2 * field + 0.1 * sex, 0.5, n)) * (rng.random(n) > 0.03) * drift
    weight = np.exp(rng.normal(4.0 + 0.3 * field, 1.0, n)) * drift
    return pd.DataFrame(
        {
            "field": np.array(["arts", "law", "medicine"])[field],
            "sex": np.array(["f", "m"])[sex],
            "salary": np.minimum(np.round(salary, -2), 150_000.0),
            "weight": weight,
        }
    )


def job(
    folder: Path,
    current: str = "now.parquet",
    reference: str = "before.parquet",
    edit: tuple[str, str] = ("", ""),
    **said: str,
) -> Job:
    plain = {"epsilon": "1", "adjacency": "substitution"}
    text = JOB.format(folder=folder, current=current, reference=reference, **(plain | said))
    return parse_job(edited(text, edit))
