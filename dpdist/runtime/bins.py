"""Groups small strata into tasks of suitable length: few enough for the scheduler, and short at the end of a stage.

A scheduler handles about 640 tasks a second (deploy/README.md), so tasks are longer where there are many workers. A
stratum's time is projected from its number of records and draws. The first tasks are long. Each later task takes at most
two thirds of one worker's share of the remaining work, so that all workers end at about the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

STRATUM_SECONDS = 0.045
"""Seconds for the files and rounds of one stratum, whatever its size (deploy/capacity/measured.json)."""
VALUE_SECONDS = 0.5 / 2**24
"""Seconds for each record and draw, over all rounds, where log likelihoods are stored too."""
SHORT, LONG = 1.5, 20.0
"""Length in seconds of the longest tasks: on few workers, and on any number of workers."""
RATE = 100.0
"""Number of long tasks that the scheduler may get in a second."""
LAST, LAST_LONG, LAST_RATE = 0.5, 4.0, 1000.0
"""Limits for the shortest tasks, at the end of a stage.

They are the length in seconds on few workers, its maximum on many workers, and the tasks that the scheduler may get in a
second.
"""
AHEAD = 1.5
"""A task takes at most 1 / AHEAD of one worker's share of the remaining work."""
MOST_STRATA = 1000
"""Largest number of strata in a task. One listing of an object store can name that many completion records."""


def seconds(records: Sequence[int], draws: int) -> list[float]:
    """Returns the projected seconds of each stratum on one worker."""
    projected: list[float] = (STRATUM_SECONDS + VALUE_SECONDS * draws * np.asarray(records, dtype=np.float64)).tolist()
    return projected


def limits(workers: int) -> tuple[float, float]:
    """Returns the length, in seconds, of the longest and of the shortest tasks."""
    return min(LONG, max(SHORT, workers / RATE)), min(LAST_LONG, max(LAST, workers / LAST_RATE))


def cut(times: Sequence[float], workers: int, most: int = MOST_STRATA) -> list[range]:
    """Groups consecutive strata into tasks of at most `most` strata. `times` are the strata's seconds.

    A stratum that takes longer than a task should take is a task alone.
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
