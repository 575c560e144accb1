"""Guarantees as types, never added, and the loss of queries under noise by record and by privacy unit (METHODS §2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import Any, ClassVar, Literal, NamedTuple, Self

from dpdist.core.cautions import Caution
from dpdist.job import Adjacency, Job, NoiseName, budget_text, epsilon_of

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

    def _alike(self, other: object) -> Self:
        if type(other) is not type(self):
            raise TypeError(f"guarantees of class {type(self).__name__} and {type(other).__name__} cannot be added")
        if other.adjacency != self.adjacency:
            raise ValueError(
                f"{self.adjacency} and {other.adjacency} are different adjacencies: state both under the same one"
            )
        return other

    @property
    def substitution_epsilon(self) -> Fraction:
        """ε for an exchange of a record's outcome and weight at the same x, which is two zero-outs.

        If sizes are secret, any record may replace it.
        """
        return self.epsilon if self.adjacency == "substitution" else 2 * self.epsilon

    @property
    def losses(self) -> dict[str, str]:
        """The losses as exact texts, by the names of a statement's entries."""
        return {"epsilon": budget_text(self.epsilon), "substitution_epsilon": budget_text(self.substitution_epsilon)}


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

    @property
    def delta_text(self) -> str | None:
        """δ in figures; None if it is unknown."""
        return None if self.delta is None else budget_text(self.delta)

    def sets(self, number: int) -> Self:
        return replace(super().sets(number), delta=None if self.delta is None else number * self.delta)

    def __add__(self, other: object) -> Self:
        alike = self._alike(other)
        epsilon, exchanged = self.epsilon + alike.epsilon, self.substitution_epsilon + alike.substitution_epsilon
        delta = None if self.delta is None or alike.delta is None else self.delta + alike.delta
        return replace(self, epsilon=epsilon, delta=delta, exchange=exchanged / epsilon if epsilon else self.exchange)


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
    def losses(self) -> dict[str, str]:
        rho = {"rho": budget_text(self.rho), "substitution_rho": budget_text(self.substitution_rho)}
        return super().losses | rho

    @property
    def delta_text(self) -> str:
        return budget_text(self.delta)

    @property
    def substitution_rho(self) -> Fraction:
        return self.rho if self.adjacency == "substitution" else self.exchange * self.rho

    @property
    def substitution_epsilon(self) -> Fraction:
        return self.epsilon if self.adjacency == "substitution" else epsilon_of(self.substitution_rho, self.delta)

    def sets(self, number: int) -> Self:
        return self if number == 1 else self._converted(number * self.rho, self.exchange)

    def __add__(self, other: object) -> Self:
        alike = self._alike(other)
        if alike.delta != self.delta:
            raise ValueError(f"ε is stated at δ = {self.delta} and δ = {alike.delta}: state both at the same δ")
        rho = self.rho + alike.rho
        return self._converted(rho, (self.substitution_rho + alike.substitution_rho) / rho)

    def _converted(self, rho: Fraction, exchange: Fraction) -> Self:
        return replace(self, rho=rho, epsilon=epsilon_of(rho, self.delta), exchange=exchange)


@dataclass(frozen=True)
class Asymptotic(_Composable):
    """(ε, δ)-probabilistic differential privacy, with δ → 0 as n → ∞.
    The bound is the Δ of the observed file ([V], "aDP").

    ε is a target chosen in advance. The observed file meets it; other databases may not.
    """

    name: ClassVar[GuaranteeName] = "asymptotic"
    delta_text: ClassVar[str] = "tends to 0 as the number of records grows"


@dataclass(frozen=True)
class NoGuarantee:
    """No guarantee. Such a release is for comparison, not for publication."""

    name: ClassVar[GuaranteeName] = "none"
    adjacency: ClassVar[None] = None
    delta_text: ClassVar[None] = None
    losses: ClassVar[dict[str, str]] = {}

    def sets(self, number: int) -> Self:
        """Sets without a guarantee have none together."""
        return self


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


# A query gives sums of whole numbers under noise. Neighbouring files move the exact sums by a distance D. Discrete
# Laplace noise of scale b loses ε = D/b, with D in L1. Discrete Gaussian noise loses ρ = D²/2σ², with D in L2. Losses of
# several queries add up, even if earlier answers decide later queries.
#
# At most k records of a unit count, so neighbours differ in at most k records. Mechanisms are calibrated to one record,
# at ε/k or ρ/k². By the triangle inequality k records move sums by at most kD, attained if all move them in one
# direction. So scale kD/ε gives ε, and σ² = (kD)²/2ρ gives ρ. Under a clamp one record's factor lies in [e^−M, e^M], so k
# records lose 2kM, and k exchanged records 4kM. Weights computed from the file have no such bound, so jobs with such
# weights may have no unit.
DIGITS = 1000
"""Gaussian scales are rounded up to multiples of 1/DIGITS."""
Neighbour = Literal["off", "same_x", "anywhere"]
"""How a record of two neighbouring files differs: it is switched off, added or removed; its outcome and weight are
exchanged at the same predictors; or it is exchanged for any other record."""


class Moved(NamedTuple):
    """The largest distance of exact sums between neighbouring files, in the sums' whole units, by kind of neighbour."""

    off: Fraction
    same_x: Fraction
    anywhere: Fraction

    @classmethod
    def of(cls, distance: Fraction | int) -> Moved:
        """Sums that a record moves by `distance` at most, and any exchange by twice as much: it takes one and adds one."""
        return cls(*(Fraction(times * distance) for times in (1, 2, 2)))

    def by(self, neighbour: Neighbour) -> Fraction:
        distance: Fraction = getattr(self, neighbour)
        return distance

    @property
    def texts(self) -> dict[str, str]:
        """The distances as exact texts."""
        return {kind: str(distance) for kind, distance in self._asdict().items()}

    def times(self, factor: int) -> Moved:
        """The distances for `number` such sums together, or for units that are finer by this factor."""
        return Moved(*(factor * distance for distance in self))


@dataclass(frozen=True)
class NoisyQuery:
    """Sums that get noise: how far a neighbour moves them, and the noise's law and scale, in the sums' units."""

    name: str
    moved: Moved
    scale: Fraction
    law: NoiseName = "laplace"
    times: int = 1
    """Number of times that the sums are asked for, each under independent noise."""
    together: bool = False
    """True if n of these times may be one question, with noise of 1/n of the scale and an equal loss."""
    in_parts: bool = False
    """True if it is asked as several queries that have parts of its loss (`share`)."""

    @classmethod
    def losing(cls, name: str, distance: Moved, epsilon: Fraction, neighbour: Neighbour, times: int = 1) -> NoisyQuery:
        """The query whose Laplace noise loses this ε each time."""
        return cls(name, distance, distance.by(neighbour) / epsilon, times=times)

    @classmethod
    def losing_rho(cls, name: str, distance: Moved, rho: Fraction, neighbour: Neighbour) -> NoisyQuery:
        """The query whose Gaussian noise loses this ρ, or a little less: σ is rounded up."""
        return cls(name, distance, root_above(distance.by(neighbour) ** 2 / (2 * rho)), "gaussian")

    def share(self, name: str, part: Fraction) -> NoisyQuery:
        """A query of the same distance that loses at most this part of the loss.

        Queries with parts that sum to 1 lose together at most the loss of this query.
        """
        laplace = self.law == "laplace"
        scale = self.scale / part if laplace else root_above(self.scale**2 / part)
        return replace(self, name=name, scale=scale, in_parts=False)

    @property
    def variance(self) -> float:
        """The noise's variance in squared units of the sums; that of discrete Laplace noise is 2b² to 1/(12b²)."""
        return (2.0 if self.law == "laplace" else 1.0) * float(self.scale) ** 2

    @property
    def scale_as_laplace(self) -> float:
        """The scale of Laplace noise with this variance, in the sums' units."""
        return float(self.scale) if self.law == "laplace" else float(self.scale) / 2.0**0.5

    @property
    def squared(self) -> Moved:
        """Squares of the distances in L2."""
        return Moved(*(distance**2 for distance in self.moved))

    def loss(self, neighbour: Neighbour) -> Fraction:
        """ε under Laplace noise, ρ under Gaussian noise, of one record and of all times together."""
        if self.law == "laplace":
            return self.times * self.moved.by(neighbour) / self.scale
        return self.times * self.squared.by(neighbour) / (2 * self.scale**2)

    @property
    def entry(self) -> dict[str, Any]:
        """The query in a proof record, as exact texts from which its loss is computed."""
        laplace = self.law == "laplace"
        distances = {"distance": self.moved.texts} if laplace else {"squared_distance": self.squared.texts}
        law = "discrete_laplace" if laplace else "discrete_gaussian"
        merged = {name: True for name in ("together", "in_parts") if getattr(self, name)}
        return {"name": self.name, "law": law, **distances, "scale": str(self.scale), "times": self.times, **merged}

    @property
    def once(self) -> NoisyQuery:
        return replace(self, times=min(self.times, 1))

    def further(self) -> NoisyQuery:
        """A further part of the query, for other sums. The first part states the loss of all parts.

        Mechanisms' tests, which compare sums of neighbouring files, hold that parts have different sums.
        """
        return replace(self, times=0)


def root_above(square: Fraction) -> Fraction:
    """A multiple of 1/DIGITS that exceeds the square root by at most 1/DIGITS."""
    floor_root = square * DIGITS**2
    return Fraction(isqrt(floor_root.numerator // floor_root.denominator) + 1, DIGITS)


def neighbour_of(job: Job) -> Neighbour:
    """The kind of neighbour that a job's budget compares."""
    if job.budget.adjacency != "substitution":
        return "off"
    return "anywhere" if job.budget.exchange == "anywhere" else "same_x"


def total_loss(queries: Iterable[NoisyQuery], neighbour: Neighbour) -> Fraction:
    """The loss of one record by all of these queries, ε or ρ."""
    return sum((query.loss(neighbour) for query in queries), Fraction(0))


def guarantee_of(job: Job, queries: Iterable[NoisyQuery]) -> Strict | Concentrated:
    """The guarantee of queries together, for the privacy unit of the job.

    k records of a unit lose k times the ε, or k² times the ρ, of one record. The loss of an exchange is at the same
    predictors if sizes are public, and for any other record if they are secret. Because σ is rounded up, the stated ρ
    is slightly below the job's share. Raises `ValueError` if it is above.
    """
    queries = tuple(queries)
    loss = total_loss(queries, neighbour_of(job))
    exchange = total_loss(queries, "anywhere" if job.sizes_secret else "same_x") / loss
    if all(query.law == "laplace" for query in queries):
        return Strict(job.budget.adjacency, job.most_records * loss, exchange=exchange)
    rho, delta = job.most_records**2 * loss, job.budget.delta
    if delta is None or any(query.law == "laplace" for query in queries) or rho > job.rho.release:
        raise ValueError(f"Gaussian queries lose ρ = {float(rho):.6g}, and the tables have {float(job.rho.release):.6g}")
    epsilon = job.budget.epsilon if not job.noisy_crosstab else epsilon_of(job.rho.release, delta)
    return Concentrated(job.budget.adjacency, epsilon, job.rho.release, delta, exchange)


def record_epsilon(job: Job, epsilon: Fraction) -> Fraction:
    """The ε of one record, from a part of the release's ε, which bounds a unit's loss."""
    return epsilon / job.most_records


def moves(job: Job) -> int:
    """Number of cells that a neighbour may change for each record: two if any record may replace it."""
    return 2 if job.budget.exchange == "anywhere" else 1


def record_rho(job: Job, rho: Fraction) -> Fraction:
    """The ρ of one record, from a part of the release's ρ, which bounds a unit's loss."""
    return rho / job.most_records**2


def query_of_tables(job: Job, name: str, distance: Moved, law: NoiseName = "laplace") -> NoisyQuery:
    """The query that loses all of the budget of a job's tables; `distance` is in L1, or in L2 under Gaussian noise."""
    if law == "gaussian":
        return NoisyQuery.losing_rho(name, distance, record_rho(job, job.rho.tables), neighbour_of(job))
    return NoisyQuery.losing(name, distance, record_epsilon(job, job.epsilon.tables), neighbour_of(job))
