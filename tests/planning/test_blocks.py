"""Blocks and memory depend on (n, p, S) only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sized_package import sized_job

import dpdist
from dpdist.core.records import Crosstab
from dpdist.planning.blocks import TENSOR_BYTES, Blocks, Layout, block_rows, limits, seconds
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
