"""Linear algebra has one thread, whichever library brings it and whenever it is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
