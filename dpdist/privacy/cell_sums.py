"""Sensitivity of sums of base cells under public bounds (METHODS §7).

A record has a weight w ∈ [0, U] and an outcome y ∈ [L, H], clipped to these bounds at reading. The middle and half
width of [L, H] are c and R. The record adds (a, b) = (w/U, w(y − c)/(UR)) to its base cell, in whole multiples of
1/UNIT, with |b| ≤ a ≤ 1. Switched off it adds (0, 0). These pairs lie in the triangle with corners (0, 0), (1, 1) and
(1, −1), which are 2 apart in L1. Laplace noise of scale 2/ε on both sums gives ε, under zero_out and under an exchange
within the cell. A record that changes its cell moves two cells, and costs 2ε. Disjoint cells compose in parallel, and
margins cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.core.records import UNIT, Cells, Crosstab, Floats, quotient
from dpdist.job import StatisticName, Table

SENSITIVITY = 2
"""L1 sensitivity of a cell's two sums."""


class CellBounds(NamedTuple):
    """Public bounds: [0, weight] of the weight, and [low, high] of the outcome."""

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
        """The pair (a, b) of every record in whole units of 1/UNIT, (record, 2), from weights within the bounds."""
        a = weight / self.weight
        b = a * (np.clip(outcome, self.low, self.high) - self.centre) / self.half_width
        return np.rint(UNIT * np.column_stack([a, np.clip(b, -a, a)]))

    def sums(self, units: Floats) -> Floats:
        """Σw and Σwy from sums of pairs in units of 1/UNIT, (…, 2)."""
        weight = units[..., 0] * self.weight / UNIT
        return np.stack([weight, weight * self.centre + units[..., 1] * self.weight * self.half_width / UNIT], axis=-1)

    def mean(self, count: Floats, total: Floats) -> Floats:
        """Total over count, clipped to the bounds.

        If the count is 0 or less, the result is the bound on the side of the total's sign. It is NaN if both are 0.
        """
        above = quotient(total - self.centre * count, np.where(count > 0, count, 0.0))
        return np.clip(self.centre + above, self.low, self.high)


def noise_scale(epsilon: Fraction) -> Fraction:
    """Scale of the noise, in units of 1/UNIT, if one budget covers the whole table."""
    return Fraction(SENSITIVITY * UNIT) / epsilon


# Sensitivities that a file itself has, for noise that guarantees nothing ([T]; METHODS §7).
#
# Each is the largest over a table's cells, with weight w and outcome y: for a count max w − min w; for a total max wy − min
# wy; for a mean (max wy − min wy) / (Σw − (max w − min w)).
Extremes = tuple[Floats, Floats]
"""Smallest and largest value per crosstab row; +∞ and −∞ where a row has no record."""


def sensitivities(weight_sum: Floats, weight: Extremes, product: Extremes, cells: Cells) -> dict[StatisticName, float]:
    """Local sensitivities of a count, a mean and a total, from the extremes of the records of every crosstab row."""
    low_w, high_w = _over_cells(weight, cells)
    low_p, high_p = _over_cells(product, cells)
    occupied = high_w >= low_w
    weight_range = (high_w - low_w)[occupied]
    total = (cells.membership @ weight_sum)[occupied]
    mean = quotient((high_p - low_p)[occupied], total - weight_range)
    return {
        "count": float(weight_range.max()),
        "mean": float(mean[np.isfinite(mean)].max(initial=0.0)),
        "total": float((high_p - low_p)[occupied].max()),
    }


def figures_met(crosstab: Crosstab, tables: Sequence[Table]) -> int:
    """Number of figures, over all tables, to which one record contributes."""
    return sum(table.cells(crosstab).per_record * len(table.statistics) for table in tables)


def _over_cells(per_row: Extremes, cells: Cells) -> Extremes:
    coo = cells.membership.tocoo()
    low, high = np.full(len(cells), np.inf), np.full(len(cells), -np.inf)
    np.minimum.at(low, coo.row, per_row[0][coo.col])
    np.maximum.at(high, coo.row, per_row[1][coo.col])
    return low, high
