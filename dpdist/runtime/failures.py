"""Handles a task's failure: the work stops, or the failure is recorded until the other tasks have finished."""

from __future__ import annotations

from dpdist.core.errors import DpdistError, TaskError
from dpdist.job import Runtime
from dpdist.runtime.scheduler import ALLOWED_DEATHS


def stop_or_note(runtime: Runtime, error: Exception, failures: list[Exception]) -> None:
    """Raises or records a failure, as the job states under `on_failure`."""
    if runtime.on_failure == "stop":
        raise error
    failures.append(error)


def raise_together(failures: list[Exception]) -> None:
    """Raises one failure unchanged, and several as a `TaskError` that quotes the first."""
    if len(failures) == 1:
        raise failures[0]
    if failures:
        first = str(failures[0]) if isinstance(failures[0], DpdistError) else type(failures[0]).__name__
        found = f"{len(failures)} tasks failed; the first: {first}"
        raise TaskError(found, "mend the cause; the same command resumes") from failures[0]


def not_started(failure: BaseException) -> TaskError:
    """The failure of a worker that did not start, with its first cause."""
    while failure.__cause__ is not None:
        failure = failure.__cause__
    return TaskError(
        f"no worker could be started ({type(failure).__name__}: {failure})",
        "look at the machine's memory, storage and limits of processes; the same command resumes",
    )


def killed(runtime: Runtime, name: str) -> TaskError:
    """The failure of a task during which workers died."""
    return TaskError(
        f"{ALLOWED_DEATHS} workers died under task {name}",
        f"if it ran out of memory, raise runtime.memory_per_worker (now {int(runtime.memory_per_worker) / 2**30:.1f} GiB)",
    )
