"""The executor on Dask workers: programs of this machine, or those of an external scheduler."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.spawn import get_executable
from pathlib import Path
from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]
from typing import Any, TypeVar
from uuid import uuid4

from distributed import Status

from dpdist.core.errors import ClusterError, TaskError
from dpdist.core.files import scratch
from dpdist.core.progress import Event, Listener, part, silent
from dpdist.core.this_process import interrupts_kept
from dpdist.job import Runtime
from dpdist.runtime import scheduler
from dpdist.runtime.attempts import Pulse, attempt, killed, not_started, raise_together, stop_or_note, unit_of
from dpdist.runtime.deaths import MOST_BY_MEMORY, Deaths, WatchingNanny, first_to_blame, out_of_memory
from dpdist.runtime.tls import passing_security

# Dask would start a worker by `multiprocessing`, whose new process imports the caller's main module. A script that calls
# `dpdist.run` at its top level would then run once more in each worker, and be charged again.
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


R = TypeVar("R")

TASKS_IN_FLIGHT, REFILLED_AT = 3, 2
"""Submitted tasks for each worker: enough that no worker waits, and few enough for the scheduler.

More are submitted when `REFILLED_AT` are left. One call submits many tasks, which halves the scheduler's cost for each.
"""
START_ATTEMPTS = 3
"""Number of failures in one call of `Dask.start_missing` after which the run fails."""
LOSSES = 5
"""Number of lost links to the scheduler, without a finished task in between, that are repaired."""
STAN = {"stan": 1.0}
"""A resource that each worker has once, so that it runs only one Stan subprocess at a time."""
_CHECK_INTERVAL = 1.0
_FEWEST_PULSES = 20
"""How often a worker's signs of work are looked for, at least, before a run counts as stalled."""
_LONGEST_PAUSE = 15.0
"""Seconds between two looks at these signs, at most."""
_NEVER = 1e9
_NO_PAGES: dict[str, list[str]] = {f"distributed.{side}.http.routes": [] for side in ("scheduler", "worker")}
_PRELOAD = ["dpdist.runtime.worker_process"]


@dataclass
class Dask:
    """Runs tasks on the workers of a Dask client.

    Each worker is a process with one thread; few tasks are submitted at once.

    The link to an external scheduler may break. Then `connect` makes a new client, and tasks without a result are submitted
    again under the same names. A task that is run twice writes the same bytes.
    """

    runtime: Runtime
    client: Any
    needs: Mapping[str, float] = field(default_factory=dict)
    connect: Callable[[], Any] | None = None
    listener: Listener = silent
    _workers: tuple[float, int] = (-1e9, 1)
    """Time of the last question to the scheduler about its workers, and their number then."""
    _seen: tuple[float, frozenset[str] | None, float] = (-1e9, None, -1e9)
    """Time of the last look for workers that died, workers then, and the scheduler's time of the last death."""
    _ended: dict[str, int] = field(default_factory=dict)
    """Keys of tasks that have ended since that look, by name: a worker may have died in one of them before."""
    _deaths: Deaths | None = None
    _pulse: Pulse = field(default_factory=Pulse)
    _by_memory: Counter[str] = field(default_factory=Counter)
    """Number of workers that memory has ended, by task."""

    @property
    def width(self) -> int:
        """Returns the number of workers that the job states, or the present number if it is larger.

        A cluster that grows on demand begins with fewer workers than stated.
        """
        return max(self.runtime.workers, self._width())

    def map(self, task: Callable[[int], R], keys: Sequence[int]) -> Iterator[R]:
        from distributed.scheduler import KilledWorker

        call, waiting, failures, losses = uuid4().hex[:8], list(reversed(keys)), list[Exception](), 0
        pending: dict[Any, int] = {}
        at_work: int | None = None
        try:
            while waiting or pending:
                try:
                    self._fill(pending, waiting, task, call)
                    at_work = self._announced(next(iter(pending.values()), None), at_work, task)
                    done = self._finished(pending, task)
                    if len(done) == len(pending) and not waiting:
                        self._look(pending, task, last=True)
                except scheduler.SchedulerLost:
                    done, losses = set(), losses + 1
                    waiting += list(pending.values())
                    self.listener(Event("retry", "", done=len(pending)))
                    pending.clear()
                    self._reconnect(losses)
                results = self._gathered(done)
                for future in done:
                    key = self._ended[future.key] = pending.pop(future)
                    try:
                        result = results[future] if future in results else future.result()
                    except KilledWorker:
                        stop_or_note(self.runtime, killed(self.runtime, future.key), failures)
                        continue
                    except scheduler.lost_results():
                        waiting.append(key)
                        self.listener(Event("retry", "", done=1))
                        continue
                    losses = 0
                    self.listener(Event("task", "", unit=unit_of(task, key), seconds=result.seconds))
                    if result.error is None:
                        yield result.value
                    else:
                        stop_or_note(self.runtime, result.error, failures)
        finally:
            with suppress(*scheduler.broken_links()):
                self.client.cancel(list(pending), force=True)
        raise_together(failures)

    def _announced(self, oldest: int | None, before: int | None, task: Callable[[int], R]) -> int | None:
        """Tells which task was submitted the longest ago, where it is another one than before."""
        if oldest is not None and oldest != before:
            self.listener(Event("work", "", unit=unit_of(task, oldest)))
        return oldest

    def _fill(self, pending: dict[Any, int], waiting: list[int], task: Callable[[int], R], call: str) -> None:
        width = self._width() if waiting else 0
        if waiting and width and len(pending) <= REFILLED_AT * width:
            keys = waiting[len(pending) - TASKS_IN_FLIGHT * width :][::-1]
            futures = self._submitted(task, keys, [f"{type(task).__name__}-{call}-{key}" for key in keys])
            pending.update(zip(futures, keys, strict=True))
            del waiting[-len(keys) :]

    def _submitted(self, task: Callable[[int], R], keys: list[int], names: list[str]) -> list[Any]:
        needs = dict(self.needs) or None
        try:
            return list(self.client.map(attempt, [task] * len(keys), keys, key=names, pure=False, resources=needs))
        except scheduler.broken_links():
            if self.connect is None or self.client.status == "running":
                raise
            raise scheduler.SchedulerLost from None

    def _gathered(self, done: set[Any]) -> dict[Any, Any]:
        """The results of finished tasks in one request."""
        finished = [future for future in done if future.status == "finished"]
        try:
            return dict(zip(finished, self.client.gather(finished), strict=True))
        except Exception:
            return {}

    def _width(self) -> int:
        if self.connect is None:
            return self.runtime.workers
        counted_when, workers = self._workers
        if time.monotonic() - counted_when > _CHECK_INTERVAL:
            workers = max(1, len(scheduler.workers_of(self.client)))
            self._workers = time.monotonic(), workers
        return workers

    def _finished(self, pending: Mapping[Any, int], task: Callable[[int], R]) -> set[Any]:
        """Waits for a task to finish. Raises `TaskError` if none does and none shows signs of work for too long."""
        from distributed import wait

        patience, names = self.runtime.stall_timeout, [future.key for future in pending]
        deadline = time.monotonic() + patience
        pause = min(_LONGEST_PAUSE, patience / _FEWEST_PULSES)
        look = time.monotonic() + pause
        while (remaining := deadline - time.monotonic()) > 0:
            self.listener(Event("alive", ""))
            self.start_missing()
            self._look(pending, task)
            self._refuse_what_memory_ends(names)
            if time.monotonic() > look:
                look = time.monotonic() + pause
                with suppress(*scheduler.broken_links()):
                    deadline = time.monotonic() + patience if self._pulse.felt(self.client, names) else deadline
            if self.connect is not None and self.client.status != "running":
                raise scheduler.SchedulerLost
            try:
                return set(wait(set(pending), timeout=min(remaining, _CHECK_INTERVAL), return_when="FIRST_COMPLETED").done)
            except TimeoutError:
                continue
            except scheduler.lost_results():
                raise scheduler.SchedulerLost from None
        raise self._stalled(set(pending))

    def _look(self, pending: Mapping[Any, int], task: Callable[[int], R], last: bool = False) -> None:
        """Tells of workers that died since the last look, each with the task that it had been given first.

        A task that runs alone also reports how much is done. Looks are a second apart, but for the `last`.
        """
        looked, before, until = self._seen
        if time.monotonic() - looked < _CHECK_INTERVAL and not last:
            return
        with suppress(scheduler.SchedulerLost):
            here = frozenset(scheduler.workers_of(self.client))
            for when, tasks in scheduler.deaths(self.client) if here != before else ():
                if before is not None and when > until:
                    keys = self._ended | {future.key: key for future, key in pending.items()}
                    key = next((key for name, key in keys.items() if name in tasks), None)
                    self.listener(Event("lost", "", unit={} if key is None else unit_of(task, key)))
                until = max(until, when)
            if len(pending) == 1:
                part(scheduler.part(self.client))
            self._seen = time.monotonic(), here, until
            self._ended.clear()

    def _refuse_what_memory_ends(self, names: Sequence[str]) -> None:
        """Raises `TaskError` if memory has ended as many workers under one of these tasks as it may."""
        if self._deaths is None:
            self._deaths = Deaths(self.client)
        ended = list[frozenset[str]]()
        with suppress(*scheduler.broken_links()):
            ended = self._deaths.by_memory()
        for tasks in ended:
            name = first_to_blame(names, tasks)
            if name is not None:
                self._by_memory[name] += 1
                if self._by_memory[name] == MOST_BY_MEMORY:
                    limit = scheduler.memory_of_workers(self.client) or int(self.runtime.memory_per_worker)
                    raise out_of_memory(self.runtime, name, limit)

    def _stalled(self, pending: set[Any]) -> TaskError:
        """Makes the error for tasks of which none has finished in time.

        External workers that run such a task are restarted, because a running task cannot be cancelled.
        """
        names = ", ".join(sorted(future.key for future in pending)[:3])
        fault = f"no task finished for {self.runtime.stall_timeout:g} s ({names})"
        if self.connect is not None:
            if not scheduler.workers_of(self.client):
                fault = f"{fault}: the scheduler has no workers"
            scheduler.cut(self.client, pending)
        remedy = "look at the machine's load and storage, or raise runtime.stall_timeout; the same command resumes"
        return TaskError(fault, remedy)

    def _reconnect(self, losses: int) -> None:
        if self.connect is None or losses > LOSSES:
            raise ClusterError(
                f"the link to the scheduler was lost {losses} times before a task finished",
                "look at the scheduler's log, its memory and the network; the same command resumes",
            )
        scheduler.close(self.client)
        self.client, self._seen, self._deaths = self.connect(), (-1e9, None, -1e9), None

    def start_missing(self) -> None:
        """Starts missing workers of a cluster on this machine. Whoever runs the cluster starts external workers."""
        cluster, failures = self.client.cluster if self.connect is None else None, list[Exception]()
        while cluster is not None and len(cluster.workers) - len(_given_up(cluster)) < self.runtime.workers:
            try:
                cluster.sync(_open_missing, cluster, self.runtime.workers)
            except Exception as error:
                failures.append(error)
            if len(failures) == START_ATTEMPTS:
                raise not_started(failures[-1]) from failures[-1]


def _given_up(cluster: Any) -> list[Any]:
    """Names of workers that will not return.
    A nanny process restarts its dead worker, unless the nanny has closed itself.
    """
    from distributed import Status

    return [name for name, nanny in list(cluster.workers.items()) if nanny.status in (Status.closed, Status.failed)]


async def _open_missing(cluster: Any, workers: int) -> None:
    for name in _given_up(cluster):
        del cluster.workers[name]
    cluster.worker_spec.update(dict.fromkeys(range(workers), cluster.new_spec))
    await cluster._correct_state()


@contextmanager
def elsewhere(
    runtime: Runtime, needs: Mapping[str, float], shared: Path | str | None, listener: Listener, memory: int = 0
) -> Iterator[Dask]:
    """Connects to the external scheduler that the job names, checks its workers, and gives an executor on them."""
    from distributed.utils import silence_logging_cmgr

    place = scheduler.Place.of(runtime)
    with silence_logging_cmgr(level=50):
        workers = Dask(runtime, place.connect(), needs, place.connect, listener)
        try:
            scheduler.check_workers(workers.client, runtime.start_timeout, needs, shared, memory)
            yield workers
        finally:
            scheduler.close(workers.client)


@contextmanager
def local(runtime: Runtime, needs: Mapping[str, float], listener: Listener) -> Iterator[Dask]:
    import dask
    from distributed import Client, LocalCluster

    settings = {
        **scheduler.settings(runtime.start_timeout),
        # Each death of a worker starts a timer of this length. If the worker is absent when any of them ends, Dask closes
        # its nanny, and starts no other.
        "distributed.deploy.lost-worker-timeout": _NEVER,
        **_NO_PAGES,
    }
    with (
        interrupts_kept() as let_through,
        scratch() as folder,
        dask.config.set({**settings, "temporary-directory": str(folder)}),
        LocalCluster(
            n_workers=0,
            threads_per_worker=1,
            worker_class=LocalNanny,
            memory_limit=int(runtime.memory_per_worker),
            # other users of this machine can reach loopback, and whoever is a client of a scheduler can run code
            security=passing_security(),
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address=None,
            scheduler_kwargs={"dashboard": False},
            silence_logs=50,
            preload=_PRELOAD,
            resources=STAN,
        ) as cluster,
        Client(cluster) as client,
    ):
        workers = Dask(runtime, client, needs, None, listener)
        workers.start_missing()
        let_through()
        yield workers
