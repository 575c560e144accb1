"""For workers and `runtime.dask_executor`: signs that a task that takes long still works.

A worker counts the seconds of processor time of its tasks' threads and of the programs that they started, and the steps
that tasks report. Dask's heartbeat brings both to the scheduler. A task that waits for storage that is gone shows neither.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any

SIGNS = "dpdist_signs"
"""Name of the figure in a worker's heartbeat."""
LEAST_SHARE = 0.02
"""Share of a processor that a task uses at least while it works. An idle worker's other threads are not counted."""
_OTHER_THREADS = ("MainThread", "Profile")
"""Threads of a worker that are not its tasks': Dask's loop, and the thread that samples what tasks do."""

PART = "dpdist_part"
"""Name of the figure in a worker's heartbeat that has the finished share of its task."""

_steps = count(1)
_reported, _share = 0, 0.0


def beat(share: float = 0.0) -> None:
    """Reports that the task of this process has finished a step, and which share of it is done, if that is known."""
    global _reported, _share
    _reported, _share = next(_steps), share


def part_of(worker: object) -> float:
    """The finished share of the task that this process runs; 0 if it is not known."""
    return _share


def signs_of(worker: object) -> tuple[int, float]:
    """The steps that tasks of this process have reported, and the processor seconds of tasks so far."""
    return _reported, _seconds_of_tasks()


def _seconds_of_tasks() -> float:
    import psutil  # type: ignore[import-untyped]

    seconds = time.process_time()
    for thread in threading.enumerate():
        if thread.name in _OTHER_THREADS and thread.ident is not None:
            seconds -= time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    ended = os.times()
    seconds += ended.children_user + ended.children_system
    for program in psutil.Process().children(recursive=True):
        try:
            spent = program.cpu_times()
        except psutil.Error:
            continue
        seconds += spent.user + spent.system
    return seconds


class Pulse:
    """Tells whether any worker that has one of a run's tasks still works."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int, float]] = {}
        """For each worker, the time of its heartbeat, the steps and the seconds that it brought."""

    def felt(self, client: Any, names: Collection[str]) -> bool:
        """True if such a worker's tasks have reported a step, or used a processor, since the last call."""
        busy = {worker for worker, tasks in client.processing().items() if not set(names).isdisjoint(map(str, tasks))}
        heartbeats = {w: facts["metrics"] for w, facts in client.scheduler_info()["workers"].items() if w in busy}
        return sum(self._works(worker, metrics) for worker, metrics in heartbeats.items()) > 0

    def _works(self, worker: str, metrics: Mapping[str, Any]) -> bool:
        if SIGNS not in metrics:
            return False
        when, (steps, seconds) = float(metrics["time"]), metrics[SIGNS]
        before = self._before.get(worker, (when - 1.0, 0, 0.0))  # of a new worker, all is new
        if when <= before[0]:
            return False
        self._before[worker] = when, steps, seconds
        return bool(steps > before[1] or seconds - before[2] > LEAST_SHARE * (when - before[0]))
