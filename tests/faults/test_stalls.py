"""Tasks that hang, fail or take their worker with them: what the caller is told, and what becomes of the other tasks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from campaign import Server, Survey, arguments, public_bytes, run, survivors

from dpdist.errors import FitError, TaskError
from dpdist.job import Runtime
from dpdist.runtime.executors import ALLOWED_DEATHS, executor

SERIAL, DASK = {"executor": "serial"}, {"executor": "dask", "workers": 2}
both = pytest.mark.parametrize("runtime", [SERIAL, DASK], ids=lambda r: r["executor"])


class Hang(NamedTuple):
    """Task: one key never ends."""

    key: int

    def __call__(self, key: int) -> int:
        while key == self.key:
            signal.pause()
        return key


class Fail(NamedTuple):
    """Task: leaves a trace in a folder, then some keys fail."""

    folder: str
    keys: tuple[int, ...]

    def __call__(self, key: int) -> int:
        Path(self.folder, str(key)).touch()
        if key in self.keys:
            raise FitError(f"number {key}", "it failed on purpose", "none")
        return key


class Die(NamedTuple):
    """Task: the worker that takes one of the keys is killed; so many times, or always."""

    folder: str
    key: int
    times: int

    def __call__(self, key: int) -> int:
        if key == self.key and len(os.listdir(self.folder)) < self.times:
            Path(self.folder, str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return key


def workers_of_this_process() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "--multiprocessing-fork" in p.cmdline()]


def test_a_stalled_task_is_cut_off_and_named_and_its_worker_does_not_stay() -> None:
    results = []
    with (  # noqa: PT012 - what came before the failure counts
        pytest.raises(TaskError, match=r"no task finished for 2 s .*Hang-\w+-4") as told,
        executor(Runtime(**DASK, stall_timeout=2)) as workers,
    ):
        family = workers_of_this_process()
        for result in workers.map(Hang(4), range(10)):
            results.append(result)
    assert len(results) >= 8, "all the others, but for one that may have waited behind it"
    assert len(set(results) - {4}) == len(results)
    assert "runtime.stall_timeout" in told.value.remedy
    assert len(family) == 2
    assert survivors(family) == []


@both
def test_report_lets_the_other_tasks_finish_and_raises_all_together(tmp_path: Path, runtime: dict[str, object]) -> None:
    results = []
    with executor(Runtime(**runtime, on_failure="report")) as workers:
        with pytest.raises(TaskError, match="2 tasks failed") as told:  # noqa: PT012 - what came before counts
            for result in workers.map(Fail(str(tmp_path), (0, 7)), range(20)):
                results.append(result)
        assert list(workers.map(Fail(str(tmp_path), ()), [50])) == [50], "the executor can be used again"
    assert sorted(results) == [k for k in range(20) if k not in (0, 7)]
    assert "number 0" in str(told.value) or "number 7" in str(told.value)
    assert {path.name for path in tmp_path.iterdir()} == {*map(str, range(20)), "50"}


@both
def test_report_of_a_single_failure_is_that_failure(tmp_path: Path, runtime: dict[str, object]) -> None:
    with (
        executor(Runtime(**runtime, on_failure="report")) as workers,
        pytest.raises(FitError, match="number 3: it failed on purpose"),
    ):
        list(workers.map(Fail(str(tmp_path), (3,)), range(6)))
    assert len(list(tmp_path.iterdir())) == 6


@both
def test_stop_raises_the_first_failure_and_begins_nothing_more(tmp_path: Path, runtime: dict[str, object]) -> None:
    with (
        executor(Runtime(**runtime, on_failure="stop")) as workers,
        pytest.raises(FitError, match="number 0"),
    ):
        list(workers.map(Fail(str(tmp_path), (0,)), range(200)))
    assert len(list(tmp_path.iterdir())) < 200


def test_a_task_that_loses_its_worker_twice_is_done_by_a_third(tmp_path: Path) -> None:
    with executor(Runtime(**DASK)) as workers:
        assert sorted(workers.map(Die(str(tmp_path), 1, times=2), range(4))) == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_a_task_under_which_every_worker_dies_is_given_up_and_named(tmp_path: Path) -> None:
    with (
        executor(Runtime(**DASK, on_failure="report")) as workers,
        pytest.raises(TaskError, match=r"workers died under task Die-\w+-1") as told,
    ):
        list(workers.map(Die(str(tmp_path), 1, times=1000), range(4)))
    assert "runtime.memory_per_worker" in told.value.remedy
    assert len(list(tmp_path.iterdir())) > ALLOWED_DEATHS


STALL = """
import sys

if "--multiprocessing-fork" in sys.argv:
    import signal

    import dpdist.runtime.protect as protecting

    protect_small = protecting.protect_small

    def stalled(fit, stratum):
        while stratum == 1:
            signal.pause()
        return protect_small(fit, stratum)

    protecting.protect_small = stalled
"""


def test_a_release_with_a_stalled_stratum_says_so_and_resumes_without_it(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server
) -> None:
    """As when storage hangs: the command ends by itself, and later it is simply given again."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(STALL)
    paths = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    job, replay = few.job("dask", workers=1, stall_timeout=2), ("--replay", undisturbed / "confidential")
    ended = run(job, tmp_path / "work", *replay, env={"PYTHONPATH": paths})
    assert (ended.code, ended.clear) == (1, True), ended.text
    assert "no task finished for 2 s" in ended.text
    assert "the same command resumes" in ended.text
    assert not (tmp_path / "work" / "public").exists()
    assert dpdist(*arguments(few.job(), tmp_path / "work", *replay)).code == 0
    assert public_bytes(tmp_path / "work") == public_bytes(undisturbed)
