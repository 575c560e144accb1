"""Clipped statistics of disjoint cells whose limits a reference fixed: what `reference_tables` adds noise to (METHODS §7b).

A record of a finest cell enters by v = clip(w, 0, U)/U ∈ [0, 1] and, for every outcome k of K, c_k = clip((y_k − μ_k)/R_k,
−1, 1); μ, U and R come from the reference and public sizes alone.

Cone (sizes public): (1 − v, vc_1, …, vc_K). As |vc_k| ≤ v, its L1 norm with vc_k divided by K is at most (1 − v) + v = 1,
attained wherever all |c_k| = 1 or v = 0. A record that is switched off leaves 0, as one with w ≥ U and y = μ does: with
Laplace noise of scale 1/ε on the first sum and K/ε on each other, zero_out costs at most ε. Exchanging (w, y) at the same
x is two such moves, attained by opposite signs: twice these scales for substitution. Simplex (sizes secret): (1 − v,
v(1 + c_k)/2, v(1 − c_k)/2) ≥ 0; the last two sum to v for every k, so adding or removing a record moves the sums by 1 in
the same norm: the same scales. Exchanging a record for any other, in whatever cell, is one removal and one addition: at
most 2, attained between two cells and within one, so twice these scales again (`exchange: anywhere`). Cells are disjoint, a
record enters one; margins are sums of cells: one ε for a whole table. Everything is rounded to multiples of 1/UNIT so that
the bounds still hold, and discrete noise on exact sums of whole numbers leaves nothing of floating point.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.job import Adjacency

UNIT = 2**20
SENSITIVITY: dict[Adjacency, int] = {"zero_out": 1, "add_remove": 1, "substitution": 2}
"""L1 distance, in units, of neighbours' sums: the cone for zero_out and substitution, the simplex for add_remove, and for
substitution anywhere."""


class Limits(NamedTuple):
    """μ, U and R of every cell, fixed without a look at the current file: U (cell,), μ and R (cell,) or (cell, outcome)."""

    centre: Floats
    cap: Floats
    reach: Floats

    def clipped(self, cell: Codes | Ints, weight: Floats, outcome: Floats) -> tuple[Floats, Floats]:
        """v of every record, and c in the shape of `outcome`, (record,) or (record, outcome): none is NaN.

        Raises `ValueError` for limits, which are public, that no record could be clipped at.
        """
        if not all(np.isfinite(each).all() for each in self) or min(self.cap.min(), self.reach.min()) <= 0.0:
            raise ValueError("a weight cap or a half-width that is not above 0, or a limit that is not finite")
        v = np.clip(weight, 0.0, self.cap[cell]) / self.cap[cell]
        # A warning of some values alone would tell of them: what overflows is clipped.
        with np.errstate(over="ignore"):
            return v, np.clip((outcome - self.centre[cell]) / self.reach[cell], -1.0, 1.0)

    def _parts(self, cell: Codes | Ints, weight: Floats, outcome: Floats) -> tuple[Floats, Floats, Floats]:
        """1 − v in whole units (record, 1); v and c, (record, 1) and (record, outcome)."""
        v, c = self.clipped(cell, weight, outcome)
        return np.rint(UNIT * (1.0 - v))[:, None], v[:, None], c if c.ndim == 2 else c[:, None]

    def cone(self, cell: Codes | Ints, weight: Floats, outcome: Floats) -> Floats:
        """(1 − v, vc_1, …) of every record in whole units, (record, 1 + outcome)."""
        left, v, c = self._parts(cell, weight, outcome)
        return np.column_stack([left, np.clip(np.rint(UNIT * v * c), left - UNIT, UNIT - left)])

    def simplex(self, cell: Codes | Ints, weight: Floats, outcome: Floats) -> Floats:
        """(1 − v, v(1 + c_1)/2, …, v(1 − c_1)/2, …) of every record in whole units, (record, 1 + 2 outcome)."""
        left, v, c = self._parts(cell, weight, outcome)
        above = np.clip(np.rint(UNIT * v * (1.0 + c) / 2.0), 0.0, UNIT - left)
        return np.column_stack([left, above, UNIT - left - above])


def noise_scales(epsilon: Fraction, adjacency: Adjacency, outcomes: int = 1) -> tuple[Fraction, Fraction]:
    """Scales of the noise, in units, on Σ(1 − v) and on every other sum, under a budget for the whole table."""
    scale = Fraction(SENSITIVITY[adjacency] * UNIT) / epsilon
    return scale, outcomes * scale


def noise_scale(epsilon: Fraction, adjacency: Adjacency) -> Fraction:
    """The scale on every sum where there is one outcome."""
    return noise_scales(epsilon, adjacency)[0]
