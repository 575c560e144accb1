"""A worker of this machine: whatever keeps it from starting is said, and it gets the interpreter's flags."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest

from dpdist.core.errors import TaskError
from dpdist.job import Runtime
from dpdist.runtime import dask_executor
from dpdist.runtime.dask_executor import WorkerProcess
from dpdist.runtime.executors import executor

pytestmark = pytest.mark.quick

LIMIT = 20.0
"""Seconds within which a start has to end, on a loaded machine."""


def fail(*_: object, **__: object) -> None:
    raise OSError(24, "Too many open files")


PLACES = [(dask_executor, "Pipe"), (subprocess, "Popen"), (json, "dumps"), (threading, "Thread")]


@pytest.mark.parametrize(("module", "name"), PLACES, ids=[name for _, name in PLACES])
def test_whatever_keeps_a_worker_from_starting_is_raised(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second start is refused in the same way, and leaves no file open."""

    async def start() -> None:
        worker = WorkerProcess({}, {}, lambda code: None)
        for _ in range(2):
            with monkeypatch.context() as broken:
                broken.setattr(module, name, fail)
                with pytest.raises(OSError, match="Too many open files"):
                    await asyncio.wait_for(worker.start(), LIMIT)
        await asyncio.wait_for(worker.kill(), LIMIT)
        assert not worker.is_alive()

    before = psutil.Process().num_fds()
    asyncio.run(start())
    assert psutil.Process().num_fds() == before


def test_a_worker_whose_driver_dies_while_it_connects_ends(tmp_path: Path) -> None:
    """It looked for the scheduler of the dead driver for ever. Control: with the driver alive it goes on looking."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(dask_executor.command_of(theirs.fileno()), pass_fds=[theirs.fileno()])
        with ours:
            address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
            options = {"scheduler_ip": address, "nthreads": 1, "dashboard": False, "local_directory": str(tmp_path)}
            ours.send({"worker": options, "config": {}})
            silent.settimeout(LIMIT)
            silent.accept()[0].close()
            assert process.poll() is None
        try:
            process.wait(LIMIT)
        finally:
            process.kill()


def test_an_answer_that_cannot_be_read_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> None:
        worker = WorkerProcess({"worker": lambda: None}, {}, lambda code: None)  # a function that cannot be sent
        with pytest.raises((AttributeError, TypeError), match=r"pickle|local object"):
            await asyncio.wait_for(worker.start(), LIMIT)
        await worker.kill()
        assert not worker.is_alive()

    asyncio.run(start())


def test_a_run_whose_workers_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executor, "Pipe", fail)
    with (
        pytest.raises(TaskError, match=r"no worker could be started \(OSError: .*Too many open files"),
        executor(Runtime(executor="dask", workers=1)),
    ):
        pass


def test_a_process_that_begins_after_its_start_was_cancelled_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, processes = threading.Event(), threading.Event(), list[subprocess.Popen[bytes]]()
    popen = subprocess.Popen

    def slow(*words: Any, **more: Any) -> subprocess.Popen[bytes]:
        begun.set()
        go_on.wait(LIMIT)
        processes.append(popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return processes[0]

    async def start() -> None:
        worker = WorkerProcess({}, {}, lambda code: None)
        starting = asyncio.ensure_future(worker.start())
        await asyncio.to_thread(begun.wait, LIMIT)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await worker.kill()
        go_on.set()
        until = time.monotonic() + LIMIT
        while time.monotonic() < until and not (processes and processes[0].poll() is not None):
            await asyncio.sleep(0.01)

    monkeypatch.setattr(subprocess, "Popen", slow)
    try:
        asyncio.run(start())
        assert processes[0].poll() is not None
    finally:
        for process in processes:
            process.kill()


def test_a_worker_has_the_flags_of_the_interpreter_that_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without the flag, the filter is absent."""
    probe = "import sys; print(sys.warnoptions, sys.flags.safe_path)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    for options in ([], ["error::UserWarning"]):
        monkeypatch.setattr(sys, "warnoptions", options)
        command = dask_executor.command_of(7)
        flags = command[: command.index("-c")]
        assert subprocess.check_output([*flags, "-c", probe], env=environment, text=True) == f"{options} True\n"
