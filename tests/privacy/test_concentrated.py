"""zCDP: the (ε, δ) it gives, and how it composes."""

from __future__ import annotations

from decimal import Decimal, getcontext
from fractions import Fraction
from math import exp, log, sqrt

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given, settings, strategies as st

from dpdist.job import epsilon_of, rho_of
from dpdist.privacy.guarantees import Asymptotic, Concentrated, Strict

OWN_NOISE = True

RHOS = ("1/1000", "1/8", "1", "20", "400")
DELTAS = ("1e-6", "1e-12", "0.001")
fixed = settings(derandomize=True, deadline=None, max_examples=30)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", RHOS)
def test_the_conversion_is_that_of_opendp_and_below_the_plain_one(rho: str, delta: str) -> None:
    """OpenDP's is within 1e-6 of it, and never above; Bun & Steinke's ρ + 2√(ρ ln(1/δ)) is larger."""
    said, at = Fraction(rho), Fraction(delta)
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    noise = dp.m.make_gaussian(*space, scale=float(np.nextafter(sqrt(1.0 / (2.0 * float(said))), np.inf)))
    known = dp.c.make_zCDP_to_approxDP(noise).map(1).epsilon(delta=float(at))
    found = float(epsilon_of(said, at))
    assert found == pytest.approx(known, rel=1e-6)
    assert found >= known * (1.0 - 1e-12)
    assert found < float(said) + 2.0 * sqrt(float(said) * -log(float(at)))


@fixed
@given(st.fractions(Fraction(1, 10**4), 100), st.fractions(Fraction(1, 10**12), Fraction(1, 100)))
def test_rho_of_an_epsilon_never_costs_more_than_it(epsilon: Fraction, delta: Fraction) -> None:
    """In 40 digits, at some order α; control: at no order with a millionth more."""
    rho = rho_of(epsilon, delta)
    getcontext().prec = 40
    stated = Decimal(epsilon.numerator) / Decimal(epsilon.denominator)
    assert _least(rho, delta) <= stated
    assert _least(rho * Fraction(10**6 + 1, 10**6), delta) > stated
    assert epsilon_of(rho, delta) >= _least(rho, delta)


def _least(rho: Fraction, delta: Fraction) -> Decimal:
    """The least ε over orders 1 + e^t, by thirds."""
    middle = Decimal(log(sqrt(-log(float(delta)) / float(rho))))
    low, high = middle - 8, middle + 8
    for _ in range(100):
        one, two = low + (high - low) / 3, high - (high - low) / 3
        if _at(rho, delta, 1 + one.exp()) < _at(rho, delta, 1 + two.exp()):
            high = two
        else:
            low = one
    return _at(rho, delta, 1 + low.exp())


def _at(rho: Fraction, delta: Fraction, alpha: Decimal) -> Decimal:
    said, at = (Decimal(each.numerator) / Decimal(each.denominator) for each in (rho, delta))
    return alpha * said + (1 - 1 / alpha).ln() + ((1 / at).ln() - alpha.ln()) / (alpha - 1)


def exact_delta(sigma: float, shift: int, epsilon: float) -> float:
    """δ of discrete Gaussian noise between whole sums that differ by `shift`: Σ max(0, P(k) − e^ε P(k − shift))."""
    at = np.arange(-int(14 * sigma), int(14 * sigma) + 1, dtype=float)
    total = np.exp(-(at**2) / (2 * sigma**2)).sum()
    one, other = (np.exp(-((at - move) ** 2) / (2 * sigma**2)) / total for move in (0, shift))
    return float(np.maximum(other - exp(epsilon) * one, 0.0).sum())


@pytest.mark.parametrize(("epsilon", "delta"), [("1", "1e-6"), ("3", "1e-9"), ("1/10", "1e-5")])
def test_discrete_noise_of_that_scale_keeps_epsilon_and_delta(epsilon: str, delta: str) -> None:
    """Exactly, for sums that differ by their whole sensitivity of 50; control: noise a fifth too small does not."""
    sigma = 50.0 / sqrt(2.0 * float(rho_of(Fraction(epsilon), Fraction(delta))))
    assert exact_delta(sigma, 50, float(Fraction(epsilon))) <= float(Fraction(delta))
    assert exact_delta(0.8 * sigma, 50, float(Fraction(epsilon))) > float(Fraction(delta))


def told(rho: str, adjacency: str = "zero_out", delta: str = "1e-6", exchange: int = 4) -> Concentrated:
    at = Fraction(delta)
    return Concentrated(adjacency, epsilon_of(Fraction(rho), at), Fraction(rho), at, Fraction(exchange))  # type: ignore[arg-type]


def test_rho_adds_up_and_epsilon_follows() -> None:
    both = told("1/8") + told("1/4", exchange=3)
    assert (both.rho, both.epsilon) == (Fraction(3, 8), epsilon_of(Fraction(3, 8), Fraction("1e-6")))
    assert both.substitution_rho == Fraction(4, 8) + Fraction(3, 4)
    assert both.epsilon < told("1/8").epsilon + told("1/4").epsilon
    assert told("1/8").sets(3).rho == Fraction(3, 8)
    assert told("1/8").sets(1) == told("1/8")
    assert told("1/8", "substitution").substitution_rho == Fraction(1, 8)
    assert told("1/8").substitution_epsilon == epsilon_of(Fraction(1, 2), Fraction("1e-6"))


def test_it_is_no_pure_epsilon_and_adds_to_none() -> None:
    one, pure = told("1/8"), Strict("zero_out", Fraction(1))
    for other in (pure, Asymptotic("zero_out", Fraction(1))):
        with pytest.raises(TypeError, match="cannot be added"):
            one + other
        with pytest.raises(TypeError, match="cannot be added"):
            other + one
    with pytest.raises(ValueError, match="different adjacencies"):
        one + told("1/8", "substitution")
    with pytest.raises(ValueError, match="state both at"):
        one + told("1/8", delta="1e-7")
