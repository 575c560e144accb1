"""A file in another unit than its public bounds and reference: the verdict stops its release, and says why."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from public_files import statement_of

import dpdist
from dpdist.quality.report_page import material_of, overall_verdict
from dpdist.storage.workspace import Workspace

JOB = {
    "dataset": "shops",
    "period": "2024",
    "columns": {
        "region": {"levels": ["north", "south"]},
        "sex": {"levels": ["f", "m"]},
        "pay": {"bounds": [0, 1000], "outside": "clip"},
        "weight": {"bounds": [1, 100], "outside": "clip"},
    },
    "survey": {"weight": "weight"},
    "outcome": "pay",
    "mechanism": {"name": "tables"},
    "budget": {"epsilon": "1", "adjacency": "substitution"},
    "tables": [{"name": "pay", "by": ["region", "sex"], "statistics": ["count", {"mean": "pay"}]}],
    "runtime": {"executor": "serial"},
}


def people(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {"region": rng.choice(["north", "south"], 1500), "sex": rng.choice(["f", "m"], 1500)}
    return pd.DataFrame(
        columns | {"pay": rng.lognormal(5.3, 0.5, 1500).clip(0, 1000), "weight": rng.uniform(5, 50, 1500).round(1)}
    )


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_means_in_another_unit_stop_a_release(unit: float, tmp_path: Path) -> None:
    """Pay divided by 1,000. Control: the same file in the unit of its bounds."""
    people(1).to_parquet(tmp_path / "before.parquet")
    people(2).assign(pay=lambda rows: rows["pay"] / unit).to_parquet(tmp_path / "now.parquet")
    reference = {"path": str(tmp_path / "before.parquet"), "period": "2023", "provenance": "public"}
    job = JOB | {"input": {"path": str(tmp_path / "now.parquet")}, "reference": reference}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    dpdist.run(tmp_path / "job.yaml", tmp_path / "ws")
    other = unit != 1.0
    statement = statement_of(tmp_path / "ws")
    with Workspace.opened(tmp_path / "ws") as space:
        verdict = overall_verdict(material_of(space))
    assert verdict.stops == other
    if not other:
        return
    reached = r"mean of pay in table pay: \d of 9, whose intervals all reach 0, an end of the public range"
    assert re.search(reached, verdict.head)
    cautions = " ".join(statement["cautions"])
    assert re.search(
        r"Values of pay, over all records, are (less than 1 % of|9[89] % below) the reference's prediction", cautions
    )
