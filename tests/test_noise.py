"""OpenDP's Laplace noise has the scale it states.

|X|/b is standard exponential for Laplace noise of scale b, so 2 Σ|X|/b is χ² with 2n degrees of freedom: exact, no
approximation. OpenDP cannot be seeded, so the test may fail by chance: with probability 1e-9.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpdist.noise import laplace, whole_laplace

SIZE, FALSE_ALARM = 20_000, 1e-9


def consistent(noise: np.ndarray, scale: Fraction) -> bool:
    statistic = 2.0 * np.abs(noise).sum() / float(scale)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 2 * len(noise))
    return bool(low < statistic < high)


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(1, 3), Fraction(10_000)])
def test_noise_has_the_stated_scale_and_no_other(scale: Fraction) -> None:
    noise = laplace(scale, SIZE)
    assert consistent(noise, scale)
    assert not consistent(noise, scale * Fraction(4, 5))
    assert not consistent(noise, scale * Fraction(5, 4))
    assert abs(np.mean(noise > 0) - 0.5) < 6.2 * 0.5 / np.sqrt(SIZE)


def test_two_calls_never_share_a_draw() -> None:
    assert not set(laplace(Fraction(1), 1000)) & set(laplace(Fraction(1), 1000))


def test_a_scale_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        laplace(Fraction(0), 1)


@pytest.mark.parametrize("scale", [Fraction(1, 5), Fraction(2), Fraction(40)])
def test_whole_noise_has_the_stated_law_and_no_other(scale: Fraction) -> None:
    """|η| > 0 has probability 2q/(1 + q), q = e^(−1/b), and |η| − 1 is geometric given that."""
    noise = np.abs(whole_laplace(scale, SIZE))
    np.testing.assert_array_equal(noise, np.round(noise))

    def fits(b: float) -> bool:
        q = np.exp(-1 / b)
        some = int((noise > 0).sum())
        low, high = stats.binom.ppf([FALSE_ALARM / 4, 1 - FALSE_ALARM / 4], SIZE, 2 * q / (1 + q))
        rest = (noise[noise > 0] - 1).sum()
        least, most = stats.nbinom.ppf([FALSE_ALARM / 4, 1 - FALSE_ALARM / 4], some, 1 - q)
        return bool(low <= some <= high and least <= rest <= most)

    assert fits(float(scale))
    assert not fits(0.8 * float(scale))
    assert not fits(1.25 * float(scale))
