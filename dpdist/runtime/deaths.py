"""Deaths of workers, the tasks that they had, and whether memory ended them.

A nanny ends its worker at a share of the worker's memory, and the kernel ends it beyond that of the container or machine.
Nannies report both to the scheduler. All other deaths (a drained machine, a signal) have no such event.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from signal import SIGKILL
from typing import Any

from distributed import Nanny, Status

from dpdist.core.errors import TaskError
from dpdist.job import Runtime

BY_NANNY, BY_KERNEL = "worker-restart-memory", "dpdist-killed-by-kernel"
"""Topics of a scheduler's events on workers that memory ended. Dask's nannies write the first."""
REMOVED = "all"
"""Topic of a scheduler's events on removed workers."""
SAME_DEATH = 10.0
"""Seconds between the two events of one death, at most."""
MOST_BY_MEMORY = 2
"""Number of workers that memory may end under one task before the run ends. It would end every other worker, too."""


class WatchingNanny(Nanny):
    """Watches a worker, and reports to the scheduler if the kernel ended it for want of memory."""

    _kills_before = 0
    _address: str | None = None

    async def instantiate(self) -> Status:
        self._kills_before = kernel_kills()
        status = await super().instantiate()
        self._address = self.worker_address
        return status

    def _on_worker_exit_sync(self, exitcode: int) -> None:
        if exitcode == -SIGKILL and kernel_kills() > self._kills_before:
            self.log_event(BY_KERNEL, {"worker": self._address})  # type: ignore[no-untyped-call]
        super()._on_worker_exit_sync(exitcode)  # type: ignore[no-untyped-call]


def kernel_kills() -> int:
    """Number of processes that the kernel has ended for want of memory, in this control group, or on the machine."""
    for path in (
        "/sys/fs/cgroup/memory.events",
        "/sys/fs/cgroup/memory/memory.oom_control",
        "/proc/vmstat",
    ):
        try:
            counted = re.search(r"^oom_kill (\d+)$", Path(path).read_text(), re.MULTILINE)
        except OSError:
            continue
        if counted:
            return int(counted[1])
    return 0


class Deaths:
    """Deaths by memory of a client's workers. Events come in the client's thread, and wait there for the caller's."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting: list[tuple[float, str]] = []
        self._counted: set[tuple[float, str]] = set()
        for topic in (BY_NANNY, BY_KERNEL):
            client.subscribe_topic(topic, lambda event: self._waiting.append((event[0], str(event[1]["worker"]))))

    def by_memory(self) -> list[frozenset[str]]:
        """The tasks that each worker had which memory has ended since the last call.

        A worker's removal and the event on its memory may come in either order.
        """
        if not self._waiting:
            return []
        removals = [
            (when, str(content["worker"]), frozenset(map(str, content["processing-tasks"])))
            for when, content in self._client.get_events(REMOVED)
            if isinstance(content, dict) and content.get("action") == "remove-worker"
        ]
        deaths = list[frozenset[str]]()
        for event in list(self._waiting):
            for when, worker, tasks in removals:
                same = worker == event[1] and abs(when - event[0]) < SAME_DEATH
                if same and (when, worker) not in self._counted:
                    self._counted.add((when, worker))
                    self._waiting.remove(event)
                    deaths.append(tasks)
                    break
        return deaths


def first_to_blame(names: Iterable[str], tasks: frozenset[str]) -> str | None:
    """The task that a worker was running: the first in order of submission. Later ones waited at the worker."""
    return next((name for name in names if name in tasks), None)


def out_of_memory(runtime: Runtime, name: str, limit: int) -> TaskError:
    """The error for a task under which memory has ended workers with this limit, in bytes."""
    where = "runtime.memory_per_worker"
    if runtime.scheduler is not None:
        where = "the workers' memory (their container's limit, or `dpdist cluster worker --memory`)"
    return TaskError(
        f"task {name} needs {limit / 2**20:,.0f} MiB or more: {MOST_BY_MEMORY} workers ran out of memory under it",
        f"raise {where}; the same command resumes",
    )
