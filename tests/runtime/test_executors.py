"""Every executor: one result per key, whatever the order; a task's exception reaches the caller; BLAS has one thread."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Literal

import psutil
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dpdist.core.errors import FitError, TaskError
from dpdist.job import Runtime
from dpdist.runtime.executors import Executor, executor

pytestmark = pytest.mark.quick

SERIAL, ONE, TWO = Runtime(executor="serial"), Runtime(executor="dask", workers=1), Runtime(executor="dask", workers=2)


def square(key: int) -> tuple[int, int, int]:
    import numpy as np

    np.ones((2, 2)) @ np.ones((2, 2))
    threads = max((pool["num_threads"] for pool in threadpool_info()), default=1)
    return key * key, os.getpid(), threads


def fail(key: int) -> int:
    raise FitError(f"stratum {key}", "reason", "remedy")


def check_that_it_gives_each_result_once_and_raises_what_a_task_raises(workers: Executor, runtime: Runtime) -> None:
    results = list(workers.map(square, range(20)))
    assert sorted(result[0] for result in results) == sorted(k * k for k in range(20))
    assert {result[2] for result in results} == {1}
    processes = {result[1] for result in results}
    assert (processes == {os.getpid()}) == (runtime.executor == "serial")
    assert len(processes) <= runtime.workers
    with pytest.raises(FitError, match="stratum 3"):
        list(workers.map(fail, [3]))


def test_an_executor_gives_each_result_once_and_raises_what_a_task_raises() -> None:
    """Control: outside, BLAS has the two threads that it was given. Workers of Dask are tested below."""
    with threadpool_limits(2), executor(SERIAL) as workers:
        check_that_it_gives_each_result_once_and_raises_what_a_task_raises(workers, SERIAL)
        assert square(1)[2] == 2


ARRAYS, PAGES = 100, 512
"""Numbers of arrays that are made and freed in turn, and of their pages."""


def fresh_pages(key: int) -> int:
    """The number of pages that the system gives for the arrays."""
    import numpy as np

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ARRAYS):
        np.ones(PAGES * 4096, dtype=np.int8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def listening() -> set[str]:
    """Addresses other than loopback that this process or a child of it listens on."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    open_ones = [c for process in family for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    return {c.laddr.ip for c in open_ones} - {"127.0.0.1", "::1"}


def check_that_arrays_take_memory_of_freed_ones(workers: Executor) -> None:
    """Under Dask's setting for workers, too. Control: another process under it, whose arrays all have fresh pages."""
    assert max(workers.map(fresh_pages, range(3))) < 5 * PAGES
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_executors as tests"
    control = [sys.executable, "-c", f"{code}; print(tests.fresh_pages(0))"]
    assert int(subprocess.run(control, check=True, capture_output=True, text=True).stdout) > ARRAYS * PAGES / 2


def test_local_clusters_keep_to_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two run at once, nothing of them listens beyond loopback, and they leave nothing in the temporary folder. Control:
    while they work, workers have their folders there.
    """
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with threadpool_limits(2), executor(ONE) as one, executor(TWO) as other:
        assert [result[0] for workers in (one, other) for result in workers.map(square, [3])] == [9, 9]
        assert listening() == set()
        assert [path.name for path in tmp_path.rglob("worker-*") if path.is_dir()]
        check_that_it_gives_each_result_once_and_raises_what_a_task_raises(other, TWO)
        if sys.platform == "linux":  # options of glibc
            check_that_arrays_take_memory_of_freed_ones(one)
    assert list(tmp_path.iterdir()) == []


def quote(key: int) -> int:
    raise ValueError(f"cannot parse SECRET-{key}")


@pytest.mark.parametrize("on_failure", ["stop", "report"])
def test_failures_end_a_run_at_once_or_together_and_quote_no_record(on_failure: Literal["stop", "report"]) -> None:
    done: list[int] = []
    with executor(Runtime(on_failure=on_failure)) as workers, pytest.raises((ValueError, TaskError)) as failed:
        done += workers.map(lambda key: quote(key) if key < 2 else key, [0, 1, 2, 3])
    if on_failure == "report":
        assert isinstance(failed.value, TaskError)
        assert "2 tasks failed; the first: ValueError" in str(failed.value)
        assert "SECRET" not in str(failed.value)
    else:
        assert isinstance(failed.value, ValueError)
