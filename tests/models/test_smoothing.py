"""A histogram's second mode, which the prior of a smooth law does not know."""

import numpy as np
import pytest
import scipy

from dpdist.core.records import Floats
from dpdist.reference import histograms
from dpdist.reference.histograms import Bins, smoothed

SCALE = 3.0
"""Of Laplace noise on a count: one third of ε for a histogram."""
BINS = Bins.within(1.0, 20_000.0)


def mean_of(weights: Floats, seed: int) -> float:
    """Mean weight by the smoothed histogram, bins at their geometric middle."""
    counts = np.bincount(BINS.number(weights), minlength=len(BINS.left)).astype(float)
    noisy = counts + np.random.default_rng(seed).laplace(0.0, SCALE, len(counts))
    share, covariance = smoothed(noisy, float(len(weights)), 2.0 * SCALE**2, BINS)
    assert share.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(covariance.sum(axis=0), 0.0, atol=1e-12)
    return float(share @ np.sqrt(BINS.left * BINS.right))


def two_modes(heavy: float, times: float) -> Floats:
    rng = np.random.default_rng(3)
    apart = np.where(rng.random(4800) < heavy, times, 1.0)
    return np.asarray(20.0 * apart * np.exp(0.1 * rng.standard_normal(4800)))


@pytest.mark.parametrize(("heavy", "times"), [(0.17, 10.0), (0.10, 20.0)])
def test_a_second_mode_stays(heavy: float, times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strata with other weights. Control: without the noisy counts of unexplained bins it is a tenth off or more."""
    weights = two_modes(heavy, times)
    off = [abs(mean_of(weights, seed) / weights.mean() - 1.0) for seed in range(10)]
    assert np.median(off) < 0.05
    monkeypatch.setattr(histograms, "_as_counted", lambda *fit: fit[3:])
    assert np.median([abs(mean_of(weights, seed) / weights.mean() - 1.0) for seed in range(10)]) > 0.08


def test_a_tail_that_ends_is_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that spread below and end above, as after trimming: the mean is 2 % too large in the median draw. Control:
    a prior that knows little but lognormal laws makes a tail of its own, and the mean 5 % too large."""
    rng = np.random.default_rng(7)
    weights = 400.0 * rng.beta(2.5, 1.5, 5000) + 1.0
    counts, scale = np.bincount(BINS.number(weights), minlength=len(BINS.left)).astype(float), 12.0
    at = np.sqrt(BINS.left * BINS.right)

    def off() -> Floats:
        noisy = [counts + np.random.default_rng(seed).laplace(0.0, scale, len(counts)) for seed in range(10)]
        return np.array(
            [smoothed(each, 5000.0, 2.0 * scale**2, BINS)[0] @ at / (counts @ at / 5000.0) - 1.0 for each in noisy]
        )

    assert np.median(off()) < 0.03
    monkeypatch.setattr(histograms, "ROUGHNESS", (0.002, 0.01))
    assert np.median(off()) > 0.045


def test_bins_without_records_do_not_flatten_a_smooth_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected counts of lognormal incomes, far above most bins. Tails had up to twice their records, and the middle .97.

    Control: a prior that holds log shares within 10 of their mean.
    """
    bins, n = Bins.within(0.0, 1e6), 2400.0
    expected = n * np.diff(scipy.stats.norm.cdf((np.log(np.append(bins.left, 1e6).clip(1e-9)) - np.log(50_000.0)) / 0.8))

    def ratio() -> Floats:
        share, _ = smoothed(np.rint(expected), n, 2.0 * 8.0**2, bins)
        sought = (expected > 5.0) & (expected < 100.0)
        return n * share[sought] / expected[sought]

    assert np.abs(ratio() - 1.0).max() < 0.05
    monkeypatch.setattr(histograms, "WIDTH", 10.0)
    assert ratio().max() > 1.1


def test_what_the_fit_explains_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.exp(3.0 + 0.8 * np.random.default_rng(4).standard_normal(2000))
    found = [mean_of(weights, seed) for seed in range(5)]
    monkeypatch.setattr(histograms, "_as_counted", lambda *fit: fit[3:])
    assert found == [mean_of(weights, seed) for seed in range(5)]


def test_noise_alone_is_no_second_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """One noisy count far out, 8 deviations of its noise away, as one of some thousand histograms has: taken for a mode it
    would move the mean by a half. Control: a chance of one in ten takes it."""
    weights = np.exp(3.0 + 0.8 * np.random.default_rng(4).standard_normal(2000))
    counts = np.bincount(BINS.number(weights), minlength=len(BINS.left)).astype(float)
    counts[-12] += 8.0 * np.sqrt(2.0) * SCALE
    at = np.sqrt(BINS.left * BINS.right)
    share, _ = smoothed(counts, 2000.0, 2.0 * SCALE**2, BINS)
    assert abs(float(share @ at) / weights.mean() - 1.0) < 0.1
    monkeypatch.setattr(histograms, "ALARM", 0.1)
    share, _ = smoothed(counts, 2000.0, 2.0 * SCALE**2, BINS)
    assert float(share @ at) / weights.mean() > 1.4


@pytest.mark.parametrize(("wall", "atoms"), [("BENT", (False, False)), ("JUMP", (False, True))])
def test_bins_beyond_all_records_stay_empty(wall: str, atoms: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of a Pareto law under a bound that is dozens of times beyond them: the mean stays within a fifth, whatever
    the noise of 20 draws is. Control: a tail that may bend upwards, or a bound's own bin, takes noise for the heaviest."""
    bins, weights = Bins.within(1.0, 20_000.0, atoms=atoms), 5.0 * (1.0 + np.random.default_rng(5).pareto(2.2, 2000))
    counts = np.bincount(bins.number(weights), minlength=len(bins.left)).astype(float)
    at = np.sqrt(bins.left * bins.right)

    def farthest() -> float:
        rng = np.random.default_rng(6)
        noisy = [counts + rng.laplace(0.0, SCALE, len(counts)) for _ in range(20)]
        return max(
            abs(float(smoothed(each, 2000.0, 2.0 * SCALE**2, bins)[0] @ at / (counts @ at / 2000.0)) - 1.0)
            for each in noisy
        )

    assert farthest() < 0.2
    monkeypatch.setattr(histograms, wall, 1e9)
    assert farthest() > 2.0


def test_last_digits_of_noisy_counts_stay_last_digits() -> None:
    """A processor's arithmetic gives one more or less. A fit that ends early, or solves normal equations, has them in the
    ninth digit. Control: a tenth of a record more in one bin moves the shares."""
    counts = np.zeros(len(BINS.left))
    counts[-10:] = [6.0, 11.0, 35.0, 41.0, 39.0, 16.0, 3.0, 0.0, 0.0, 0.0]
    counts[[3, 18, 20]] = [-1.0, -1.0, 1.0]
    share, covariance = smoothed(counts, 150.0, 0.18, BINS)
    rng, moved = np.random.default_rng(5), counts.copy()
    for _ in range(5):
        digits = counts * (1.0 + 1e-15 * rng.choice([-1.0, 0.0, 1.0], len(counts)))
        other, error = smoothed(digits, 150.0, 0.18, BINS)
        np.testing.assert_allclose(other, share, rtol=1e-11, atol=1e-30)
        np.testing.assert_allclose(np.diag(error), np.diag(covariance), rtol=1e-10)
    moved[-8] += 0.1
    assert np.abs(smoothed(moved, 150.0, 0.18, BINS)[0] / share - 1.0).max() > 1e-4


@pytest.mark.parametrize("bins", [1, 2, 3, 8])
@pytest.mark.parametrize("noisy", [-1e6, 0.0, 1e6])
def test_a_histogram_of_few_bins_ends_whatever_its_noise(bins: int, noisy: float) -> None:
    few = Bins(BINS.left[-bins:], BINS.right[-bins:])
    for counts in (np.full(bins, noisy), noisy * (np.arange(bins) % 2)):
        share, covariance = smoothed(counts, 600.0, 800.0, few)
        assert share.sum() == pytest.approx(1.0)
        assert (share >= 0.0).all()
        assert np.isfinite(covariance).all()
