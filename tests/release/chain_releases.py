"""Jobs and surveys of yearly releases, each of which may have the one before as its reference."""

from __future__ import annotations

import pandas as pd
import strict_survey
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
    return strict_survey.survey(seed, n, drift)


def job_text(reference: str, **said: str) -> str:
    plain = {"period": "2021", "epsilon": "1", "adjacency": "zero_out", "clip": CLIP, "strata": "", "outcome": "salary"}
    return JOB.format(reference=reference, **(plain | said))


def job(reference: str, edit: tuple[str, str] = ("", ""), **said: str) -> Job:
    text = job_text(reference, **said)
    return parse_job(edited(text, edit))
