"""A rehearsal says what it tries, leaves figures as soon as they are there, and resumes after a kill or begins anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from command_line import invoke
from test_rehearsal import JOB as FULL_JOB, people

from dpdist.core.errors import ClusterError, DataError, DpdistError, FitError, JobError, TaskError, WorkspaceError
from dpdist.core.progress import Event
from dpdist.job import Job
from dpdist.job.loading import load_job
from dpdist.studies import rehearsal
from dpdist.studies.rehearsal import PlannedTrial, TrialTask, claimed, rehearse
from dpdist.studies.rehearsal_trials import Candidate, Trial

STORED = ".dpdist-rehearsal"
USED_AGAIN = "The folder has {} results of an interrupted rehearsal: those for this job, file and version are used again."
RESULTS = ("recommended.yaml", "index.html", "confirmation.csv", "rehearsal.csv")
CANDIDATE = Candidate("a", {}, "none", True, {}, ())
JOB = FULL_JOB.replace("  weight: {bounds: [1, 200], outside: clip}\n", "")
"""Without bounds of the weight, half of the mechanisms are left out."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    people(1).to_parquet(tmp_path / "earlier.parquet")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    return load_job(tmp_path / "job.yaml")


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def killed_after(events: list[Event], job: Job, out: Path, candidates: int) -> pd.DataFrame:
    """Ends a rehearsal when so many candidates are tried; returns the figures that stand in its folder by then."""

    def hear(event: Event) -> None:
        events.append(event)
        if event.stage == "rehearse" and event.kind == "advance" and event.done == candidates:
            raise Killed

    with pytest.raises(Killed):
        rehearse(job, out, listener=hear)
    return pd.read_csv(out / "rehearsal.csv")


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels of the releases that are made, in order."""
    labels, real = list[str](), rehearsal.trial

    def counted(candidate: Candidate, *given: object) -> object:
        labels.append(candidate.label)
        return real(candidate, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(rehearsal, "trial", counted)
    return labels


def test_the_file_is_announced_before_it_is_read_and_every_candidate_before_it_is_tried(
    job: Job, tmp_path: Path, tried: list[str]
) -> None:
    events = list[Event]()
    killed_after(events, job, tmp_path / "out", 3)
    assert (events[0].kind, events[0].stage, events[0].total) == ("begin", "read public file", 900)
    reads = [event.done for event in events if event.stage == "read public file" and event.kind == "advance"]
    assert reads[-1] == 900
    begun = next(event for event in events if event.stage == "rehearse")
    assert begun.total is not None
    notes = [event.note for event in events if event.kind == "note"]
    assert [note.partition(": ")[2] for note in notes if note.startswith("Candidate ")][:3] == tried[:3]
    assert notes[0].startswith(f"Candidate 1 of {begun.total}: ")


@pytest.mark.long
def test_a_killed_rehearsal_resumes_with_what_is_finished(job: Job, tmp_path: Path, tried: list[str]) -> None:
    """Noise is not drawn again for what is finished: its figures are the same to the last digit."""
    before = killed_after([], job, tmp_path / "out", 4)
    first, events = list(tried), list[Event]()
    tried.clear()
    made = rehearse(job, tmp_path / "out", listener=events.append)
    (said,) = [event.note for event in events if "interrupted" in event.note]
    assert said == USED_AGAIN.format(len(first))
    after = pd.read_csv(tmp_path / "out" / "rehearsal.csv")
    again = after[after["mechanism"].isin(before["mechanism"]) & (after["draw"] == 0)]
    order = ["mechanism", "table", "statistic", "cell"]
    pd.testing.assert_frame_equal(
        again.sort_values(order).reset_index(drop=True), before.sort_values(order).reset_index(drop=True)
    )
    assert len(made.trials) > 4
    assert min(tried.count(each.candidate.label) for each in made.trials if each.candidate.label not in first) >= 1


@pytest.mark.parametrize(
    "changed", ["job", *(pytest.param(which, marks=pytest.mark.long) for which in ("file", "records"))]
)
def test_a_rehearsal_of_another_job_or_file_begins_anew(changed: str, job: Job, tmp_path: Path, tried: list[str]) -> None:
    killed_after([], job, tmp_path / "out", 2)
    if changed == "job":
        job = load_job(tmp_path / "job.yaml", ["budget.epsilon=3"])
    elif changed == "file":
        people(2).to_parquet(tmp_path / "earlier.parquet")
    tried.clear()

    def hear(event: Event) -> None:
        if event.stage == "rehearse" and event.kind == "advance" and event.done == 2:
            raise Killed

    with pytest.raises(Killed):
        rehearse(job, tmp_path / "out", records=600 if changed == "records" else None, listener=hear)
    assert len(tried) == 2


def test_other_files_in_the_folder_are_kept(tmp_path: Path) -> None:
    """Only results are removed, when a rehearsal ends; files of an earlier one, when the next one begins."""
    thesis, note = tmp_path / "parts" / "thesis.txt", tmp_path / STORED / "note.json"
    thesis.parent.mkdir()
    thesis.write_text("precious")
    heard = list[str]()
    for number in (0, 1):
        for name in RESULTS:
            (tmp_path / name).write_text("earlier")
        with suppress(Killed), claimed(tmp_path, lambda event: heard.append(event.note)) as folder:
            assert not any((tmp_path / name).exists() for name in RESULTS)
            note.write_text("precious")
            with pytest.raises(DpdistError):
                TrialTask(folder, str(number)).result(raising(JobError("job", [])))
            raise Killed
    with claimed(tmp_path, lambda event: heard.append(event.note)) as folder:
        assert len(list(folder.glob("*.parquet"))) == 2
    assert heard == [USED_AGAIN.format(1).replace("1 results", "1 result"), USED_AGAIN.format(2)]
    assert thesis.read_text() == note.read_text() == "precious"
    assert [path.name for path in note.parent.iterdir()] == ["note.json"]
    note.unlink()
    with claimed(tmp_path, lambda event: None):
        pass
    assert not note.parent.exists()


class Raising(PlannedTrial):
    """A trial that ends with an error."""

    def make(self) -> Trial:
        raise self.parts  # type: ignore[misc]


def raising(error: BaseException) -> PlannedTrial:
    return Raising(CANDIDATE, 0, 0, error)  # type: ignore[arg-type]


def stored(results: TrialTask, error: DpdistError) -> bool:
    """Whether a second call for the same release has a stored refusal, and does not make it again."""
    with pytest.raises(DpdistError):
        results.result(raising(error))
    with pytest.raises((DpdistError, Killed)) as second:
        results.result(raising(Killed()))
    return second.type is not Killed


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (JobError("job", []), True),
        (DataError("file", []), True),
        (FitError("biology", "too few records", "pool strata"), True),
        (WorkspaceError("run", "the disk is full", "make room"), False),
        (TaskError("a task was killed", "more memory"), False),
        (ClusterError("no answer", "wait"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, DpdistError) else str(value),
)
def test_only_refusals_by_the_mechanism_are_stored(error: DpdistError, kept: bool, tmp_path: Path) -> None:
    """A resumed rehearsal tries again what failed for a reason outside of job and data."""
    assert stored(TrialTask(tmp_path, "one"), error) == kept


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"null"])
def test_a_damaged_refusal_is_made_again(damage: bytes, tmp_path: Path) -> None:
    results = TrialTask(tmp_path, "one")
    assert stored(results, FitError("biology", "too few records", "pool strata"))
    (refusal,) = tmp_path.glob("*.parquet")
    refusal.write_bytes(damage)
    with pytest.raises(Killed):
        results.result(raising(Killed()))


def test_a_job_in_place_of_the_recommended_one_is_refused(job: Job, tmp_path: Path) -> None:
    path = (tmp_path / "job.yaml").rename(tmp_path / "recommended.yaml")
    ended = invoke("rehearse", path, "--out", tmp_path, "-q")
    assert ended.exit_code == 2
    assert path.read_text(encoding="utf-8") == JOB
    assert sorted(each.name for each in tmp_path.iterdir()) == ["earlier.parquet", "recommended.yaml"]


def test_two_rehearsals_in_one_folder_are_one_too_many(job: Job, tmp_path: Path) -> None:
    with (
        claimed(tmp_path / "out", lambda event: None),
        pytest.raises(WorkspaceError, match="another rehearsal"),
        claimed(tmp_path / "out", lambda event: None),
    ):
        pass


def test_a_file_where_results_are_stored_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / STORED).write_text("precious")
    with pytest.raises(WorkspaceError, match="is a file"), claimed(tmp_path, lambda event: None):
        pass
    assert (tmp_path / STORED).read_text() == "precious"


@pytest.mark.long
def test_a_process_that_is_killed_says_what_it_does_and_resumes(tmp_path: Path) -> None:
    """By its streams: a first line stands there before any result does, and a second process goes on from a SIGKILL."""
    people(1, 60_000).to_parquet(tmp_path / "earlier.parquet")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "dpdist",
        "rehearse",
        str(tmp_path / "job.yaml"),
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch), "DPDIST_SCRATCH": str(scratch)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["event"], first["stage"]) in {("alive", "start"), ("begin", "read public file")}
        assert not (tmp_path / "out" / "rehearsal.csv").exists()
        parts = tmp_path / "out" / STORED
        while process.poll() is None and len(list(parts.glob("*.parquet"))) < 2:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    kept = len(list(parts.glob("*.parquet")))
    left = list(scratch.glob("dpdist-*"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as again:
        assert again.stdout is not None
        for line in again.stdout:
            if "interrupted" in (note := json.loads(line).get("note", "")):
                break
        again.kill()
    assert note == USED_AGAIN.format(kept)
    assert left
    assert not any(path.exists() for path in left), "thirds of a killed rehearsal stay on the disk"
