"""Scheduler and workers as services, on encrypted links and without a dashboard.

Over HTTP, by default on loopback only, they show their health and Prometheus figures, but nothing about tasks.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from dpdist.core.errors import ClusterError
from dpdist.core.this_process import container_memory
from dpdist.runtime import scheduler as remote
from dpdist.runtime.attempts import log_as_json
from dpdist.runtime.tls import Credentials, address_here, connect

_PRELOAD = ["dpdist.runtime.worker_process"]
STARTS = 3
"""Largest number of attempts in a row to start a worker's process. An attempt fails if the scheduler is lost or the process
dies meanwhile.
"""
_START = "look at its memory limit, and whether something else listens on its ports (--port, the next one, and --http)"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_HTTP_ROUTES = {
    f"distributed.{side}.http.routes": [f"distributed.http.{side}.prometheus", "distributed.http.health"]
    for side in ("scheduler", "worker")
}
NANNY_BYTES = 128 * 2**20
"""Memory, in bytes, of the process that watches a worker and restarts it."""


def memory_of_tasks() -> int | str:
    """Memory, in bytes, of a worker in this container: its limit, less the process that watches the worker.

    So this process ends its worker before the kernel ends both. Without such a limit, it is the machine's share.
    """
    limit = container_memory()
    return "auto" if limit is None else max(limit - NANNY_BYTES, NANNY_BYTES)


def serve_scheduler(host: str, port: int, tls: Path, http: str, json_logs: bool = False) -> None:
    """Runs a scheduler until SIGTERM or SIGINT."""
    import dask
    import distributed

    security = Credentials(tls.absolute()).security()
    place = f"tls://{host}:{port}"
    if json_logs:
        log_as_json()

    async def run() -> None:
        try:
            scheduler = await distributed.Scheduler(
                host=host, port=port, protocol="tls://", security=security, dashboard=False, dashboard_address=http
            )
        except OSError as error:
            fault = f"the scheduler cannot listen on {place}, or not on {http} ({os.strerror(error.errno or 0)})"
            raise ClusterError(fault, "choose another --host or --port, or end the program that listens there") from None
        await _until_told(scheduler.finished())
        await scheduler.close(reason="told to end")

    with dask.config.set({**remote.settings(60.0), **_HTTP_ROUTES}):
        asyncio.run(run())


def serve_worker(
    address: str,
    tls: Path,
    host: str | None = None,
    port: int = 0,
    name: str | None = None,
    memory: int | None = None,
    json_logs: bool = False,
    *,
    http: str,
    patience: float,
) -> None:
    """Runs one worker, with one thread, until SIGTERM or SIGINT.

    A worker that has lost its scheduler searches for it for `patience` seconds. The worker listens on `host`, or else on
    the address from which this machine reaches the scheduler. It uses `port`; the process that restarts a dead worker
    uses the next port.
    """
    import dask

    from dpdist.runtime.deaths import WatchingNanny

    security = Credentials(tls.absolute()).security()
    if json_logs:
        log_as_json()

    def begun() -> Any:
        """Returns the process that watches the worker, to be awaited until the worker has started."""
        return WatchingNanny(
            address,
            host=host or address_here(address),
            name=name,
            worker_port=port,
            port=port + 1 if port else 0,
            nthreads=1,
            memory_limit=memory or memory_of_tasks(),
            security=security,
            protocol="tls://",
            resources={"stan": 1.0},
            preload=_PRELOAD,
            dashboard_address=http,
        )

    async def run() -> None:
        """Runs the worker again after each lost link, because this machine's address may have changed."""
        failed = 0
        while True:
            try:
                nanny = await begun()
            except RuntimeError as error:  # the scheduler was lost, or the worker's process died, before it had started
                failed += 1
                if failed == STARTS:
                    cause = type(error.__cause__ or error).__name__
                    raise ClusterError(f"the worker's process did not start, {STARTS} times ({cause})", _START) from None
            else:
                failed = 0
                signalled = await _until_told(nanny.finished())
                await nanny.close(reason="told to end" if signalled else "scheduler lost")
                if signalled:
                    return
            await asyncio.to_thread(connect, address, security, patience)

    with dask.config.set({**remote.settings(60.0), **_HTTP_ROUTES, "dpdist.json-logs": json_logs}):
        connect(address, security, patience)
        asyncio.run(run())


async def _until_told(finished: Coroutine[Any, Any, Any]) -> bool:
    signalled, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, signalled.set)
    waiting = [asyncio.ensure_future(signalled.wait()), asyncio.ensure_future(finished)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for number in _SIGNALS:
        loop.remove_signal_handler(number)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return signalled.is_set()
