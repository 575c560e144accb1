"""A rehearsal's trials as tasks of workers: every candidate is tried or refused, and workers do the releases."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from test_rehearsal import JOB as FULL_JOB
from test_rehearsal import people

from dpdist.core.progress import Event
from dpdist.job.loading import load_job
from dpdist.studies.rehearsal import rehearse
from dpdist.studies.rehearsal_trials import DRAWS

JOB = FULL_JOB.replace("  weight: {bounds: [1, 200], outside: clip}\n", "")


@pytest.mark.long
def test_two_workers_try_what_one_process_tries(tmp_path: Path) -> None:
    """Both refuse the same candidates. Control: in one process no trial is a task."""
    people(1).to_parquet(tmp_path / "earlier.parquet")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    tasks, made = dict[str, Counter[str]](), {}
    for executor in ("serial", "dask"):
        tasks[executor] = Counter()

        def hear(event: Event, heard: Counter[str] = tasks[executor]) -> None:
            if event.kind == "task":
                heard[str(event.unit["task"])] += 1

        job = load_job(tmp_path / "job.yaml", [f"runtime.executor={executor}", "runtime.workers=2"])
        made[executor] = rehearse(job, tmp_path / executor, listener=hear)
    labels = [{trial.candidate.label for trial in one.trials} for one in made.values()]
    assert labels[0] == labels[1]
    assert len(labels[0]) > 1
    refused = [{one.label for one in each.refused if "other third" not in one.label} for each in made.values()]
    assert refused[0] == refused[1]
    assert not tasks["serial"]
    assert tasks["dask"]["TrialTask"] >= len(labels[0]) + DRAWS
    tables = [pd.read_csv(tmp_path / executor / "rehearsal.csv") for executor in made]
    assert set(tables[0]["mechanism"]) == set(tables[1]["mechanism"])
