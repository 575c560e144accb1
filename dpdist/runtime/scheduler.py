"""The link to an external Dask scheduler: checks of its workers, and causes of failures."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpdist.core.errors import ClusterError, WorkspaceError
from dpdist.job import Runtime
from dpdist.runtime.attempts import ALLOWED_DEATHS, PART
from dpdist.runtime.tls import Credentials, connect
from dpdist.storage.objects import Objects, is_url

CLOSE_TIMEOUT = 5.0
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_RETRY_INTERVAL = 0.5
_START_WORKERS = "start workers with `dpdist cluster worker`"


class SchedulerLost(Exception):
    """The link to the scheduler is broken."""


def lost_results() -> tuple[type[Exception], ...]:
    """Exceptions that a future raises when its scheduler was lost, or its client is not connected."""
    from distributed.client import FutureCancelledError, FuturesCancelledError
    from distributed.comm.core import CommClosedError

    return FutureCancelledError, FuturesCancelledError, CommClosedError


def broken_links() -> tuple[type[Exception], ...]:
    """Exceptions that a client raises when its scheduler is gone, or when the client was closed."""
    return (*lost_results(), OSError, ValueError, RuntimeError)


def settings(start_timeout: float) -> dict[str, Any]:
    return {
        "distributed.nanny.pre-spawn-environ": _ONE_THREAD,
        "distributed.comm.timeouts.connect": f"{start_timeout}s",
        "distributed.scheduler.allowed-failures": ALLOWED_DEATHS,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.pause": False,
        # Samples of what a worker does are kept for an hour, and would take 90 kB of it a second.
        "distributed.worker.profile.enabled": False,
    }


@dataclass(frozen=True)
class Place:
    """The address of a scheduler, with certificates and waiting time for the link to it."""

    address: str
    security: Any
    timeout: float

    @classmethod
    def of(cls, runtime: Runtime) -> Place:
        """Reads the address from the job, or from Dask's own configuration (`scheduler: config`)."""
        import dask
        from distributed import Security

        address, timeout = str(runtime.scheduler), runtime.start_timeout
        if address != "config":
            security = Credentials(Path(runtime.tls).absolute()).security() if runtime.tls else Security()
            return cls(address, security, timeout)
        configured = dask.config.get("scheduler-address", None)
        if not configured:
            fault = "runtime.scheduler is `config`, but Dask's configuration names no scheduler-address"
            raise ClusterError(fault, "set it, or DASK_SCHEDULER_ADDRESS, or name the address in runtime.scheduler", 2)
        security = Credentials(Path(runtime.tls).absolute()).security() if runtime.tls else Security()
        if not str(configured).startswith("tls://") and not runtime.allow_plain:
            fault = f"Dask's configuration names {configured}, which is not encrypted"
            raise ClusterError(fault, "use a tls:// address, or set runtime.allow_plain: true", 2)
        return cls(str(configured), security, timeout)

    def connect(self) -> Any:
        """Connects a client. Raises `ClusterError`, which names the cause."""
        import dask
        from distributed import Client

        connect(self.address, self.security, self.timeout)
        with dask.config.set({"distributed.comm.timeouts.connect": f"{self.timeout}s"}):
            try:
                return Client(self.address, security=self.security, timeout=self.timeout)
            except OSError as error:
                fault = f"the scheduler at {self.address} answered and was lost again ({type(error).__name__})"
                raise ClusterError(fault, "look at its log; the same command resumes") from None


def workers_of(client: Any) -> dict[str, int]:
    """Returns the number of threads of each connected worker, by address. Raises `SchedulerLost`."""
    try:
        return dict(client.nthreads())
    except broken_links() as error:
        raise SchedulerLost from error


def deaths(client: Any) -> list[tuple[float, frozenset[str]]]:
    """Returns when each worker died, by the scheduler's clock, and the tasks that it had. Those asked to end are left out.

    Raises `SchedulerLost`.
    """
    try:
        events = [(when, fact) for when, fact in client.get_events("all") if isinstance(fact, dict)]
    except broken_links() as error:
        raise SchedulerLost from error
    died = [(when, fact) for when, fact in events if fact.get("action") == "remove-worker" and not fact["expected"]]
    return [(when, frozenset(map(str, fact["processing-tasks"]))) for when, fact in died]


def part(client: Any) -> float:
    """Returns the finished share of a task that runs alone, as its worker's heartbeat had it. Raises `SchedulerLost`."""
    try:
        workers = client.scheduler_info()["workers"].values()
    except broken_links() as error:
        raise SchedulerLost from error
    return max((float(facts["metrics"].get(PART, 0.0)) for facts in workers), default=0.0)


def memory_of_workers(client: Any) -> int:
    """The smallest limit of memory, in bytes, of the connected workers; 0 if none has one. Raises `SchedulerLost`."""
    try:
        limits = [facts.get("memory_limit") or 0 for facts in client.scheduler_info()["workers"].values()]
    except broken_links() as error:
        raise SchedulerLost from error
    return min(filter(None, limits), default=0)


def check_workers(
    client: Any, timeout: float, needs: Mapping[str, float], shared: Path | str | None, memory: int = 0
) -> None:
    """Waits for a first worker. Refuses workers on which tasks would wait for ever, fail, or write to another place.

    A worker is also refused if it has less memory than the largest task needs, in bytes.
    """
    try:
        client.wait_for_workers(1, timeout=timeout)
    except TimeoutError:
        fault = f"the scheduler at {client.scheduler.address} has no workers after {timeout:g} s"
        remedy = f"{_START_WORKERS}, or look at their logs: a worker with another authority's certificate is refused"
        raise ClusterError(fault, f"{remedy}; the same command resumes") from None
    except broken_links():
        raise _lost_at_the_start() from None
    reached, info = _asked(client, timeout, shared)
    for worker, facts in sorted(reached.items()):
        _check_worker(worker, facts, needs, shared, info.get(worker, {}))
        limit = info.get(worker, {}).get("memory_limit") or memory
        if limit < memory:
            fault = f"a task needs {memory / 2**20:,.0f} MiB, worker {worker} has {limit / 2**20:,.0f} MiB"
            remedy = "give workers at least that (`dpdist cluster size JOB` prints their limits), or fit finer strata"
            raise ClusterError(fault, remedy, 2)


def _asked(client: Any, timeout: float, shared: Path | str | None) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Asks all workers for their facts, until at least one answers.

    Some workers may die meanwhile, or be cut off and still be listed.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            answers = client.run(_facts, str(shared) if shared else None, on_error="return")
            info = client.scheduler_info()["workers"]
        except broken_links():
            raise _lost_at_the_start() from None
        if any(isinstance(facts, ModuleNotFoundError) for facts in answers.values()):
            raise ClusterError("dpdist is not installed on the workers", f"{_START_WORKERS} of the same version")
        reached = {worker: facts for worker, facts in answers.items() if not isinstance(facts, Exception)}
        if reached:
            return reached, info
        if time.monotonic() > until:
            fault = f"the scheduler cannot reach the workers that have registered ({', '.join(sorted(answers)[:3])})"
            remedy = "look at the workers' --host and ports, and at network policies; the same command resumes"
            raise ClusterError(fault, remedy)
        time.sleep(_RETRY_INTERVAL)


def _lost_at_the_start() -> ClusterError:
    fault = "the link to the scheduler was lost while it was asked for its workers"
    return ClusterError(fault, "look at its log; the same command resumes")


def _check_worker(
    worker: str, facts: Mapping[str, Any], needs: Mapping[str, float], shared: Path | str | None, info: Mapping[str, Any]
) -> None:
    here = _facts(None)
    for name in ("dpdist", "Python"):
        if facts[name] != here[name]:
            fault = f"worker {worker} has {name} {facts[name]}, but this driver has {here[name]}"
            raise ClusterError(fault, "run driver, scheduler and workers from one image")
    if facts["refused"]:
        fault = f"worker {worker} cannot use {shared}: {facts['refused']}"
        raise ClusterError(fault, "give the workers the same environment or mounted files with credentials as the driver")
    if not facts["sees"]:
        fault = f"worker {worker} does not find {shared}, or may not write there"
        raise ClusterError(fault, "mount one shared folder at the same path on driver and workers, for the same user")
    if info and info["nthreads"] != 1:
        fault = f"worker {worker} has {info['nthreads']} threads"
        raise ClusterError(fault, f"tasks need processes of one thread: {_START_WORKERS}")
    for name, amount in needs.items():
        if info and info["resources"].get(name, 0) < amount:
            fault = f"worker {worker} offers no resource '{name}'"
            raise ClusterError(fault, f"tasks that start subprocesses would wait for ever: {_START_WORKERS}")


def _facts(shared: str | None) -> dict[str, Any]:
    refused = None
    if shared is not None and is_url(shared):
        try:
            Objects(shared, soon=True).check()
        except WorkspaceError as error:
            refused = error.fault
    sees = shared is None or is_url(shared) or os.access(shared, os.R_OK | os.W_OK | os.X_OK)
    python = ".".join(platform.python_version_tuple()[:2])
    return {"dpdist": version("dpdist"), "Python": python, "sees": sees, "refused": refused}


def cut(client: Any, pending: set[Any]) -> None:
    """Cancels tasks, then restarts the workers that run them.

    In the other order, other workers would take the tasks over.
    """
    keys = {future.key for future in pending}
    with suppress(*broken_links()):
        holding = [worker for worker, assigned in client.processing().items() if keys & set(assigned)]
        client.cancel(list(pending), force=True)
        if holding:
            client.restart_workers(holding, timeout=CLOSE_TIMEOUT, raise_for_error=False)


def close(client: Any) -> None:
    with suppress(*broken_links()):
        client.close(timeout=CLOSE_TIMEOUT)
