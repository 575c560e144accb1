"""Workers of this machine, each a program of its own.

Dask would start a worker by `multiprocessing`, whose new process imports the caller's main module. A script that calls
`dpdist.run` at its top level would then run once more in each worker, and be charged again.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.spawn import get_executable
from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]
from typing import Any

from distributed import Status

from dpdist.runtime.deaths import WatchingNanny

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from dpdist.runtime.worker_process import main
main()
"""
"""The program first sets where modules are found, because Python would look into the working folder before its library."""
_OF_A_CLIENT = ("scheduler", "shuffle")
"""Keys of Dask's configuration that a client sets, and that a worker must not have."""
_CLOSING_SHARE = 0.8
"""Share of the time to close in which a worker may close by itself, before it is killed."""

Answer = tuple[str, str] | Exception | None
"""A worker's address and folder, the error that kept it from starting, or None if its process has ended."""


class LocalNanny(WatchingNanny):
    """Watches a worker of this machine: starts it again when it dies, and ends it when it takes too much memory."""

    async def instantiate(self) -> Status:
        if self.process is None:
            worker = {
                "scheduler_ip": self.scheduler_addr,
                "nthreads": self.nthreads,
                "local_directory": self._original_local_dir,
                "nanny": self.address,
                "name": self.name,
                "memory_limit": self.memory_manager.memory_limit,
                "resources": self.resources,
                "silence_logs": self.silence_logs,
                "preload": self.preload,
                "preload_argv": self.preload_argv,
                "security": self.security,
                "contact_address": self.contact_address,
                **self.worker_kwargs,
            }
            config = {key: value for key, value in self.config.items() if key not in _OF_A_CLIENT}
            settings = {"worker": worker, "config": config}
            self.process = WorkerProcess(settings, self.env, self._on_worker_exit_sync)  # type: ignore[assignment]
        return await super().instantiate()


class WorkerProcess:
    """The process of a worker, with the members that a nanny uses. It can be started again after it has ended."""

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str], on_exit: Callable[[int], None]):
        self.status = Status.init
        self.process: subprocess.Popen[bytes] | None = None
        self.worker_address: str | None = None
        self.worker_dir: str | None = None
        self._settings, self._environment, self._on_exit = settings, environment, on_exit
        self._answered, self._ended = asyncio.Event(), asyncio.Event()
        self._link: Any = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def start(self) -> Status:
        """Starts the process, and waits until its worker is connected or it has ended."""
        if self.status == Status.starting:
            await self._answered.wait()
        if self.status in (Status.starting, Status.running):
            return self.status
        self.status = Status.starting
        self._answered, self._ended = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        try:
            threading.Thread(target=self._live, args=(loop, answer), name="dpdist worker", daemon=True).start()
            reply = await answer
            if isinstance(reply, tuple) and self.status == Status.starting:
                self.worker_address, self.worker_dir = reply
                self.status = Status.running
        except BaseException:
            self.status = Status.failed if self.status == Status.starting else self.status
            raise
        finally:
            self._answered.set()
        return self.status

    async def kill(self, timeout: float = 5.0, **_: object) -> None:
        """Closes the worker, or kills its process after a while, and waits until it has ended."""
        if self.status == Status.starting:
            await self._answered.wait()
        if self.process is None:
            return
        if self.status != Status.stopped:
            self.status = Status.stopping
        process = self.process
        self._link.close()
        try:
            await asyncio.wait_for(self._ended.wait(), timeout * _CLOSING_SHARE)
        except TimeoutError:
            process.kill()
            await asyncio.wait_for(self._ended.wait(), timeout)

    def _live(self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Answer]) -> None:
        """Runs the process from its start to its end, in a thread that lives as long as the process.

        A thread of this lifetime is needed because Linux kills a worker when the thread that started it ends.
        """
        try:
            process = self._begin()
        except Exception as error:
            _tell(loop, _resolve, answer, error)
            return
        self.process = process
        if answer.done():  # the start was cancelled before there was a process to kill
            process.kill()
        _tell(loop, _resolve, answer, self._first_answer())
        code = process.wait()
        _tell(loop, self._after_exit, code)

    def _begin(self) -> subprocess.Popen[bytes]:
        self._link, theirs = Pipe()
        with theirs:
            try:
                return subprocess.Popen(
                    command_of(theirs.fileno()),
                    env={**os.environ, **self._environment},
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            except Exception:
                self._link.close()
                raise

    def _first_answer(self) -> Answer:
        try:
            self._link.send(self._settings)
            answer: Answer = self._link.recv()
        except (EOFError, OSError):  # the process ended before it answered
            return None
        except Exception as error:  # what cannot be sent or read
            return error
        return answer

    def _after_exit(self, code: int) -> None:
        self.status = Status.stopped
        self.process = None
        self._link.close()
        if self.worker_dir is not None:
            shutil.rmtree(self.worker_dir, ignore_errors=True)
        self.worker_dir = None
        self._ended.set()
        self._on_exit(code)


def command_of(link: int) -> list[str]:
    """The command line of a worker, with the flags of this interpreter, as `multiprocessing` passes them on."""
    places = [place for place in sys.path if isinstance(place, str)]
    return [get_executable(), *_args_from_interpreter_flags(), "-P", "-c", _PROGRAM, json.dumps(places), str(link)]


def _resolve(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)


def _tell(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *values: object) -> None:
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act, *values)
