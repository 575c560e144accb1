"""A survey in which one record has values that no other number of a release has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

CANARY = 731_234.567_89
SPELLINGS = ("731234", "731,234", "7.31234", "7.312e", "0.00271828", "2.71828e")
"""Of an outcome and of a sampling weight that one record has, and no other number of the survey."""

JOB = """
dataset: canaries
period: "2020"
input: {{path: {path}}}
columns:
  unit: {{levels: [a, b, c]}}
  sex: {{levels: [male, female]}}
  salary: {{bounds: [0, 1000000]}}
survey: {{weight: weight, design_strata: [unit]}}
strata: [unit]
outcome: salary
model: {{family: lognormal, predictors: [sex]}}
mechanism: {{name: weighted, fallback: {fallback}}}
budget: {{epsilon: "10.8"}}
sampler: {{draws: 100}}
tables:
  - {{name: salaries, by: [sex], statistics: [count, {{mean: salary}}]}}
"""


def survey(folder: Path, fallback: str = "refuse", bad: bool = False) -> Path:
    salary = [50_000.0 + 100 * (k % 37) for k in range(180)]
    weight = [20.0 + k % 11 for k in range(180)]
    salary[70], weight[70] = CANARY, 2.718_28e-3
    salary[71] = -CANARY if bad else salary[71]
    units, sex = ["abc"[k // 60] for k in range(180)], [("male", "female")[k % 2] for k in range(180)]
    pq.write_table(pa.table({"unit": units, "sex": sex, "salary": salary, "weight": weight}), folder / "canaries.parquet")
    (folder / "job.yaml").write_text(JOB.format(path=folder / "canaries.parquet", fallback=fallback))
    return folder / "job.yaml"


def spelled(text: str) -> list[str]:
    return [spelling for spelling in SPELLINGS if spelling in text]
