"""Public files of clustered surveys: published standard errors beside direct ones, with and without design effects.

`pytest -m slow -s tests/studies/test_clustered_files.py` prints the table of docs/explanation/accuracy.md again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import public_surveys
import pytest
from public_surveys import EFFECT, PublicSurvey

import dpdist
from dpdist.opening.results import open_evaluation

pytestmark = [pytest.mark.slow, pytest.mark.real_data]

SURVEYS = {
    "nhanes2015": public_surveys.SURVEYS["nhanes"],
    "nhis2003": public_surveys.SURVEYS["nhis"],
    "recs2015": public_surveys.SURVEYS["recs"]._replace(by=("region", "housing_type")),
}


def job(survey: PublicSurvey, rows: pd.DataFrame, folder: Path, effect: str) -> dpdist.Job:
    reference = f'path: {folder}/before.parquet, period: "1", provenance: the other half of a public file'
    designed = survey._replace(design=survey.design + effect)
    return designed.job(rows, "clustered", reference, f"input: {{path: {folder}/now.parquet}}")


@pytest.mark.parametrize("name", SURVEYS)
def test_the_effects_of_a_reference_bring_errors_to_the_size_of_direct_ones(name: str, data: Path, tmp_path: Path) -> None:
    """A random half of each file is the reference of the other. Printed: published over direct standard errors, coverage.

    Control: without design effects the counts of NHIS have errors that are a third too small in the median cell.
    """
    survey, found = SURVEYS[name], {}
    rows = survey.read(data)
    half = np.random.default_rng(1).random(len(rows)) < 0.5
    rows[~half].to_parquet(tmp_path / "before.parquet")
    rows[half].to_parquet(tmp_path / "now.parquet")
    for way in ("", EFFECT):
        workspace = tmp_path / f"ws{len(way)}"
        dpdist.run(job(survey, rows, tmp_path, way), workspace, counted=False)
        cells = open_evaluation(workspace)["one"].query("direct_se > 0")
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
