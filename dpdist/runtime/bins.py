"""Groups small strata into tasks: large enough for one scheduler, and small enough at the end that no worker waits.

A scheduler handles about 270 tasks per second (deploy/README.md), so tasks are longer on many workers. The time of a
stratum is projected from its records and draws. The first tasks are long. Each later one takes at most two thirds of a
worker's part of what is left, so that all workers end together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

STRATUM_SECONDS = 0.045
"""Seconds for the files and rounds of one stratum, independent of its records (deploy/capacity/measured.json)."""
VALUE_SECONDS = 0.5 / 2**24
"""Seconds per record and draw, over all rounds, with the tensors."""
SHORT, LONG = 1.5, 20.0
"""Seconds of the longest tasks: first on few workers, then on any number of workers."""
RATE = 50.0
"""Largest number of long tasks per second that the scheduler can handle."""
LAST, LAST_LONG, LAST_RATE = 0.5, 4.0, 500.0
"""Seconds of the shortest tasks on few workers; their upper limit.

And the tasks per second that the end of a stage allows.
"""
AHEAD = 1.5
"""A task takes at most 1 / AHEAD of the work that is left for a worker."""
MOST_STRATA = 1000
"""Largest number of strata in a task. Their completion records fit into one listing of an object store."""


def seconds(records: Sequence[int], draws: int) -> list[float]:
    """Returns the projected time of strata on one worker."""
    projected: list[float] = (STRATUM_SECONDS + VALUE_SECONDS * draws * np.asarray(records, dtype=np.float64)).tolist()
    return projected


def limits(workers: int) -> tuple[float, float]:
    """Returns the seconds of the longest and of the shortest tasks."""
    return min(LONG, max(SHORT, workers / RATE)), min(LAST_LONG, max(LAST, workers / LAST_RATE))


def cut(times: Sequence[float], workers: int, most: int = MOST_STRATA) -> list[range]:
    """Groups consecutive strata into tasks of at most `most`.

    A stratum that takes longer than a task has a task of its own.
    """
    longest, shortest = limits(workers)
    left, start, filled, tasks = float(sum(times)), 0, 0.0, list[range]()
    limit = min(longest, max(shortest, left / (AHEAD * workers)))
    for k, one in enumerate(times):
        if k > start and (k - start == most or filled + one > limit):
            tasks.append(range(start, k))
            left, start, filled = left - filled, k, 0.0
            limit = min(longest, max(shortest, left / (AHEAD * workers)))
        filled += one
    return [*tasks, range(start, len(times))] if times else tasks
