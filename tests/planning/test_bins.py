"""Tasks of small strata: none is lost, none is too long, few on many workers, and short ones at the end."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as some

from dpdist.planning.blocks import AHEAD, MOST_STRATA, STRATUM_SECONDS, cut, limits

times = some.lists(some.floats(0.001, 30.0), max_size=200)


@given(times, some.integers(1, 3000), some.sampled_from([1, 7, MOST_STRATA]))
def test_tasks_hold_every_stratum_once_in_order_and_no_more_than_they_may(
    times: list[float], workers: int, most: int
) -> None:
    tasks = cut(times, workers, most)
    assert [k for task in tasks for k in task] == list(range(len(times)))
    assert all(0 < len(task) <= most for task in tasks)
    longest, shortest = limits(workers)
    left = sum(times)
    for task in tasks:
        own = sum(times[k] for k in task)
        assert len(task) == 1 or own <= min(longest, max(shortest, left / (AHEAD * workers))) + 1e-9
        left -= own


@pytest.mark.parametrize(("workers", "longest", "shortest"), [(1, 1.5, 0.5), (64, 1.5, 0.5), (500, 5, 0.5), (2000, 20, 2)])
def test_tasks_are_longer_on_more_workers(workers: int, longest: float, shortest: float) -> None:
    assert limits(workers) == (longest, shortest)


def test_a_million_strata_on_500_workers_are_few_tasks_that_shrink() -> None:
    each = 0.012  # of strata that take longer than the shortest (`STRATUM_SECONDS`), whose tasks are cut by their number
    tasks = cut([each] * 1_000_000, 500)
    sizes = [len(task) for task in tasks]
    assert len(tasks) < 12_500, "of up to 32 strata they were 31,250, and the scheduler the limit"
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert sizes[0] * each > 4.9
    assert sizes[-2] * each < 0.6
    assert max(map(len, cut([STRATUM_SECONDS] * 1_000_000, 500))) == MOST_STRATA
