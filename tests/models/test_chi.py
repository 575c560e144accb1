"""χ quantiles against SciPy's inverse of the incomplete gamma function."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaincinv

from dpdist.core.keys import Key, open_uniforms
from dpdist.models.numerics import chi
from dpdist.models.numerics.chi import chi_quantiles

fixed = settings(derandomize=True, deadline=None)
LIMIT = 2e-15


def uniforms(size, block=0):
    return open_uniforms(Key(b"tests/models/test_chi").generator("chi", block=block), (size,))


def error(degrees, u):
    return np.abs(chi_quantiles(degrees, u) / np.sqrt(2.0 * gammaincinv(degrees / 2.0, u)) - 1.0).max()


@settings(fixed, max_examples=200)
@given(st.floats(-1.0, 8.0), st.sampled_from([1, 30, 97, 300, 1000, 5000]), st.integers(0, 1000))
def test_quantiles_are_those_of_the_incomplete_gamma_function_to_double_precision(power, size, block):
    assert error(10.0**power, uniforms(size, block)) < LIMIT


@pytest.mark.parametrize("degrees", [0.5, 3.0, 40.0, 400.0, 4e3, 4e6])
def test_quantiles_of_the_smallest_and_largest_uniforms(degrees):
    ends = [2.0**-54, 1e-12, 1.0 - 2.0**-53, 1.0 - 1e-12]
    assert error(degrees, np.append(uniforms(500), ends)) < LIMIT


def test_a_series_serves_large_degrees_and_none_serves_few(monkeypatch):
    asked = []
    monkeypatch.setattr("scipy.special.gammaincinv", lambda a, u: asked.append(len(u)) or gammaincinv(a, u))
    for degrees in (1000.0, 2.0):
        chi_quantiles(degrees, uniforms(1000))
    assert asked == [chi.NODES // 2, chi.NODES // 2, 1000]


def test_a_series_that_is_cut_short_is_found_out(monkeypatch):
    """Control: without the polynomial of its last term, the same comparison sees it."""
    terms = chi.chebvander
    shorter = terms(np.linspace(-1.0, 1.0, 1000), chi.NODES - 1)
    assert error(500.0, uniforms(1000)) < LIMIT

    def cut(x, degree):
        table = terms(x, degree)
        table[:, 7:] = 0.0
        return table

    monkeypatch.setattr(chi, "chebvander", cut)
    assert shorter.shape == (1000, chi.NODES)
    assert error(500.0, uniforms(1000)) > LIMIT


@pytest.mark.parametrize("degrees", [0.5, 3.0, 40.0, 400.0, 4e6])
def test_levels_serve_any_degrees_as_if_they_were_made_for_these(degrees):
    levels = chi.ChiLevels.of(uniforms(300))
    assert (levels.quantiles(77.0) != levels.quantiles(degrees)).all()
    np.testing.assert_array_equal(levels.quantiles(degrees), chi_quantiles(degrees, uniforms(300)))
