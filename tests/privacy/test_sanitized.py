"""Whitened, winsorised statistics: every database of at most three records on a public grid, and what breaks the bound."""

from __future__ import annotations

from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from neighbours import Record, Sums, held, largest_distance

from dpdist.core.records import UNIT, Floats
from dpdist.mechanisms.sanitized_lognormal.sensitivity import (
    EXCHANGE,
    MOVED_2,
    REACH,
    SHARE,
    Whitening,
    moments,
    noise_variances,
)
from dpdist.privacy.guarantees import NoisyQuery

OWN_NOISE = True

SENSITIVITY = {"zero_out": 1, "substitution": 2}
WHITENING = Whitening(np.array([[10.0, 4.0], [11.0, 3.0]]), np.array([[2.0, 0.0], [-1.0, 1.5]]))
"""Two cells."""
ANGLES = np.pi / 8.0 * np.array([0.0, 1.0, 2.0, 5.0, 6.0, 10.0])
LENGTHS = (0.0, 0.4, 1.0, 3.0)
"""Of r/C: at the reference, on the circle of winsorising, far beyond it."""


def record(cell: int, length: float, angle: float) -> Record:
    z = WHITENING.centre[cell] + REACH * length * np.linalg.solve(WHITENING.matrix, [np.cos(angle), np.sin(angle)])
    y, w = np.exp(z)
    return cell, float(y), float(w)


GRID = sorted({record(0, length, angle) for length in LENGTHS for angle in ANGLES} | {record(1, 1.0, ANGLES[1])})
ODD: list[Record] = [(0, 0.0, 50.0), (0, 1e300, 1e-300), (1, 5e-324, 1e300), (1, 3e4, 0.0)]
"""Values that a check refuses: the bound holds for them all the same."""


def released(units: Floats, cell: Floats) -> Floats:
    """Location by cell, scatter pooled."""
    return np.concatenate([*(units[cell == k, :2].sum(axis=0) for k in range(2)), units[:, 2:].sum(axis=0)])


def sums_of(statistics) -> Sums:
    """Sums of a statistic of single records."""

    @cache
    def one(record: Record) -> Floats:
        cell, outcome, weight = held((record,))
        return released(np.asarray(statistics(cell, outcome, weight)), cell)

    return lambda database: np.sum([one(record) for record in database], axis=0) if database else np.zeros(7)


OURS = sums_of(WHITENING.units)
GAUSSIAN = sums_of(partial(WHITENING.units, noise="gaussian"))
WORST = float(np.arccos(-0.75))
"""Angle between the two records that are farthest apart where Gaussian noise is added."""
GRID_2 = sorted({*GRID, *(record(0, length, angle) for length in (1.0, 3.0) for angle in (WORST, 2.0 * WORST))})
LOCATION, SCATTER = (sums_of(partial(WHITENING.units, share=share)) for share in (1.0, 0.0))


@pytest.mark.parametrize("adjacency", ["zero_out", "substitution"])
def test_the_bound_holds_for_every_small_database(adjacency: str) -> None:
    distance = largest_distance(OURS, GRID + ODD, adjacency, most=2) / UNIT
    assert distance <= SENSITIVITY[adjacency]
    assert distance >= 0.75 * SENSITIVITY[adjacency]


@pytest.mark.parametrize("adjacency", ["zero_out", "substitution"])
@pytest.mark.parametrize("part", [LOCATION, SCATTER])
def test_the_bound_of_either_part_is_attained_over_databases_of_three(part: Sums, adjacency: str) -> None:
    distance = largest_distance(part, GRID, adjacency) / UNIT
    assert distance == pytest.approx(SENSITIVITY[adjacency], abs=1e-5)
    assert distance <= SENSITIVITY[adjacency]


@given(*(st.floats(0.0, 1e308) for _ in range(4)), st.sampled_from((0.0, 0.3, 0.75, 1.0)))
def test_statistics_are_whole_and_within_their_body(y: float, w: float, other: float, v: float, share: float) -> None:
    units = WHITENING.units(np.array([0, 0]), np.array([y, other]), np.array([w, v]), share)
    assert np.isfinite(units).all()
    assert (units == np.rint(units)).all()
    assert (np.abs(units).sum(axis=1) <= UNIT).all()
    assert np.abs(units[0] - units[1]).sum() <= 2 * UNIT


@pytest.mark.parametrize("adjacency", ["zero_out", "substitution"])
def test_the_l2_bound_is_attained_and_never_exceeded_over_databases_of_three(adjacency: str) -> None:
    """Attained but for rounding: whole units, by at most √5 of 2²⁰ below."""
    distance = largest_distance(GAUSSIAN, GRID_2 + ODD, adjacency, metric="euclidean")
    bound = float(MOVED_2.off if adjacency == "zero_out" else MOVED_2.same_x)
    assert bound - 9.0 < distance <= bound
    assert float(EXCHANGE) >= float(MOVED_2.same_x / MOVED_2.off) ** 2


@given(*(st.floats(0.0, 1e308) for _ in range(4)), st.integers(0, 1))
def test_gaussian_statistics_are_whole_and_within_their_ball(y: float, w: float, other: float, v: float, cell: int) -> None:
    units = WHITENING.units(np.array([0, cell]), np.array([y, other]), np.array([w, v]), noise="gaussian")
    assert (units == np.rint(units)).all()
    for row in units.astype(int).tolist():
        assert sum(one**2 for one in row) <= UNIT**2
    one, two = (released(units[[k]], np.array([own])) for k, own in enumerate((0, cell)))
    assert ((one - two) ** 2).sum() <= float(MOVED_2.same_x) ** 2


@given(st.fractions(Fraction(1, 10**6), 1000), st.sampled_from(("off", "same_x")))
def test_the_gaussian_scale_is_exact_to_a_thousandth_above(rho: Fraction, neighbour: Any) -> None:
    scale, sensitivity = NoisyQuery.losing_rho("it", MOVED_2, rho, neighbour).scale, MOVED_2.by(neighbour)
    assert sensitivity**2 / (2 * scale**2) <= rho
    assert sensitivity**2 / (2 * (scale - Fraction(2, 1000)) ** 2) > rho


@pytest.mark.parametrize(("noise", "scale"), [("laplace", Fraction(50_000 / np.sqrt(2.0))), ("gaussian", Fraction(50_000))])
def test_moments_are_those_of_the_winsorised_records_and_their_noise_is_stated(noise: Any, scale: Fraction) -> None:
    """500 records; 2000 draws: a variance's own error is 3 %, and over 8,000 of locations less."""
    rng = np.random.default_rng(1)
    cell, z = rng.choice(2, 500), rng.standard_normal((500, 2))
    y, w = np.exp(WHITENING.centre[cell] + z).T
    p = WHITENING.winsorised(cell, y, w)
    found = moments(released(WHITENING.units(cell, y, w, noise=noise), cell), 500.0, noise)
    assert found.location == pytest.approx(np.array([p[cell == k].sum(axis=0) for k in range(2)]), abs=1e-2)
    one, two = p.T
    assert found.scatter == pytest.approx([(p**2).sum(), (one**2 - two**2).sum(), (2 * one * two).sum()], abs=1e-2)
    drawn = [moments(each, 0.0, noise) for each in 50_000.0 * rng.standard_normal((2000, 7))]
    location, scatter = noise_variances(scale, noise)
    assert np.var([each.location for each in drawn]) == pytest.approx(location, rel=0.1)
    assert np.var([each.scatter for each in drawn], axis=0) == pytest.approx(scatter, rel=0.2)


def _of_p(p: Floats) -> Floats:
    from dpdist.mechanisms.sanitized_lognormal.sensitivity import statistics

    return UNIT * statistics(p)


def unwinsorised(cell, outcome, weight):
    z = np.log(np.column_stack([outcome, weight])) - WHITENING.centre[cell]
    return _of_p(z @ WHITENING.matrix.T / REACH)


def unwhitened(cell, outcome, weight):
    """Logarithms as they are, winsorised by component."""
    z = np.log(np.column_stack([outcome, weight])) - WHITENING.centre[cell]
    return _of_p(np.clip(2.0 * z / REACH, -1.0, 1.0))


def uncentred_scatter(cell, outcome, weight):
    """|p|² in place of 1 − |p|²."""
    p = WHITENING.winsorised(cell, outcome, weight)
    units = _of_p(p)
    units[:, 2] = UNIT * float(1 - SHARE) * (p**2).sum(axis=1)
    return units


def whitened_by_itself(database):
    """μ from the current file."""
    cell, outcome, weight = held(database)
    if not len(cell):
        return np.zeros(7)
    own = WHITENING._replace(centre=np.log(np.array([[outcome.mean(), weight.mean()]] * 2)))
    return released(own.units(cell, outcome, weight), cell)


def margins_too(cell, outcome, weight):
    """A margin's location with noise of its own: a record enters twice."""
    units = WHITENING.units(cell, outcome, weight)
    units[:, 2:] += units[:, [0, 1, 1]]
    return units


CONTROLS: dict[str, tuple[Sums, str, float]] = {
    "unwinsorised": (sums_of(unwinsorised), "zero_out", 1.5),
    "winsorised without whitening": (sums_of(unwhitened), "zero_out", 1.01),
    "scatter not turned about": (sums_of(uncentred_scatter), "zero_out", 1.01),
    "whitened by the current file": (whitened_by_itself, "zero_out", 1.5),
    "margins released separately": (sums_of(margins_too), "zero_out", 1.2),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_broken_statistic_is_caught(control: str) -> None:
    sums, adjacency, loss = CONTROLS[control]
    assert largest_distance(sums, GRID, adjacency, most=2) / UNIT > loss


def gaussian(of_p) -> Sums:
    """Sums of a statistic of (cell, p) under the factors of Gaussian noise."""

    def one(cell, outcome, weight):
        return UNIT * of_p(WHITENING.winsorised(cell, outcome, weight))

    return sums_of(one)


def _body(p: Floats) -> Floats:
    from dpdist.mechanisms.sanitized_lognormal.sensitivity import statistics

    return statistics(p, noise="gaussian")


def _unturned(p: Floats) -> Floats:
    units = _body(p)
    units[:, 2] = float(1 - SHARE) ** 0.5 * (p**2).sum(axis=1)
    return units


CONTROLS_2: dict[str, tuple[Sums, str, float]] = {
    "unwinsorised": (
        sums_of(
            lambda cell, y, w: UNIT * _body((np.log(np.column_stack([y, w])) - WHITENING.centre[cell]) @ WHITENING.matrix.T)
        ),
        *("zero_out", 1.5),
    ),
    "scatter not turned about": (gaussian(_unturned), "zero_out", 1.1),
    "shares not square roots of two that sum to 1": (
        gaussian(lambda p: _body(p) + [0.2, 0.2, 0, 0, 0] * p[:, [0, 1, 0, 0, 0]]),
        "zero_out",
        1.1,
    ),
    "exchanging taken for one move": (GAUSSIAN, "substitution", 1.7),
    "margins released separately": (
        gaussian(lambda p: _body(p) + np.column_stack([np.zeros((len(p), 3)), p])),
        "zero_out",
        1.05,
    ),
}


@pytest.mark.parametrize("control", CONTROLS_2)
def test_a_broken_statistic_is_caught_under_gaussian_noise(control: str) -> None:
    sums, adjacency, distance = CONTROLS_2[control]
    assert largest_distance(sums, GRID_2, adjacency, most=2, metric="euclidean") / UNIT > distance
