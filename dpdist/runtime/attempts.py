"""An attempt at a task on a worker: its heartbeat, and its failures as errors."""

from __future__ import annotations

import json
import logging
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Any, NamedTuple

from dpdist.core.errors import DpdistError, TaskError
from dpdist.core.progress import reporting_parts
from dpdist.core.this_process import single_threaded
from dpdist.job import Runtime

# A worker counts the seconds of processor time of its tasks' threads and of the programs that they started, and the steps
# that tasks report. Dask's heartbeat brings both to the scheduler. A task that waits for storage that is gone shows
# neither.
SIGNS = "dpdist_signs"
"""Name of the figure in a worker's heartbeat."""
LEAST_SHARE = 0.02
"""Share of a processor that a task uses at least while it works. An idle worker's other threads are not counted."""
_OTHER_THREADS = ("MainThread", "Profile")
"""Threads of a worker that are not its tasks': Dask's loop, and the thread that samples what tasks do."""

PART = "dpdist_part"
"""Name of the figure in a worker's heartbeat that has the finished share of its task."""

_steps = count(1)
_reported, _share = 0, 0.0


def beat(share: float = 0.0) -> None:
    """Reports that the task of this process has finished a step, and which share of it is done, if that is known."""
    global _reported, _share
    _reported, _share = next(_steps), share


def part_of(worker: object) -> float:
    """The finished share of the task that this process runs; 0 if it is not known."""
    return _share


def signs_of(worker: object) -> tuple[int, float]:
    """The steps that tasks of this process have reported, and the processor seconds of tasks so far."""
    return _reported, _seconds_of_tasks()


def _seconds_of_tasks() -> float:
    import psutil  # type: ignore[import-untyped]

    seconds = time.process_time()
    for thread in threading.enumerate():
        if thread.name in _OTHER_THREADS and thread.ident is not None:
            seconds -= time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    ended = os.times()
    seconds += ended.children_user + ended.children_system
    for program in psutil.Process().children(recursive=True):
        try:
            times = program.cpu_times()
        except psutil.Error:
            continue
        seconds += times.user + times.system
    return seconds


class Pulse:
    """Tells whether any worker that has one of a run's tasks still works."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int, float]] = {}
        """For each worker, the time of its heartbeat, the steps and the seconds that it brought."""

    def felt(self, client: Any, names: Collection[str]) -> bool:
        """True if such a worker's tasks have reported a step, or used a processor, since the last call."""
        busy = {worker for worker, tasks in client.processing().items() if not set(names).isdisjoint(map(str, tasks))}
        heartbeats = {w: facts["metrics"] for w, facts in client.scheduler_info()["workers"].items() if w in busy}
        return sum(self._works(worker, metrics) for worker, metrics in heartbeats.items()) > 0

    def _works(self, worker: str, metrics: Mapping[str, Any]) -> bool:
        if SIGNS not in metrics:
            return False
        when, (steps, seconds) = float(metrics["time"]), metrics[SIGNS]
        before = self._before.get(worker, (when - 1.0, 0, 0.0))  # of a new worker, all is new
        if when <= before[0]:
            return False
        self._before[worker] = when, steps, seconds
        return bool(steps > before[1] or seconds - before[2] > LEAST_SHARE * (when - before[0]))


TASKS = "dpdist.tasks"
"""Logger of the begin and end of a worker's tasks, with the stage's name and strata's numbers. Silent by default."""
LOGGERS = ("distributed", "tornado", "asyncio", "bokeh", TASKS)


class JsonLines(logging.Formatter):
    """Formats a log record as JSON: time, level, logger, message, facts.

    Of an exception it gives the type alone, because the message may quote a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
        line |= getattr(record, "facts", {})
        return json.dumps(line)


def log_as_json() -> None:
    """Replaces the handlers of Dask's loggers in this process by one that writes JSON."""
    import distributed  # noqa: F401 - sets its own handlers when it is imported

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    below = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in LOGGERS]
    for name in [*LOGGERS, *below]:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = ([handler], False) if name in LOGGERS else ([], True)
    logging.getLogger(TASKS).setLevel(logging.INFO)


def note(event: str, unit: Mapping[str, int | str], **more: object) -> None:
    """Logs one line about a task.
    Nothing is logged under the proper prior, because the records decide which strata need it.
    """
    if unit.get("fit") != "proper":
        logging.getLogger(TASKS).info("%s", event, extra={"facts": {"event": event, **unit, **more}})


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
        unit = unit_of(task, key) if logging.getLogger(TASKS).isEnabledFor(logging.INFO) else {}
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
        error = TaskError(fault, "raise runtime.memory_per_worker, or free memory on the machine; the same command resumes")
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
        raise TaskError(fault, "remove the cause; the same command resumes") from failures[0]


def not_started(failure: BaseException) -> TaskError:
    while failure.__cause__ is not None:
        failure = failure.__cause__
    return TaskError(
        f"no worker could be started ({type(failure).__name__}: {failure})",
        "check the machine's memory, storage and process limits; the same command resumes",
    )


def killed(runtime: Runtime, name: str) -> TaskError:
    return TaskError(
        f"{ALLOWED_DEATHS} workers died under task {name}",
        f"if it ran out of memory, raise runtime.memory_per_worker (now {int(runtime.memory_per_worker) / 2**30:.1f} GiB)",
    )
