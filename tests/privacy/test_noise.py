"""OpenDP's noise has the scale it states, and a release adds it; more on its law in test_sampler_law.

|X|/b is standard exponential for Laplace noise of scale b, so 2 Σ|X|/b is χ² with 2n degrees of freedom: of whole noise,
where b is large, to a good approximation. OpenDP cannot be seeded, so the test may fail by chance: with probability 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpdist.engine.protocol import Noise, fresh_noise
from dpdist.privacy.noise import whole_gaussian, whole_laplace

OWN_NOISE = True

SIZE, FALSE_ALARM = 20_000, 1e-9


def consistent(noise: np.ndarray, scale: Fraction) -> bool:
    statistic = 2.0 * np.abs(noise).sum() / float(scale)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 2 * len(noise))
    return bool(low < statistic < high)


def test_whole_noise_of_a_large_scale_does_not_saturate() -> None:
    """2^36 is beyond what 32 bits hold: there all of it would be ±2^31."""
    noise, scale = whole_laplace(Fraction(2**36), SIZE), Fraction(2**36)
    assert consistent(noise, scale)
    assert not consistent(noise, scale * Fraction(4, 5))
    assert not consistent(noise, scale * Fraction(5, 4))
    assert not consistent(np.clip(noise, -(2.0**31), 2.0**31 - 1), scale)


def test_two_calls_never_share_a_draw() -> None:
    assert not set(whole_laplace(Fraction(2**46), 1000)) & set(whole_laplace(Fraction(2**46), 1000))


def test_a_scale_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        whole_laplace(Fraction(0), 1)


def test_what_is_asked_for_is_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Fraction, int]] = []

    def recording(scale: Fraction, size: int) -> np.ndarray:
        asked.append((scale, size))
        return whole_laplace(scale, size)

    monkeypatch.setattr("dpdist.privacy.noise.whole_laplace", recording)
    assert fresh_noise(Noise(Fraction(7, 3), 5, 2)).shape == (5,)
    assert asked == [(Fraction(7, 3), 5)]


def whole_fits(noise: np.ndarray, b: float) -> bool:
    """|η| > 0 has probability 2q/(1 + q), q = e^(−1/b), and |η| − 1 is geometric given that."""
    size, q = np.abs(noise), np.exp(-1 / b)
    some = int((size > 0).sum())
    low, high = stats.binom.ppf([FALSE_ALARM / 4, 1 - FALSE_ALARM / 4], len(size), 2 * q / (1 + q))
    rest = (size[size > 0] - 1).sum()
    least, most = stats.nbinom.ppf([FALSE_ALARM / 4, 1 - FALSE_ALARM / 4], some, 1 - q)
    return bool(low <= some <= high and least <= rest <= most)


@pytest.mark.quick
@pytest.mark.parametrize("scale", [Fraction(1, 5), Fraction(2), Fraction(40)])
def test_whole_noise_has_the_stated_law_and_no_other(scale: Fraction) -> None:
    noise = whole_laplace(scale, SIZE)
    np.testing.assert_array_equal(noise, np.round(noise))
    assert whole_fits(noise, float(scale))
    assert not whole_fits(noise, 0.8 * float(scale))
    assert not whole_fits(noise, 1.25 * float(scale))


@pytest.mark.parametrize("scale", [Fraction(1, 5), Fraction(2), Fraction(40), Fraction(2**20)])
def test_noise_of_a_name_has_that_law_too(scale: Fraction, noise_of: Callable[[str], AbstractContextManager[None]]) -> None:
    """What stands in for OpenDP where a limit is set on errors; under the same name the same, and only within it."""
    drawn = []
    for name in ("one", "one", "other"):
        with noise_of(name):
            drawn.append(whole_laplace(scale, SIZE))
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert not np.array_equal(drawn[0], whole_laplace(scale, SIZE))
    for noise in drawn:
        assert abs(np.sign(noise).mean()) < 6.2 / np.sqrt(SIZE)
        assert whole_fits(noise, float(scale))
        assert not whole_fits(noise, 0.8 * float(scale))
        assert not whole_fits(noise, 1.25 * float(scale))


def gaussian_fits(noise: np.ndarray, sigma: float) -> bool:
    """The shares of 0 and of |η| ≤ σ are binomial; Ση²/σ² is χ² where σ is so large that the lattice does not show."""
    at = np.arange(-np.ceil(12 * sigma), np.ceil(12 * sigma) + 1) if sigma < 1e4 else None
    if at is None:
        low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(noise))
        return bool(low <= ((noise / sigma) ** 2).sum() <= high)
    law = np.exp(-(at**2) / (2 * sigma**2))
    for inside in (at == 0, np.abs(at) <= sigma):
        share = law[inside].sum() / law.sum()
        low, high = stats.binom.ppf([FALSE_ALARM / 4, 1 - FALSE_ALARM / 4], len(noise), share)
        if not low <= np.isin(noise, at[inside]).sum() <= high:
            return False
    return True


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(40), Fraction(2**36) + Fraction(1, 1000)])
def test_whole_gaussian_noise_has_the_stated_law_and_no_other(scale: Fraction) -> None:
    """False alarm 1e-9; controls: a fifth smaller, a quarter larger, and what is drawn at .8 of the scale."""
    noise = whole_gaussian(scale, SIZE)
    np.testing.assert_array_equal(noise, np.round(noise))
    assert gaussian_fits(noise, float(scale))
    assert not gaussian_fits(noise, 0.8 * float(scale))
    assert not gaussian_fits(noise, 1.25 * float(scale))
    assert not gaussian_fits(whole_gaussian(scale * Fraction(4, 5), SIZE), float(scale))
    with pytest.raises(ValueError, match="greater than 0"):
        whole_gaussian(Fraction(0), 1)
