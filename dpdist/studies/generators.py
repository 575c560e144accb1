"""Simulates confidential data from a known law, and computes that law's mean and quantiles as the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.evaluation.utility import QUANTILES
from dpdist.studies.laws_with_predictors import Counts, Salaries, Sampled, check

GeneratorName = Literal["beta", "poisson", "negative_binomial_mixture", "bernoulli", "salaries", "counts"]


class Generator(Protocol):
    """A law of one outcome, such as Beta or Poisson, given public predictors or without any."""

    @property
    def levels(self) -> Mapping[str, tuple[str, ...]]:
        """Levels of each predictor; empty for a law of an outcome alone."""
        ...

    @property
    def unit(self) -> float:
        """What one of the outcome stands for, such as dollars; figures of location are in this unit."""
        ...

    @property
    def text(self) -> str: ...

    @property
    def bounds(self) -> tuple[float, float]:
        """Public bounds of the outcome, as a job would state them."""
        ...

    def sample(self, n: int, rng: np.random.Generator) -> Sampled:
        """n independent records."""
        ...

    def truth(self) -> dict[str, float]:
        """Mean, median, 15th and 90th percentile of the law, in its unit."""
        ...


class OutcomeAlone:
    """A law of an outcome without predictors."""

    levels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    unit: ClassVar[float] = 1.0

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        raise NotImplementedError

    def sample(self, n: int, rng: np.random.Generator) -> Sampled:
        return Sampled(self.draw(n, rng), {})


@dataclass(frozen=True)
class Beta(OutcomeAlone):
    """Shares between 0 and 1, right-skewed for small a ([G]: a = .5, b = 3)."""

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

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return np.clip(rng.beta(self.a, self.b, n), 1e-300, 1.0 - 2.0**-53)

    def truth(self) -> dict[str, float]:
        return _figures(scipy.stats.beta(self.a, self.b))


@dataclass(frozen=True)
class Poisson(OutcomeAlone):
    """Counts, nearly symmetric for a large mean ([V] §3.1: mean 100)."""

    mean: float

    def __post_init__(self) -> None:
        check({"mean": self.mean}, {})

    @property
    def text(self) -> str:
        return f"Poisson({self.mean:g})"

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, 1e9

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return rng.poisson(self.mean, n).astype(float)

    def truth(self) -> dict[str, float]:
        return _figures(scipy.stats.poisson(self.mean))


@dataclass(frozen=True)
class NegativeBinomialMixture(OutcomeAlone):
    """Skewed counts: NB(mean, dispersion_1) with probability share_1, otherwise NB(mean, dispersion_2).

    NB(mean, φ) is the negative binomial law with variance mean + mean²/φ. [V] §3.2 has mean 100, dispersions 5 and 20, and
    shares .2 and .8.
    """

    mean: float
    dispersion_1: float
    dispersion_2: float
    share_1: float

    def __post_init__(self) -> None:
        positive = {"mean": self.mean, "dispersion_1": self.dispersion_1, "dispersion_2": self.dispersion_2}
        check(positive, {"share_1": self.share_1})

    @property
    def text(self) -> str:
        one, two = (f"NB(μ={self.mean:g}, φ={phi:g})" for phi in (self.dispersion_1, self.dispersion_2))
        return f"{self.share_1:g}·{one} + {1.0 - self.share_1:g}·{two}"

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, 1e9

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        dispersion = np.where(rng.random(n) < self.share_1, self.dispersion_1, self.dispersion_2)
        return rng.poisson(self.mean * rng.gamma(dispersion) / dispersion).astype(float)

    def truth(self) -> dict[str, float]:
        parts = [
            (share, scipy.stats.nbinom(phi, phi / (phi + self.mean)))
            for share, phi in ((self.share_1, self.dispersion_1), (1.0 - self.share_1, self.dispersion_2))
        ]
        at = np.arange(int(max(part.ppf(0.9999) for _, part in parts)))
        below = sum(share * part.cdf(at) for share, part in parts)
        return {"mean": self.mean} | {name: float(at[np.searchsorted(below, p)]) for name, p in QUANTILES.items()}


@dataclass(frozen=True)
class Bernoulli(OutcomeAlone):
    """0 or 1."""

    probability: float

    def __post_init__(self) -> None:
        check({}, {"probability": self.probability})

    @property
    def text(self) -> str:
        return f"Bernoulli({self.probability:g})"

    @property
    def bounds(self) -> tuple[float, float]:
        return 0.0, 1.0

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return (rng.random(n) < self.probability).astype(float)

    def truth(self) -> dict[str, float]:
        return _figures(scipy.stats.bernoulli(self.probability))


def _figures(law: Any) -> dict[str, float]:
    return {"mean": float(law.mean())} | {name: float(law.ppf(p)) for name, p in QUANTILES.items()}


GENERATORS: Mapping[GeneratorName, type[Any]] = {
    "beta": Beta,
    "poisson": Poisson,
    "negative_binomial_mixture": NegativeBinomialMixture,
    "bernoulli": Bernoulli,
    "salaries": Salaries,
    "counts": Counts,
}


def generator(name: GeneratorName, parameters: Mapping[str, float]) -> Generator:
    found: Generator = GENERATORS[name](**parameters)
    return found
