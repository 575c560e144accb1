"""Errors of sums follow the law that sums show, and not the noise that has moved it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from dpdist.core.records import Floats
from dpdist.mechanisms.tables.followed_limits import CellsOfTable
from dpdist.mechanisms.tables.limits import TableLimits
from dpdist.mechanisms.tables.measurements import UnclippedSums

LEVELS, SIZE, MEAN, SPREAD, LOSS = (200, 20), 100.0, 100.0, 50.0, 0.2
"""Levels of a table's columns, records of a cell, their mean weight and its spread, and what is clipped of the variance."""
STEEP = 4.0
"""Relative change of what is clipped, over that of the mean weight."""


class Followed(NamedTuple):
    """Noise in counts, (cell,), variances of their errors without `steadied`, as they are, and by the law without noise."""

    noise: Floats
    unsteady: Floats
    steady: Floats
    right: Floats

    def lean(self, errors: Floats) -> float:
        """The mean of noise, each weighed by what the posterior believes of it, in its standard errors."""
        return float((self.noise / errors).sum() / np.sqrt((self.noise.var() / errors**2).sum()))


def followed(noise: float, seed: int = 0) -> Followed:
    """A table of counts with so many sampling errors of noise. One level of the first column has risen by .3, and the law
    has moved by it and by .3 of what cells show beside it.
    """
    rng = np.random.default_rng(seed)
    cells, one = int(np.prod(LEVELS)), np.ones(int(np.prod(LEVELS)))
    levels = np.stack(np.unravel_index(np.arange(cells), LEVELS), axis=1)
    sampling = SIZE * SPREAD**2
    drift = 0.3 * SIZE * MEAN * (levels[:, 0] == 7)
    drawn = noise * np.sqrt(sampling) * rng.standard_normal(cells)
    own = 0.3 * (np.sqrt(sampling) * rng.standard_normal(cells) + drawn)
    none = np.zeros((cells, 1))
    before = TableLimits(
        *(np.arange(cells, dtype=np.int32), SIZE * one, np.zeros((cells, 0)), 0.0 * one, one, np.zeros((cells, 0))),
        *(none, LOSS * sampling * one[:, None], none, none),
    )

    def sums(moved: Floats | float) -> UnclippedSums:
        loss = before.loss * np.exp(STEEP * np.broadcast_to(moved, cells) / (SIZE * MEAN))[:, None]
        expected = np.broadcast_to(moved, cells)[:, None] * 1.0
        return UnclippedSums(replace(before, loss=loss, expected=expected), expected, noise**2 * sampling + loss)

    table = CellsOfTable(levels, SIZE * MEAN * one, sampling * one[:, None])
    steady = table.steadied(sums(0.0), sums(drift + own))
    unsteady, right = (sums(moved).error[:, 0] for moved in (drift + own, drift))
    return Followed(drawn, unsteady, noise**2 * sampling + steady.loss[:, 0], right)


def test_sums_with_noise_above_0_count_for_as_much_as_others() -> None:
    """Under noise of twice the sampling error, weighed noise of 4,000 cells is within .1 of its standard errors from that
    under the right errors, in each of 20 draws. Control: where errors follow the law of every cell, it is .3 below or more.
    """
    found = [followed(2.0, seed) for seed in range(20)]
    steady, unsteady = (
        np.array([one.lean(getattr(one, of)) - one.lean(one.right) for one in found]) for of in ("steady", "unsteady")
    )
    assert np.abs(steady).max() < 0.1
    assert unsteady.max() < -0.3, "control"


def test_errors_follow_levels_under_noise_and_cells_without() -> None:
    """The level that has risen has its errors to 5 %, under noise of twice the sampling error. Under a tenth of it, every
    cell has those of its own law.
    """
    noisy, clear = followed(2.0), followed(0.1)
    risen = slice(7 * LEVELS[1], 8 * LEVELS[1])
    assert noisy.steady[risen] / noisy.right[risen] == pytest.approx(1.0, abs=0.05)
    assert noisy.right[risen].mean() > 1.05 * noisy.right[0]
    assert clear.steady == pytest.approx(clear.unsteady, rel=0.01)
