"""Turns failures of tasks and workers into errors: at once, or together when all other tasks have finished."""

from __future__ import annotations

from dpdist.core.errors import DpdistError, TaskError
from dpdist.job import Runtime

ALLOWED_DEATHS = 20
"""Number of workers that may die under one task before the task fails. A worker may die for reasons outside the task."""


def stop_or_note(runtime: Runtime, error: Exception, failures: list[Exception]) -> None:
    """Raises a failure, or notes it for later, as the job's `on_failure` says."""
    if runtime.on_failure == "stop":
        raise error
    failures.append(error)


def raise_together(failures: list[Exception]) -> None:
    """Raises a single failure as it is, and several as one `TaskError` that quotes the first."""
    if len(failures) == 1:
        raise failures[0]
    if failures:
        first = str(failures[0]) if isinstance(failures[0], DpdistError) else type(failures[0]).__name__
        found = f"{len(failures)} tasks failed; the first: {first}"
        raise TaskError(found, "mend the cause; the same command resumes") from failures[0]


def not_started(failure: BaseException) -> TaskError:
    """The error for a worker that did not start, with the original cause."""
    while failure.__cause__ is not None:
        failure = failure.__cause__
    return TaskError(
        f"no worker could be started ({type(failure).__name__}: {failure})",
        "look at the machine's memory, storage and limits of processes; the same command resumes",
    )


def killed(runtime: Runtime, name: str) -> TaskError:
    """The error for a task under which worker processes died."""
    return TaskError(
        f"{ALLOWED_DEATHS} workers died under task {name}",
        f"if it ran out of memory, raise runtime.memory_per_worker (now {int(runtime.memory_per_worker) / 2**30:.1f} GiB)",
    )
