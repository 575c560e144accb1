"""A run seen from outside: its lines, figures and status say how far it is, and never a value of a record."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from canaries import spelled, survey
from command_line import invoke, succeed

from dpdist.cli import observing
from dpdist.cli.observing import cause, observed, outward, read_status, status_lines
from dpdist.core.errors import ClusterError, FitError, TaskError, WorkspaceError
from dpdist.core.progress import Event, part, silent, stage

HOLDING = True
"""Verdicts decide on releases: see conftest."""


def test_lines_status_and_screen_of_a_run_say_how_far_it_is_and_quote_no_record(tmp_path: Path) -> None:
    work, log = tmp_path / "work", tmp_path / "log"
    text = succeed("run", survey(tmp_path), "-w", work, "--log", log, "--metrics", "127.0.0.1:0", "--json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len({line["run"] for line in lines}) == 1
    protected = [line for line in lines if line["event"] == "task"]
    assert sum(line["strata"] for line in protected) == 3
    assert all(line["seconds"] > 0 and line["fit"] == "strata" for line in protected)
    assert lines[-1]["event"] == "summary"
    assert (lines[-1]["state"], lines[-1]["starts"]) == ("finished", 1)
    assert lines[-1]["stages"]["protect"]["done"] == 3
    asked = invoke("status", work)
    assert "3 of 3" in asked.output
    told = log.read_text() + (work / "status.json").read_text() + text + asked.output
    assert spelled(told) == []
    rows = pd.read_feather(work / "confidential" / "records" / "records.arrow")
    assert len(set(spelled(rows.to_csv()))) >= 2, "control: inside, these spellings occur"


def test_a_run_that_is_refused_leaves_the_status_of_the_workspace_alone(tmp_path: Path) -> None:
    work = tmp_path / "work"
    succeed("run", survey(tmp_path), "-w", work, "-q")
    before = (work / "status.json").read_bytes()
    other = survey(tmp_path, fallback="pool")
    assert invoke("run", other, "-w", work, "-q").exit_code == 2
    assert (work / "status.json").read_bytes() == before
    again = invoke("run", survey(tmp_path), "-w", work, "-q")
    assert (again.exit_code, read_status(work)["starts"]) == (0, 2)


def test_a_run_that_fails_tells_the_kind_of_error_and_not_its_words(tmp_path: Path) -> None:
    work, log = tmp_path / "work", tmp_path / "log"
    ended = invoke("run", survey(tmp_path, bad=True), "-w", work, "--log", log)
    assert ended.exit_code == 2
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["state"], last["why"]) == ("failed", "DataError")
    assert spelled(log.read_text() + ended.output) == []
    shown = invoke("validate", tmp_path / "job.yaml", "--show-values")
    assert spelled(shown.output), "control: asked for, the value is shown on this screen"


def test_no_process_of_a_command_leaves_its_memory_as_a_core_file() -> None:
    script = (
        "import atexit, os, resource, sys; from dpdist.cli.main import main; sys.argv = ['dpdist', '--help']\n"
        "atexit.register(lambda: print(resource.getrlimit(resource.RLIMIT_CORE)))\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "(0, 0)"


def test_figures_follow_the_run_over_http(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with observed(tmp_path, None, f"127.0.0.1:{port}", silent) as listener, stage(listener, "protect", 10) as tick:
        tick(4)
        listener(Event("task", "", unit={"fit": "strata", "stratum": 3}, seconds=0.2))
        listener(Event("retry", "", done=2))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
            text = page.read().decode()
    assert 'dpdist_stage_done{stage="protect"} 4.0' in text
    assert 'dpdist_stage_total{stage="protect"} 10.0' in text
    assert "dpdist_task_seconds_count 1.0" in text
    assert "dpdist_task_retries_total 2.0" in text
    assert 'dpdist_run_state{state="running"} 1.0' in text


def test_which_strata_took_a_fallback_stays_inside() -> None:
    assert outward(Event("note", "protect", note="2 strata use the proper prior")) is None
    assert outward(Event("task", "", unit={"fit": "proper", "stratum": 3}, seconds=1.0)) is None
    assert outward(Event("advance", "protect again", 1, 2)) == Event("advance", "protect again", 0, None)
    assert outward(Event("advance", "protect", 1, 2)) == Event("advance", "protect", 1, 2)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("731234.56789"), "ValueError"),
        (FitError("a", "731234.56789", "none"), "FitError"),
        (ClusterError("nobody listens there", "look"), "ClusterError: cluster: nobody listens there"),
        (TaskError("no task finished for 5 s", "look"), "TaskError: no task finished for 5 s"),
        (OSError(28, "No space left on device", "/x/731234"), "OSError: No space left on device"),
    ],
)
def test_causes_quote_only_what_speaks_of_machines(error: Exception, told: str) -> None:
    assert cause(error) == told


def test_a_task_error_that_repeats_another_is_named_only() -> None:
    with pytest.raises(TaskError) as found:
        raise TaskError("2 tasks failed; the first: stratum a: its bound", "mend") from FitError("a", "its bound", "none")
    assert cause(found.value) == "TaskError"


def test_a_silent_run_may_be_dead_and_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="no run has left a status"):
        read_status(tmp_path)
    said = {"state": "running", "began": "x", "starts": 2, "stages": {}, "tasks": 0, "retries": 0, "silent": 500.0}
    assert "or dead" in status_lines(said)["state"]
    assert status_lines({**said, "silent": 3.0})["state"] == "running"


def test_status_and_log_name_the_task_at_work_its_part_and_the_workers_that_died(tmp_path: Path) -> None:
    log, unit = tmp_path / "log", {"task": "ProtectBin", "fit": "strata", "stratum": 7, "strata": 3}
    with observed(tmp_path, str(log), None, silent) as listener, stage(listener, "protect", 4, 10.0) as tick:
        listener(Event("work", "", unit=unit))
        listener(Event("lost", "", unit=unit))
        listener(Event("retry", "", done=2))
        tick(1, 5.0)
        part(0.25)
        listener(Event("lost", "", unit=unit))
        shown = status_lines(read_status(tmp_path))
        proper = {"fit": "proper", "task": "ProtectOne", "stratum": 3}
        listener(Event("lost", "", unit=proper))
    task = "ProtectBin (fit strata, stratum 7, strata 3)"
    assert shown["protect"].startswith("1 of 4 (50 % of the work) in ")
    assert shown["at work"].startswith(f"{task}, since 20")
    assert shown["at work"].endswith(", 25% done")
    assert shown["workers that died"].startswith(f"2, the last in {task} at 20")
    assert shown["tasks"] == "0, 2 submitted again"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    said = [{k: v for k, v in line.items() if k not in ("time", "run", "stage")} for line in lines]
    assert said[1:4] == [{"event": "work", **unit}, {"event": "lost", **unit}, {"event": "retry", "tasks": 2}]
    assert said[4] == {"event": "advance", "done": 1, "total": 4, "share": 0.5}
    assert "ProtectOne" not in log.read_text(), "which strata take a fallback stays inside"
    assert lines[-1]["losses"] == 2


def test_a_run_in_this_process_names_its_tasks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    succeed("run", survey(tmp_path), "-w", tmp_path / "work", "--log", log, "-q")
    kinds = [line["event"] for line in map(json.loads, log.read_text().splitlines()) if line["event"] in ("work", "task")]
    assert kinds == ["work", "task"]


def test_a_failed_run_waits_until_it_was_asked_and_others_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a look every second. A state that is gone within a millisecond was never seen."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    pages, over = list[str](), threading.Event()

    def ask() -> None:
        while not over.wait(1.0):
            with suppress(OSError), urllib.request.urlopen(f"http://{place}/metrics", timeout=60) as page:
                pages.append(page.read().decode())

    watcher = threading.Thread(target=ask)
    watcher.start()
    job = survey(tmp_path, bad=True)
    assert invoke("run", job, "-w", tmp_path / "work", "-q", "--metrics", place).exit_code == 2
    over.set()
    watcher.join()
    assert 'dpdist_run_state{state="failed"} 1.0' in pages[-1]
    monkeypatch.setattr(observing, "LINGER", 3600.0)
    with observed(tmp_path, None, "127.0.0.1:0", silent):
        pass
    with pytest.raises(KeyboardInterrupt), observed(tmp_path, None, "127.0.0.1:0", silent):
        raise KeyboardInterrupt
    monkeypatch.setattr(observing, "LINGER", 0.1)
    with observed(tmp_path, None, "127.0.0.1:0", silent) as listener:
        listener(Event("begin", "protect"))
        listener(Event("held", "release"))
    assert read_status(tmp_path)["state"] == "held"
