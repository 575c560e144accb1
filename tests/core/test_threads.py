"""Linear algebra has one thread, whichever library brings it, and other threads are as many as processors may be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from named_draws import named
from small_jobs import cases, parsed, rooted
from small_runs import PUBLIC
from threadpoolctl import ThreadpoolController, threadpool_limits

import dpdist
from dpdist.core import this_process
from dpdist.core.progress import Event
from dpdist.core.this_process import processors
from dpdist.publish.folder import publish
from dpdist.publish.released import read_released

SHOWN = """
import numpy
from threadpoolctl import ThreadpoolController, threadpool_limits
LIMITED
    import scipy.linalg
    blas = [library for library in ThreadpoolController().info() if library["user_api"] == "blas"]
    print(len(blas), max(library["num_threads"] for library in blas))
"""
ONE = "from dpdist.core.this_process import single_threaded\nwith single_threaded():"
BEFORE_IT_IS_LOADED = "threadpool_limits(2)\nwith threadpool_limits(1):"


@pytest.mark.parametrize(("limited", "most"), [(ONE, 1), (BEFORE_IT_IS_LOADED, 2)], ids=["one thread", "control"])
def test_a_library_that_is_loaded_later_has_one_thread_too(limited: str, most: int) -> None:
    """Control: a limit that is set before scipy is loaded does not hold for scipy's own library."""
    code = SHOWN.replace("LIMITED", limited)
    environment = {"PATH": "", "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    libraries, threads = map(int, done.stdout.split())
    assert libraries >= 1
    assert threads == most


def test_a_release_has_one_thread_from_its_charge_on_and_its_publication_too(inputs: Path, tmp_path: Path) -> None:
    """`verify` publishes again and compares bytes. Control: outside, BLAS has the two threads that it was given."""
    name, seen, again = "sanitized_statistics-zero_out-lognormal", dict[str, int](), set[int]()

    def threads() -> int:
        return max(one["num_threads"] for one in ThreadpoolController().info() if one["user_api"] == "blas")

    def hear(event: Event) -> None:
        seen[event.stage] = max(seen.get(event.stage, 0), threads())

    with threadpool_limits(2):
        with named(name):
            dpdist.run(parsed(rooted(PUBLIC | cases()[name], inputs)), tmp_path / "ws", listener=hear)
        publish(read_released(tmp_path / "ws" / "public" / "released"), tmp_path / "again", lambda _: again.add(threads()))
        assert threads() == 2
    assert {seen[stage] for stage in ("store records", "protect", "synthetic records", "tables", "evaluate")} == {1}
    assert seen["plan"] == 2, "control"
    assert again == {1}


@pytest.mark.parametrize(
    ("files", "of_process", "expected"),
    [
        ({"cpu.max": "150000 100000"}, "0::/", 2),
        ({"cpu.max": "max 100000"}, "0::/", 8),
        ({"a.slice/cpu.max": "100000 100000", "a.slice/b.scope/cpu.max": "max 100000"}, "0::/a.slice/b.scope", 1),
        ({"a.slice/cpu.max": "100000 100000"}, "0::/other.slice", 8),
        ({"cpu.max": "5000 100000"}, "0::/a/folder/of/the/host", 1),
        ({"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/", 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", 8),
        ({"cpu.max": "1600000 100000"}, "0::/", 8),
        ({}, "0::/", 8),
    ],
)
def test_a_processor_quota_of_the_container_counts_as_well_as_affinity(
    files: dict[str, str], of_process: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "own").write_text(f"9:memory:/x\n{of_process}\n")
    monkeypatch.setattr(this_process, "CONTROL_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(this_process, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert processors() == expected
