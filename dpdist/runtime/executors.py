"""Executors: run one task per key and hand back results as they come. `serial` is the oracle of `dask`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from threadpoolctl import threadpool_limits

from dpdist.job import Runtime

R = TypeVar("R")

START_TIMEOUT = "60s"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Executor(Protocol):
    def map(self, task: Callable[[int], R], keys: Sequence[int]) -> Iterator[R]:
        """Results in any order; the first exception of a task ends the iteration."""
        ...


@dataclass(frozen=True)
class Serial:
    """In this process, in order."""

    def map(self, task: Callable[[int], R], keys: Sequence[int]) -> Iterator[R]:
        for key in keys:
            yield one_thread(task, key)


@dataclass(frozen=True)
class Dask:
    """On the workers of a Dask client; one single-threaded process a worker."""

    client: Any

    def map(self, task: Callable[[int], R], keys: Sequence[int]) -> Iterator[R]:
        from distributed import as_completed

        call = uuid.uuid4().hex[:8]
        names = [f"{type(task).__name__}-{call}-{key}" for key in keys]
        futures = self.client.map(one_thread, [task] * len(keys), keys, key=names, pure=False)
        for _, result in as_completed(futures, with_results=True):
            yield result


def one_thread(task: Callable[[int], R], key: int) -> R:
    """BLAS on one thread: results must not depend on the number of cores."""
    with threadpool_limits(1):
        return task(key)


@contextmanager
def executor(runtime: Runtime) -> Iterator[Executor]:
    """The executor a job asks for; a local cluster lives as long as the block."""
    if runtime.executor == "serial":
        yield Serial()
        return
    import dask
    from distributed import Client, LocalCluster

    settings = {
        "distributed.nanny.pre-spawn-environ": {**_ONE_THREAD, "MALLOC_TRIM_THRESHOLD_": "65536"},
        "distributed.comm.timeouts.connect": START_TIMEOUT,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.target": False,
        "distributed.admin.large-graph-warning-threshold": "100MB",
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=runtime.workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=int(runtime.memory_per_worker),
            dashboard_address=None,
            silence_logs=50,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield Dask(client)
