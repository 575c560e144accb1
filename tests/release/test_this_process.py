"""What a run asks of its process: nothing nested, no core file, streams that are open; a lost race leaves nothing."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_release import LAPLACE_JOB as JOB, survey

import dpdist
from dpdist.core.errors import BudgetRefused
from dpdist.job import Limits
from dpdist.ledger.book import Ledger
from dpdist.runtime.executors import executor

NESTED = """
import multiprocessing
import dpdist
from dpdist.core.errors import DpdistError
try:
    {act}
    print("done")
except DpdistError as error:
    print(type(error).__name__)
if __name__ == "__main__":
    child = multiprocessing.get_context("{method}").Process(target=print)
    child.start()
    child.join()
"""
ACTS = {
    "run": 'dpdist.run("job.yaml", "work" + str(__name__ != "__main__"))',
    "study": 'dpdist.run_study(dpdist.load_study("vector_weights_counts"), "study", 0)',
    "rehearsal": 'from dpdist.studies.rehearsal import rehearse; rehearse(dpdist.load_job("job.yaml"), "rehearsal")',
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A survey, and a job that is charged to a ledger beside the workspaces; ε = 3 a release."""
    monkeypatch.delenv("DPDIST_LEDGER", raising=False)
    survey().head(300).to_parquet(tmp_path / "survey.parquet")
    text = JOB.replace("survey: {", f"input: {{path: {tmp_path}/survey.parquet}}\nsurvey: {{")
    (tmp_path / "job.yaml").write_text(text + f"publish: always\nledger: {{url: {tmp_path}/ledger.sqlite}}\n")
    Ledger(f"{tmp_path}/ledger.sqlite").begin()
    return tmp_path


def reserved(folder: Path) -> int:
    return [entry.kind for entry in Ledger(f"{folder}/ledger.sqlite").entries()].count("reserve")


def limit(folder: Path, total: str) -> None:
    job = folder / "job.yaml"
    job.write_text(job.read_text().replace("ledger.sqlite}", f"ledger.sqlite, total: {total}}}"))


def run_without_executor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("no process can be started")

    with monkeypatch.context() as patch:
        patch.setattr("dpdist.release.executor", broken)
        with pytest.raises(OSError, match="no process"):
            dpdist.run(folder / "job.yaml", folder / "work")


def program(folder: Path, text: str) -> str:
    (folder / "program.py").write_text(text)
    command = [sys.executable, "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=240).stdout


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_a_process_that_imports_the_callers_program_makes_no_run(folder: Path, method: str) -> None:
    """Control: the program's own run is made, and charged."""
    assert program(folder, NESTED.format(act=ACTS["run"], method=method)).split() == ["done", "NestedStart"]
    assert reserved(folder) == 1
    assert [path.name for path in folder.glob("work*")] == ["workFalse"]


@pytest.mark.long
@pytest.mark.parametrize("act", ["study", "rehearsal"])
def test_nor_a_study_or_a_rehearsal(folder: Path, act: str) -> None:
    assert program(folder, NESTED.format(act=f'if __name__ != "__main__": {ACTS[act]}', method="spawn")).split() == [
        *("done", "NestedStart")
    ]


def test_nothing_is_charged_before_the_executor_stands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with an executor the same folder is charged, and its release made."""

    run_without_executor(folder, monkeypatch)
    assert reserved(folder) == 0
    dpdist.run(folder / "job.yaml", folder / "work")
    assert reserved(folder) == 1


@pytest.mark.parametrize("room", ["3", "9"])
def test_a_run_that_loses_a_race_for_the_ledger_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    """A rival run is charged between this one's check and its charge. Control: with room for both, both stay."""
    limit(folder, room)

    def rival(*arguments: Any) -> Any:
        monkeypatch.undo()
        dpdist.run(folder / "job.yaml", folder / "rival")
        return executor(*arguments)

    monkeypatch.setattr("dpdist.release.executor", rival)
    before = set(folder.iterdir())
    if room == "3":
        with pytest.raises(BudgetRefused):
            dpdist.run(folder / "job.yaml", folder / "late")
    else:
        dpdist.run(folder / "job.yaml", folder / "late")
    made = {path.name for path in set(folder.iterdir()) - before}
    assert made == ({"rival"} if room == "3" else {"rival", "late"})


def test_a_run_that_was_charged_earlier_keeps_its_files_when_it_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that began, and is refused only when it resumes, loses nothing."""

    run_without_executor(folder, monkeypatch)
    Ledger(f"{folder}/ledger.sqlite").limit("small", "strict", Limits(total="1"))
    with pytest.raises(BudgetRefused):
        dpdist.run(folder / "job.yaml", folder / "work")
    assert (folder / "work" / "confidential" / "key").exists()


def test_a_run_from_python_writes_no_core_file(folder: Path) -> None:
    """Control: before it, the limit is as high as it can be set, and its user may raise it again."""
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    before = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (most, most))
        dpdist.run(folder / "job.yaml", folder / "work")
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, most)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def command(*arguments: str, closed: bool = False) -> list[str]:
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"] if closed else []
    return [*shell, sys.executable, "-m", "dpdist", *arguments]


def test_a_command_without_standard_streams_makes_its_release(folder: Path) -> None:
    ended = subprocess.run(command("run", "job.yaml", "-w", "work", closed=True), cwd=folder, check=False, timeout=240)
    assert ended.returncode == 0
    assert (folder / "work" / "public" / "manifest.json").exists()
    assert reserved(folder) == 1


IMPORTING = """
import os, signal, sys
from dpdist.cli import main

class Told:
    def find_spec(self, name, *_):
        if name == "dpdist.release":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Told())
sys.argv = ["dpdist", *sys.argv[1:]]
main.main()
"""


def test_a_command_that_is_told_to_end_while_it_imports_says_so(folder: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", IMPORTING, "plan", "job.yaml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stderr) == (130, "Interrupted before it began.\n")
