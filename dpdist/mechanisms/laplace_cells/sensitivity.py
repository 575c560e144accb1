"""Strict Laplace tables: bounded sums of disjoint cells, margins made by adding (METHODS §7).

With public bounds w ∈ [0, U] and y ∈ [L, H], c and R the middle and the half width of [L, H], a record enters its own
finest cell only, by the pair (w/U, w(y − c)/(UR)) = (a, b) with 0 ≤ |b| ≤ a ≤ 1. Nothing for a record that is
switched off is (0, 0); the pairs lie in a triangle of corners (0, 0), (1, 1), (1, −1), any two of which are 2 apart
in L1. So Laplace noise of scale 2/ε on both sums of a cell gives ε, to zero_out and to an exchange within the cell alike;
a record that moves leaves one cell and enters another, at 2ε, which the public counts show outright. Disjoint
cells compose in parallel, and margins cost nothing. The bounds clip: they need not hold in the file. Pairs are
rounded to whole multiples of 1/UNIT, which keeps |b| ≤ a, so that discrete Laplace noise on exact sums of whole
numbers leaves nothing of floating point.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats

UNIT = 2**20
SENSITIVITY = 2


class CellBounds(NamedTuple):
    """Public bounds: of the weight [0, weight], and of the outcome [low, high]."""

    weight: float
    low: float
    high: float

    @property
    def centre(self) -> float:
        return (self.low + self.high) / 2.0

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0

    def pairs(self, weight: Floats, outcome: Floats) -> Floats:
        """(a, b) of every record in whole units, (record, 2)."""
        a = np.clip(weight, 0.0, self.weight) / self.weight
        b = a * (np.clip(outcome, self.low, self.high) - self.centre) / self.half_width
        return np.rint(UNIT * np.column_stack([a, np.clip(b, -a, a)]))

    def sums(self, units: Floats) -> Floats:
        """Σw and Σwy from sums of pairs in units, (…, 2)."""
        weight = units[..., 0] * self.weight / UNIT
        return np.stack([weight, weight * self.centre + units[..., 1] * self.weight * self.half_width / UNIT], axis=-1)

    def mean(self, count: Floats, total: Floats) -> Floats:
        """Total over count, clipped to the bounds; of a count ≤ 0 the bound on the total's side, NaN where both are 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            above = (total - self.centre * count) / np.where(count > 0, count, 0.0)
        return np.clip(self.centre + above, self.low, self.high)


def noise_scale(epsilon: Fraction) -> Fraction:
    """Scale of the noise, in units, under a budget for the whole table."""
    return Fraction(SENSITIVITY * UNIT) / epsilon
