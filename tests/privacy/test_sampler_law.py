"""The law of the noise that is added, in the shapes of OpenDP's tests of its samplers (samplers/cks20/test/symmetric.rs).

Five questions to SIZE draws of every law and scale: do bins have their shares (χ²), is the spread that of the law, do
neighbouring whole numbers have the law's ratio, are both signs equally likely, and do the tails hold what they should.
Binomial answers are exact, corrected for their number (Bonferroni); the other two are good approximations.
OpenDP cannot be seeded: each answer is wrong by chance with a probability of 1e-8, all 60 together with less than 1e-6.
Scales that are no dyadic fractions are among them: OpenDP up to 0.14.1 drew other noise there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import ArrayLike
from packaging.requirements import Requirement
from scipy import stats

from dpdist.core.records import Floats, Ints
from dpdist.privacy.noise import whole_gaussian, whole_laplace

OWN_NOISE = True

SIZE, FALSE_ALARM = 30_000, 1e-8
SCALES = [Fraction(1, 2), Fraction(3, 2), Fraction(3), Fraction(10, 3), Fraction(np.nextafter(3.0, 4.0)), Fraction(40)]
DRAWS: dict[str, Callable[[Fraction, int], Floats]] = {"laplace": whole_laplace, "gaussian": whole_gaussian}
FEWEST = 50
"""Draws that a bin is to have, in the mean."""


class Law(NamedTuple):
    """Whole numbers and their probabilities, (number,) each, as written down."""

    at: Floats
    share: Floats

    @classmethod
    def of(cls, name: str, scale: float) -> Law:
        at = np.arange(-np.ceil(60 * scale), np.ceil(60 * scale) + 1)
        density = np.exp(-np.abs(at) / scale) if name == "laplace" else np.exp(-(at**2) / (2 * scale**2))
        return cls(at, density / density.sum())

    def within(self, most: float) -> float:
        """Probability of |η| ≤ most."""
        return float(self.share[np.abs(self.at) <= most].sum())

    def passed(self, share: float) -> int:
        """The largest k that |η| passes with at least this probability."""
        inside = np.bincount(np.abs(self.at).astype(int), weights=self.share).cumsum()
        beyond = 1.0 - inside[: int(10 * self.at[-1] / 60)]
        return int(np.flatnonzero(beyond >= share)[-1])

    def farthest(self, draws: int) -> int:
        """The largest k that at least FEWEST of so many draws have, in the mean."""
        return int(self.at[self.share * draws >= FEWEST].max())


def unlikely(count: ArrayLike, of: ArrayLike, share: ArrayLike) -> float:
    """Two-sided probability that any of some binomial counts is as far out as the farthest (Bonferroni)."""
    low, high = stats.binom.cdf(count, of, share), stats.binom.sf(np.subtract(count, 1), of, share)
    return float(np.size(low) * np.minimum(1.0, 2.0 * np.minimum(low, high)).min())


def inner(noise: Floats, law: Law) -> tuple[Ints, Floats]:
    """How many are -k, …, k, and their shares, (2 k + 1,), for the farthest k."""
    k = law.farthest(len(noise))
    seen = np.bincount((noise[np.abs(noise) <= k] + k).astype(np.int64), minlength=2 * k + 1)
    return seen, law.share[np.abs(law.at) <= k]


def bins(noise: Floats, law: Law) -> float:
    k, (own, of_law) = law.farthest(len(noise)), inner(noise, law)
    share = np.array([law.share[law.at < -k].sum(), *of_law, law.share[law.at > k].sum()])
    seen = np.array([(noise < -k).sum(), *own, (noise > k).sum()])
    expected = len(noise) * share
    return float(stats.chi2.sf(((seen - expected) ** 2 / expected).sum(), len(share) - 1))


def spread(noise: Floats, law: Law) -> float:
    """Of Σ|η| and of Ση²."""
    found = []
    for power in (1, 2):
        mean, square = (float(law.share @ np.abs(law.at) ** (power * n)) for n in (1, 2))
        z = ((np.abs(noise) ** power).mean() - mean) / np.sqrt((square - mean**2) / len(noise))
        found.append(2.0 * float(stats.norm.sf(abs(z))))
    return 2 * min(found)


def neighbours(noise: Floats, law: Law) -> float:
    """Of those that are k or k + 1, how many are k: p(k)/p(k + 1) is what privacy stands on."""
    seen, share = inner(noise, law)
    return unlikely(seen[:-1], seen[:-1] + seen[1:], share[:-1] / (share[:-1] + share[1:]))


def symmetry(noise: Floats, law: Law) -> float:
    """Of those of size k, and of all that are not 0, how many are above."""
    seen, _ = inner(noise, law)
    above, below = np.split(np.delete(seen, len(seen) // 2), 2)[::-1]
    above, below = np.append(above, (noise > 0).sum()), np.append(below[::-1], (noise < 0).sum())
    return unlikely(above, above + below, 0.5)


def tails(noise: Floats, law: Law) -> float:
    """How many lie farther out than what one in 100, 1,000, 10,000 and 100,000 should pass."""
    places = [law.passed(share) for share in (1e-2, 1e-3, 1e-4, 1e-5)]
    return unlikely([(np.abs(noise) > k).sum() for k in places], len(noise), [1.0 - law.within(k) for k in places])


QUESTIONS = {question.__name__: question for question in (bins, spread, neighbours, symmetry, tails)}


def failing(noise: Floats, law: Law) -> set[str]:
    """The questions that noise of this law would fail with a probability of FALSE_ALARM each."""
    return {name for name, question in QUESTIONS.items() if question(noise, law) < FALSE_ALARM}


@pytest.mark.quick
@pytest.mark.parametrize("scale", SCALES, ids=lambda scale: f"{float(scale)!r}")
@pytest.mark.parametrize("name", DRAWS)
def test_noise_has_its_law(name: str, scale: Fraction) -> None:
    noise, law = DRAWS[name](scale, SIZE), Law.of(name, float(scale))
    np.testing.assert_array_equal(noise, np.round(noise))
    assert failing(noise, law) == set()
    for other in (1.1, 0.9):
        assert spread(noise, Law.of(name, other * float(scale))) < FALSE_ALARM, "control: a law 10 % wider, or narrower"


def drawn(name: str, scale: float) -> Floats:
    """NumPy's draws of the law, by its probabilities."""
    law = Law.of(name, scale)
    return np.random.default_rng(7).choice(law.at, SIZE, p=law.share)


def rounded(name: str, scale: float) -> Floats:
    """The continuous law, rounded: ten times as many draws, as it is nearer to the law than other errors are."""
    rng = np.random.default_rng(8)
    return np.rint(rng.laplace(0.0, scale, 10 * SIZE) if name == "laplace" else rng.normal(0.0, scale, 10 * SIZE))


def biased(name: str, scale: float) -> Floats:
    """One in 20 of the negative ones has its sign turned."""
    noise = drawn(name, scale)
    return np.where((noise < 0) & (np.random.default_rng(9).random(SIZE) < 0.05), -noise, noise)


def cut(name: str, scale: float) -> Floats:
    """Nothing beyond what one in 1,000 draws should pass: ends that tell a record for certain."""
    far = Law.of(name, scale).passed(1e-3)
    return np.clip(drawn(name, scale), -far, far)


def even(name: str, scale: float) -> Floats:
    """Low bits lost: a pair of neighbours has one value."""
    return 2.0 * np.floor(drawn(name, scale) / 2.0) + (np.random.default_rng(10).random(SIZE) < 0.4)


CONTROLS: list[tuple[Callable[[str, float], Floats], str]] = [
    (biased, "symmetry"),
    (cut, "tails"),
    (even, "neighbours"),
    (lambda name, scale: drawn(name, 1.05 * scale), "spread"),
    (lambda name, scale: drawn(name, 0.95 * scale), "spread"),
    (lambda name, scale: drawn(name, 1.1 * scale), "bins"),
    (lambda name, scale: drawn(name, 0.9 * scale), "bins"),
]


@pytest.mark.parametrize("scale", [1.5, 10 / 3])
@pytest.mark.parametrize("name", DRAWS)
def test_noise_of_another_law_is_caught_by_the_question_that_is_meant_for_it(name: str, scale: float) -> None:
    """And noise of the law by none of them."""
    law = Law.of(name, scale)
    assert failing(drawn(name, scale), law) == set()
    for wrong, question in CONTROLS:
        assert question in failing(wrong(name, scale), law), question


@pytest.mark.parametrize(("name", "scale"), [("laplace", 1.5), ("laplace", 10 / 3), ("gaussian", 1.5)])
def test_a_rounded_continuous_law_is_caught(name: str, scale: float) -> None:
    """Its variance is 1/12 larger: for σ = 10/3 that is .7 %, which would take still more draws to tell."""
    assert failing(rounded(name, scale), Law.of(name, scale)) != set()


def test_the_library_is_one_that_draws_this_law() -> None:
    """No release before 0.16 may be installed beside this package."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (needed,) = [Requirement(one) for one in project["dependencies"] if one.startswith("opendp")]
    assert not any(old in needed.specifier for old in ("0.13.0", "0.14.1", "0.15.0"))
    assert version("opendp") in needed.specifier
