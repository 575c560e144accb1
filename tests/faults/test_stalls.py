"""Tasks that hang, fail or take their worker with them: what the caller is told, and what becomes of the other tasks."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import dask
import distributed  # noqa: F401 - its settings have to be there before one of them is changed
import psutil
import pytest
from campaign import Run, Server, Survey, arguments, public_bytes, strata_done, survivors, wait_until, workers_among
from test_out_of_memory import Kill

from dpdist.core.errors import FitError, TaskError
from dpdist.core.progress import Event, part, stage
from dpdist.job import Runtime
from dpdist.runtime import dask_executor
from dpdist.runtime.attempts import ALLOWED_DEATHS
from dpdist.runtime.dask_executor import Dask
from dpdist.runtime.executors import Serial, executor

SERIAL, DASK = {"executor": "serial"}, {"executor": "dask", "workers": 2}


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


class Half(NamedTuple):
    """Task: reports that half of it is done, and ends when that was heard."""

    heard: str

    def __call__(self, key: int) -> int:
        part(0.5)
        wait_until(Path(self.heard).exists)
        return key


def family() -> set[psutil.Process]:
    """Every process that this one has started and that still lives."""
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(scope="module", params=[SERIAL, DASK], ids=lambda r: r["executor"])
def workers(request: pytest.FixtureRequest) -> Iterator[Serial | Dask]:
    """An executor of each kind, which has to live through all that its tasks do."""
    with executor(Runtime(**request.param)) as started:
        assert isinstance(started, Serial | Dask)
        yield started


def on_failure(workers: Serial | Dask, what: str) -> Serial | Dask:
    return replace(workers, runtime=workers.runtime.model_copy(update={"on_failure": what}))


def collect(results: Iterable[int], into: list[int]) -> None:
    """Keeps the results that come before an exception."""
    for result in results:
        into.append(result)


def test_report_lets_the_other_tasks_finish_and_raises_all_together(tmp_path: Path, workers: Serial | Dask) -> None:
    found: list[int] = []
    with pytest.raises(TaskError, match="2 tasks failed") as told:
        collect(on_failure(workers, "report").map(Fail(str(tmp_path), (0, 7)), range(20)), found)
    assert sorted(found) == [k for k in range(20) if k not in (0, 7)]
    assert "number 0" in str(told.value) or "number 7" in str(told.value)
    assert {path.name for path in tmp_path.iterdir()} == set(map(str, range(20)))


def test_report_of_a_single_failure_is_that_failure(tmp_path: Path, workers: Serial | Dask) -> None:
    with pytest.raises(FitError, match="number 3: it failed on purpose"):
        list(on_failure(workers, "report").map(Fail(str(tmp_path), (3,)), range(6)))
    assert len(list(tmp_path.iterdir())) == 6


def test_stop_raises_the_first_failure_and_begins_nothing_more(tmp_path: Path, workers: Serial | Dask) -> None:
    with pytest.raises(FitError, match="number 0"):
        list(on_failure(workers, "stop").map(Fail(str(tmp_path), (0,)), range(200)))
    assert len(list(tmp_path.iterdir())) < 200
    assert list(workers.map(Fail(str(tmp_path), ()), [1000])) == [1000], "the executor can be used again"


@pytest.mark.slow
def test_a_task_that_loses_its_worker_twice_is_done_by_a_third(tmp_path: Path) -> None:
    """Though at each death there is no worker left by the time at which Dask gives up those that did not return."""
    patience = dask.config.set({"distributed.deploy.lost-worker-timeout": 0.01})
    with patience, executor(Runtime(**DASK, stall_timeout=60)) as workers:
        assert sorted(workers.map(Kill(str(tmp_path), 1, times=2), range(4))) == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 2


def test_each_death_of_a_worker_is_told_with_its_task(tmp_path: Path) -> None:
    """A run with 4 killed workers told nothing of them. Control: a run in peace tells of none."""
    heard = list[Event]()
    with executor(Runtime(executor="dask", workers=1), listener=heard.append) as workers:
        assert sorted(workers.map(Kill(str(tmp_path), 1, times=0), range(2))) == [0, 1]
        assert [event for event in heard if event.kind in ("lost", "retry")] == []
        # A task that ends as its worker dies in the next one may be named in place of it.
        assert list(workers.map(Kill(str(tmp_path), 5, times=2), [5])) == [5]
    lost = [event for event in heard if event.kind == "lost"]
    assert [event.unit for event in lost] == [{"task": "Kill", "key": 5}] * 2
    assert lost[0].sentence == "A worker died in Kill (key 5). Another worker repeats its task."
    work = [event.unit["key"] for event in heard if event.kind == "work"]
    assert work[:2] == [0, 1] or work[:1] == [0]
    assert 5 in work


def test_the_share_of_a_task_that_is_done_is_told_while_its_worker_works(tmp_path: Path, workers: Serial | Dask) -> None:
    heard = list[Event]()

    def hear(event: Event) -> None:
        heard.append(event)
        if event.kind == "part":
            (tmp_path / "heard").touch()

    with stage(hear, "reference", 1):
        assert list(workers.map(Half(str(tmp_path / "heard")), [3])) == [3]
    assert [(event.stage, event.share) for event in heard if event.kind == "part"] == [("reference", 0.5)]


@pytest.mark.long
def test_a_worker_that_is_killed_as_it_starts_and_one_that_left_for_good_are_replaced() -> None:
    others = family()
    killed: list[psutil.Process] = []

    def kill_first() -> None:
        wait_until(lambda: bool(workers_among(family() - others)))
        killed.extend(workers_among(family() - others)[:1])
        killed[0].kill()

    killer = threading.Thread(target=kill_first)
    killer.start()
    with executor(Runtime(executor="dask", workers=1, stall_timeout=60)) as workers:
        killer.join()
        assert list(workers.map(Hang(4), [1])) == [1]
        cluster = cast(Dask, workers).client.cluster
        (nanny,) = cluster.workers.values()
        cluster.sync(nanny.close)
        assert workers_among(family() - others) == []
        assert list(workers.map(Hang(4), [2])) == [2]
    assert len(killed) == 1
    assert workers_among(family() - others) == []


def test_workers_that_cannot_be_started_end_the_run_and_the_cause_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executor, "_PRELOAD", ["there.is.no.such.module"])
    monkeypatch.setattr(dask_executor, "START_ATTEMPTS", 1)
    others = family()
    with (
        pytest.raises(TaskError, match=r"no worker could be started \(ModuleNotFoundError: No module named 'there'"),
        executor(Runtime(executor="dask", workers=1)),
    ):
        raise AssertionError("it started")
    assert workers_among(family() - others) == []


@pytest.mark.slow
def test_a_stalled_task_is_cut_off_and_named_and_the_others_are_done() -> None:
    found: list[int] = []
    others = family()
    with executor(Runtime(**DASK, stall_timeout=5)) as workers:
        started = workers_among(family() - others)
        with pytest.raises(TaskError, match=r"no task finished for 5 s .*Hang-\w+-4") as told:
            collect(workers.map(Hang(4), range(10)), found)
    assert len(found) >= 8, "all the others, but for one that may have waited behind it"
    assert 4 not in found
    assert "runtime.stall_timeout" in told.value.remedy
    assert len(started) == 2
    assert survivors(started) == []


@pytest.mark.slow
def test_a_worker_that_is_killed_again_and_again_as_it_starts_is_not_lost() -> None:
    """At random moments, for longer than Dask by default waits for a lost worker to return (15 s)."""
    others, moment = family(), random.Random(1)
    with executor(Runtime(executor="dask", workers=1, stall_timeout=60)) as workers:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            for child in workers_among(family() - others):
                child.kill()
            time.sleep(moment.uniform(0, 2))  # between kills
        assert list(workers.map(Hang(4), [1, 2])) == [1, 2]


@pytest.mark.slow
def test_a_task_under_which_every_worker_dies_is_given_up_and_named(tmp_path: Path) -> None:
    with (
        executor(Runtime(**DASK, on_failure="report")) as workers,
        pytest.raises(TaskError, match=r"workers died under task Die-\w+-1") as told,
    ):
        list(workers.map(Kill(str(tmp_path), 1, times=1000), range(4)))
    assert "runtime.memory_per_worker" in told.value.remedy
    assert len(list(tmp_path.iterdir())) > ALLOWED_DEATHS


STALL = """
import sys

if any("worker_process" in argument for argument in sys.orig_argv):
    import signal

    import dpdist.runtime.tasks as protecting

    protect_small = protecting.protect_small

    def stalled(fit, stratum):
        while stratum == 1:
            signal.pause()
        return protect_small(fit, stratum)

    protecting.protect_small = stalled
"""


@pytest.mark.slow
def test_a_release_with_a_stalled_stratum_says_so_and_resumes_without_it(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server
) -> None:
    """As when storage hangs: the command ends by itself, and later it is simply given again."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(STALL)
    paths = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    job, replay = few.job("dask", workers=1, stall_timeout=6), ("--replay", undisturbed / "confidential")
    started = Run(job, tmp_path / "work", *replay, env={"PYTHONPATH": paths})
    assert started.until(lambda: strata_done(tmp_path / "work") == 1)
    family = started.family()
    ended = started.end()
    assert (ended.code, ended.clear) == (1, True), ended.text
    assert "no task finished for 6 s (ProtectBin-" in ended.text
    assert survivors(family) == []
    assert "the same command resumes" in ended.text
    assert not (tmp_path / "work" / "public").exists()
    assert dpdist(*arguments(few.job(), tmp_path / "work", *replay)).code == 0
    assert public_bytes(tmp_path / "work") == public_bytes(undisturbed)
