"""Tasks that outgrow their worker: the run ends at the second death, not the twentieth. Tasks that work are not ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from campaign import Run, Survey, public_bytes, run, survivors
from distributed import LocalCluster

import dpdist
from dpdist.core.errors import ClusterError, TaskError
from dpdist.job import Runtime
from dpdist.ledger.book import Ledger
from dpdist.runtime.executors import executor

LIMIT = 500 * 2**20


class Grow(NamedTuple):
    """Task: one key takes so many MiB; every start of it leaves a trace."""

    folder: str
    key: int
    mebibytes: int

    def __call__(self, key: int) -> int:
        if key == self.key:
            Path(self.folder, f"{time.time_ns()}").touch()
            held = [bytearray(os.urandom(2**20)) for _ in range(self.mebibytes)]
            time.sleep(2.0 if len(held) > 200 else 0.0)
        return key


class Kill(NamedTuple):
    """Task: the worker that takes one of the keys is killed so many times, and nothing says that memory was short."""

    folder: str
    key: int
    times: int

    def __call__(self, key: int) -> int:
        if key == self.key and len(os.listdir(self.folder)) < self.times:
            Path(self.folder, f"{time.time_ns()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return key


class Compute(NamedTuple):
    """Task: uses a processor for so many seconds, here or in a program of its own."""

    seconds: float
    elsewhere: bool

    def __call__(self, key: int) -> int:
        if self.elsewhere:
            code = f"import time\nend = time.monotonic() + {self.seconds}\nwhile time.monotonic() < end: sum(range(1000))"
            subprocess.run([sys.executable, "-c", code], check=True)
            return key
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            sum(range(1000))
        return key


class Wait(NamedTuple):
    """Task: waits for something that does not come."""

    seconds: float

    def __call__(self, key: int) -> int:
        time.sleep(self.seconds)
        return key


def charges(ledger: Ledger) -> int:
    """Charges that the ledger has reserved."""
    return sum(entry.kind == "reserve" for entry in ledger.entries())


@pytest.mark.long
def test_the_second_worker_that_memory_ends_under_a_task_ends_the_run(tmp_path: Path) -> None:
    """It took 20 deaths, each after all of the task's time. The other tasks do not count."""
    started = Runtime(executor="dask", workers=1, memory_per_worker=LIMIT, on_failure="report")
    with executor(started) as workers, pytest.raises(TaskError, match=r"Grow-\w+-1 needs 500 MiB or more") as told:
        list(workers.map(Grow(str(tmp_path), 1, 2000), range(6)))
    assert len(list(tmp_path.iterdir())) == 2
    assert "raise runtime.memory_per_worker" in told.value.remedy


@pytest.mark.long
def test_a_worker_that_is_killed_for_another_reason_is_replaced_again(tmp_path: Path) -> None:
    """Control: three kills without a sign of memory, and the run ends well."""
    with executor(Runtime(executor="dask", workers=1, memory_per_worker=LIMIT)) as workers:
        assert sorted(workers.map(Kill(str(tmp_path), 1, 3), range(4))) == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.long
def test_a_task_that_works_is_not_stalled_and_one_that_waits_is() -> None:
    """Neither its own work nor that of a program it started. Control: a task that only waits for as long."""
    with executor(Runtime(executor="dask", workers=1, stall_timeout=5)) as workers:
        assert list(workers.map(Compute(12.0, elsewhere=False), [1])) == [1]
        assert list(workers.map(Compute(12.0, elsewhere=True), [1])) == [1]
        with pytest.raises(TaskError, match="no task finished for 5 s"):
            list(workers.map(Wait(60.0), [1]))


def test_external_workers_that_cannot_hold_the_largest_task_are_refused_before_the_charge(
    few: Survey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were asked for nothing, and ended under the task, which was charged. Control: workers that can hold it."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    ledger.begin()
    monkeypatch.setenv("DPDIST_LEDGER", f"sqlite:///{tmp_path}/ledger.sqlite")
    place = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None, "worker_dashboard_address": None}
    with LocalCluster(**place, memory_limit="350MiB") as small:
        job = few.job("dask", scheduler=small.scheduler_address, allow_plain="true")
        needed = dpdist.validate(str(job)).largest_task_bytes // 2**20
        with pytest.raises(ClusterError, match=rf"a task needs {needed:,} MiB, worker .* has 350 MiB") as told:
            dpdist.run(str(job), tmp_path / "work")
        assert told.value.exit_code == 2
        assert charges(ledger) == 0
    with LocalCluster(**place, memory_limit="2GiB") as large:
        job = few.job("dask", scheduler=large.scheduler_address, allow_plain="true")
        dpdist.run(str(job), tmp_path / "work")
        assert charges(ledger) == 1


STARTS, LIMIT_OF_WORKER = 20, "500MiB"
OUTGROWN = """
import sys

if any("dpdist.runtime.worker_process" in word for word in sys.orig_argv):
    import time

    def outgrow():
        import dpdist.runtime.tasks as protecting

        protect_small = protecting.protect_small

        def outgrown(fit, stratum):
            if stratum == 1:
                held = bytearray(b"1") * (700 * 2**20)
                time.sleep(2.0)
            return protect_small(fit, stratum)

        protecting.protect_small = outgrown

    outgrow()
"""
"""A worker whose second stratum takes more memory than was projected."""


@pytest.mark.slow
def test_a_run_whose_worker_is_too_small_ends_with_what_it_needs_however_often_it_is_started(
    few: Survey, tmp_path: Path
) -> None:
    """Of 20 starts half are killed at a random moment. The others end by themselves, after two deaths of a worker.

    The budget is charged once. With memory for the task, the same workspace then ends with the bytes of a run in peace.
    """
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(OUTGROWN)
    paths = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    ledger = Ledger(place := f"sqlite:///{tmp_path}/ledger.sqlite")
    ledger.begin()
    job, rng, told = few.job("dask", workers=1, memory_per_worker=LIMIT_OF_WORKER), np.random.default_rng(46), 0
    for start in range(STARTS):
        began = Run(job, tmp_path / "work", env={"PYTHONPATH": paths, "DPDIST_LEDGER": place})
        if start % 2:
            time.sleep(rng.uniform(0.0, 15.0))
            began.kill()
            continue
        family = began.family()
        ended = began.end()
        assert (ended.code, ended.clear) == (1, True), ended.text
        assert "needs 500 MiB or more: 2 workers ran out of memory under it" in ended.text
        assert survivors(family) == []
        told += 1
    assert told == STARTS / 2
    ended = run(few.job("dask", workers=1), tmp_path / "work", env={"DPDIST_LEDGER": place})
    assert ended.code == 0, ended.text
    assert charges(ledger) == 1
    assert run(few.job(), tmp_path / "peace", "--replay", tmp_path / "work" / "confidential").code == 0
    assert public_bytes(tmp_path / "work") == public_bytes(tmp_path / "peace")
