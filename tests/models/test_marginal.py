"""Values to scores and back under a reference's distribution: round trips, atoms, order, both ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.special import ndtr, ndtri

from dpdist.models.copula import marginal
from dpdist.models.copula.marginal import Marginal

NUMBERS = st.floats(-1e9, 1e9, allow_nan=False).map(lambda x: round(x, 3))
SAMPLES = st.lists(NUMBERS, min_size=1, max_size=60)
PLACES = st.floats(2.0**-54, 1.0 - 2.0**-53)
WIDE = np.array([-9.0, 9.0])


@given(SAMPLES, PLACES, st.booleans())
def test_a_value_of_the_reference_comes_back(sample: list[float], place: float, continuous: bool) -> None:
    """Atoms exactly, whatever the place; a value between lines to rounding of its neighbours' distance."""
    values = np.array(sample)
    found = Marginal.of(values, continuous)
    back = found.values(found.scores(values, np.full(len(values), place)))
    atom = np.isin(values, found.value[found.low < found.high])
    np.testing.assert_array_equal(back[atom], values[atom])
    np.testing.assert_allclose(back, values, atol=1e-9 * max(1.0, float(np.ptp(values))), rtol=1e-12)


@given(SAMPLES, st.lists(NUMBERS, min_size=2, max_size=20), PLACES, st.booleans())
def test_scores_rise_with_the_value_and_are_finite_anywhere(
    sample: list[float], others: list[float], place: float, continuous: bool
) -> None:
    found, values = Marginal.of(np.array(sample), continuous), np.sort(np.array([*others, *sample, -1e12, 1e12]))
    scores = found.scores(values, np.full(len(values), place))
    assert np.isfinite(scores).all()
    assert (np.diff(scores) >= 0).all()
    assert (np.abs(scores) <= 1e-9 - ndtri(found.edge)).all()


@given(SAMPLES, st.lists(st.floats(-40, 40), min_size=2, max_size=20), st.booleans())
def test_values_rise_with_the_score_and_keep_to_the_references_range(
    sample: list[float], scores: list[float], continuous: bool
) -> None:
    found = Marginal.of(np.array(sample), continuous)
    values = found.values(np.sort(np.array([*scores, -np.inf, np.inf])))
    assert (np.diff(values) >= 0).all()
    assert (values[0], values[-1]) == (min(sample), max(sample))


@given(st.lists(st.integers(0, 5).map(float), min_size=1, max_size=60))
def test_jittered_atoms_have_the_share_that_the_reference_gives_them(sample: list[float]) -> None:
    """Even places fill every atom's step evenly: their scores are evenly spread probabilities, to half a record."""
    values, grid = np.array(sample), (np.arange(64) + 0.5) / 64
    found = Marginal.of(values, continuous=False)
    p = np.sort(ndtr(found.scores(np.repeat(values, 64), np.tile(grid, len(values)))))
    even = (np.arange(len(p)) + 0.5) / len(p)
    assert np.abs(p - even).max() <= 1.0 / len(values) / 2.0 + 1.0 / 64 + 1e-6


@given(SAMPLES, st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.booleans())
def test_averages_over_bins_add_up_to_the_references_mean(
    sample: list[float], inner: list[float], continuous: bool
) -> None:
    found = Marginal.of(np.array(sample), continuous)
    edges = np.array([-9.0, *sorted(set(inner)), 9.0])
    averages, scale = found.averages(edges), 1.0 + float(np.abs(sample).max())
    assert averages @ np.diff(ndtr(edges)) == pytest.approx(np.mean(sample), abs=1e-9 * scale)
    likely = np.diff(ndtr(edges)) > 1e-6
    assert (np.diff(averages[likely]) >= -1e-6 * scale).all()


def test_many_values_are_thinned_and_the_mean_the_tails_and_heavy_atoms_are_kept() -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate([np.exp(rng.normal(4.0, 1.4, 30_000)), np.full(600, 50.0)])
    found = Marginal.of(values, continuous=True)
    assert len(found.value) < marginal.NODES + 2 * marginal.TAIL + 10
    assert found.averages(WIDE)[0] == pytest.approx(values.mean(), rel=1e-3)
    assert np.isin(np.sort(values)[-marginal.TAIL :], found.value).all()
    scores = found.scores(values, rng.random(len(values)))
    assert abs(scores.mean()) < 1e-3
    assert scores.std() == pytest.approx(1.0, abs=2e-3)
    assert (found.values(scores[-600:]) == 50.0).all()


def test_one_value_alone_has_a_distribution() -> None:
    found = Marginal.of(np.full(7, 3.0), continuous=True)
    assert found.values(np.array([-np.inf, 0.0, np.inf])).tolist() == [3.0, 3.0, 3.0]
    assert np.isfinite(found.scores(np.array([0.0, 3.0, 9.0]), np.full(3, 0.5))).all()
