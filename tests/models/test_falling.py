"""Cells whose outcomes fell: what a curve that flattens tells of a scale, and what is released of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from dpdist.core.records import UNIT, Floats
from dpdist.reference import inversion
from dpdist.reference.clipping import LARGEST_LOG_SCALE, Cell
from dpdist.reference.inversion import ClippingInversion, invert_clipping, posterior
from dpdist.reference.limits import Limits, Noise, choose

NOISE = Noise(2.0, 2.0)


@given(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5), st.floats(0.02, 0.4), st.floats(0.05, 0.4), st.floats(0.1, 2.0))
def test_on_a_straight_curve_it_is_linear_shrinkage(
    raw: float, mean: float, error: float, deviation: float, slope: float
) -> None:
    """Exact: (τ² raw + ν² mean)/(τ² + ν²), and τ²ν²/(τ² + ν²)."""
    noise, variance = error**2, deviation**2
    found = posterior(lambda g: (0.3 + slope * g, np.full(len(g), slope * error)), 0.3 + slope * raw, mean, variance)
    exact = (variance * raw + noise * mean) / (variance + noise), variance * noise / (variance + noise)
    assert found == pytest.approx(exact, rel=2e-3, abs=2e-4)


def curve(g: Floats) -> Floats:
    return np.asarray(np.tanh(0.5 * np.exp(g)))


def error(g: Floats) -> Floats:
    return np.asarray(0.05 - 0.015 * np.tanh(g))


@pytest.mark.parametrize("raw", [-2.5, -1.0, 0.0, 0.7, 2.0])
def test_on_a_bent_curve_it_is_bayes_own(raw: float) -> None:
    """Against SciPy's integrals, under noise that is larger below; control: linear shrinkage by the slope where the curve
    is solved is far off."""
    seen, variance = float(curve(np.float64(raw))), 0.3**2

    def density(g: float) -> float:
        return float(
            np.exp(-0.5 * ((seen - curve(np.float64(g))) / error(np.float64(g))) ** 2 - 0.5 * g**2 / variance)
            / error(np.float64(g))
        )

    def integral(of: Callable[[float], float]) -> float:
        return float(quad(lambda g: density(g) * of(g), -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE, points=[raw, 0.0])[0])

    mass = integral(lambda g: 1.0)
    mean = integral(lambda g: g) / mass
    spread = integral(lambda g: (g - mean) ** 2) / mass
    found = posterior(lambda g: (curve(g), error(g)), seen, 0.0, variance)
    assert found == pytest.approx((mean, spread), rel=2e-3, abs=1e-4)
    noise = (error(raw) / (0.5 * np.exp(raw) / np.cosh(0.5 * np.exp(raw)) ** 2)) ** 2
    linear = raw * variance / (variance + noise)
    assert abs(linear - mean) > 0.1 or abs(raw) < 1.0, "control"


def wages(rng: np.random.Generator, n: int, level: float = 1.0) -> tuple[Floats, Floats]:
    """Weights, and outcomes of which four in ten are zeros and the others have a heavy tail."""
    return np.exp(rng.normal(4.0, 0.5, n)), level * np.exp(rng.normal(10.0, 1.0, n)) * (rng.random(n) > 0.4)


def released(level: float, seed: int, draws: int) -> tuple[float, list[ClippingInversion]]:
    """Twenty cells of 60 records, of which the first earns `level` of what the reference says; its mean there, and what is
    released under noise."""
    rng = np.random.default_rng(seed)
    before = replace(Cell.of(*wages(rng, 4000), (0.0, 5e6)), records=60)
    chosen = choose([before], 60, NOISE)
    limits = Limits(*(np.full(20, each) for each in (chosen.centre[0], chosen.cap, chosen.reach[0])))
    now = [wages(rng, 60, level if k == 0 else 1.0) for k in range(20)]
    v, c = limits.clipped(np.repeat(np.arange(20), 60), *(np.concatenate(column) for column in zip(*now, strict=True)))
    sums = np.column_stack([values.reshape(20, 60).sum(axis=1) for values in (1.0 - v, v * c)])
    noises = rng.laplace(0.0, 1.0, (draws, 20, 2))
    found = [invert_clipping([before] * 20, limits, UNIT * (sums + own), np.full(20, 60.0), NOISE, True) for own in noises]
    return before.mean, found


@pytest.mark.long
def test_a_cell_that_is_surely_low_is_released_low(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a tenth it is told as less than half, on average over noise. Control: shrunk by the slope where its statistic
    ends, it is told as most of what it was."""

    def told() -> float:
        mean, found = released(0.1, 3, 24)
        return float(np.mean([each.estimate[0, 1] for each in found]) / mean)

    assert told() < 0.5
    monkeypatch.setattr(inversion, "STRAIGHT", 0.0)
    assert told() > 0.7, "control"


def test_cells_above_the_others_are_shrunk_by_the_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is released of the cells above the mean that all are shrunk to is the same, figure by figure; of those below it
    is not (control)."""
    with_curves = released(1.0, 5, 4)[1]
    monkeypatch.setattr(inversion, "STRAIGHT", 0.0)
    by_slope = released(1.0, 5, 4)[1]
    for one, other in zip(with_curves, by_slope, strict=True):
        same = (one.estimate == other.estimate).all(axis=1)
        assert same.sum() >= 5
        assert one.estimate[same, 1].min() > one.estimate[~same, 1].max() * 0.99
        assert (~same).sum() >= 5, "control"


def test_a_cell_whose_statistic_is_beyond_the_curve_is_released_high(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of 20 records. One cell's mean vc is above its mean v, which no scale gives, so its outcomes are larger.
    Control: shrunk by the slope there, which is flat, it has the common figure."""
    rng, noise, bounds = np.random.default_rng(3), Noise(8.0, 8.0), (0.0, 5e6)
    drawn = [(np.exp(rng.normal(4.0, 0.5, n)), np.exp(rng.normal(10.0, 0.5, n))) for n in (2000, *[20] * 20)]
    before = replace(Cell.of(*drawn[0], bounds), records=20)
    chosen = choose([before], 20, noise)
    limits = Limits(*(np.full(20, each) for each in (chosen.centre[0], chosen.cap, chosen.reach[0])))
    v, c = limits.clipped(np.repeat(np.arange(20), 20), *(np.concatenate(each) for each in zip(*drawn[1:], strict=True)))
    sums = np.column_stack([values.reshape(20, 20).sum(axis=1) for values in (1.0 - v, v * c)])
    sums[0, 1] = 21.0 - sums[0, 0]

    def told() -> float:
        found = invert_clipping([before] * 20, limits, UNIT * sums, np.full(20, 20.0), noise, True).estimate[:, 1]
        return float(found[0] / np.median(found))

    assert told() > 1.3
    monkeypatch.setattr(inversion, "AT_END", 2.0)
    assert told() < 1.1, "control"
