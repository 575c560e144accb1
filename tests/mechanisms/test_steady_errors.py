"""Errors of sums follow the law that sums show less far where noise has moved it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from table_populations import Population, release

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.tables.followed_limits import MOST_MOVED, steadied

LEVELS, RECORDS, MEAN, SPREAD, CLIPPED = (200, 20), 100.0, 100.0, 50.0, 0.2
"""Levels of a table's columns, records of a cell, their mean weight and its spread, and the part of the direct variance
that limits clip."""
STEEP = 4.0
"""Relative change of what is clipped, over that of the mean weight."""


class Followed(NamedTuple):
    """Errors of a table's noisy counts, (cell,), and variances of what is clipped of them, (cell,): by the cells' own law,
    by `steadied`, and by the law without noise.
    """

    levels: Ints
    noise: Floats
    variance: float
    own: Floats
    steady: Floats
    right: Floats

    def lean(self, clipped: Floats) -> float:
        """The mean of noise, each weighed as a posterior would, in its standard errors."""
        weight = 1.0 / (self.variance + clipped)
        return float((self.noise * weight).sum() / np.sqrt(self.variance * (weight**2).sum()))


def followed(noise: float, seed: int = 0) -> Followed:
    """One level of the first column has risen by .3, and noise is so many sampling errors. The law has moved by the rise,
    and by .3 of what cells show beside it.
    """
    rng, cells = np.random.default_rng(seed), int(np.prod(LEVELS))
    levels = np.stack(np.unravel_index(np.arange(cells), LEVELS), axis=1)
    sampling = RECORDS * SPREAD**2
    rise = 0.3 * (levels[:, 0] == 7)
    drawn = noise * np.sqrt(sampling) * rng.standard_normal(cells)
    beside = 0.3 * (np.sqrt(sampling) * rng.standard_normal(cells) + drawn) / (RECORDS * MEAN)
    before, variance = np.full(cells, CLIPPED * sampling), noise**2 * sampling
    own, right = before * np.exp(STEEP * (rise + beside)), before * np.exp(STEEP * rise)
    of_all = np.full((cells, 1), variance)
    steady = steadied(own[:, None], before[:, None], of_all, levels, np.full(cells, RECORDS))[:, 0]
    return Followed(levels, drawn, variance, own, steady, right)


def test_sums_with_noise_above_0_count_for_as_much_as_others() -> None:
    """Under noise of twice the sampling error, weighed noise of 4,000 cells is within .1 of its standard errors from that
    under the right errors, in each of 20 draws. Control: where errors follow the law of every cell, it is .3 below or more.
    """
    found = [followed(2.0, seed) for seed in range(20)]
    right = np.array([one.lean(one.right) for one in found])
    assert np.abs([one.lean(one.steady) for one in found] - right).max() < 0.1
    assert ([one.lean(one.own) for one in found] - right).max() < -0.3, "control"


def test_what_is_clipped_follows_levels() -> None:
    """The level that has risen by .3 clips as much as without noise, to 5 % in the median, and so do the others. Controls:
    cells' own law errs by more than 5 % in half of them, and the mean of all does in the level.
    """
    found = followed(2.0)
    risen = found.levels[:, 0] == 7
    for of in (risen, ~risen):
        assert np.median(np.abs(found.steady / found.right - 1.0)[of]) < 0.05
        assert np.median(np.abs(found.own / found.right - 1.0)[of]) > 0.05, "control"
    assert np.abs(np.exp(np.log(found.own).mean()) / found.right[risen] - 1.0).min() > 0.05, "control"


def test_errors_stay_near_those_of_cells_own_law() -> None:
    """By a quarter of the noise at most, so that a mean weighed by them has at most 1.067 times the variance of one weighed
    by those of cells' own law (Kantorovich, independent sums): one cell that clips 10,000 times as much keeps its error,
    and others theirs. Where nothing was clipped before, or no noise is there, errors are those of the law. Control: levels
    alone are far off.
    """
    rng = np.random.default_rng(1)
    levels = np.stack(np.unravel_index(np.arange(96), (12, 8)), axis=1)
    before, noise = np.ones((96, 2)), np.full((96, 2), 2.0)
    loss = np.exp(0.1 * rng.standard_normal((96, 2)))
    loss[5], before[7] = 1e4, 0.0
    moved = steadied(loss, before, noise, levels, np.ones(96))
    assert (np.abs(moved - loss) <= MOST_MOVED * noise * (1.0 + 1e-9)).all()
    assert (moved[7] == loss[7]).all()
    assert (moved > 0.0).all()
    right, used = (noise + loss)[:, 0], (noise + moved)[:, 0]
    least, most = 1.0 / (1.0 / right).sum(), (right / used**2).sum() / (1.0 / used).sum() ** 2
    assert 1.0 < most / least <= 1.067
    assert (steadied(loss, before, 0.0 * noise, levels, np.ones(96)) == loss).all()
    levels_alone = steadied(loss, before, np.full((96, 2), 1e9), levels, np.ones(96))
    assert (np.abs(levels_alone - loss)[5] > 1e3).all(), "control"


def test_errors_of_a_table_are_those_of_its_own_levels() -> None:
    """What each of three tables clips changes by levels of its first column, and errors keep these changes. Control:
    changes of single cells are moved.
    """
    population = Population.of(3, "wide", ["income"], "none", (800, 800), (4, 5, 6), 3)
    population = replace(population, public=population.public._replace(tables=((0, 1), (1, 2), (0, 2))))
    sums, rng = release(population.public, population.files(), 1.0).measured, np.random.default_rng(0)
    codes, columns = sums.asked.file.codes, sums.asked.file.columns_of_tables
    assert len(columns) == 3
    for table, by in enumerate(columns, start=1):
        limits = sums.limits[table]
        level = np.zeros(len(limits.size), dtype=int)
        level[limits.cell] = codes[:, by[0]]
        of_levels, of_cells = np.exp(rng.standard_normal(6))[level], np.exp(rng.standard_normal(len(level)))
        followed = [
            [*sums.limits[:table], replace(limits, loss=limits.loss * factor[:, None]), *sums.limits[table + 1 :]]
            for factor in (of_levels, of_cells)
        ]
        kept, moved = (sums._steadied(of)[table].loss for of in followed)
        assert kept == pytest.approx(followed[0][table].loss, rel=1e-9)
        assert np.abs(moved / followed[1][table].loss - 1.0).max() > 0.01, "control"
