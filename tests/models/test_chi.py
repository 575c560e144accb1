"""χ quantiles against SciPy's inverse of the incomplete gamma function."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import gammaincinv

from dpdist.core.keys import Key, open_uniforms
from dpdist.models.numerics import chi
from dpdist.models.numerics.chi import ChiLevels, chi_quantiles

fixed = settings(derandomize=True, deadline=None)
LIMIT = 24.0 * np.finfo(float).eps
"""Of errors, in shares of the largest quantile."""


def uniforms(size, block=0):
    return open_uniforms(Key(b"tests/models/test_chi").generator("chi", block=block), (size,))


def error(degrees, u):
    exact = np.sqrt(2.0 * gammaincinv(degrees / 2.0, u))
    return np.abs(chi_quantiles(degrees, u) - exact).max() / exact.max()


@settings(fixed, max_examples=200)
@given(st.floats(-1.0, 8.0), st.sampled_from([1, 30, 97, 300, 1000, 5000]), st.integers(0, 1000))
def test_quantiles_are_those_of_the_incomplete_gamma_function_to_double_precision(power, size, block):
    assert error(10.0**power, uniforms(size, block)) < LIMIT


@pytest.mark.parametrize("degrees", [0.5, 3.0, 40.0, 400.0, 4e3, 4e6])
def test_quantiles_of_the_smallest_and_largest_uniforms(degrees):
    ends = [2.0**-54, 1e-12, 1.0 - 2.0**-53, 1.0 - 1e-12]
    assert error(degrees, np.append(uniforms(500), ends)) < LIMIT


def test_a_series_serves_most_degrees_and_asks_for_no_inversion(monkeypatch):
    asked = []
    chi_quantiles(20.0, uniforms(1000))
    monkeypatch.setattr("scipy.special.gammaincinv", lambda a, u: asked.append(u.size) or gammaincinv(a, u))
    for degrees, size in ((8.0, 1000), (1e5, 1000), (2.0, 1000), (2e5, 999), (20.0, chi.FEW)):
        chi_quantiles(degrees, uniforms(size))
    assert asked == [1000, 999, chi.FEW]


def test_a_series_that_is_cut_short_is_found_out(monkeypatch):
    """Control: without polynomials from the thirtieth, the same comparison sees it."""
    assert error(12.0, uniforms(1000)) < LIMIT
    whole = chi.ChebyshevInterval.polynomials
    monkeypatch.setattr(chi.ChebyshevInterval, "polynomials", lambda axis, values: cut(whole(axis, values)))
    assert error(12.0, uniforms(1000)) > LIMIT


def cut(polynomials):
    polynomials[..., 29:, :] = 0.0
    return polynomials


def test_laws_that_share_levels_have_their_own_degrees():
    u = uniforms(600).reshape(2, 300)
    both = ChiLevels.of(u).quantiles(np.array([40.0, 77.0]))
    for law, degrees in enumerate((40.0, 77.0)):
        np.testing.assert_allclose(both[law], chi_quantiles(degrees, u[law]), rtol=1e-14)
    few = ChiLevels.of(u).quantiles(np.array([3.0, 77.0]))
    np.testing.assert_allclose(few[1], both[1], rtol=1e-14)


@pytest.mark.parametrize("degrees", [0.5, 3.0, 40.0, 400.0, 4e6])
def test_levels_serve_any_degrees_as_if_they_were_made_for_these(degrees):
    levels = ChiLevels.of(uniforms(300)[None])
    assert (levels.quantiles(np.array([77.0])) != levels.quantiles(np.array([degrees]))).all()
    np.testing.assert_array_equal(levels.quantiles(np.array([degrees]))[0], chi_quantiles(degrees, uniforms(300)))
