"""Converts between ρ-zCDP (zero-concentrated differential privacy) and (ε, δ) (Bun & Steinke 2016; Canonne et al. 2020).

ρ-zCDP means that the Rényi divergence of order α between the outputs under neighbouring files is at most αρ, for every
α > 1. For each α this implies (ε, δ)-differential privacy with

    ε = αρ + ln(1 − 1/α) + (ln(1/δ) − ln α)/(α − 1)

(Canonne, Kamath & Steinke 2020, proposition 12). At the best α it is smaller than Bun & Steinke's ρ + 2√(ρ ln(1/δ)). It
holds for every α, so the search for the best one need not be exact. Results are rounded outward by more than the rounding
error.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import ceil, exp, floor, log, log1p, log10, sqrt

DIGITS = 9
SECTIONS, WIDTH = 120, 8.0
"""Number of steps of a golden section search over log(α − 1), and how far it searches on each side of a guess."""


@lru_cache(maxsize=256)
def epsilon_of(rho: Fraction, delta: Fraction) -> Fraction:
    """An ε for which ρ-zCDP implies (ε, δ)-differential privacy, rounded up."""
    loss = -log(float(delta))
    least = _least(lambda a: (1.0 + a) * float(rho) + _rest(a, loss), sqrt(loss / float(rho)))
    return _rounded(max(least, 1e-9), up=True)


@lru_cache(maxsize=256)
def rho_of(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The largest ρ for which ρ-zCDP is shown to imply (ε, δ)-differential privacy, rounded down."""
    loss = -log(float(delta))
    plain = sqrt(loss + float(epsilon)) - sqrt(loss)
    most = -_least(lambda a: (_rest(a, loss) - float(epsilon)) / (1.0 + a), sqrt(loss) / plain)
    return _rounded(most, up=False)


def _rest(a: float, loss: float) -> float:
    """ln(1 − 1/α) + (ln(1/δ) − ln α)/(α − 1), with a = α − 1 and loss = ln(1/δ)."""
    return log(a) - log1p(a) + (loss - log1p(a)) / a


def _least(of: Callable[[float], float], guess: float) -> float:
    """The least value of a function of a, by golden section search over log a."""
    golden = (sqrt(5.0) - 1.0) / 2.0
    low, high = log(guess) - WIDTH, log(guess) + WIDTH
    for _ in range(SECTIONS):
        one, two = high - golden * (high - low), low + golden * (high - low)
        if of(exp(one)) < of(exp(two)):
            high = two
        else:
            low = one
    return of(exp((low + high) / 2.0))


def _rounded(value: float, up: bool) -> Fraction:
    """Rounds up or down to DIGITS significant digits, by at least one unit of the last digit."""
    unit = Fraction(10) ** (floor(log10(value)) - DIGITS + 1)
    places = Fraction(value) / unit
    return unit * (ceil(places) + 1 if up else floor(places) - 1)
