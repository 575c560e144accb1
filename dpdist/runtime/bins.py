"""Groups small strata into tasks: large enough for one scheduler, and small enough at the end that no worker waits.

A scheduler passes on some 270 tasks a second (deploy/README.md), so tasks are longer on many workers. The time of a
stratum is projected from its records and draws. The first tasks are long. Each later one takes at most two thirds of a
worker's part of what is left, so that all workers end together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

STRATUM_SECONDS = 0.045
"""Files and rounds of a stratum, however few its records (deploy/capacity/measured.json)."""
VALUE_SECONDS = 0.5 / 2**24
"""A record and a draw, over all rounds, tensors included."""
SHORT, LONG = 1.5, 20.0
"""Seconds of the longest tasks: on few workers, and on any number."""
RATE = 50.0
"""Largest rate of long tasks, per second, that the scheduler can handle."""
LAST, LAST_LONG, LAST_RATE = 0.5, 4.0, 500.0
"""Seconds of the shortest tasks, on few workers and at most, and how they grow: tasks a second at the end of a stage."""
AHEAD = 1.5
"""A task takes at most this part, inverted, of what is left for a worker."""
MOST_STRATA = 1000
"""Strata of a task: their marks fit into one answer to a list of an object store."""


def seconds(records: Sequence[int], draws: int) -> list[float]:
    """Projected time of strata on one worker."""
    projected: list[float] = (STRATUM_SECONDS + VALUE_SECONDS * draws * np.asarray(records, dtype=np.float64)).tolist()
    return projected


def limits(workers: int) -> tuple[float, float]:
    """Seconds of the longest and of the shortest tasks."""
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
