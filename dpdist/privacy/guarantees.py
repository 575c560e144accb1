"""Classes of guarantee as types, for mechanisms and `ledger`: adjacency, composition; classes are never added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import add
from typing import ClassVar, Literal, Self

from dpdist.core.cautions import Caution
from dpdist.job import Adjacency, Job, budget_text, epsilon_of

GuaranteeName = Literal["strict", "strict for exact draws", "strict zCDP", "asymptotic", "none"]


@dataclass(frozen=True)
class _Composable:
    """A guarantee whose losses add up over releases of the same class and adjacency."""

    adjacency: Adjacency
    epsilon: Fraction

    def sets(self, number: int) -> Self:
        """Sequential composition over `number` synthetic sets, each with this guarantee."""
        return replace(self, epsilon=self.epsilon * number)

    def __add__(self, other: object) -> Self:
        """Sequential composition. Raises `TypeError` for another class, and `ValueError` for another adjacency."""
        return replace(self, epsilon=self.epsilon + self._alike(other).epsilon)

    def beside(self, other: object) -> Self:
        """Parallel composition over disjoint records whose membership is public: the larger loss.

        Raises the same errors as `+`.
        """
        return replace(self, epsilon=max(self.epsilon, self._alike(other).epsilon))

    def _alike(self, other: object) -> Self:
        if type(other) is not type(self):
            raise TypeError(f"a guarantee of class {type(self).__name__} has no sum with {type(other).__name__}")
        if other.adjacency != self.adjacency:
            raise ValueError(f"{self.adjacency} and {other.adjacency} are different neighbours: state both under one")
        return other

    @property
    def substitution_epsilon(self) -> Fraction:
        """ε for an exchange of a record's outcome and weight at the same x, which is two zero-outs.

        If sizes are secret, any record may replace it.
        """
        return self.epsilon if self.adjacency == "substitution" else 2 * self.epsilon


@dataclass(frozen=True)
class Strict(_Composable):
    """(ε, δ)-differential privacy for every database.

    δ is None if draws are not proven exact, as for Markov chains. A draw within total variation γ of its posterior is
    (ε, (1 + e^ε)γ)-private. If γ is not known for every database, the guarantee is stated for exact draws only.
    """

    delta: Fraction | None = Fraction(0)
    exchange: Fraction = Fraction(2)
    """The ε of an exchange of a record's outcome and weight at the same x, over ε.

    It is 2, for two zero-outs, unless a mechanism's proof gives less. `dpdist.privacy.adjacency` treats records that
    change their cell.
    """

    @property
    def substitution_epsilon(self) -> Fraction:
        return self.epsilon if self.adjacency == "substitution" else self.exchange * self.epsilon

    @property
    def name(self) -> GuaranteeName:
        return "strict" if self.delta is not None else "strict for exact draws"

    def sets(self, number: int) -> Self:
        return replace(super().sets(number), delta=_if_stated(lambda delta: number * delta, self.delta))

    def __add__(self, other: object) -> Self:
        return self._with(other, add, super().__add__(other))

    def beside(self, other: object) -> Self:
        return self._with(other, max, super().beside(other))

    def _with(self, other: object, combine: Callable[..., Fraction], composed: Self) -> Self:
        """The guarantee `composed`, with δ and the ε of substitution combined by `combine`."""
        alike = self._alike(other)
        exchanged = combine(self.substitution_epsilon, alike.substitution_epsilon)
        exchange = exchanged / composed.epsilon if composed.epsilon else composed.exchange
        return replace(composed, delta=_if_stated(combine, self.delta, alike.delta), exchange=exchange)


def _if_stated(combine: Callable[..., Fraction], *deltas: Fraction | None) -> Fraction | None:
    return None if None in deltas else combine(*deltas)


@dataclass(frozen=True)
class Concentrated(_Composable):
    """ρ-zero-concentrated differential privacy for every database (Bun & Steinke 2016). ε is stated at one δ > 0.

    Composition adds ρ, and ε follows from the sum. It cannot be added to a `Strict` guarantee.
    """

    rho: Fraction
    delta: Fraction
    exchange: Fraction = Fraction(4)
    """The ρ of an exchange of a record's outcome and weight at the same x, over ρ.

    It is 4, for two zero-outs, unless a mechanism's proof gives less.
    """
    name: ClassVar[GuaranteeName] = "strict zCDP"

    @property
    def substitution_rho(self) -> Fraction:
        return self.rho if self.adjacency == "substitution" else self.exchange * self.rho

    @property
    def substitution_epsilon(self) -> Fraction:
        return self.epsilon if self.adjacency == "substitution" else epsilon_of(self.substitution_rho, self.delta)

    def sets(self, number: int) -> Self:
        return self if number == 1 else self._converted(number * self.rho, self.exchange)

    def __add__(self, other: object) -> Self:
        return self._with(other, add)

    def beside(self, other: object) -> Self:
        return self._with(other, max)

    def _with(self, other: object, combine: Callable[..., Fraction]) -> Self:
        alike = self._alike(other)
        if alike.delta != self.delta:
            raise ValueError(f"ε is told at δ = {self.delta} and δ = {alike.delta}: tell both at one")
        rho = combine(self.rho, alike.rho)
        return self._converted(rho, combine(self.substitution_rho, alike.substitution_rho) / rho)

    def _converted(self, rho: Fraction, exchange: Fraction) -> Self:
        return replace(self, rho=rho, epsilon=epsilon_of(rho, self.delta), exchange=exchange)


@dataclass(frozen=True)
class Asymptotic(_Composable):
    """(ε, δ)-probabilistic differential privacy, with δ → 0 as n → ∞.
    The bound is the Δ of the observed file ([V], "aDP").

    ε is a target chosen in advance. The observed file meets it; other databases may not.
    """

    name: ClassVar[GuaranteeName] = "asymptotic"


@dataclass(frozen=True)
class NoGuarantee:
    """No guarantee. Such a release is for comparison, not for publication."""

    name: ClassVar[GuaranteeName] = "none"


Guarantee = Strict | Concentrated | Asymptotic | NoGuarantee


@dataclass(frozen=True)
class Promise:
    """What a mechanism promises before it reads a record."""

    total: Guarantee
    per_set: Guarantee
    composition: str
    assumptions: tuple[str, ...]
    target: float | None
    """Δ*: the bound that privacy weights must meet, or that a clamp enforces; None without a guarantee."""
    cautions: tuple[str, ...] = ()
    """Known problems that no figure includes. They are published, and so addressed to users of a release."""


def bound_target(epsilon: Fraction, adjacency: Adjacency) -> float:
    """Δ* for one exact draw at ε. For a clamp it is the half width M.

    Switching record i off changes log p(θ | data) by its log likelihood f_i(θ), less the log of its posterior mean
    likelihood. Both lie within ±Δ, so the change is at most 2Δ. An exchange is two such changes, at most 4Δ. ([G]
    clamps at ε/2 under exchanges too, which costs 2ε.)
    """
    return float(epsilon / (4 if adjacency == "substitution" else 2))


def large_delta(job: Job, records: int | None) -> list[Caution]:
    """A caution about a δ of 1/n or more: publishing one of n records has δ = 1/n. n is None where it is secret."""
    delta = job.budget.delta
    if delta is None or records is None or delta * records < 1:
        return []
    return [Caution.of("large_delta", delta=budget_text(delta), records=records)]


def count_scale(epsilon: Fraction, adjacency: Adjacency) -> Fraction:
    """The scale of discrete Laplace noise on counts of disjoint bins, for ε.

    Switching off or omitting a record changes one count by 1. Exchanging a record changes two counts ([G]).
    """
    return (2 if adjacency == "substitution" else 1) / epsilon


def epsilon_text(guarantee: Guarantee) -> str | None:
    return None if isinstance(guarantee, NoGuarantee) else budget_text(guarantee.epsilon)


def delta_text(guarantee: Guarantee) -> str | None:
    """δ in figures or words; None without a guarantee, or where δ is unknown."""
    if isinstance(guarantee, Strict | Concentrated):
        return None if guarantee.delta is None else budget_text(guarantee.delta)
    return "tends to 0 as the number of records grows" if isinstance(guarantee, Asymptotic) else None
