"""Sixty records in each of two strata, and a job of one table on them."""

from __future__ import annotations

import numpy as np
import pandas as pd

JOB = """\
dataset: tiny
period: "2020"
columns:
  field: {levels: [arts, law]}
  sex: {levels: [f, m]}
  salary: {bounds: [0, 2000000]}
survey: {weight: weight, design_strata: [field]}
strata: [field]
outcome: salary
model: {family: lognormal, predictors: [sex]}
mechanism: {name: weighted, weights: fixed_point}
budget: {epsilon: "10.8"}
sampler: {name: exact, draws: 100}
tables:
  - {name: salaries, by: [field, sex], statistics: [count, {mean: salary}]}
runtime: {executor: serial}
"""


def survey() -> pd.DataFrame:
    rng = np.random.default_rng(20)
    return pd.DataFrame(
        {
            "field": np.repeat(["arts", "law"], 60),
            "sex": np.tile(["f", "m", "m"], 40),
            "salary": np.exp(rng.normal(11.0, 0.4, 120)).round(2),
            "weight": np.exp(rng.normal(3.0, 0.3, 120)).round(4),
        }
    )
