"""The program of a local worker, and the preparation of workers of external schedulers.

That program gets its settings from the driver over a link, and ends with that link. It is started by `local_worker`, and
never imports the main module of whoever started the run.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from dpdist.core.this_process import collect_from_here, import_without_collecting, reuse_memory


def main() -> None:
    """Runs one Dask worker until it is closed, or the driver closes its end of the link.

    The driver ends its workers itself, so Ctrl-C is ignored. The settings contain a private key. So they come over the
    link, and are in no argument, environment variable or file.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_without_collecting()
    link = Connection(int(sys.argv[2]))
    settings = link.recv()
    import dask

    dask.config.refresh()
    dask.config.set(settings["config"])
    asyncio.run(_serve(link, settings["worker"]))


async def _serve(link: Connection, options: dict[str, Any]) -> None:
    from distributed import Worker

    # A worker whose driver dies while it connects would look for its scheduler for ever.
    asyncio.get_running_loop().add_reader(link.fileno(), os._exit, 1)
    try:
        async with Worker(**options) as worker:
            collect_from_here()
            link.send((worker.address, worker.local_directory))
            asyncio.get_running_loop().add_reader(link.fileno(), _close, link, worker)
            await worker.finished()
    except Exception as error:
        link.send(error)


_closing: set[asyncio.Task[Any]] = set()
"""Keeps a task that closes the worker until it is done."""


def _close(link: Connection, worker: Any) -> None:
    asyncio.get_running_loop().remove_reader(link.fileno())
    _closing.add(asyncio.ensure_future(worker.close(nanny=False, reason="the driver has closed the link")))


PR_SET_PDEATHSIG = 1


def dask_setup(worker: Any) -> None:
    """Makes the worker ignore Ctrl-C, and asks the kernel (on Linux) to kill it when the driver ends.

    Its heartbeat brings signs that its tasks work, and the share of its task that is done.

    Files that a worker writes are confidential. So only their owner may read them, whatever the umask was.
    """
    import dask

    import dpdist.runtime.tasks  # noqa: F401 - imported before the first task
    from dpdist.runtime.attempts import PART, SIGNS, log_as_json, part_of, signs_of

    worker.metrics |= {SIGNS: signs_of, PART: part_of}
    os.umask(0o077)
    reuse_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if dask.config.get("dpdist.json-logs", False):
        log_as_json()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
