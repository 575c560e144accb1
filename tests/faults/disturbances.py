"""What is done to a deployed release, step by step; each step gives the seconds until the next."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from deployed import Release

Disturbance = Callable[[Release, random.Random], Iterator[float]]

CUT = 60.0
"""Seconds that a link is cut: longer than a connection that hears nothing is kept (30 s)."""


def nothing(release: Release, rng: random.Random) -> Iterator[float]:
    yield from ()


def killed_workers(release: Release, rng: random.Random) -> Iterator[float]:
    """A worker every few seconds, sometimes its whole container."""
    while True:
        machine = rng.choice(release.workers)
        if rng.random() < 0.3 and machine in release.containers.processes:
            release.containers.kill(machine)
            release.injected += 1
        else:
            for process in release.processes_of(machine):
                process.kill()
                release.injected += 1
        yield rng.uniform(3, 6)


def restarted_scheduler(release: Release, rng: random.Random) -> Iterator[float]:
    for _ in range(2):
        release.containers.kill("scheduler")
        release.injected += 1
        yield rng.uniform(12, 18)


def cut_link(release: Release, rng: random.Random) -> Iterator[float]:
    machine = rng.choice(release.workers)
    release.machines.cut(machine)
    release.injected += 1
    yield CUT
    release.machines.join(machine)


def killed_driver(release: Release, rng: random.Random) -> Iterator[float]:
    for _ in range(3):
        release.containers.kill("driver")
        release.injected += 1
        yield rng.uniform(10, 15)


def full_disk(release: Release, rng: random.Random) -> Iterator[float]:
    filler = release.shared / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                file.write(b"x" * 2**16)
                file.flush()
        except OSError:
            release.injected += 1
            yield 10.0
    filler.unlink()


DISTURBANCES: Mapping[str, Disturbance] = {
    steps.__name__: steps for steps in (killed_workers, restarted_scheduler, cut_link, killed_driver, full_disk)
}
