"""Preloaded by every Dask worker: the worker stops with the driver that started it, and imports modules beforehand."""

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
    """Makes the worker ignore Ctrl-C, and asks the kernel for SIGKILL when the driver ends (Linux only).

    All files that a worker writes are confidential, so only their owner may read them, whatever the umask.
    """
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if dask.config.get("dpdist.json-logs", False):
        log_as_json()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
