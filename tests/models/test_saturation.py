"""Cells that noisy sums do not identify are seen in these sums; cells that are like their shape are not taken for such."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from dpdist.core.records import UNIT, Floats
from dpdist.reference.clipping import Cell
from dpdist.reference.limits import Limits, Noise
from dpdist.reference.saturation import ALARM, most_hidden, spans

BOUNDS = (1.0, 1000.0)
SCALE = 2.0
"""Of Laplace noise on every sum, in records."""
NOISE = Noise(2.0 * SCALE**2, 2.0 * SCALE**2)
LIMITS = Limits(np.array([300.0]), np.array([60.0]), np.array([300.0]))


def shape(points: int = 400) -> Cell:
    """The group's law by its quantiles, outcomes even over weights."""
    at = ndtri((np.arange(points) + 0.5) / points)
    return Cell.of(np.exp(3.0 + 0.6 * at), np.exp(5.0 + 0.7 * np.random.default_rng(1).permutation(at)), (0.0, 1e5))


def found(weight: Floats, outcome: Floats, noise: Floats | None = None, cell: Cell | None = None) -> tuple[Floats, Floats]:
    """Ranges of a cell of these records, clipped at limits that its group's shape fixed."""
    zero = np.zeros(len(weight), dtype=np.int32)
    v, c = LIMITS.clipped(zero, weight, outcome)
    sums = np.array([[(1.0 - v).sum(), (v * c).sum()]]) + (0.0 if noise is None else noise)
    weights, means = spans([cell or shape()], LIMITS, UNIT * sums, np.array([float(len(weight))]), NOISE, BOUNDS)
    return weights[0], means[0]


def drawn(seed: int, n: int, weight: float = 1.0, outcome: float = 1.0) -> tuple[Floats, Floats]:
    """Records of the group's law, times a scale each."""
    rng = np.random.default_rng(seed)
    return weight * np.exp(rng.normal(3.0, 0.6, n)), outcome * np.exp(rng.normal(5.0, 0.7, n))


@pytest.mark.parametrize("times", [20.0, 80.0])
def test_a_cell_whose_weights_lie_beyond_its_cap_has_a_range_that_holds_them(times: float) -> None:
    w, y = drawn(2, 700, weight=times)
    least, most = found(np.minimum(w, BOUNDS[1]), y)[0]
    assert least <= np.minimum(w, BOUNDS[1]).mean() <= most
    assert most == BOUNDS[1], "nothing but the public bound holds it"
    assert least > 0.9 * LIMITS.cap[0], "what was observed of it holds it from below"


def test_a_cell_of_a_hundredth_of_the_weights_has_a_range_that_holds_them() -> None:
    w, y = drawn(3, 2000, weight=0.01)
    w = np.maximum(w, BOUNDS[0])
    least, most = found(w, y)[0]
    assert least <= w.mean() <= most < shape().mean_weight / 5.0


def test_a_cell_whose_outcomes_lie_beyond_their_window_has_a_range_that_holds_their_mean() -> None:
    w, y = drawn(4, 900, outcome=30.0)
    weight, (least, most) = found(w, y)
    assert np.isnan(weight).all()
    assert least <= np.average(y, weights=w) <= most == 1e5


def test_cells_that_are_like_their_shape_or_a_scale_of_it_are_identified() -> None:
    """Up to half as large and twice as large again, without noise."""
    for times in (0.5, 1.0, 2.0):
        for part in (found(*drawn(5, 900, weight=times)), found(*drawn(6, 900, outcome=times))):
            assert np.isnan(part).all(), times


def test_a_cell_at_its_public_bound_is_identified() -> None:
    """A cap at the bound hides nothing; a two-valued outcome at its bound is what it is."""
    w = np.full(500, 60.0)
    v = np.zeros((1, 2))
    assert np.isnan(spans([shape()], LIMITS, v, np.array([500.0]), NOISE, (1.0, 60.0))[0]).all()
    yes = Cell.of(shape().weight, np.random.default_rng(7).integers(0, 2, 400).astype(float), (0.0, 1.0))
    limits = Limits(np.array([0.5]), np.array([60.0]), np.array([0.5]))
    sums = UNIT * np.array([[np.maximum(0.0, 1.0 - w / 80.0).sum(), 0.5 * 375.0 * 2.0]])
    assert np.isnan(spans([yes], limits, sums, np.array([500.0]), NOISE, BOUNDS)[1]).all()


@pytest.mark.parametrize("n", [40, 1500])
def test_noise_raises_an_alarm_no_more_often_than_said(n: int) -> None:
    """500 cells of the shape's own law under noise; control: a cell at twenty times its weights is always seen."""
    rng = np.random.default_rng(n)
    held, alarms, seen = shape(), 0, 0
    for seed in range(500):
        noise = rng.laplace(0.0, SCALE, (1, 2))
        weight, mean = found(*drawn(seed, n), noise, held)
        alarms += int(np.isfinite(weight).any()) + int(np.isfinite(mean).any())
        if seed < 20:
            heavy = found(*drawn(seed, n, weight=20.0), noise, held)[0]
            seen += int(np.isfinite(heavy).all())
    assert alarms <= 2 * 500 * ALARM + 3.0 * (2 * 500 * ALARM) ** 0.5
    assert seen == 20 or n == 40


@pytest.mark.parametrize("n", [50, 70])
def test_a_small_cell_beyond_its_cap_has_a_range(n: int) -> None:
    """The group's mean v is .67, and noise on a cell's mean .25 or .18: too much for a departure. A cell 20 times as heavy
    had a tight interval in .90 and .23 of draws of noise. Now at least .93 of 300 have a range: with odds of .96, below
    .93 has a chance under .01. Control: of cells like the group at most .02 have one."""
    group = shape().under(float(np.log(2.0)), 0.0)
    ranges = np.zeros(2)
    for seed in range(300):
        noise = np.random.default_rng([7, seed]).laplace(0.0, SCALE, (1, 2))
        for number, times in enumerate((2.0, 40.0)):
            weight, outcome = drawn(seed, n, weight=times)
            ranges[number] += np.isfinite(found(np.minimum(weight, BOUNDS[1]), outcome, noise, group)[0]).all()
    assert ranges[1] >= 0.93 * 300, ranges
    assert ranges[0] <= 0.02 * 300, ranges
    assert n > most_hidden(NOISE), "smaller cells are named before the run"
