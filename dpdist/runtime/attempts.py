"""Runs a task on a Dask worker, and returns an exception as a value instead of raising it.

Dask would log a raised exception's message and keep it at the scheduler. A message from a library may quote a record.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from dpdist.core.errors import DpdistError, TaskError
from dpdist.core.threads import single_threaded
from dpdist.runtime.json_logs import note, noting

R = TypeVar("R")


class Attempt(NamedTuple):
    """The outcome of a task: a value or an exception, and the seconds that it took."""

    value: Any
    error: Exception | None
    seconds: float


def one_thread(task: Callable[[int], R], key: int) -> R:
    """Runs a task with BLAS limited to one thread, because results must not depend on the number of cores."""
    with single_threaded():
        return task(key)


def attempt(task: Callable[[int], Any], key: int) -> Attempt:
    """Runs a task. An exception goes to the driver only, with the worker's traceback as a note."""
    began = time.perf_counter()
    try:
        unit = unit_of(task, key) if noting() else {}
        if unit:
            note("begin", unit)
        value = one_thread(task, key)
        seconds = time.perf_counter() - began
        if unit:
            note("end", unit, seconds=round(seconds, 3))
        return Attempt(value, None, seconds)
    except Exception as error:
        if not isinstance(error, DpdistError):
            error.add_note("on a worker: " + "".join(traceback.format_exception(error)))
        return Attempt(None, _sendable(error), time.perf_counter() - began)


def unit_of(task: object, key: int) -> Mapping[str, int | str]:
    """What a task works on, for logs: the task's type, and its fit and stratum or its key."""
    said: Callable[[int], Mapping[str, int | str]] | None = getattr(task, "unit", None)
    return {"task": type(task).__name__, **(said(key) if said else {"key": key})}


def _sendable(error: Exception) -> Exception:
    """The exception, or a `TaskError` with its type's name if the exception cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return TaskError(f"a task failed with {type(error).__name__}", "report it; the same command resumes")
    return error
