"""Known laws from which simulated confidential data are drawn: their means and quantiles are the truth.

Laws with predictors replace the surveys of [G] §5, [V] §5 and [V], Appendix 2, which are not part of this project. They
have approximately the printed figures of a paper, such as the mean. The part of the spread that a predictor explains is
a choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats
from dpdist.quality.microdata import QUANTILES

GeneratorName = Literal["beta", "poisson", "negative_binomial_mixture", "salaries", "counts"]


class SampleOutcomes(NamedTuple):
    """Outcomes, (record,), and codes of the predictors, (record,) each."""

    outcome: Floats
    codes: Mapping[str, Codes]


class Generator(ABC):
    """A law of one outcome, given public predictors or none."""

    unit: float = 1.0
    """The unit of location figures, such as a dollar."""
    levels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Levels of the predictors."""

    @property
    @abstractmethod
    def text(self) -> str: ...

    @property
    def bounds(self) -> tuple[float, float]:
        """Public bounds, as a job states them; here those of counts."""
        return 0.0, 1e9

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> SampleOutcomes:
        """n independent records."""

    @abstractmethod
    def truth(self) -> dict[str, float]:
        """Mean and `QUANTILES` of the law, in its unit."""


@dataclass(frozen=True)
class BetaOutcomes(Generator):
    """Shares, right-skewed for small a ([G]: a = .5, b = 3)."""

    a: float
    b: float

    def __post_init__(self) -> None:
        check({"a": self.a, "b": self.b}, {})

    @property
    def text(self) -> str:
        return f"Beta({self.a:g}, {self.b:g})"

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, 1.0

    def sample(self, n: int, rng: np.random.Generator) -> SampleOutcomes:
        return SampleOutcomes(np.clip(rng.beta(self.a, self.b, n), 1e-300, 1.0 - 2.0**-53), {})

    def truth(self) -> dict[str, float]:
        return _figures(scipy.stats.beta(self.a, self.b))


@dataclass(frozen=True)
class PoissonOutcomes(Generator):
    """Counts ([V] §3.1: mean 100)."""

    mean: float

    def __post_init__(self) -> None:
        check({"mean": self.mean}, {})

    @property
    def text(self) -> str:
        return f"Poisson({self.mean:g})"

    def sample(self, n: int, rng: np.random.Generator) -> SampleOutcomes:
        return SampleOutcomes(rng.poisson(self.mean, n).astype(float), {})

    def truth(self) -> dict[str, float]:
        return _figures(scipy.stats.poisson(self.mean))


@dataclass(frozen=True)
class MixedCounts(Generator):
    """NB(mean, dispersion_1) with probability share_1, else NB(mean, dispersion_2); variance mean + mean²/φ ([V] §3.2)."""

    mean: float
    dispersion_1: float
    dispersion_2: float
    share_1: float

    def __post_init__(self) -> None:
        positive = {"mean": self.mean, "dispersion_1": self.dispersion_1, "dispersion_2": self.dispersion_2}
        check(positive, {"share_1": self.share_1})

    @property
    def text(self) -> str:
        first, second = (f"NB(μ={self.mean:g}, φ={phi:g})" for phi in (self.dispersion_1, self.dispersion_2))
        return f"{self.share_1:g}·{first} + {1.0 - self.share_1:g}·{second}"

    def sample(self, n: int, rng: np.random.Generator) -> SampleOutcomes:
        dispersion = np.where(rng.random(n) < self.share_1, self.dispersion_1, self.dispersion_2)
        return SampleOutcomes(rng.poisson(self.mean * rng.gamma(dispersion) / dispersion).astype(float), {})

    def truth(self) -> dict[str, float]:
        parts = [
            (share, scipy.stats.nbinom(phi, phi / (phi + self.mean)))
            for share, phi in ((self.share_1, self.dispersion_1), (1.0 - self.share_1, self.dispersion_2))
        ]
        counts = np.arange(int(max(part.ppf(0.9999) for _, part in parts)))
        below = sum(share * part.cdf(counts) for share, part in parts)
        return {"mean": self.mean} | {name: float(counts[np.searchsorted(below, p)]) for name, p in QUANTILES.items()}


def _figures(law: Any) -> dict[str, float]:
    return {"mean": float(law.mean())} | {name: float(law.ppf(p)) for name, p in QUANTILES.items()}


SEXES = ("male", "female")
AGES = ("under 30", "30-34", "35-39", "40-44", "45-49", "50-54", "55-59", "60-64", "65 and over")
WEEKS = ("2-26", "27-39", "40-51", "52")
SHARES: Mapping[str, Floats] = {
    "sex": np.array([0.7, 0.3]),
    "age": np.array([0.02, 0.12, 0.16, 0.16, 0.14, 0.13, 0.12, 0.09, 0.06]),
    "weeks": np.array([0.03, 0.1, 0.12, 0.75]),
}
"""Shares of the levels, which are independent of each other."""


def check(positive: Mapping[str, float], shares: Mapping[str, float]) -> None:
    for name, value in positive.items():
        if value <= 0.0:
            raise ValueError(f"{name} must be greater than 0")
    for name, value in shares.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must lie between 0 and 1")


@dataclass(frozen=True)
class Salaries(Generator):
    """Yearly salaries in thousands, rounded, given sex, age and weeks worked; the outcome's unit is `unit` dollars.

    Log salaries have standard deviation `spread`. Women earn exp(−sex) of men's salaries. The oldest earn exp(age)
    times the youngest ones' salary. Work of under 27 weeks earns exp(−weeks) times a whole year's. The remaining
    variation is normal. Salaries are at most `bound`; with `unit` of this size, the outcome is a share inside (0, 1).
    """

    levels: ClassVar[Mapping[str, tuple[str, ...]]] = {"sex": SEXES, "age": AGES, "weeks": WEEKS}
    median: float
    spread: float
    sex: float
    age: float
    weeks: float
    bound: float
    unit: float

    def __post_init__(self) -> None:
        check({"median": self.median, "spread": self.spread, "bound": self.bound, "unit": self.unit}, {})
        if self._residual() <= 0.0:
            raise ValueError("sex, age and weeks explain more than the spread: make spread larger, or an effect smaller")

    @property
    def text(self) -> str:
        law = f"median near {self.median:,.0f}, sd of logarithms {self.spread:g}"
        return f"salaries by sex, age and weeks ({law}), in units of {self.unit:,.0f} dollars"

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, self.bound / self.unit

    def sample(self, n: int, rng: np.random.Generator) -> SampleOutcomes:
        codes = _codes(self.levels, n, rng)
        location = sum((self._effects()[name][code] for name, code in codes.items()), np.full(n, np.log(self.median)))
        dollars = 1000.0 * np.round(np.exp(location + self._residual() * rng.standard_normal(n)) / 1000.0)
        inside = 1000.0 if self.unit == self.bound else 0.0
        return SampleOutcomes(np.clip(dollars, inside, self.bound - inside) / self.unit, codes)

    def truth(self) -> dict[str, float]:
        effects, shares = _crossed(self._effects(), self.levels)
        location, sd = np.log(self.median) + effects, self._residual()
        mean = float(shares @ np.exp(location + sd * sd / 2.0))

        def below(log_value: float) -> float:
            return float(shares @ scipy.stats.norm.cdf((log_value - location) / sd))

        ends = float(location.min() - 8.0 * sd), float(location.max() + 8.0 * sd)
        quantiles = {name: scipy.optimize.brentq(lambda v, p=p: below(v) - p, *ends) for name, p in QUANTILES.items()}
        return {"mean": mean} | {name: float(np.exp(value)) for name, value in quantiles.items()}

    def _effects(self) -> dict[str, Floats]:
        raw = {
            "sex": np.array([0.0, -self.sex]),
            "age": self.age * np.linspace(0.0, 1.0, len(AGES)),
            "weeks": self.weeks * np.array([-1.0, -0.6, -0.2, 0.0]),
        }
        return {name: effect - SHARES[name] @ effect for name, effect in raw.items()}

    def _residual(self) -> float:
        explained = sum(float(SHARES[name] @ effect**2) for name, effect in self._effects().items())
        return float(np.sqrt(max(0.0, self.spread**2 - explained)))


@dataclass(frozen=True)
class CountOutcomes(Generator):
    """Poisson counts with log means linear in sex and age; `mean` is the mean of all."""

    levels: ClassVar[Mapping[str, tuple[str, ...]]] = {"sex": SEXES, "age": AGES}
    mean: float
    sex: float
    age: float

    def __post_init__(self) -> None:
        check({"mean": self.mean}, {})

    @property
    def text(self) -> str:
        return f"Poisson counts by sex and age, mean {self.mean:g}"

    def sample(self, n: int, rng: np.random.Generator) -> SampleOutcomes:
        codes = _codes(self.levels, n, rng)
        location = sum((self._effects()[name][code] for name, code in codes.items()), np.zeros(n))
        return SampleOutcomes(rng.poisson(self._level() * np.exp(location)).astype(float), codes)

    def truth(self) -> dict[str, float]:
        effects, shares = _crossed(self._effects(), self.levels)
        rate = self._level() * np.exp(effects)
        counts = np.arange(int(scipy.stats.poisson.ppf(0.9999, rate.max())) + 1)
        below = shares @ scipy.stats.poisson.cdf(counts, rate[:, None])
        return {"mean": self.mean} | {name: float(counts[np.searchsorted(below, p)]) for name, p in QUANTILES.items()}

    def _level(self) -> float:
        effects, shares = _crossed(self._effects(), self.levels)
        return self.mean / float(shares @ np.exp(effects))

    def _effects(self) -> dict[str, Floats]:
        return {"sex": np.array([0.0, -self.sex]), "age": self.age * np.linspace(0.0, 1.0, len(AGES))}


def _codes(levels: Mapping[str, tuple[str, ...]], n: int, rng: np.random.Generator) -> dict[str, Codes]:
    return {name: rng.choice(len(texts), n, p=SHARES[name]).astype(np.int32) for name, texts in levels.items()}


def _crossed(effects: Mapping[str, Floats], levels: Mapping[str, tuple[str, ...]]) -> tuple[Floats, Floats]:
    """Summed effects of all combinations, (combination,), and their shares, (combination,)."""
    total, share = np.zeros(1), np.ones(1)
    for name in levels:
        total = np.add.outer(total, effects[name]).reshape(-1)
        share = np.multiply.outer(share, SHARES[name]).reshape(-1)
    return total, share


GENERATORS: Mapping[GeneratorName, type[Generator]] = {
    "beta": BetaOutcomes,
    "poisson": PoissonOutcomes,
    "negative_binomial_mixture": MixedCounts,
    "salaries": Salaries,
    "counts": CountOutcomes,
}
