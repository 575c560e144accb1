"""Executors: run one task per key and hand back results as they come. `serial` is the oracle of `dask`."""

from __future__ import annotations

import signal
import threading
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
        from distributed import wait
        from distributed.scheduler import KilledWorker

        call, waiting, failures = uuid4().hex[:8], list(reversed(keys)), list[Exception]()
        pending: set[Any] = set()
        try:
            while waiting or pending:
                while waiting and len(pending) < TASKS_IN_FLIGHT * self.runtime.workers:
                    key = waiting.pop()
                    name = f"{type(task).__name__}-{call}-{key}"
                    pending.add(self.client.submit(one_thread, task, key, key=name, pure=False))
                try:
                    done, pending = wait(pending, timeout=self.runtime.stall_timeout, return_when="FIRST_COMPLETED")
                except TimeoutError:
                    raise _stalled(self.runtime, pending) from None
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
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.pause": False,
    }
    with (
        _interrupts_kept() as let_through,
        dask.config.set(settings),
        LocalCluster(
            n_workers=runtime.workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=int(runtime.memory_per_worker),
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=50,
            preload=["dpdist.runtime.worker"],
        ) as cluster,
        Client(cluster) as client,
    ):
        let_through()
        yield Dask(runtime, client)


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


def _killed(runtime: Runtime, name: str) -> TaskError:
    return TaskError(
        f"{ALLOWED_DEATHS} workers died under task {name}",
        f"if it ran out of memory, raise runtime.memory_per_worker (now {int(runtime.memory_per_worker) / 2**30:.1f} GiB)",
    )
