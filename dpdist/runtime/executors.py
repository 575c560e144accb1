"""Executors, which run one task for each key, here or on Dask, and give results as tasks finish.

Tests compare the results of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from dpdist.core.progress import Event, Listener, silent
from dpdist.core.this_process import single_threaded
from dpdist.job import Runtime
from dpdist.runtime.attempts import raise_together, stop_or_note, unit_of

R = TypeVar("R")


class Executor(Protocol):
    @property
    def width(self) -> int:
        """Number of workers for which bins of strata are made."""
        ...

    def map(self, task: Callable[[int], R], keys: Sequence[int]) -> Iterator[R]:
        """Yields results in any order. With `on_failure: stop` a task's first exception ends the iteration.

        With `on_failure: report` all other tasks finish first, and the exceptions are raised together.
        """
        ...


@dataclass(frozen=True)
class Serial:
    """Runs tasks in this process, in order."""

    runtime: Runtime
    listener: Listener = silent
    width = 1

    def map(self, task: Callable[[int], R], keys: Sequence[int]) -> Iterator[R]:
        failures: list[Exception] = []
        for key in keys:
            began, unit = time.perf_counter(), unit_of(task, key)
            self.listener(Event("work", "", unit=unit))
            try:
                with single_threaded():
                    result = task(key)
            except Exception as error:
                stop_or_note(self.runtime, error, failures)
            else:
                self.listener(Event("task", "", unit=unit, seconds=time.perf_counter() - began))
                yield result
        raise_together(failures)


@contextmanager
def executor(
    runtime: Runtime,
    stan: bool = False,
    shared: Path | str | None = None,
    listener: Listener = silent,
    memory: int = 0,
) -> Iterator[Executor]:
    """Makes the executor that a job asks for. A local cluster ends with the block, and its workers end with this process.

    `stan` is true if tasks start subprocesses of Stan. `shared` is a folder or URL that external workers must reach too,
    and `memory` is the number of bytes that each of them needs for the largest task.
    """
    if runtime.executor == "serial":
        yield Serial(runtime, listener)
        return
    from dpdist.runtime.dask_executor import STAN, elsewhere, local

    needs = STAN if stan else {}
    if runtime.scheduler is None:
        with local(runtime, needs, listener) as workers:
            yield workers
    else:
        with elsewhere(runtime, needs, shared, listener, memory) as workers:
            yield workers
