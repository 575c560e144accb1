"""Jobs and surveys of yearly releases, each of which may have the one before as its reference."""

from __future__ import annotations

import numpy as np
import pandas as pd
from edited_text import edited

from dpdist.job import Job
from dpdist.job.loading import parse_job

FIELDS = ("arts", "law", "medicine")
JOB = """
dataset: chain
publish: always
period: "{period}"
columns:
  field: {{levels: [arts, law, medicine]}}
  sex: {{levels: [f, m]}}
  salary: {{bounds: [0, 150000], outside: clip}}
  weight: {{bounds: [0.1, 20000]{clip}}}
survey: {{weight: weight}}
{strata}
outcome: {outcome}
mechanism: {{name: tables}}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}}}
reference: {reference}
tables:
  - {{name: salaries, by: [field, sex], statistics: [count, {{mean: salary}}]}}
"""
CLIP = ", outside: clip"


def survey(seed: int, n: int = 4000, drift: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    field, sex = rng.choice(3, n, p=[0.2, 0.3, 0.5]), rng.choice(2, n)
    salary = np.exp(rng.normal(10.6 + 0.2 * field + 0.1 * sex, 0.5, n)) * (rng.random(n) > 0.03) * drift
    return pd.DataFrame(
        {
            "field": np.array(FIELDS)[field],
            "sex": np.array(["f", "m"])[sex],
            "salary": np.minimum(np.round(salary, -2), 150_000.0),
            "weight": np.exp(rng.normal(4.0 + 0.3 * field, 1.0, n)) * drift,
        }
    )


def job_text(reference: str, **said: str) -> str:
    plain = {"period": "2021", "epsilon": "1", "adjacency": "zero_out", "clip": CLIP, "strata": "", "outcome": "salary"}
    return JOB.format(reference=reference, **(plain | said))


def job(reference: str, edit: tuple[str, str] = ("", ""), **said: str) -> Job:
    text = job_text(reference, **said)
    return parse_job(edited(text, edit))
