"""A chunk has one writer. Barriers make two writers meet between reading and writing: nothing is left to timing."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from dpdist.storage import arrays
from dpdist.storage.arrays import RaggedAxis

DRAWS = 4


class Meeting(LocalStore):
    """A store whose writers of chunks wait for each other, each holding what it is about to write, and write in turn: bytes
    of two that write a file at once might mix."""

    def __init__(self, root: Path, barrier: threading.Barrier, turn: asyncio.Lock) -> None:
        super().__init__(root)
        self._barrier, self._turn = barrier, turn

    async def set(self, key: str, value: Buffer) -> None:
        if not key.endswith("zarr.json"):  # the only other key that a writer of an existing array may write
            await asyncio.to_thread(self._barrier.wait, 60)
        async with self._turn:
            await super().set(key, value)


def write_together(path: Path, regions: list[slice]) -> np.ndarray:
    """One writer a region, all of them at the same moment; returns the tensor that is left."""
    barrier, turn = threading.Barrier(len(regions)), asyncio.Lock()

    def write(number: int) -> None:
        array = zarr.open_array(Meeting(path / "log_lik", barrier, turn), mode="r+")
        region = regions[number]
        array[0, :, region] = np.full((DRAWS, region.stop - region.start), float(number))

    with ThreadPoolExecutor(len(regions)) as writers:
        list(writers.map(write, range(len(regions))))
    tensor: np.ndarray = zarr.open_array(path / "log_lik", mode="r")[0]
    return tensor


def store(path: Path, lengths: list[int]) -> RaggedAxis:
    axis = RaggedAxis.of(np.array(lengths, dtype=np.int64), 128)
    strata = tuple(f"s{k}" for k in range(len(lengths)))
    arrays.create_log_lik(path, arrays.Template(axis, strata, 1, DRAWS, ()))
    return axis


def test_two_writers_that_meet_in_a_chunk_lose_records(tmp_path: Path) -> None:
    """Why ownership is asserted: neither writer is told, and the records of one of them are gone."""
    store(tmp_path / "t.zarr", [128])
    tensor = write_together(tmp_path / "t.zarr", [slice(0, 64), slice(64, 128)])
    lost = [bool(np.isnan(tensor[:, part]).all()) for part in (slice(0, 64), slice(64, 128))]
    assert sorted(lost) == [False, True]


def test_the_regions_of_those_writers_are_refused(tmp_path: Path) -> None:
    axis = store(tmp_path / "t.zarr", [128])
    for start, stop in ((0, 64), (64, 128)):
        with pytest.raises(AssertionError, match="share a chunk"):
            axis.region(0, start, stop)


def test_writers_that_own_their_chunks_meet_and_lose_nothing(tmp_path: Path) -> None:
    """Two blocks of one stratum and two other strata, written at the same moment."""
    axis = store(tmp_path / "t.zarr", [172, 5, 128])
    regions = [axis.region(0, 0, 128), axis.region(0, 128, 172), axis.region(1, 0, 5), axis.region(2, 0, 128)]
    tensor = write_together(tmp_path / "t.zarr", regions)
    for number, region in enumerate(regions):
        assert (tensor[:, region] == number).all()
    assert np.isnan(tensor).sum() == DRAWS * (axis.size - int(axis.length.sum()))


def test_no_two_blocks_are_given_the_same_chunk() -> None:
    """Over the axis of many strata of any length, cut into blocks."""
    rng = np.random.default_rng(5)
    axis = RaggedAxis.of(rng.integers(1, 700, 60), 128)
    owner: dict[int, tuple[int, int]] = {}
    for stratum in range(60):
        n = int(axis.length[stratum])
        for start in range(0, n, 128):
            region = axis.region(stratum, start, min(start + 128, n))
            for chunk in range(region.start // axis.chunk, (region.stop - 1) // axis.chunk + 1):
                assert owner.setdefault(chunk, (stratum, start)) == (stratum, start)
