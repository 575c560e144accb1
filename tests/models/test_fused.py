"""The compiled extremes against NumPy's product and its reductions."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpdist.models.numerics import tiles

fixed = settings(derandomize=True, deadline=None)
EPSILON = np.finfo(float).eps


def factors(records, draws, seed=1):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(6, records)) * np.exp(rng.normal(size=records))
    features[0] = 1.0
    return features, rng.normal(size=(6, draws)) * np.exp(rng.normal(size=(6, 1)))


def off(features, table, found):
    """Largest error of both extremes, in ε of the sum of the terms' sizes."""
    values = features.T @ table
    size = EPSILON * (np.abs(features).T @ np.abs(table).max(axis=1))
    return max(np.abs((found[0] - values.max(axis=1)) / size).max(), np.abs((found[1] - values.min(axis=1)) / size).max())


@settings(fixed, max_examples=100)
@given(st.integers(1, 3 * tiles.BLOCK), st.integers(1, 40), st.integers(0, 2**20))
def test_extremes_are_those_of_the_product(records, draws, seed):
    features, table = factors(records, draws, seed)
    assert off(features, table, tiles.extremes(features, table)) < 8.0


@pytest.mark.parametrize("draws", [1, 2, 7, 8])
def test_no_draw_is_left_out(draws):
    """Control: the extremes over all draws but one are others."""
    for extreme in range(draws):
        features, table = factors(tiles.BLOCK + 3, draws)
        table[0, extreme] += 1e3
        assert off(features, table, tiles.extremes(features, table)) < 8.0
        assert draws == 1 or off(features, table, tiles.extremes(features, np.delete(table, extreme, axis=1))) > 1e6


def test_the_compiled_loop_is_the_interpreted_one():
    features, table = factors(tiles.BLOCK + 3, 5)
    highest, lowest = np.full(features.shape[1], -np.inf), np.full(features.shape[1], np.inf)
    tiles._scan(features, table, highest, lowest)
    assert off(features, table, (highest, lowest)) < 8.0


@pytest.mark.parametrize("failure", [RuntimeError("no locator available"), OSError(28, "No space left on device")])
def test_where_nothing_can_be_cached_the_loop_is_compiled_all_the_same(monkeypatch, failure):
    asked, njit = [], numba.njit

    def without_a_cache(signature, cache, **options):
        asked.append(cache)
        if cache:
            raise failure
        return njit(signature, **options)

    monkeypatch.setattr(numba, "njit", without_a_cache)
    compiled = tiles._compiled.__wrapped__()
    assert asked == [True, False]
    features, table = factors(9, 4)
    highest, lowest = np.full(9, -np.inf), np.full(9, np.inf)
    compiled(features, table, highest, lowest)
    assert off(features, table, (highest, lowest)) < 8.0
