"""Simulates confidential data from a known law, and computes that law's mean and quantiles as the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.evaluation.utility import QUANTILES

GeneratorName = Literal["beta", "poisson", "negative_binomial_mixture", "bernoulli"]


class Generator(Protocol):
    """A law of one outcome, such as Beta or Poisson."""

    @property
    def text(self) -> str: ...

    @property
    def bounds(self) -> tuple[float, float]:
        """Public bounds of the outcome, as a job would state them."""
        ...

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """n independent records."""
        ...

    def truth(self) -> dict[str, float]:
        """Mean, median, 15th and 90th percentile of the law."""
        ...


def _check(positive: Mapping[str, float], shares: Mapping[str, float]) -> None:
    for name, value in positive.items():
        if value <= 0.0:
            raise ValueError(f"{name} must be greater than 0")
    for name, value in shares.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must lie between 0 and 1")


@dataclass(frozen=True)
class Beta:
    """Shares between 0 and 1, right-skewed for small a ([G]: a = .5, b = 3)."""

    a: float
    b: float

    def __post_init__(self) -> None:
        _check({"a": self.a, "b": self.b}, {})

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
class Poisson:
    """Counts, nearly symmetric for a large mean ([V] §3.1: mean 100)."""

    mean: float

    def __post_init__(self) -> None:
        _check({"mean": self.mean}, {})

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
class NegativeBinomialMixture:
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
        _check(positive, {"share_1": self.share_1})

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
class Bernoulli:
    """0 or 1."""

    probability: float

    def __post_init__(self) -> None:
        _check({}, {"probability": self.probability})

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


GENERATORS: Mapping[GeneratorName, type[Beta] | type[Poisson] | type[NegativeBinomialMixture] | type[Bernoulli]] = {
    "beta": Beta,
    "poisson": Poisson,
    "negative_binomial_mixture": NegativeBinomialMixture,
    "bernoulli": Bernoulli,
}


def generator(name: GeneratorName, parameters: Mapping[str, float]) -> Generator:
    return GENERATORS[name](**parameters)
