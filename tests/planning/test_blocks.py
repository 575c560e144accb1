"""Blocks and memory depend on (n, p, S) only. Tasks of small strata: none is lost, and none is too long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sized_package import sized_job

import dpdist
from dpdist.core.records import Crosstab
from dpdist.planning.blocks import (
    AHEAD,
    MOST_STRATA,
    STRATUM_SECONDS,
    TENSOR_BYTES,
    Blocks,
    Layout,
    block_rows,
    cut,
    limits,
    seconds,
)
from dpdist.storage.arrays import RaggedAxis

counts = st.lists(st.integers(1, 40_000), min_size=1, max_size=20).map(lambda values: np.array(values, dtype=np.int64))


@given(counts, st.sampled_from([100, 1000, 5000]))
def test_blocks_cover_every_record_once_and_never_cross_a_stratum(count, draws):
    blocks = Blocks.of(count, draws)
    assert blocks.edges[0] == 0
    assert blocks.edges[-1] == count.sum()
    sizes = np.diff(blocks.edges)
    assert sizes.min() > 0
    assert sizes.max() <= block_rows(draws)
    ends = [blocks.edges[blocks.of_stratum(k).stop] for k in range(len(count))]
    np.testing.assert_array_equal(ends, np.cumsum(count))


@given(counts, st.sampled_from([100, 1000, 5000, 100_000]))
def test_block_borders_are_chunk_borders(count, draws):
    axis, size = RaggedAxis.of(count, block_rows(draws)), block_rows(draws)
    assert size % axis.chunk == 0
    assert size * draws * 8 <= max(TENSOR_BYTES, 128 * draws * 8)


@given(st.lists(st.integers(1, 400_000), min_size=1, max_size=120), st.sampled_from([100, 1000]), st.integers(1, 3000))
def test_every_stratum_is_in_one_bin_or_giant_and_no_bin_outgrows_its_task(count, draws, workers):
    codes = {"unit": np.arange(len(count), dtype=np.int32)}
    levels = {"unit": tuple(range(len(count)))}
    layout = Layout(Crosstab(codes, levels, np.array(count, dtype=np.int64), ("unit",), ()), draws, 1, False)
    bins = layout.bins(workers)
    assert sorted([*(stratum for strata in bins for stratum in strata), *layout.giants]) == list(range(len(count)))
    times = [sum(seconds([count[k] for k in strata], draws)) for strata in bins]
    assert times == sorted(times, reverse=True), "the longest first"
    longest, _ = limits(workers)
    assert all(len(strata) == 1 or time <= longest * (1 + 1e-9) for strata, time in zip(bins, times, strict=True))


@pytest.mark.parametrize(("levels", "long"), [((60, 40, 20), True), ((4, 4, 4), False)])
def test_workers_share_work_between_passes_of_a_long_stratum(levels: tuple[int, ...], long: bool, tmp_path: Path) -> None:
    """Its few records have one span. Control: a stratum of few sums."""
    job = sized_job(tmp_path, levels, [["c0", "c1", "c2"]], records=20_000)
    layout = dpdist.plan(str(job)).layout
    assert len(layout.spans(0)) == 1
    assert layout.giants == ((0,) if long else ())


times = st.lists(st.floats(0.001, 30.0), max_size=200)


@given(times, st.integers(1, 3000), st.sampled_from([1, 7, MOST_STRATA]))
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
