"""The joint query of a package: what a record adds to every measurement, its sensitivity, and the noise (§9c).

A record of a base cell has v = min(w, U)/U and c, its outcome centred and clipped to ±1. With a = 1 − v and q = v c it has
|q| ≤ v. In whole units of 1/UNIT all of this holds exactly. A measurement takes f a and g q + h v, with whole factors in
units of 1/FACTOR_STEPS, 0 ≤ f ≤ 1 and g + |h| ≤ 1, and a record is in one group of each. So its L1 norm is at most a + v =
1. Switching a record off moves a measurement by at most 1 in L1 and in L2. Other values at the same x move it by at most
2, attained by c = 1 and c = −1 at w ≥ U where g = 1. With noise of scale b_k = moved/(ε s_k), Σ s_k = 1, all measurements
together cost

    Σ_k moved/b_k = ε     (discrete Laplace),     Σ_k moved²/(2σ_k²) = ρ     (discrete Gaussian, σ_k = moved/√(2ρ s_k)).

Both are attained by one pair of records, if its base cell has g = 1 everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Literal

import numpy as np

from dpdist.core.records import UNIT, Floats, Ints
from dpdist.packages.limits import CellLimits
from dpdist.packages.package import Law
from dpdist.packages.strategy import FACTOR_STEPS, Measured

WHOLE = UNIT * FACTOR_STEPS
"""Measurements are whole multiples of 1/WHOLE."""
Neighbours = Literal["zero_out", "substitution"]
"""Adjacencies under which sizes are public."""
MOVED: dict[Neighbours, int] = {"zero_out": 1, "substitution": 2}
"""Distance by which neighbouring files move a measurement, in records, under public sizes."""
DIGITS = 1000
"""Gaussian scales are rounded up to multiples of 1/DIGITS."""


@dataclass(frozen=True)
class Budget:
    """The budget of all measurements together: ε of pure differential privacy, or ρ of zCDP, and who are neighbours."""

    adjacency: Neighbours
    epsilon: Fraction | None = None
    rho: Fraction | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.rho is None):
            raise ValueError("a budget is ε, or ρ: one of them")
        if self.adjacency not in MOVED:
            raise ValueError(f"adjacency {self.adjacency}: a package needs public sizes, so {' or '.join(MOVED)}")
        if (self.epsilon or self.rho or 0) <= 0:
            raise ValueError("a budget is above 0")

    def scale(self, share: Fraction) -> Fraction:
        """The scale of the noise of a measurement with this part, in units of 1/WHOLE: b of Laplace, σ of Gaussian."""
        moved = MOVED[self.adjacency] * WHOLE
        if self.epsilon is not None:
            return Fraction(moved) / (self.epsilon * share)
        assert self.rho is not None
        square = Fraction(moved**2 * DIGITS**2) / (2 * self.rho * share)
        return Fraction(isqrt(square.numerator // square.denominator) + 1, DIGITS)

    def variance(self, share: Fraction) -> float:
        """The noise's variance in squared records; of discrete Laplace noise to a relative error below 1e-12."""
        square = (float(self.scale(share)) / WHOLE) ** 2
        return 2.0 * square if self.epsilon is not None else square

    @property
    def law(self) -> Law:
        """What the choice of shares and limits needs to know of the noise."""
        return Law(self.variance, 1.0 / 3.0 if self.epsilon is not None else 0.5)


@dataclass(frozen=True)
class JointQuery:
    """All measurements of a package with their noise. Guarantee and noise are computed from this object alone."""

    limits: CellLimits
    measurements: tuple[Measured, ...]
    shares: tuple[Fraction, ...]
    budget: Budget

    @property
    def scales(self) -> tuple[Fraction, ...]:
        """The scale of every measurement's noise, in units of 1/WHOLE."""
        return tuple(self.budget.scale(share) for share in self.shares)

    @property
    def loss(self) -> Fraction:
        """ε, or ρ, of all measurements together; at most the budget."""
        moved = MOVED[self.budget.adjacency] * WHOLE
        if self.budget.epsilon is not None:
            return sum((moved / scale for scale in self.scales), Fraction(0))
        return sum((moved**2 / (2 * scale**2) for scale in self.scales), Fraction(0))

    def loss_between(self, one: Floats, other: Floats) -> Fraction:
        """ε, or ρ, between two files with these sums of base cells, (cell, 3), whole."""
        pairs = zip(self.exact(one), self.exact(other), self.scales, strict=True)
        moves = [([Fraction(int(x)) for x in np.abs(a - b)], scale) for a, b, scale in pairs]
        if self.budget.epsilon is not None:
            return sum((sum(move, Fraction(0)) / scale for move, scale in moves), Fraction(0))
        return sum((sum((x * x for x in move), Fraction(0)) / (2 * scale**2) for move, scale in moves), Fraction(0))

    def exact(self, sums: Floats) -> list[Floats]:
        """Exact measurements from the sums of base cells, (cell, 3): weights' sums by group, then outcomes'; whole."""
        return [measurement.exact(sums) for measurement in self.measurements]

    def in_records(self, noisy: Sequence[Floats]) -> Floats:
        """Noisy measurements in records, as the posterior takes them, (row,)."""
        return np.concatenate([np.asarray(answer, dtype=float) for answer in noisy]) / WHOLE


def contributions(limits: CellLimits, cell: Ints, weight: Floats, outcome: Floats) -> Floats:
    """a, v and q of every record in whole units of 1/UNIT, (record, 3).

    Weights and outcomes are clipped, so any value is allowed but NaN and weights below 0, which are errors before this.
    """
    cap = limits.cap[cell]
    v = np.clip(weight, 0.0, cap) / cap
    # A warning for some values only would reveal them; values that overflow are clipped.
    with np.errstate(over="ignore"):
        c = np.clip((outcome - limits.centre[cell]) / limits.half[cell], -1.0, 1.0)
    left = np.rint(UNIT * (1.0 - v))
    return np.column_stack([left, UNIT - left, np.clip(np.rint(UNIT * v * c), left - UNIT, UNIT - left)])


def base_sums(limits: CellLimits, cell: Ints, weight: Floats, outcome: Floats) -> Floats:
    """Sums of a, v and q of every base cell, (cell, 3), whole."""
    parts = contributions(limits, cell, weight, outcome)
    return np.column_stack([np.bincount(cell, weights=part, minlength=len(limits.cap)) for part in parts.T])
