"""Strict Laplace tables: bounded sums of disjoint cells, margins made by adding (METHODS §7).

With public bounds w ∈ [0, U] and y ∈ [L, H], c the middle of [L, H], a record moves its own finest cell only. Its part
of Σw lies in [0, U], and no exchange of (y, w) moves it by more; its part of Σw(y − c) lies in ±U(H − L)/2, and an exchange
costs twice that. Laplace noise of scales U/(ε s) and U(H − L)/(2ε(1 − s)), twice the latter for substitution, gives ε:
shares s and 1 − s of the budget compose one after the other, disjoint cells in parallel, margins cost nothing. The bounds
clip: they need not hold in the file.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from dpdist.job import Adjacency

COUNT_SHARE = Fraction(1, 2)


class CellBounds(NamedTuple):
    """Public bounds: of the weight [0, weight], and of the outcome [low, high]."""

    weight: float
    low: float
    high: float

    @property
    def centre(self) -> float:
        return (self.low + self.high) / 2.0


class Scales(NamedTuple):
    """Scales of the Laplace noise on Σw and on Σw(y − centre), exact."""

    weight: Fraction
    centred: Fraction


def scales(epsilon: Fraction, bounds: CellBounds, adjacency: Adjacency = "zero_out") -> Scales:
    """Noise scales of one finest cell's two sums under a budget for the whole table."""
    weight, reach = Fraction(bounds.weight), (Fraction(bounds.high) - Fraction(bounds.low)) / 2
    exchanged = 2 if adjacency == "substitution" else 1
    return Scales(weight / (epsilon * COUNT_SHARE), exchanged * weight * reach / (epsilon * (1 - COUNT_SHARE)))
