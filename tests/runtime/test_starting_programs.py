"""A release is charged once and made, however Python was started: workers never run the caller's main module."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from dpdist.ledger.book import Ledger

JOB = """
dataset: starting
period: "2017"
input: {simulate: {kind: doctorates, population: 20000, sample: 2000, seed: 1}}
columns:
  field: {levels: [biology, computing, mathematics, physical_sciences, psychology, social_sciences, engineering, health]}
  salary: {bounds: [0, 1000000]}
survey: {weight: weight, population: 20000}
strata: [field]
outcome: salary
model: {family: lognormal}
mechanism: {name: weighted, weights: fixed_point, fallback: refuse}
budget: {epsilon: "11", adjacency: zero_out}
sampler: {name: exact, draws: 100}
tables: [{name: salaries, by: [field], statistics: [count]}]
runtime: {executor: dask, workers: 1, memory_per_worker: 2GiB}
ledger: {url: LEDGER}
"""
UNGUARDED = """
import os, time
import dpdist
release = dpdist.run("job.yaml", f"made-{os.getpid()}-{time.time_ns()}")
print("released", sorted(release.tables))
"""
"""As a newcomer writes it: no `if __name__ == "__main__"`, and a new folder each time."""
REPLAYED = """
import os, time
import dpdist
again = dpdist.run("job.yaml", f"again-{time.time_ns()}", replay="first/confidential")
print("released", sorted(again.tables))
"""
THREADED = f"""
import threading
def work():
    exec({UNGUARDED!r}, {{}})
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
RESTARTED = """
import os, signal, time
import dpdist, psutil
killed = []
def kill_a_worker(event):
    if event.kind == "task" and not killed:
        for child in psutil.Process().children(recursive=True):
            if "worker_process" in " ".join(child.cmdline()):
                killed.append(child.pid)
                child.kill()
release = dpdist.run("job.yaml", f"made-{time.time_ns()}", listener=kill_a_worker)
assert killed, "no worker was killed"
print("released", sorted(release.tables))
"""
LIMIT = 240.0
"""Seconds within which a start has to end."""
RELEASED = "released ['salaries']"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job whose ledger counts what is charged."""
    monkeypatch.delenv("DPDIST_LEDGER", raising=False)
    (tmp_path / "job.yaml").write_text(JOB.replace("LEDGER", str(tmp_path / "ledger.sqlite")))
    Ledger(f"{tmp_path}/ledger.sqlite").begin()
    return tmp_path


def charges(folder: Path) -> int:
    """Number of runs that were charged."""
    return [entry.kind for entry in Ledger(f"{folder}/ledger.sqlite").entries()].count("reserve")


def python(folder: Path, *arguments: str, text: str | None = None) -> str:
    """What a Python process prints, also as errors."""
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, timeout=LIMIT, check=False)
    return ended.stdout + ended.stderr


def as_script(folder: Path, program: str = UNGUARDED) -> str:
    (folder / "script.py").write_text(program)
    return python(folder, "script.py")


def as_module(folder: Path) -> str:
    (folder / "module.py").write_text(UNGUARDED)
    return python(folder, "-m", "module")


def as_input(folder: Path) -> str:
    return python(folder, "-", text=UNGUARDED)


def as_argument(folder: Path) -> str:
    return python(folder, "-c", UNGUARDED)


def in_a_thread(folder: Path) -> str:
    return as_script(folder, THREADED)


def with_killed_workers(folder: Path) -> str:
    return as_script(folder, RESTARTED)


def under_pytest(folder: Path) -> str:
    (folder / "test_it.py").write_text(f"def test_it():\n    exec({UNGUARDED!r}, {{}})\n")
    return python(folder, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_it.py")


def in_a_notebook(folder: Path) -> str:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(UNGUARDED)])
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", resources=resources).execute()
    return "".join(output.get("text", "") for output in notebook.cells[0].outputs)


def in_a_terminal(folder: Path) -> str:
    """Lines typed at the prompt of an interpreter."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1"}
    shown = b""
    with subprocess.Popen([sys.executable, "-q"], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        os.write(ours, f"{UNGUARDED.strip()}\nexit()\n".encode())
        with suppress(OSError):  # the terminal ends with its program
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    return shown.decode()


STARTS = [
    as_script,
    as_argument,
    as_input,
    as_module,
    in_a_thread,
    with_killed_workers,
    under_pytest,
    in_a_notebook,
    in_a_terminal,
]


@pytest.mark.long
@pytest.mark.parametrize("start", STARTS)
def test_a_release_is_made_and_charged_once(folder: Path, start: Callable[[Path], str]) -> None:
    shown = start(folder)
    assert RELEASED in shown, shown[-3000:]
    assert charges(folder) == 1
    assert len(list(folder.glob("made-*"))) == 1


@pytest.mark.long
def test_a_replay_in_a_script_is_made_and_not_charged(folder: Path) -> None:
    assert RELEASED in as_script(folder, UNGUARDED.replace("""f"made-{os.getpid()}-{time.time_ns()}\"""", '"first"'))
    assert RELEASED in as_script(folder, REPLAYED)
    assert charges(folder) == 1
    assert len(list(folder.glob("again-*"))) == 1
