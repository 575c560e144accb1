"""A shipped job made small: few levels, few records, and a simulated survey with the columns that it names."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from dpdist.testing.mechanisms import single

Said = dict[str, Any]
LEVELS, RECORDS, SIMULATED = 3, 400, 1500
"""Of a column, of a survey made here, and of one that dpdist simulates."""


def small(name: str, job: Said) -> Said:
    """The job with few levels and draws, in this process; its files are called after it."""
    made: Said = json.loads(json.dumps(job))
    made["runtime"], made["record"] = {"executor": "serial"}, {"log_lik": "never"}
    if "sampler" in made:
        made["sampler"]["draws"] = 100
    simulated = made.get("input", {}).get("simulate")
    if simulated is None:
        made["input"] = {"path": f"{name}.parquet"}
        for column in made["columns"].values():
            if "levels" in column:
                column["levels"] = column["levels"][:LEVELS]
        for keep in made.get("universe", []):
            levels = made["columns"].get(keep["column"], {}).get("levels", keep["keep"])
            keep["keep"] = [level for level in keep["keep"] if level in levels]
    for each in (simulated, (made.get("reference") or {}).get("simulate")):
        if each is not None:
            each |= {"population": 10 * SIMULATED, "sample": SIMULATED}
    if "path" in (made.get("reference") or {}):
        made["reference"]["path"] = f"{name}_earlier.parquet"
    return made


def simulated_survey(job: Said, seed: int, records: int = RECORDS) -> pd.DataFrame:
    """Records with every column that the job names, of an outcome that differs by level."""
    rng, n = np.random.default_rng(seed), records
    columns, shift = {}, np.zeros(n)
    for keep in job.get("universe", []):
        columns[keep["column"]] = rng.choice(keep["keep"], n)
    for name, column in job["columns"].items():
        if "levels" in column:
            code = rng.integers(0, len(column["levels"]), n)
            columns[name] = np.array(column["levels"])[code]
            shift = shift + 0.1 * code
    outcome = job["outcome"]
    column = job["columns"][outcome]
    low, high = column["bounds"]
    if "codes" in column:
        columns[outcome] = rng.choice(list(column["codes"]), n, p=[0.4, 0.6])
    else:
        middle = np.log(max(low, 1.0) + high) / 2 + np.log(2 if high < 1000 else 100)
        log_outcome = min(middle, np.log(high / 3)) + shift / 4 + 0.3 * rng.standard_normal(n)
        columns[outcome] = np.clip(single(np.exp(log_outcome)), low, high)
    said = job.get("survey", {})
    if said.get("weight"):
        columns[said["weight"]] = np.clip(single(np.exp(5.0 + 0.4 * rng.standard_normal(n))), 60.0, 1000.0)
    if said.get("psu"):
        columns[said["psu"]] = rng.integers(1, 3, n)
    return pd.DataFrame(columns)
