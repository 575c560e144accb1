"""OpenDP's noise: scales beyond what 32 bits hold, requests, and what stands in for it; its law is in test_sampler_law.

OpenDP cannot be seeded, so a test of its draws may fail by chance: with probability 1e-8 each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import stats
from test_sampler_law import DRAWS, FALSE_ALARM, SIZE, Law, failing

from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise, fresh_noise
from dpdist.privacy.noise import whole_laplace

OWN_NOISE = True


def has_scale(law: str, noise: Floats, scale: Fraction) -> bool:
    """2 Σ|η|/b is χ² with 2n degrees of freedom, and Ση²/σ² with n, where a large scale hides the lattice."""
    size = np.abs(noise) / float(scale)
    statistic, degrees = (2.0 * size.sum(), 2 * len(noise)) if law == "laplace" else ((size**2).sum(), len(noise))
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], degrees)
    return bool(low < statistic < high)


@pytest.mark.parametrize("law", DRAWS)
def test_whole_noise_of_a_large_scale_does_not_saturate(law: str) -> None:
    """2^36 is beyond what 32 bits hold: there all of it would be ±2^31. Controls: a fifth smaller, a quarter larger."""
    scale = Fraction(2**36) + Fraction(1, 1000)
    noise = DRAWS[law](scale, SIZE)
    np.testing.assert_array_equal(noise, np.round(noise))
    assert has_scale(law, noise, scale)
    assert not has_scale(law, noise, scale * Fraction(4, 5))
    assert not has_scale(law, noise, scale * Fraction(5, 4))
    assert not has_scale(law, np.clip(noise, -(2.0**31), 2.0**31 - 1), scale)


def test_two_calls_never_share_a_draw() -> None:
    assert not set(whole_laplace(Fraction(2**46), 1000)) & set(whole_laplace(Fraction(2**46), 1000))


@pytest.mark.parametrize("law", DRAWS)
def test_a_scale_of_zero_is_refused(law: str) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        DRAWS[law](Fraction(0), 1)


def test_what_is_asked_for_is_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Fraction, int]] = []

    def recording(scale: Fraction, size: int) -> np.ndarray:
        asked.append((scale, size))
        return whole_laplace(scale, size)

    monkeypatch.setattr("dpdist.privacy.noise.whole_laplace", recording)
    assert fresh_noise(Noise(Fraction(7, 3), 5, 2)).shape == (5,)
    assert asked == [(Fraction(7, 3), 5)]


@pytest.mark.parametrize(
    ("law", "scale"),
    [("laplace", Fraction(1, 2)), *product(DRAWS, (Fraction(10, 3), Fraction(2**20)))],
    ids=str,
)
def test_noise_of_a_name_has_that_law_too(
    law: str, scale: Fraction, noise_of: Callable[[str], AbstractContextManager[None]]
) -> None:
    """What stands in for OpenDP where a limit is set on errors; under the same name the same, and only within it."""
    drawn = []
    for name in ("one", "one", "other"):
        with noise_of(name):
            drawn.append(DRAWS[law](scale, SIZE))
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert not np.array_equal(drawn[0], DRAWS[law](scale, SIZE))
    for noise in drawn:
        if scale < 1000:
            assert failing(noise, Law.of(law, float(scale))) == set()
        else:
            assert has_scale(law, noise, scale)
            assert abs(np.sign(noise).mean()) < 6.2 / np.sqrt(SIZE)
