"""The shipped jobs on the survey files they are for."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from dpdist.cli import app

JOBS = {"nscg_salaries": ("nscg2013", 7, 24), "tax_wages": ("cps_taxunits", 51, 260)}


@pytest.mark.real_data
@pytest.mark.parametrize("job", JOBS)
def test_a_shipped_job_runs_on_its_file(job: str, data: Path, tmp_path: Path) -> None:
    file, strata, cells = JOBS[job]
    done = CliRunner().invoke(app, ["run", job, "--workspace", str(tmp_path), "--input", str(data / f"{file}.parquet")])
    assert done.exit_code == 0, done.output
    statement = json.loads((tmp_path / "public" / "statement.json").read_text())
    assert statement["epsilon"] == "10.8"
    assert any("assumed public" in fact and "zeros" in fact for fact in statement["public"])
    bounds = pd.read_parquet(tmp_path / "confidential" / "strata.parquet")
    assert len(bounds) == strata
    assert (bounds["database_bound"] <= 1.8).all()
    (table,) = (tmp_path / "public" / "tables").glob("*.parquet")
    published = pd.read_parquet(table)
    assert len(published) == cells * 2 * 2
    assert published["estimate"].notna().all()
    top = pd.read_parquet(tmp_path / "public" / "synthetic" / "set-1.parquet")
    assert len(top) == bounds["rows"].sum()


@pytest.mark.real_data
def test_direct_estimates_of_the_tax_file_are_those_of_its_codebook(data: Path) -> None:
    """Wages of 6.75 trillion dollars (data README)."""
    units = pd.read_parquet(data / "cps_taxunits.parquet", columns=["weight", "wages"])
    assert (units["weight"] * units["wages"]).sum() == pytest.approx(6.75e12, rel=1e-3)
