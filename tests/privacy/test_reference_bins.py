"""Histograms that stand in for a reference: every database of at most two records on a public grid, and what breaks them.

The exact loss of discrete Laplace noise of scale b on whole counts is their L1 distance over b, and is attained.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.sensitivity import cone, histogram_counts, noise_scales
from dpdist.reference.histograms import Bins
from dpdist.reference.limits import Limits

EPSILON, SHARE = Fraction(1), Fraction(1, 3)
"""Of the release, and the histograms' part of it."""
BINS = (Bins.within(1.0, 500.0), Bins.within(0.0, 1000.0), Bins.within(-50.0, 50.0))
GROUPS = (0, 1)
GRID = list(product(GROUPS, (1.0, 40.0, 900.0), (0.0, 70.0, 1000.0), (-60.0, 0.0)))
"""Group, weight and two outcomes."""

Record = tuple[float, ...]
Statistics = Callable[[tuple[Record, ...]], Floats]


def counts(database: tuple[Record, ...]) -> Floats:
    """Flattened counts by group and bin."""
    found = []
    for group in GROUPS:
        held = np.array([record for record in database if record[0] == group]).reshape(-1, 4)
        found += [np.bincount(b.number(column), minlength=len(b.left)) for b, column in zip(BINS, held.T[1:], strict=True)]
    return np.concatenate(found).astype(float)


def table_under(limits: Limits) -> Statistics:
    """Weighted by their noise: the table's sums in units of what costs 1."""
    first, other = noise_scales(EPSILON - SHARE, "zero_out", 2)

    def sums(database: tuple[Record, ...]) -> Floats:
        held = np.array(database, dtype=float).reshape(-1, 4)
        rows = cone(limits, held[:, 0].astype(np.int64), held[:, 1], held[:, 2:])
        found = [rows[held[:, 0] == group].sum(axis=0) for group in GROUPS]
        return np.concatenate([np.append(row[:1] / float(first), row[1:] / float(other)) for row in found])

    return sums


def limits_at(seed: int) -> Limits:
    """Any that histograms may have led to."""
    rng = np.random.default_rng(seed)
    return Limits(rng.uniform(-20, 900, (2, 2)), rng.uniform(1, 500, 2), rng.uniform(1, 1000, (2, 2)))


def both(
    database: tuple[Record, ...], limits: Limits | None = None, histograms: int = len(BINS), table: float = 1.0
) -> Floats:
    """What the histograms and the table under some limits cost, side by side."""
    scaled = counts(database) / histogram_counts(histograms, SHARE, "zero_out").scale_as_laplace
    return np.concatenate([scaled, table * table_under(limits or limits_at(0))(database)])


def largest(statistics: Statistics, adjacency: str) -> float:
    """The largest L1 distance of neighbours of at most two records."""
    worst = 0.0
    for rest in (rest for size in range(2) for rest in combinations_with_replacement(GRID, size)):
        held = np.array([statistics((*rest, one)) for one in GRID])
        others = held if adjacency == "substitution" else statistics(rest).reshape(1, -1)
        worst = max(worst, float(cdist(held, others, "cityblock").max()))
    return worst


@pytest.mark.parametrize("adjacency", ["zero_out", "substitution"])
def test_histograms_cost_what_they_are_given_and_it_is_attained(adjacency: str) -> None:
    scale = histogram_counts(len(BINS), SHARE, adjacency).scale  # type: ignore[arg-type]
    assert largest(counts, adjacency) / float(scale) == pytest.approx(float(SHARE), rel=1e-12)


def test_histograms_and_the_table_cost_their_sum_whatever_the_histograms_said() -> None:
    """The composed loss of both, for every limits tried: at most ε in all, and nearly that much."""
    losses = [largest(partial(both, limits=limits_at(seed)), "zero_out") for seed in range(4)]
    assert max(losses) <= float(EPSILON) + 1e-12
    assert max(losses) > 0.9 * float(EPSILON)


CONTROLS: dict[str, Statistics] = {
    "one histogram's noise on all": lambda d: both(d, histograms=1),
    "the table at the whole budget": lambda d: both(d, table=1.5),
    "a bound from the current file": lambda d: np.append(both(d), 0.01 * max((r[1] for r in d), default=0.0)),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_broken_histogram_is_caught(control: str) -> None:
    assert largest(CONTROLS[control], "zero_out") > 1.2 * float(EPSILON)


@given(st.floats(-1e9, 1e9), st.sampled_from([(0.0, 1000.0), (1.0, 500.0), (-50.0, 50.0), (-9.0, -1.0)]))
def test_every_value_has_a_bin_that_holds_it_clipped(value: float, bounds: tuple[float, float]) -> None:
    bins, clipped = Bins.within(*bounds), float(np.clip(value, *bounds))
    number = bins.number(np.array([value]))
    assert bins.left[number[0]] <= clipped <= bins.right[number[0]]
    inside = bins.value_at(number, np.array([0.5]))[0]
    assert bins.left[number[0]] <= inside <= bins.right[number[0]] or inside == pytest.approx(bins.right[number[0]])


def test_few_whole_values_have_a_bin_each() -> None:
    assert Bins.within(0.0, 1.0, whole=True).left.tolist() == [0.0, 1.0]
    assert Bins.within(0.0, 1.0, whole=True).number(np.array([0.0, 1.0, 1.0])).tolist() == [0, 1, 1]
