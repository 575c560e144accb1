"""Sensitivity of the scores by which a network's parents are chosen (Zhang et al. 2017), and the scale of their noise.

`coded_tables.sensitivity` shows by how much a record changes a table.

Score. C is the table Σv of a column x with its parents π, T its sum, p_x = C_x/T and p_π = C_π/T its shares. The score is
the paper's R, in units of v: ½ Σ|C − T p_x p_π|, which is T times the total variation from independence. Let a record in
the cell (a, b) have weight t. Then d/dt (C − T p_x p_π) = (e_a − p_x)(e_b − p_π)', whose L1 norm is 4 (1 − p_x(a))(1 −
p_π(b)). Let the other records have the sum S. The share of a and that of b are at least t/(S + t). So R moves by at most
∫ 2 (S/(S + t))² dt = 2S/(S + 1) < 2 for t from 0 to 1. Attained: other records that are independent, and a record of
weight U with a level of x and levels of π that nobody else has. No smaller bound holds for all S.

Exchange. A record leaves a cell and another enters one: at most 2 + 2 = 4, also if it leaves one stratum and enters
another. This is attained by such a move, in two tables. Within a table the total is kept. There the two moves share the
direction e_ab − e_cd, and R moves by at most 3S/(S + 1) < 3. The noise is scaled to 4, so that such moves are covered.

T times the mutual information would move by about log T, which is larger in larger files. T is also confidential where
there are weights.

Choice. Each round chooses the largest of the scores with discrete Laplace noise of scale 2Δ/ε_r on each, ε_r being the
round's part of ε. It costs ε_r, as `weighted_marginals.sensitivity` shows for any score that moves by at most Δ. The
paper draws by the exponential mechanism, at the same cost.

Rounding. Scores are rounded to whole units, and sums of rounded products err by less than 1 unit for up to 10⁹ records.
SLACK covers both.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Adjacency
from dpdist.mechanisms.coded_tables.sensitivity import UNIT, moved
from dpdist.privacy.queries import Moved, NoisyQuery

SCORE_SENSITIVITY = Fraction(2)
"""Sensitivity of a score if a record is switched off, in units of v."""
SLACK = Fraction(1, 2**10)


SCORES_MOVED = Moved(*(2 * distance * (SCORE_SENSITIVITY + SLACK) * UNIT for distance in (1, 2, 2)))
"""By how much a neighbour moves differences of two scores."""


def parents(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for the column and the parents that come next."""
    return NoisyQuery("column and its parents", SCORES_MOVED, scale, times=times)


def score_scale(epsilon: Fraction, rounds: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units of 1/UNIT, of the noise on scores, in each of the rounds that share ε."""
    return 2 * moved(adjacency) * (SCORE_SENSITIVITY + SLACK) * rounds * UNIT / epsilon
