"""Guarantees as types, adjacency, composition (METHODS §2). Classes are never added together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from dpdist.job import Adjacency, budget_text


@dataclass(frozen=True)
class Asymptotic:
    """(ε, δ)-probabilistic differential privacy with δ → 0 as n → ∞: the bound is the observed Δ ([V], "aDP").

    ε is the one targeted in advance; it holds for the observed file's bound, not for every database.
    """

    adjacency: Adjacency
    epsilon: Fraction
    name: Literal["asymptotic"] = "asymptotic"

    def sets(self, number: int) -> Asymptotic:
        """Sequential composition over synthetic sets."""
        return replace(self, epsilon=self.epsilon * number)

    @property
    def substitution_epsilon(self) -> Fraction:
        """The same release against exchanging one record for another: two zero-outs."""
        return self.epsilon if self.adjacency == "substitution" else 2 * self.epsilon


@dataclass(frozen=True)
class NoGuarantee:
    """Nothing is promised: for comparison only, not for publication."""

    name: Literal["none"] = "none"


Guarantee = Asymptotic | NoGuarantee


@dataclass(frozen=True)
class Promise:
    """What a mechanism promises before it sees a record."""

    total: Guarantee
    per_set: Guarantee
    composition: str
    assumptions: tuple[str, ...]
    target: float | None
    """Δ*: the database bound that the privacy weights must meet; None where nothing is promised."""


def bound_target(epsilon: Fraction, adjacency: Adjacency) -> float:
    """Δ* for one exact draw at ε.

    Switching a record off changes log p(θ | data) by f_i(θ) minus the log of its posterior mean likelihood, both within
    ±Δ: 2Δ in all; exchanging a record is two such changes: 4Δ.
    """
    return float(epsilon / (4 if adjacency == "substitution" else 2))


def epsilon_text(guarantee: Guarantee) -> str | None:
    return budget_text(guarantee.epsilon) if isinstance(guarantee, Asymptotic) else None
