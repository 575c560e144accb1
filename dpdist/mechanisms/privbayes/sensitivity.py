"""For `privbayes.query` and `post`: sensitivity of the scores that choose a network's parents, and scale of noise.

`coded_tables.sensitivity` shows by how much a record changes a table, `weighted_marginals.sensitivity` what a choice costs.

Score. C is the table Σv of a column x with its parents π, T its sum, and p_x, p_π are its shares. The score is R = ½ Σ|C −
T p_x p_π|, in units of v. A record of weight t in the cell (a, b) changes C − T p_x p_π at a rate (e_a − p_x)(e_b − p_π)',
whose L1 norm is 4 (1 − p_x(a))(1 − p_π(b)). Let the other records have the sum S: both shares are at least t/(S + t). So R
moves by at most ∫ 2 (S/(S + t))² dt = 2S/(S + 1) < 2 for t from 0 to 1. Attained: independent records, and one of weight U
with levels that nobody else has. No smaller bound holds for all S.
Exchange. A record leaves a cell and another enters one: at most 4, attained by a move to another stratum. Within a table
the bound is 3 (METHODS §9b); the noise is scaled to 4.
Rounding. Scores are rounded to whole units, and sums of rounded products err by less than 1 unit for up to 10⁹ records.
SLACK covers both.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.core.records import UNIT
from dpdist.job import Adjacency
from dpdist.mechanisms.coded_tables.sensitivity import moved
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
