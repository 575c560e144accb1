"""For `privbayes.query` and `post`: sensitivity of the scores that choose a network's parents, and scale of noise.

`coded_tables.sensitivity` has the sensitivity of tables, and `weighted_marginals.sensitivity` the cost of a choice.

Score. C is the table Σv of column x with parents π; T is its sum, and p_x and p_π are its shares. The score is R = ½
Σ|C − T p_x p_π|, in units of v. Adding weight t in the cell (a, b) changes C − T p_x p_π at the rate (e_a − p_x)(e_b −
p_π)'. The L1 norm of the rate is 4 (1 − p_x(a))(1 − p_π(b)). If the other records sum to S, both shares are at least
t/(S + t). So R moves by at most ∫ 2 (S/(S + t))² dt = 2S/(S + 1) < 2 for t from 0 to 1. Attained in the limit:
independent records, and one of weight U whose levels no other record has. Exchange. A record leaves one cell and
another record enters a cell: at most 4, attained by a move to another stratum. Within a table the bound is 3 (METHODS
§9b); the noise is scaled to 4. Rounding. Rounding a score to whole units, and rounded products, err by less than 1 unit
for up to 10⁹ records. SLACK covers both.
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
"""Largest change of a difference of two scores under neighbouring files."""


def parents(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for the column and the parents that come next."""
    return NoisyQuery("column and its parents", SCORES_MOVED, scale, times=times)


def score_scale(epsilon: Fraction, rounds: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units of 1/UNIT, of the noise on scores, in each of the rounds that share ε."""
    return 2 * moved(adjacency) * (SCORE_SENSITIVITY + SLACK) * rounds * UNIT / epsilon
