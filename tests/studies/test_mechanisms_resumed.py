"""A study of releases repeats itself: its draws follow from its seed, so a killed and resumed one has the same rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_release import JOB, survey

import dpdist
from dpdist.core.errors import WorkspaceError
from dpdist.core.keys import Key
from dpdist.core.public_files import UNFIT
from dpdist.storage.workspace import KEYED, REPEATED
from dpdist.studies.file import parse_study
from dpdist.studies.kinds.mechanisms import measures
from dpdist.studies.rehearsal_candidates import Candidate
from dpdist.studies.rehearsal_trials import Trial
from dpdist.studies.run import run

STUDY = """
kind: mechanisms
study: tiny
title: "Tiny"
seed: 5
replicates: 3
epsilons: ["1"]
cases:
  - {name: skewed, population: weight_atoms, records: 150, weight_bounds: [1, 1000], outcome_bounds: [100, 1000000]}
mechanisms:
  - {candidate: weight_regularisation}
  - {candidate: laplace_strict}
runtime: {executor: dask, workers: 2, memory_per_worker: 1GiB}
"""


def rows(folder: Path) -> pd.DataFrame:
    """All measures of a study's folder but run times, which no seed decides."""
    found = pd.read_parquet(folder / "replicates.parquet")
    return found[found["measure"] != "seconds"].reset_index(drop=True)


def test_one_seed_gives_the_same_rows_in_any_process(tmp_path: Path) -> None:
    """Control: another seed gives others."""
    serial = parse_study(STUDY.replace("executor: dask, workers: 2", "executor: serial"))
    one, again, other = (
        rows(run(study, tmp_path / name, replicates=1))
        for name, study in (("a", serial), ("b", serial), ("c", serial.model_copy(update={"seed": 6})))
    )
    assert set(one["mechanism"]) == set(serial.labels)
    assert one.equals(again)
    assert not one["value"].equals(other["value"])


@pytest.mark.long
def test_a_killed_study_of_releases_resumes_to_the_same_rows(tmp_path: Path) -> None:
    """On two workers, killed once a part is there and others are under way; beside one that ran through in one process."""
    path, folder = tmp_path / "tiny.yaml", tmp_path / "out"
    path.write_text(STUDY)
    command = [sys.executable, "-m", "dpdist", "study", str(path), "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 240
    while not list((folder / "parts").glob("skewed-0*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = {part: part.stat().st_mtime_ns for part in (folder / "parts").glob("skewed-0*.parquet")}
    assert 0 < len(before) < 3
    assert not (folder / "summary.csv").exists()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
    assert {part: part.stat().st_mtime_ns for part in before} == before
    whole = run(parse_study(STUDY.replace("executor: dask, workers: 2", "executor: serial")), tmp_path / "whole")
    assert rows(folder).equals(rows(whole))


def test_a_run_of_a_study_follows_from_its_key_and_is_not_for_publication(tmp_path: Path) -> None:
    """Every public byte is the same. Control: a run without a key has other noise, and may be published."""
    made = []
    for name, key in (("a", Key(b"1" * 32)), ("b", Key(b"1" * 32)), ("c", Key(b"2" * 32)), ("d", None)):
        dpdist.run(JOB, tmp_path / name, input=survey(), study=key, counted=key is None)
        made.append({path.name: path.read_bytes() for path in sorted((tmp_path / name / "public").rglob("*.csv"))})
        assert (tmp_path / name / "public" / UNFIT).exists() == (key is not None)
    assert made[0] == made[1]
    assert all(made[0] != other for other in made[2:])
    assert made[2] != made[3]


def test_a_folder_of_a_study_stays_one_and_takes_no_other_key(tmp_path: Path) -> None:
    """A later run without the key resumes it under the same noise: the folder is still not for publication, nor charged."""
    dpdist.run(JOB, tmp_path / "ws", input=survey(), study=Key(b"1" * 32))
    first = (tmp_path / "ws" / "public" / "tables" / "counts.csv").read_bytes()
    (tmp_path / "ws" / "public" / UNFIT).unlink()
    release = dpdist.run(JOB, tmp_path / "ws", input=survey())
    assert (tmp_path / "ws" / "public" / "tables" / "counts.csv").read_bytes() == first
    assert (tmp_path / "ws" / "public" / UNFIT).exists()
    assert release.statement["metered"] is False
    with pytest.raises(WorkspaceError, match="under another key"):
        dpdist.run(JOB, tmp_path / "ws", input=survey(), study=Key(b"2" * 32))


@pytest.mark.parametrize("mark", [KEYED, REPEATED, ""])
def test_a_mark_without_a_run_makes_no_uncharged_release(tmp_path: Path, mark: str) -> None:
    """Left by a study that was killed, or written by hand: the folder is refused. Control: without it a run is charged."""
    confidential = tmp_path / "ws" / "confidential"
    confidential.mkdir(parents=True)
    (confidential / "replay").write_text(mark)
    said = JOB + "ledger: {total: '3'}\n"
    with pytest.raises(WorkspaceError, match="a study or a replay began here"):
        dpdist.run(said, tmp_path / "ws", input=survey())
    assert not (tmp_path / "ws" / "public").exists()
    (confidential / "replay").unlink()
    assert dpdist.run(said, tmp_path / "ws", input=survey()).statement["metered"] is True


def test_a_folder_of_a_study_whose_marks_were_deleted_is_not_released(tmp_path: Path) -> None:
    """The identity has the mark too; without both, stored noise is refused. Control: they are all that was changed."""
    dpdist.run(JOB, tmp_path / "ws", input=survey(), study=Key(b"1" * 32))
    confidential = tmp_path / "ws" / "confidential"
    (confidential / "replay").unlink()
    (tmp_path / "ws" / "public" / UNFIT).unlink()
    release = dpdist.run(JOB, tmp_path / "ws", input=survey())
    assert (tmp_path / "ws" / "public" / UNFIT).exists()
    assert release.statement["metered"] is False
    identity = confidential / "identity.json"
    said = json.loads(identity.read_text())
    identity.write_text(json.dumps({name: value for name, value in said.items() if name != "mark"}))
    for mark in (confidential / "marks").iterdir():
        if not mark.name.startswith(("noise-", "records")):
            mark.unlink()
    for path in (confidential / "parts", tmp_path / "ws" / "public"):
        shutil.rmtree(path)
    (confidential / "strata.parquet").unlink()
    with pytest.raises(WorkspaceError, match="was drawn for something else"):
        dpdist.run(JOB, tmp_path / "ws", input=survey())


def test_a_studys_statement_says_that_no_guarantee_holds(tmp_path: Path) -> None:
    """First among the cautions, once, also when it is published again. Control: a run without a key."""
    dpdist.run(JOB, tmp_path / "ws", input=survey(), study=Key(b"1" * 32))
    again = dpdist.publish(tmp_path / "ws")
    cautions = again.statement["cautions"]
    assert "no guarantee holds" in cautions[0]
    assert sum("no guarantee holds" in each for each in cautions) == 1
    plain = dpdist.run(JOB, tmp_path / "plain", input=survey(), counted=False)
    assert "no guarantee holds" not in " ".join(plain.statement["cautions"])


def test_a_withheld_cell_is_counted_and_not_judged() -> None:
    """A quarter of the counts have no figure: errors are of the others, coverage of all. Control: all figures are there."""
    cells = pd.DataFrame({"statistic": "count", "error_in_direct_se": [0.5, 1.0, 3.0, np.inf], "covered": [1, 1, 0, 0]})
    cells["direct_covered"] = 1.0
    candidate = Candidate("a", {}, "strict", True, {}, ())
    found, whole = (
        dict(measures(Trial(candidate, each, 0, 1.0))) for each in (cells, cells[np.isfinite(cells["error_in_direct_se"])])
    )
    assert found["count_withheld"] == 0.25
    assert (found["count_median"], found["count_largest"]) == (1.0, 3.0)
    assert found["count_coverage"] == 0.5
    assert whole == found | {"count_withheld": 0.0, "count_coverage": pytest.approx(2 / 3)}
