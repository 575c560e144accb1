"""For executors in `runtime`: runs a task on a worker, and turns failures into errors, at once or together."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dpdist.core.errors import DpdistError, TaskError
from dpdist.core.progress import reporting_parts
from dpdist.core.this_process import single_threaded
from dpdist.job import Runtime
from dpdist.runtime.heartbeat import beat
from dpdist.runtime.json_logs import note, noting


class Attempt(NamedTuple):
    """The outcome of a task: a value or an exception, and the seconds that it took."""

    value: Any
    error: Exception | None
    seconds: float


def attempt(task: Callable[[int], Any], key: int) -> Attempt:
    """Runs a task. An exception is returned as a value, with the worker's traceback, to the driver only."""
    # Dask would log what is raised and keep it at the scheduler; a message from a library may quote a record
    began = time.perf_counter()
    try:
        unit = unit_of(task, key) if noting() else {}
        if unit:
            note("begin", unit)
        with single_threaded(), reporting_parts(beat):
            value = task(key)
        seconds = time.perf_counter() - began
        if unit:
            note("end", unit, seconds=round(seconds, 3))
        return Attempt(value, None, seconds)
    except MemoryError:  # whose message has sizes of arrays
        fault = f"task {type(task).__name__} needs more memory than its worker could get"
        error = TaskError(fault, "raise runtime.memory_per_worker, or free memory of the machine; the same command resumes")
        return Attempt(None, error, time.perf_counter() - began)
    except Exception as error:
        if not isinstance(error, DpdistError):
            error.add_note("on a worker: " + "".join(traceback.format_exception(error)))
        return Attempt(None, _sendable(error), time.perf_counter() - began)
    finally:
        beat()  # the next task has done nothing yet


def unit_of(task: object, key: int) -> Mapping[str, int | str]:
    describe: Callable[[int], Mapping[str, int | str]] | None = getattr(task, "unit", None)
    return {"task": type(task).__name__, **(describe(key) if describe else {"key": key})}


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return TaskError(f"a task failed with {type(error).__name__}", "report it; the same command resumes")
    return error


ALLOWED_DEATHS = 20
"""Number of workers that may die under one task before the task fails. A worker may die for reasons outside the task."""


def stop_or_note(runtime: Runtime, error: Exception, failures: list[Exception]) -> None:
    """Raises a failure, or notes it for later, as the job's `on_failure` says."""
    if runtime.on_failure == "stop":
        raise error
    failures.append(error)


def raise_together(failures: list[Exception]) -> None:
    if len(failures) == 1:
        raise failures[0]
    if failures:
        first = str(failures[0]) if isinstance(failures[0], DpdistError) else type(failures[0]).__name__
        fault = f"{len(failures)} tasks failed; the first: {first}"
        raise TaskError(fault, "mend the cause; the same command resumes") from failures[0]


def not_started(failure: BaseException) -> TaskError:
    while failure.__cause__ is not None:
        failure = failure.__cause__
    return TaskError(
        f"no worker could be started ({type(failure).__name__}: {failure})",
        "look at the machine's memory, storage and limits of processes; the same command resumes",
    )


def killed(runtime: Runtime, name: str) -> TaskError:
    return TaskError(
        f"{ALLOWED_DEATHS} workers died under task {name}",
        f"if it ran out of memory, raise runtime.memory_per_worker (now {int(runtime.memory_per_worker) / 2**30:.1f} GiB)",
    )
