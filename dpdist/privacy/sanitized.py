"""Whitened, winsorised sums of disjoint cells: what `sanitized_statistics` adds noise to (METHODS §8).

A record of a cell has r = A(z − μ), z = (log y, log w), with μ of its cell and A from the reference alone. It enters by
p = r/C, shortened to |p| ≤ 1. Location, by cell: (p₁, p₂)/√2, whose L1 norm is at most |p| ≤ 1 (attained at p₁ = p₂).
Scatter, pooled: (1 − |p|², (p₁² − p₂²)/√2, 2p₁p₂/√2). With p = |p|(cos t, sin t) the last two are |p|²(cos 2t, sin 2t)/√2,
of L1 norm at most |p|², so that all three have at most 1 (attained at p = 0, and at |p| = 1, t = π/8).

SHARE of the one and 1 − SHARE of the other: norm ≤ 1. A record is in one cell, and one that is switched off leaves zeros
everywhere: zero_out moves all sums by at most 1 in all, and Laplace noise of scale 1/ε on each of them gives ε. Exchanging
a record, its cell included, is two such moves: at most 2 (attained in either part, by p and −p and by p = 0 and t = π/8),
scale 2/ε for substitution. Everything is rounded towards zero to multiples of 1/UNIT, which no norm grows by, and discrete
noise on exact sums of whole numbers leaves nothing of floating point.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.privacy.reference_cells import UNIT
from dpdist.records import Codes, Floats, Ints

REACH = 2.5
"""C: a record's largest distance from its cell's reference mean, in reference standard deviations."""
SHARE = Fraction(3, 4)
"""Of the budget for the cells' location; the rest is for the pooled scatter, whose few sums need less."""
ROOT_2 = float(np.sqrt(2.0))
FAR = 1e6
"""Logarithms farther than this from a cell's mean are set to it: an outcome or weight of 0 has a place too."""


class Whitening(NamedTuple):
    """μ of every cell (cell, 2) and A (2, 2): fixed without a look at the current file."""

    centre: Floats
    matrix: Floats

    def winsorised(self, cell: Codes | Ints, outcome: Floats, weight: Floats) -> Floats:
        """p of every record, (record, 2)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.log(np.column_stack([outcome, weight])) - self.centre[cell]
        p = np.nan_to_num(np.clip(z, -FAR, FAR)) @ self.matrix.T / REACH
        return p / np.maximum(1.0, np.hypot(p[:, 0], p[:, 1]))[:, None]

    def units(self, cell: Codes | Ints, outcome: Floats, weight: Floats, share: float = float(SHARE)) -> Floats:
        """(location, scatter) of every record in whole units, (record, 5)."""
        return np.asarray(np.trunc(UNIT * statistics(self.winsorised(cell, outcome, weight), share)))


def statistics(p: Floats, share: float = float(SHARE)) -> Floats:
    """Location and scatter of winsorised records in their shares, (record, 5)."""
    one, two = p.T
    scatter = np.column_stack([1.0 - one**2 - two**2, (one**2 - two**2) / ROOT_2, ROOT_2 * one * two])
    return np.column_stack([share * p / ROOT_2, (1.0 - share) * scatter])


class Moments(NamedTuple):
    """Σp of every cell (cell, 2), and Σ(|p|², p₁² − p₂², 2p₁p₂) over all records, (3,)."""

    location: Floats
    scatter: Floats


def moments(sums: Floats, records: float) -> Moments:
    """From sums in units, a location a cell and the scatter last, (2 cells + 3,)."""
    share, values = float(SHARE), sums / UNIT
    scatter = values[-3:] / (1.0 - share) * np.array([-1.0, ROOT_2, ROOT_2]) + np.array([records, 0.0, 0.0])
    return Moments(values[:-3].reshape(-1, 2) * ROOT_2 / share, scatter)


def noise_variances(scale: Fraction) -> tuple[float, Floats]:
    """Of an entry of the moments' location, and of every one of their scatter, under noise of a scale in units."""
    share, variance = float(SHARE), 2.0 * (float(scale) / UNIT) ** 2
    return 2.0 * variance / share**2, np.array([1.0, 2.0, 2.0]) * variance / (1.0 - share) ** 2
