"""The simulated file of a large package is found by the job that is written beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dpdist.job.loading import load_job
from dpdist.survey.source import open_source


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_relative_folder_gets_a_job_that_finds_its_files(
    elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(__file__).parent / "simulated_acs.py"
    subprocess.run([sys.executable, script, "some/where", "--records", "200"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path / "some" if elsewhere else tmp_path)
    job = load_job("where/job.json" if elsewhere else "some/where/job.json")
    assert open_source(job).rows == 200
    assert job.reference is not None
    assert Path(str(job.reference.path)).is_file()
