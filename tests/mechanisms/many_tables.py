"""A simulated file whose ten tables over six columns have some 5,000 base cells."""

from __future__ import annotations

import numpy as np
import pandas as pd

LEVELS = {"area": 10, "tenure": 4, "size": 6, "age": 6, "work": 4, "sex": 2}
RECORDS = 20_000
PAIRS = [
    *("area, size", "area, age", "area, work, sex", "tenure, size", "tenure, age, sex"),
    *("size, work", "size, age, work", "age, work, sex", "tenure, work", "area, tenure, size"),
]
JOB = """
dataset: package
publish: always
period: "2021"
columns:
{columns}
  income: {{bounds: [0, 200000], outside: clip}}
  weight: {{bounds: [1, 60], outside: clip}}
survey: {{weight: weight}}
outcome: income
mechanism: {{name: laplace_composed, sensitivity: public, consistency: least_squares}}
budget: {{epsilon: "50"}}
public_frame: {{accepted: "a simulated file"}}
tables:
{tables}
runtime: {{executor: serial}}
"""


def job() -> str:
    columns = [f"  {name}: {{levels: {[f'{name}{k}' for k in range(number)]}}}" for name, number in LEVELS.items()]
    tables = [
        f"  - {{name: t{k}, by: [{by}], statistics: [count, {{mean: income}}]}}" for k, by in enumerate(PAIRS, start=1)
    ]
    return JOB.format(columns="\n".join(columns), tables="\n".join(tables))


def package() -> pd.DataFrame:
    """Levels are uneven, so that small combinations are missing, as in a real file."""
    rng = np.random.default_rng(10)
    columns = {}
    for name, number in LEVELS.items():
        share = np.geomspace(1.0, 6.0, number)
        columns[name] = [f"{name}{k}" for k in rng.choice(number, RECORDS, p=share / share.sum())]
    weight = np.clip(np.exp(rng.normal(2.5, 0.6, RECORDS)), 1.0, 60.0)
    income = np.clip(np.exp(rng.normal(10.2, 0.7, RECORDS)), 0.0, 200_000.0)
    return pd.DataFrame({**columns, "income": income, "weight": weight})
