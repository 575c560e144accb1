"""Every executor: one result per key, whatever the order; a task's exception reaches the caller; BLAS has one thread."""

from __future__ import annotations

import os

import pytest
from threadpoolctl import threadpool_info

from dpdist.errors import FitError
from dpdist.job import Runtime
from dpdist.runtime.executors import executor

RUNTIMES = [Runtime(executor="serial"), Runtime(executor="dask", workers=1), Runtime(executor="dask", workers=2)]


def square(key: int) -> tuple[int, int, int]:
    import numpy as np

    np.ones((2, 2)) @ np.ones((2, 2))
    threads = max((pool["num_threads"] for pool in threadpool_info()), default=1)
    return key * key, os.getpid(), threads


def fail(key: int) -> int:
    raise FitError(f"stratum {key}", "reason", "remedy")


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: f"{r.executor}-{r.workers}")
def test_every_executor_gives_each_result_once_and_raises_what_a_task_raises(runtime: Runtime) -> None:
    with executor(runtime) as workers:
        results = list(workers.map(square, range(20)))
        assert sorted(result[0] for result in results) == sorted(k * k for k in range(20))
        assert {result[2] for result in results} == {1}
        processes = {result[1] for result in results}
        assert (processes == {os.getpid()}) == (runtime.executor == "serial")
        assert len(processes) <= runtime.workers
        with pytest.raises(FitError, match="stratum 3"):
            list(workers.map(fail, [3]))
