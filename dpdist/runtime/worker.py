"""Prepares every Dask worker at its start: it ends with its driver, and imports modules before the first task."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import dask

import dpdist.runtime.tasks  # noqa: F401 - imported once, at start-up
from dpdist.runtime.json_logs import log_as_json

PR_SET_PDEATHSIG = 1


def dask_setup(worker: object) -> None:
    """Makes the worker ignore Ctrl-C, and asks the kernel (on Linux) to kill it when the driver ends.

    Files that a worker writes are confidential. So only their owner may read them, whatever the umask was.
    """
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if dask.config.get("dpdist.json-logs", False):
        log_as_json()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
