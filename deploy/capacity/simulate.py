"""A release on a cluster as a discrete-event simulation (simpy): driver, scheduler, workers, shared storage.

The driver hands out tasks in order, as long as fewer than `window` per worker are in flight; driver and scheduler are busy
with each for a while, one task at a time; the first idle worker computes it, and its files go through a shared storage, one
task at a time. Left out: faults, start-up, and differences among workers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

BUSY = 0.8
"""Share of the time from which on a server, or the workers, count as at their limit."""
EDGES = 0.1
"""Share of the workers' time from which on a release counts as one of too few tasks."""


@dataclass(frozen=True)
class Cluster:
    """What tasks run on; times in seconds."""

    workers: int
    driver: float = 0.0
    """The driver's processor time per task: submitting it and taking its result."""
    scheduler: float = 0.0
    """A scheduler's processor time per task."""
    schedulers: int = 1
    latency: float = 0.0
    """From the scheduler to a worker and back."""
    window: int = 3
    """Tasks in flight per worker."""
    storage: float = 0.0
    """The shared storage's time per stratum, while others wait."""
    slowness: float = 1.0
    """Of a task among others on shared cores, over its time alone."""


class Task(NamedTuple):
    seconds: float
    """Of a worker."""
    strata: int = 1


class Outcome(NamedTuple):
    seconds: float
    """Until the last task has ended."""
    efficiency: float
    """Seconds of tasks over the workers' seconds."""
    driver_busy: float
    scheduler_busy: float
    storage_busy: float
    """Shares of the time, per server."""
    edges: float
    """Share of the workers' time before each one's first task and after its last."""

    @property
    def limits(self) -> tuple[str, ...]:
        """All that is at its limit: what is busy for `BUSY` of the time, and `few tasks` where the edges take `EDGES`."""
        busy = {
            "workers": self.efficiency,
            "driver": self.driver_busy,
            "scheduler": self.scheduler_busy,
            "storage": self.storage_busy,
        }
        found = [name for name, share in busy.items() if share >= BUSY]
        return (*found, *(["few tasks"] if self.edges >= EDGES else [])) or ("none alone",)


def simulate(tasks: Sequence[Task], cluster: Cluster) -> Outcome:
    """Runs the tasks in order; the same tasks and cluster give the same outcome."""
    env = simpy.Environment()
    scheduler = simpy.Resource(env, cluster.schedulers)
    workers = simpy.Resource(env, cluster.workers)
    storage = simpy.Resource(env, 1)
    in_flight = simpy.Resource(env, cluster.window * cluster.workers)
    begins: list[float] = []
    ends: list[float] = []

    def run(task: Task, slot: Any) -> Generator[Any, Any, None]:
        with scheduler.request() as turn:
            yield turn
            yield env.timeout(cluster.scheduler)
        with workers.request() as worker:
            yield worker
            begins.append(env.now)
            yield env.timeout(task.seconds * cluster.slowness + cluster.latency)
            if cluster.storage:
                with storage.request() as turn:
                    yield turn
                    yield env.timeout(task.strata * cluster.storage)
            ends.append(env.now)
        in_flight.release(slot)

    def drive() -> Generator[Any, Any, None]:
        for task in tasks:
            slot = in_flight.request()
            yield slot
            yield env.timeout(cluster.driver)
            env.process(run(task, slot))

    env.process(drive())
    env.run()
    seconds, n = float(env.now), len(tasks)
    work = sum(task.seconds for task in tasks)
    if seconds == 0:
        return Outcome(0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    used = min(n, cluster.workers)
    edges = sum(begins[:used]) + sum(seconds - end for end in ends[-used:]) + (cluster.workers - used) * seconds
    return Outcome(
        seconds,
        work * cluster.slowness / (cluster.workers * seconds),
        n * cluster.driver / seconds,
        n * cluster.scheduler / (cluster.schedulers * seconds),
        sum(task.strata for task in tasks) * cluster.storage / seconds,
        edges / (cluster.workers * seconds),
    )
