"""What was measured of a release, and what it is projected to: task times drawn anew, in other groups, elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from simulate import Cluster, Outcome, Task, simulate

from dpdist.planning.blocks import cut

MEASURED = Path(__file__).with_name("measured.json")
GROUPS = (1, 2, 4, 8, 16, 32, 64)
"""Strata per task; the planner cuts tasks by itself (`planned`)."""


@dataclass(frozen=True)
class Run:
    """A measured release on `workers` of a machine with `cores`: its wall time, its tasks in order."""

    workers: int
    cores: int
    slowness: float
    """Of that many processes that know nothing of each other, over one alone: the machine's, without a cluster."""
    seconds: float
    tasks: tuple[Task, ...]
    """In the order in which they ended."""

    @property
    def warm(self) -> tuple[Task, ...]:
        """Without the first task of each worker, which holds its start-up: imports, compilation, first links."""
        return self.tasks[self.workers :]


@dataclass(frozen=True)
class Measured:
    driver: float
    """Processor seconds per task."""
    scheduler: float
    latency: float
    files: float
    """Files that a stratum leaves, where batches share them."""
    files_alone: float
    """Files that a stratum leaves whose task protects no other, as with Stan."""
    costs: tuple[dict[str, float], ...]
    """Driver's and scheduler's seconds per task, by number of workers and tasks."""
    runs: tuple[Run, ...]

    @classmethod
    def read(cls, path: Path) -> Measured:
        said = json.loads(path.read_text(encoding="utf-8"))
        runs = tuple(
            Run(run["workers"], run["cores"], run["slowness"], run["seconds"], tuple(Task(s, n) for n, s in run["tasks"]))
            for run in said["runs"]
        )
        files = said["files_per_stratum"], said["files_alone"]
        return cls(said["driver"], said["scheduler"], said["latency"], *files, tuple(said["costs"]), runs)

    @property
    def alone(self) -> Run:
        """The run on one worker: what a task takes when nothing disturbs it."""
        return next(run for run in self.runs if run.workers == 1)

    @property
    def stratum_seconds(self) -> float:
        """Of a worker that has started."""
        return sum(task.seconds for task in self.alone.warm) / sum(task.strata for task in self.alone.warm)

    def cluster(self, workers: int, **more: Any) -> Cluster:
        return Cluster(workers, driver=self.driver, scheduler=self.scheduler, latency=self.latency, **more)


def tasks_of(measured: Measured, strata: int, group: int, stratum_seconds: float | None = None) -> list[Task]:
    """Tasks of `group` strata each; the time per stratum is that of a measured task drawn at random (seeded).

    Start-up is not drawn: the first task of the measured worker is left out.
    """
    sizes = [group] * (strata // group) + ([strata % group] if strata % group else [])
    return _drawn(measured, sizes, stratum_seconds)


def _drawn(measured: Measured, sizes: list[int], stratum_seconds: float | None) -> list[Task]:
    scale = 1.0 if stratum_seconds is None else stratum_seconds / measured.stratum_seconds
    whole = [task for task in measured.alone.warm if task.strata == max(t.strata for t in measured.alone.warm)]
    rates = scale * np.array([task.seconds / task.strata for task in whole])
    drawn = np.random.default_rng(1).choice(rates, len(sizes))
    return [Task(float(rate) * size, size) for rate, size in zip(drawn, sizes, strict=True)]


class Projected(NamedTuple):
    """A projection: how strata were grouped, on what, and what came of it."""

    strata: int
    group: int
    tasks: int
    cluster: Cluster
    outcome: Outcome

    @property
    def limit(self) -> float:
        """Tasks a second at which driver or schedulers saturate."""
        return 1 / max(self.cluster.driver, self.cluster.scheduler / self.cluster.schedulers)


def project(
    measured: Measured,
    strata: int,
    workers: int,
    groups: Iterable[int] = GROUPS,
    stratum_seconds: float | None = None,
    **more: Any,
) -> list[Projected]:
    found = []
    for group in groups:
        tasks, cluster = tasks_of(measured, strata, group, stratum_seconds), measured.cluster(workers, **more)
        found.append(Projected(strata, group, len(tasks), cluster, simulate(tasks, cluster)))
    return found


def planned(measured: Measured, strata: int, workers: int, stratum_seconds: float | None = None, **more: Any) -> Projected:
    """The same with tasks as the planner cuts them for so many workers (`group` 0)."""
    times = [stratum_seconds or measured.stratum_seconds] * strata
    tasks = _drawn(measured, [len(task) for task in cut(times, workers)], stratum_seconds)
    cluster = measured.cluster(workers, **more)
    return Projected(strata, 0, len(tasks), cluster, simulate(tasks, cluster))


class Validated(NamedTuple):
    """A measured run beside its prediction from the times of the run on one worker."""

    workers: int
    cores: int
    slowness: float
    measured: float
    predicted: float
    """From all task times of the run on one worker, its start-up among them as in what was measured, and the machine's
    slowness with as many processes."""
    own: float
    """From that run's own task times: what the model of driver and scheduler alone gets wrong."""

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


def validation(measured: Measured) -> list[Validated]:
    found = []
    for run in measured.runs:
        predicted = simulate(measured.alone.tasks, measured.cluster(run.workers, slowness=run.slowness)).seconds
        own = simulate(run.tasks, measured.cluster(run.workers)).seconds
        found.append(Validated(run.workers, run.cores, run.slowness, run.seconds, predicted, own))
    return found
