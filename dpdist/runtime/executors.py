"""Executors: run one task per key and hand back results as they come. `serial` is the oracle of `dask`."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from threadpoolctl import threadpool_limits

from dpdist.errors import DpdistError, TaskError
from dpdist.job import Runtime

R = TypeVar("R")

START_TIMEOUT = "60s"
TASKS_IN_FLIGHT = 3
"""Submitted tasks per worker: enough that none waits, few enough that the scheduler stays idle."""
ALLOWED_DEATHS = 20
"""Workers that may die under one task before it is given up: a killed worker is no fault of the task."""
START_ATTEMPTS = 3
"""Times in a row that the start of missing workers may fail."""
_CHECK_INTERVAL = 1.0
_NEVER = 1e9
_PRELOAD = ["dpdist.runtime.worker"]
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Executor(Protocol):
    def map(self, task: Callable[[int], R], keys: Sequence[int]) -> Iterator[R]:
        """Results in any order. With `on_failure: stop` the first exception of a task ends the iteration; with `report`
        the other tasks finish first, and the exceptions are raised together at the end."""
        ...


@dataclass(frozen=True)
class Serial:
    """In this process, in order."""

    runtime: Runtime

    def map(self, task: Callable[[int], R], keys: Sequence[int]) -> Iterator[R]:
        failures: list[Exception] = []
        for key in keys:
            try:
                result = one_thread(task, key)
            except Exception as error:
                _stop_or_note(self.runtime, error, failures)
            else:
                yield result
        _raise_together(failures)


@dataclass(frozen=True)
class Dask:
    """On the workers of a Dask client, each a process with one thread; a window of tasks is in flight at a time."""

    runtime: Runtime
    client: Any

    def map(self, task: Callable[[int], R], keys: Sequence[int]) -> Iterator[R]:
        from distributed.scheduler import KilledWorker

        call, waiting, failures = uuid4().hex[:8], list(reversed(keys)), list[Exception]()
        pending: set[Any] = set()
        try:
            while waiting or pending:
                while waiting and len(pending) < TASKS_IN_FLIGHT * self.runtime.workers:
                    key = waiting.pop()
                    name = f"{type(task).__name__}-{call}-{key}"
                    pending.add(self.client.submit(one_thread, task, key, key=name, pure=False))
                done = self._finished(pending)
                pending -= done
                for future in done:
                    try:
                        result = future.result()
                    except KilledWorker:
                        _stop_or_note(self.runtime, _killed(self.runtime, future.key), failures)
                    except Exception as error:
                        _stop_or_note(self.runtime, error, failures)
                    else:
                        yield result
        finally:
            self.client.cancel(list(pending), force=True)
        _raise_together(failures)

    def _finished(self, pending: set[Any]) -> set[Any]:
        """Those that have finished, at least one; workers that are missing meanwhile are started."""
        from distributed import wait

        deadline = time.monotonic() + self.runtime.stall_timeout
        while (left := deadline - time.monotonic()) > 0:
            self.start_missing()
            try:
                return set(wait(pending, timeout=min(left, _CHECK_INTERVAL), return_when="FIRST_COMPLETED").done)
            except TimeoutError:
                continue
        raise _stalled(self.runtime, pending)

    def start_missing(self) -> None:
        """Start the workers that a local cluster lacks; whoever runs a scheduler elsewhere sees to its workers."""
        cluster, failures = self.client.cluster, list[Exception]()
        while cluster is not None and len(cluster.workers) - len(_given_up(cluster)) < self.runtime.workers:
            try:
                cluster.sync(_open_missing, cluster, self.runtime.workers)
            except Exception as error:
                failures.append(error)
            if len(failures) == START_ATTEMPTS:
                raise _not_started(failures[-1]) from failures[-1]


def _given_up(cluster: Any) -> list[Any]:
    """Names of workers that are gone for good. A worker that dies is started again by its nanny, unless that has closed."""
    from distributed import Status

    return [name for name, nanny in list(cluster.workers.items()) if nanny.status in (Status.closed, Status.failed)]


async def _open_missing(cluster: Any, workers: int) -> None:
    for name in _given_up(cluster):
        del cluster.workers[name]
    cluster.worker_spec.update(dict.fromkeys(range(workers), cluster.new_spec))
    await cluster._correct_state()


def one_thread(task: Callable[[int], R], key: int) -> R:
    """BLAS on one thread: results must not depend on the number of cores."""
    with threadpool_limits(1):
        return task(key)


@contextmanager
def executor(runtime: Runtime) -> Iterator[Executor]:
    """The executor a job asks for; a local cluster lives as long as the block, its workers no longer than this process."""
    if runtime.executor == "serial":
        yield Serial(runtime)
        return
    import dask
    from distributed import Client, LocalCluster

    settings = {
        "distributed.nanny.pre-spawn-environ": {**_ONE_THREAD, "MALLOC_TRIM_THRESHOLD_": "65536"},
        "distributed.comm.timeouts.connect": START_TIMEOUT,
        "distributed.scheduler.allowed-failures": ALLOWED_DEATHS,
        # a cluster closes the nanny of a worker that is not there this long after *any* of its deaths, and starts no other
        "distributed.deploy.lost-worker-timeout": _NEVER,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.pause": False,
    }
    with (
        _interrupts_kept() as let_through,
        dask.config.set(settings),
        LocalCluster(
            n_workers=0,
            threads_per_worker=1,
            processes=True,
            memory_limit=int(runtime.memory_per_worker),
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=50,
            preload=_PRELOAD,
        ) as cluster,
        Client(cluster) as client,
    ):
        workers = Dask(runtime, client)
        workers.start_missing()
        let_through()
        yield workers


@contextmanager
def _interrupts_kept() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits until it is let through, and processes started before that never see it: a driver ends its workers."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    resource_tracker.ensure_running()  # whoever starts it lets interrupts through to what is started next
    kept: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: kept.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)

    def let_through() -> None:
        restore()
        if kept:
            raise KeyboardInterrupt

    try:
        yield let_through
    except Exception as error:
        if kept:
            raise KeyboardInterrupt from error
        raise
    finally:
        restore()


def _stop_or_note(runtime: Runtime, error: Exception, failures: list[Exception]) -> None:
    if runtime.on_failure == "stop":
        raise error
    failures.append(error)


def _raise_together(failures: list[Exception]) -> None:
    if len(failures) == 1:
        raise failures[0]
    if failures:
        first = str(failures[0]) if isinstance(failures[0], DpdistError) else type(failures[0]).__name__
        found = f"{len(failures)} tasks failed; the first: {first}"
        raise TaskError(found, "mend the cause; the same command resumes") from failures[0]


def _stalled(runtime: Runtime, pending: set[Any]) -> TaskError:
    names = ", ".join(sorted(future.key for future in pending)[:3])
    return TaskError(
        f"no task finished for {runtime.stall_timeout:g} s ({names})",
        "look at the machine's load and storage, or raise runtime.stall_timeout; the same command resumes",
    )


def _not_started(failure: BaseException) -> TaskError:
    while failure.__cause__ is not None:
        failure = failure.__cause__
    return TaskError(
        f"no worker could be started ({type(failure).__name__}: {failure})",
        "look at the machine's memory, storage and limits of processes; the same command resumes",
    )


def _killed(runtime: Runtime, name: str) -> TaskError:
    return TaskError(
        f"{ALLOWED_DEATHS} workers died under task {name}",
        f"if it ran out of memory, raise runtime.memory_per_worker (now {int(runtime.memory_per_worker) / 2**30:.1f} GiB)",
    )
