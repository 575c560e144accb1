"""Sensitivity of whitened, winsorised sums of cells, for `sanitized_statistics` (METHODS §8).

A record with outcome y and weight w has r = A(z − μ), z = (log y, log w). μ is its cell's mean and A a whitening
matrix, both from the reference alone. The record enters by p = r/C, shortened to |p| ≤ 1, with C = REACH. Location, by
cell: (p₁, p₂)/√2. The L1 norm of location is at most |p| ≤ 1, attained at p₁ = p₂. Scatter, over all cells: (1 − |p|²,
(p₁² − p₂²)/√2, 2p₁p₂/√2). With p = |p|(cos t, sin t) the last two are |p|²(cos 2t, sin 2t)/√2, of L1 norm at most |p|².
So the norm of the three is at most 1, attained at p = 0 and at |p| = 1, t = π/8.

Location is multiplied by SHARE and scatter by 1 − SHARE, so the norm of both is at most 1. A record is in one cell.
Switched off, it contributes zeros. So zero_out moves all sums by at most 1 in total, and Laplace noise of scale 1/ε on
each sum gives ε. An exchange of (y, w) moves them by at most 2, attained in location by p and −p, and in scatter by p =
0 and t = π/8. So substitution needs the scale 2/ε. Changing cells moves the sums by no more, but public counts show
this change. Rounding towards zero, to multiples of 1/UNIT, increases no norm. Discrete noise on exact whole-number sums
then has no floating-point error.

For Gaussian noise the L2 norm matters. Location is then ap with a² = SHARE. Scatter is b(1 − |p|², p₁² − p₂², 2p₁p₂)
with b² = 1 − SHARE. With u = |p|² the squared norm is a²u + b²((1 − u)² + u²). This is convex in u, and so at most a² +
b² = 1, attained at |p| = 1. This is the L2 sensitivity under zero_out. Whole numbers have a whole squared norm, so
rounding cannot bring it above the bound.

For substitution, p is exchanged for q of the same cell, with |p| = r ≥ |q| = s and c the cosine between them. The
squared distance is F = a²(r² + s² − 2rsc) + b²(2r⁴ + 2s⁴ − 4r²s²c²), concave in c. If rs ≥ a²/4b², the largest value is
at c = −a²/(4b²rs): a²(r² + s²) + 2b²(r⁴ + s⁴) + a⁴/4b². It grows with r and s. Otherwise it is at c = −1: (r + s)²(a² +
2b²(r − s)²). This grows with r and s as well, as a² ≥ b²: ∂F/∂s = 2(r + s)(a² − 4b²s(r − s)) ≥ 2(r + s)(a² − b²r²). So
F is largest at r = s = 1: ((a² + 4b²)/2b)² = (7/4)², attained at c = −3/4. Between two cells it is at most 2a² + 4b² =
5/2.

Rounding moves each of at most seven sums by less than 1, and the distance by less than 3. So it is 7/4·UNIT + 3 for
substitution. Discrete Gaussian noise of σ² = Δ²/2ρ on whole numbers of L2 sensitivity Δ is ρ-zCDP (Canonne, Kamath &
Steinke 2020, theorem 14).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.core.records import UNIT, Codes, Floats, Ints
from dpdist.job import Job, NoiseName
from dpdist.privacy.guarantees import Moved, NoisyQuery, query_of_tables

REACH = 2.5
"""C: the largest distance of a record from its cell's reference mean, in reference standard deviations."""
SHARE = Fraction(3, 4)
"""Part of the budget for the cells' location; the rest is for the scatter over all cells, whose few sums need less."""
ROOT_2 = float(np.sqrt(2.0))
MOVED = Moved.of(UNIT)
"""L1 distance of neighbouring files' sums, in units of 1/UNIT, for Laplace noise."""
MOVED_2 = Moved(Fraction(UNIT), *2 * (Fraction(7 * UNIT, 4) + 3,))
"""L2 distance, for Gaussian noise."""


def whitened_sums(job: Job, law: NoiseName) -> NoisyQuery:
    """The query for location and scatter together."""
    return query_of_tables(job, "whitened sums", MOVED_2 if law == "gaussian" else MOVED, law)


EXCHANGE = Fraction(30_626, 10_000)
"""The ρ of exchanging a record over its ρ under zero_out: (7/4 + 3/UNIT)², rounded up; two zero-outs would cost 4."""
FAR = 1e6
"""Largest distance of a logarithm from its cell's mean; it makes the logarithm of an outcome or weight of 0 finite."""


class Whitening(NamedTuple):
    """The means μ of every cell, (cell, 2), and the matrix A, (2, 2), fixed before the current file is seen."""

    centre: Floats
    matrix: Floats

    def winsorised(self, cell: Codes | Ints, outcome: Floats, weight: Floats) -> Floats:
        """p of every record, (record, 2)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.log(np.column_stack([outcome, weight])) - self.centre[cell]
        p = np.nan_to_num(np.clip(z, -FAR, FAR)) @ self.matrix.T / REACH
        return p / np.maximum(1.0, np.hypot(p[:, 0], p[:, 1]))[:, None]

    def units(
        self,
        cell: Codes | Ints,
        outcome: Floats,
        weight: Floats,
        share: float = float(SHARE),
        noise: NoiseName = "laplace",
    ) -> Floats:
        """(location, scatter) of every record in whole units of 1/UNIT, (record, 5)."""
        return np.asarray(np.trunc(UNIT * statistics(self.winsorised(cell, outcome, weight), share, noise)))


def statistics(p: Floats, share: float = float(SHARE), noise: NoiseName = "laplace") -> Floats:
    """Location and scatter of winsorised records, multiplied by their shares of the budget, (record, 5).

    Every row has a norm of at most 1.
    """
    p1, p2 = p.T
    if noise == "gaussian":
        scatter = np.column_stack([1.0 - p1**2 - p2**2, p1**2 - p2**2, 2.0 * p1 * p2])
        return np.column_stack([np.sqrt(share) * p, np.sqrt(1.0 - share) * scatter])
    scatter = np.column_stack([1.0 - p1**2 - p2**2, (p1**2 - p2**2) / ROOT_2, ROOT_2 * p1 * p2])
    return np.column_stack([share * p / ROOT_2, (1.0 - share) * scatter])


class WinsorisedMoments(NamedTuple):
    """Sums of winsorised records: Σp of every cell, (cell, 2), and Σ(|p|², p₁² − p₂², 2p₁p₂) over all records, (3,)."""

    location: Floats
    scatter: Floats


def moments(sums: Floats, records: float, noise: NoiseName = "laplace") -> WinsorisedMoments:
    """Moments from sums in units of 1/UNIT, (2 cells + 3,): the location of each cell, then the scatter."""
    share, values, all_of_them = float(SHARE), sums / UNIT, np.array([records, 0.0, 0.0])
    if noise == "gaussian":
        scatter = values[-3:] / np.sqrt(1.0 - share) * np.array([-1.0, 1.0, 1.0])
        return WinsorisedMoments(values[:-3].reshape(-1, 2) / np.sqrt(share), scatter + all_of_them)
    scatter = values[-3:] / (1.0 - share) * np.array([-1.0, ROOT_2, ROOT_2]) + all_of_them
    return WinsorisedMoments(values[:-3].reshape(-1, 2) * ROOT_2 / share, scatter)


def noise_variances(scale: Fraction, noise: NoiseName = "laplace") -> tuple[float, Floats]:
    """Variances of the noise on an entry of the location, and on each entry of the scatter.

    `scale`, in units of 1/UNIT, is b of the Laplace law, or σ of the Gaussian law.
    """
    share, square = float(SHARE), (float(scale) / UNIT) ** 2
    if noise == "gaussian":
        return square / share, np.ones(3) * square / (1.0 - share)
    variance = 2.0 * square
    return 2.0 * variance / share**2, np.array([1.0, 2.0, 2.0]) * variance / (1.0 - share) ** 2
