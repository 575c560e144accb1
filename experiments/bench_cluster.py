"""Dask's overhead over the sum of task times, and two workers beside two independent processes."""

from __future__ import annotations

import os
import subprocess
import sys
from time import perf_counter

import numpy as np

from dpdist.job import Runtime
from dpdist.runtime.dask_executor import Dask
from dpdist.runtime.executors import executor

SECONDS = 0.5


def burn(key: int) -> float:
    """About half a second of floating-point work in cache; returns its wall time."""
    start = perf_counter()
    rng, left = np.random.default_rng(key), np.ones((128, 6))
    right = rng.normal(size=(6, 1000))
    for _ in range(1600):
        (left @ right).max(axis=1)
    return perf_counter() - start


def test_overhead_of_dask_on_half_second_tasks():
    with executor(Runtime(executor="dask", workers=1)) as workers:
        assert isinstance(workers, Dask)
        list(workers.map(burn, range(2)))
        start = perf_counter()
        spent = sum(workers.map(burn, range(40)))
        wall = perf_counter() - start
    print(f"\noverhead over the sum of task times: {wall / spent - 1:.2%} (tasks of {spent / 40:.2f} s)")


def test_two_workers_beside_two_independent_processes():
    """Speed-up of two workers over one, relative to that of two processes that know nothing of each other."""
    tasks = 24
    script = "import bench_cluster, sys; sum(bench_cluster.burn(k) for k in range(int(sys.argv[1])))"
    folder = __file__.rsplit("/", 1)[0]

    def alone(processes: int) -> float:
        command = [sys.executable, "-c", script, str(tasks // processes)]
        start = perf_counter()
        running = [subprocess.Popen(command, cwd=folder, env=_one_thread()) for _ in range(processes)]
        for process in running:
            process.wait()
        return perf_counter() - start

    def clustered(workers: int) -> float:
        with executor(Runtime(executor="dask", workers=workers)) as cluster:
            list(cluster.map(burn, range(workers)))
            start = perf_counter()
            list(cluster.map(burn, range(tasks)))
            return perf_counter() - start

    independent, dask = alone(1) / alone(2), clustered(1) / clustered(2)
    print(f"\nspeed-up: two processes {independent:.2f}, two workers {dask:.2f}, relative {dask / independent:.2f}")


def _one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
