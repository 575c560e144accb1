"""Clipped statistics of disjoint cells whose limits a reference fixed: what `reference_tables` adds noise to (METHODS §7b).

A record of a finest cell enters by v = clip(w, 0, U)/U ∈ [0, 1] and c = clip((y − μ)/R, −1, 1); μ, U and R come from the
reference and public sizes alone.

Cone (sizes public): (1 − v, vc). As |vc| ≤ v, its L1 norm is (1 − v) + v|c| ≤ 1, attained wherever |c| = 1 or v = 0. A
record that is switched off leaves (0, 0), as one with w ≥ U and y = μ does: zero_out moves both sums of a cell by at most
1 in all, so Laplace noise of scale 1/ε on *each* gives ε. Exchanging a record is two such moves: 2, attained by (0, 1)
and (0, −1): scale 2/ε for substitution. Simplex (sizes secret): (v(1 + c)/2, v(1 − c)/2, 1 − v) ≥ 0 sums to 1, so that
adding or removing a record moves the three sums by exactly 1: scale 1/ε. Cells are disjoint, a record enters one; margins
are sums of cells: one ε for a whole table. Everything is rounded to multiples of 1/UNIT so that the bounds still hold,
and discrete noise on exact sums of whole numbers leaves nothing of floating point.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.job import Adjacency
from dpdist.records import Codes, Floats, Ints

UNIT = 2**20
SENSITIVITY: dict[Adjacency, int] = {"zero_out": 1, "add_remove": 1, "substitution": 2}
"""L1 distance, in units, of neighbours' sums: the cone for zero_out and substitution, the simplex for add_remove."""


class Limits(NamedTuple):
    """μ, U and R of every cell, each (cell,): fixed without a look at the current file."""

    centre: Floats
    cap: Floats
    reach: Floats

    def clipped(self, cell: Codes | Ints, weight: Floats, outcome: Floats) -> tuple[Floats, Floats]:
        """v and c of every record."""
        v = np.clip(weight, 0.0, self.cap[cell]) / self.cap[cell]
        return v, np.clip((outcome - self.centre[cell]) / self.reach[cell], -1.0, 1.0)

    def cone(self, cell: Codes | Ints, weight: Floats, outcome: Floats) -> Floats:
        """(1 − v, vc) of every record in whole units, (record, 2)."""
        v, c = self.clipped(cell, weight, outcome)
        left = np.rint(UNIT * (1.0 - v))
        return np.column_stack([left, np.clip(np.rint(UNIT * v * c), left - UNIT, UNIT - left)])

    def simplex(self, cell: Codes | Ints, weight: Floats, outcome: Floats) -> Floats:
        """(v(1 + c)/2, v(1 − c)/2, 1 − v) of every record in whole units that sum to UNIT, (record, 3)."""
        v, c = self.clipped(cell, weight, outcome)
        left = np.rint(UNIT * (1.0 - v))
        above = np.clip(np.rint(UNIT * v * (1.0 + c) / 2.0), 0.0, UNIT - left)
        return np.column_stack([above, UNIT - left - above, left])


def noise_scale(epsilon: Fraction, adjacency: Adjacency) -> Fraction:
    """Scale of the noise on every sum, in units, under a budget for the whole table."""
    return Fraction(SENSITIVITY[adjacency] * UNIT) / epsilon
