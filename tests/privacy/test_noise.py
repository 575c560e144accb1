"""OpenDP's noise has the scale it states, and a release adds it; more on its law in test_sampler_law.

|X|/b is standard exponential for Laplace noise of scale b, so 2 Σ|X|/b is χ² with 2n degrees of freedom: of whole noise,
where b is large, to a good approximation. OpenDP cannot be seeded, so the test may fail by chance: with probability 1e-9.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import dpdist
from dpdist.job import Adjacency
from dpdist.privacy.guarantees import count_scale
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


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(2), Fraction(40), Fraction(2**36) + Fraction(1, 1000)])
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


HISTOGRAM = """
dataset: shares
period: "2021"
input: {path: shares.parquet}
columns: {y: {bounds: [0, 1], outside: clip}}
outcome: y
mechanism: {name: perturbed_histogram, bins: 2500}
budget: {epsilon: "1", adjacency: ADJACENCY}
synthetic_sets: 2
tables: [{name: all, statistics: [count]}]
"""


@pytest.mark.parametrize(("adjacency", "scale"), [("zero_out", 2.0), ("substitution", 4.0)])
def test_a_histogram_is_released_with_noise_of_the_scale_that_its_budget_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adjacency: str, scale: float
) -> None:
    """ε = .5 a set: scale 1/ε where a record moves one count, 2/ε where it moves two; controls: half and twice that."""
    monkeypatch.chdir(tmp_path)
    y = np.random.default_rng(5).beta(0.5, 3.0, 300)
    pq.write_table(pa.table({"y": y}), "shares.parquet")
    dpdist.run(dpdist.parse_job(HISTOGRAM.replace("ADJACENCY", adjacency)), "work")
    kept = [np.load(path)["noise"] for path in sorted((tmp_path / "work" / "confidential" / "noise").iterdir())]
    assert [len(noise) for noise in kept] == [2500, 2500]
    noise = np.concatenate(kept)
    assert whole_fits(noise, scale)
    assert not whole_fits(noise, 0.5 * scale)
    assert not whole_fits(noise, 2.0 * scale)


@pytest.mark.parametrize("adjacency", ["zero_out", "substitution"])
def test_counts_under_that_noise_keep_their_promise_on_every_pair_of_neighbours(adjacency: Adjacency) -> None:
    """All files of at most 3 records in 3 bins: the worst log ratio of probabilities is ε; control: half the noise."""
    epsilon = Fraction(1, 2)
    files = [np.bincount(bins, minlength=3) for n in range(4) for bins in itertools.product(range(3), repeat=n)]
    unit = np.eye(3, dtype=int)
    if adjacency == "zero_out":
        pairs = [(counts, counts - unit[i]) for counts in files for i in range(3) if counts[i]]
    else:
        pairs = [(c, c - unit[i] + unit[j]) for c in files for i, j in itertools.permutations(range(3), 2) if c[i]]
    seen = np.array(list(itertools.product(range(-2, 6), repeat=3)))

    def worst(scale: float) -> float:
        losses = [np.abs(seen - one).sum(axis=1) - np.abs(seen - other).sum(axis=1) for one, other in pairs]
        return float(np.abs(losses).max()) / scale

    scale = float(count_scale(epsilon, adjacency))
    assert worst(scale) == pytest.approx(float(epsilon), rel=1e-12)
    assert worst(scale / 2.0) > 1.5 * float(epsilon)
