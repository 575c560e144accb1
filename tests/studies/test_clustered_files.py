"""Public files of clustered surveys: published standard errors beside direct ones, with and without design effects.

`pytest -m slow -s tests/studies/test_clustered_files.py` prints the table of docs/explanation/accuracy.md again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.opening.results import open_evaluation

pytestmark = [pytest.mark.slow, pytest.mark.real_data]

JOB = """
dataset: clustered
period: "2"
input: {{path: {folder}/now.parquet}}
columns:
{levels}  {outcome}: {{bounds: {bounds}, outside: clip}}
  {weight}: {{bounds: {weights}, outside: clip}}
survey: {{weight: {weight}, {design}}}
outcome: {outcome}
mechanism: {{name: tables}}
budget: {{epsilon: "1", adjacency: substitution}}
reference: {{path: {folder}/before.parquet, period: "1", provenance: the other half of a public file}}
tables: [{{name: t, by: [{by[0]}, {by[1]}], statistics: [count, {{mean: {outcome}}}]}}]
"""


class Survey(NamedTuple):
    by: tuple[str, str]
    outcome: str
    bounds: str
    weight: str
    weights: str
    design: str
    columns: tuple[str, ...]
    keep: str = "index >= 0"


SURVEYS = {
    "nhanes2015": Survey(
        ("sex", "age_group"),
        "bmi",
        "[10, 100]",
        "weight_exam",
        "[1000, 400000]",
        "design_strata: [stratum], psu: psu",
        ("stratum", "psu"),
        "weight_exam > 0 and age >= 20",
    ),
    "nhis2003": Survey(
        ("ethnicity", "age_group"),
        "uninsured",
        "[0, 1]",
        "weight",
        "[100, 50000]",
        "design_strata: [stratum], psu: psu",
        ("stratum", "psu"),
    ),
    "recs2015": Survey(
        ("region", "housing_type"),
        "total_dollars",
        "[0, 20000]",
        "weight",
        "[500, 300000]",
        "replicate_weights: {kind: fay, fay: 0.5, prefix: brr_, number: 96}",
        tuple(f"brr_{k}" for k in range(1, 97)),
    ),
}


def read(name: str, data: Path) -> pd.DataFrame:
    survey = SURVEYS[name]
    rows = pd.read_parquet(data / f"{name}.parquet").query(survey.keep)
    rows = rows[[*survey.by, survey.outcome, survey.weight, *survey.columns]].dropna()
    if name == "nhis2003":
        rows = rows.assign(uninsured=(rows["uninsured"] == "Yes").astype(int))
    return rows.astype(dict.fromkeys([*survey.by, *({"stratum"} & set(survey.columns))], str))


@pytest.mark.parametrize("name", SURVEYS)
def test_the_effects_of_a_reference_bring_errors_to_the_size_of_direct_ones(name: str, data: Path, tmp_path: Path) -> None:
    """A random half of each file is the reference of the other. Printed: published over direct standard errors, coverage.

    Control: without design effects the counts of NHIS have errors that are a third too small in the median cell.
    """
    survey, rows = SURVEYS[name], read(name, data)
    half = np.random.default_rng(1).random(len(rows)) < 0.5
    rows[~half].to_parquet(tmp_path / "before.parquet")
    rows[half].to_parquet(tmp_path / "now.parquet")
    named = [*survey.by, *({"stratum"} & set(survey.columns))]
    levels = "".join(f"  {each}: {{levels: {json.dumps(sorted(rows[each].unique()))}}}\n" for each in named)
    found = {}
    for way in ("", ", design_effect: reference"):
        terms = survey._asdict() | {"design": survey.design + way, "levels": levels, "folder": tmp_path}
        workspace = tmp_path / f"ws{len(way)}"
        dpdist.run(dpdist.parse_job(JOB.format(**terms)), workspace, counted=False)
        cells = open_evaluation(workspace)["t"].query("direct_se > 0")
        for statistic, group in cells.groupby("statistic"):
            ratio = group["synthetic_se"] / group["direct_se"]
            held = (group["synthetic_lower"] <= group["direct"]) & (group["direct"] <= group["synthetic_upper"])
            found[bool(way), statistic] = float(ratio.median())
            print(
                f"\n{name}, {statistic}{way or ', none'}: SE published/direct {ratio.median():.2f} ({ratio.min():.2f} to "
                f"{ratio.max():.2f}), held {held.mean():.2f}, {len(group)} cells",
                end="",
                flush=True,
            )
    for statistic in ("count", "mean"):
        assert found[True, statistic] > 0.9
    if name == "nhis2003":
        assert found[False, "count"] < 0.75
