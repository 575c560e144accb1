"""A rehearsal's trials as tasks of workers: every candidate is tried or refused, and workers do the releases."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import pytest
from test_rehearsal import JOB as FULL_JOB, people

from dpdist.core.errors import FitError
from dpdist.core.keys import Key
from dpdist.core.progress import Event
from dpdist.job.loading import load_job, parse_job
from dpdist.studies.rehearsal import rehearse
from dpdist.studies.rehearsal_thirds import in_thirds, public_source
from dpdist.studies.rehearsal_trials import DRAWS, candidates, trial

JOB = FULL_JOB.replace("  weight: {bounds: [1, 200], outside: clip}\n", "")


@pytest.mark.long
def test_two_workers_try_what_one_process_tries(tmp_path: Path) -> None:
    """Both refuse the same candidates, apart from draws that a fit refuses. Control: in one process no trial is a task."""
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
    released = [{trial.candidate.label for trial in each.trials} for each in made.values()]
    refused = [{one.label: one.reason for one in each.refused if "other third" not in one.label} for each in made.values()]
    # Workers draw from keys of their own, and at some draws the mechanism itself refuses a fit of few records.
    by_draw = [{label for label, reason in each.items() if reason.startswith("stratum ")} for each in refused]
    assert released[0] | by_draw[0] == released[1] | by_draw[1]
    assert refused[0].keys() - by_draw[0] == refused[1].keys() - by_draw[1]
    assert len(released[0] & released[1]) > 1
    assert not tasks["serial"]
    assert tasks["dask"]["TrialTask"] >= len(released[1]) + DRAWS
    for executor, labels in zip(made, released, strict=True):
        assert set(pd.read_csv(tmp_path / executor / "rehearsal.csv")["mechanism"]) == labels


@pytest.mark.parametrize(
    ("fallback", "refused"), [("refuse", "stratum north: "), ("pool", "stratum all: "), ("proper_prior", "")]
)
def test_a_trial_takes_the_fallback_of_the_job(fallback: str, refused: str, tmp_path: Path) -> None:
    """Strata whose weights are too small are refused, fitted together, which does not help here, or given a prior."""
    people(1).to_parquet(tmp_path / "earlier.parquet")
    text = FULL_JOB.replace("{name: tables}", f"{{name: weighted_e, fallback: {fallback}}}\nmodel: {{family: lognormal}}")
    text = text.replace("200], outside: clip", "200]").replace("tables: [", "strata: [region]\ntables: [")
    job = parse_job(text, folder=tmp_path)
    parts = in_thirds(job, public_source(job, None), None).written(0, False, tmp_path / "parts")
    runs, _ = candidates(job, str(parts.earlier), {"path": str(parts.earlier), "provenance": "public"})
    own = next(candidate for candidate in runs if candidate.label == "weighted_e (lognormal)")
    with pytest.raises(FitError, match=refused) if refused else nullcontext():
        assert trial(own, parts, Key(bytes(32))).draws == 1
