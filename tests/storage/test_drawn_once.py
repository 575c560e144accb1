"""Noise is drawn once, whoever asks and however many ask at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from dpdist.noise import laplace
from dpdist.storage.noise import drawn_once

RACERS = 4


def race(path: Path, keep) -> set[bytes]:
    """What each of four racers reads, released together at the moment after each has drawn."""
    barrier = Barrier(RACERS)

    def draw():
        noise = laplace(Fraction(1), 5)
        barrier.wait(timeout=30)
        return noise

    with ThreadPoolExecutor(RACERS) as pool:
        return {read.tobytes() for read in pool.map(lambda _: keep(path, draw), range(RACERS))}


def test_racers_agree_on_one_draw(tmp_path: Path) -> None:
    for round in range(25):
        path = tmp_path / str(round) / "noise.npy"
        (agreed,) = race(path, drawn_once)
        assert drawn_once(path, lambda: np.zeros(5)).tobytes() == agreed
        assert [p.name for p in path.parent.iterdir()] == ["noise.npy"]


def test_without_the_link_racers_disagree(tmp_path: Path) -> None:
    """Negative control: a plain write, each racer returning what it drew."""

    def plain(path: Path, draw):
        noise = draw()
        path.write_bytes(noise.tobytes())
        return noise

    assert len(race(tmp_path / "noise", plain)) == RACERS


def test_a_draw_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken():
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        drawn_once(tmp_path / "noise.npy", broken)
    assert list(tmp_path.iterdir()) == []
