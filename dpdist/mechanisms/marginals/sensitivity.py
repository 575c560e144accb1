"""Sensitivity of weighted tables, of sums of values and of the scores that select tables; scales of their noise.

Tables. A record of weight w adds v = min(w, U)/U in [0, 1] to one cell of every measured table, with the public bound
U. Without weights v is 1. Rounding to multiples of 1/UNIT keeps sums exact. Switching off, adding or removing a record
changes k tables by at most k in L1. Any record of weight U attains this bound. An exchange changes them by at most 2k:
one cell loses v, another gains v'. Two records of weight U that differ in every column attain this. Laplace noise of
scale D/ε on all cells costs ε, if D is the L1 distance.

Sums of values. A record adds v u with |u| ≤ 1 to one cell of each sum. So a sum of values changes by at most 1 in L1,
or 2 for an exchange, attained by weight U at the lowest or highest level. With s sums beside k tables the distance is
k + s, attained at once.

Scores of pairs. A pair's score is q = Σ|C − M| − b K, rounded to whole units. C is the pair's table, M its fitted one,
K its number of cells, and b the noise scale. Given earlier answers, q depends on the records only by C. By the triangle
inequality, q changes by at most ‖C − C'‖ ≤ Δ, with Δ = 1, or 2 for an exchange. This is attained if C ≥ M in the
changed cells, with v = 1.

Choice. The largest q + η wins, with discrete Laplace noise η of scale s = 2Δ/ε_r. For fixed noise of the other pairs,
pair i wins if η_i ≥ t. In a neighbouring file, the whole number t changes by at most 2Δ. P(η ≥ t + j) is at least
e^(−j/s) P(η ≥ t). So a round costs ε_r. The winner is released, but not its score.

Rounds. M, b and each round's ε_r follow from earlier answers, and Σ ε_r is fixed. So the losses add up to it, whatever
the answers (Rogers et al. 2016).

Scores of parents. C is the table Σv of column x with parents π; T is its sum, and p_x and p_π are its shares. The score
is R = ½ Σ|C − T p_x p_π|, in units of v. Adding weight t in the cell (a, b) changes C − T p_x p_π at the rate
(e_a − p_x)(e_b − p_π)'. The L1 norm of the rate is 4 (1 − p_x(a))(1 − p_π(b)). If the other records sum to S, both
shares are at least t/(S + t). So R moves by at most ∫ 2 (S/(S + t))² dt = 2S/(S + 1) < 2 for t from 0 to 1. The bound is
approached as S grows, if columns are independent and one record of weight U has levels of its own.

Exchange. A record leaves one cell and another record enters a cell: at most 4, attained by a move to another stratum.
Within a table the bound is 3 (METHODS §9b); the noise is scaled to 4. Rounding a score to whole units, and rounded
products, err by less than 1 unit for up to 10⁹ records. SLACK covers both.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.core.records import UNIT
from dpdist.job import Adjacency
from dpdist.privacy.guarantees import Moved, NoisyQuery

MOVED = Moved.of(UNIT)
"""L1 distance of one table under neighbouring files."""

SINGLES, SELECTION, PAIRS = Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)
"""Parts of ε where pairs are chosen: for each column's table, for the choice, and for the pairs' tables."""
WITHOUT_CHOICE = Fraction(1, 2)
"""Parts of ε for the columns' tables and for the pairs' tables, if nothing needs to be chosen."""
PART_OF_ROUNDS = SELECTION + PAIRS
"""Part of ε for the rounds of an adaptive choice."""
CHOICE_OF_ROUND = Fraction(1, 4)
"""Part of a round's ε for its choice. The rest is for the table."""
ROUNDS_PER_PAIR = 2
"""Number of rounds of least ε for each pair of the tree."""
SCORE_SENSITIVITY = Fraction(2)
"""Sensitivity of a score of parents if a record is switched off, in units of v."""
SLACK = Fraction(1, 2**10)
SCORES_MOVED = Moved.of(2 * (SCORE_SENSITIVITY + SLACK) * UNIT)
"""Largest change of a difference of two scores of parents under neighbouring files."""


def moved_counts(adjacency: Adjacency) -> int:
    """The largest L1 change of a table by one record."""
    return 2 if adjacency == "substitution" else 1


def tables(number: int, scale: Fraction) -> NoisyQuery:
    """The query for all cells of that many tables, under Laplace noise of this scale."""
    return NoisyQuery("weighted tables", MOVED.times(number), scale)


def table_scale(epsilon: Fraction, tables: int, adjacency: Adjacency) -> Fraction:
    """Noise scale of tables that share ε, in units of 1/UNIT."""
    return Fraction(moved_counts(adjacency) * tables * UNIT) / epsilon


def best_pair(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for the next pair of columns.
    A neighbour changes differences of scores by twice the distance of tables.
    """
    return NoisyQuery("pair of columns", MOVED.times(2), scale, times=times)


def choice_scale(epsilon: Fraction, rounds: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units of 1/UNIT, of the noise on scores of pairs, in each of the rounds that share ε."""
    return Fraction(2 * moved_counts(adjacency) * rounds * UNIT) / epsilon


def scales_of_round(epsilon: Fraction, adjacency: Adjacency) -> tuple[Fraction, Fraction]:
    """Scales of the noise on scores and on the pair's table in a round; `epsilon` is the stratum's ε over all rounds."""
    share = epsilon * PART_OF_ROUNDS
    return choice_scale(share * CHOICE_OF_ROUND, 1, adjacency), table_scale(share * (1 - CHOICE_OF_ROUND), 1, adjacency)


def parents(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for the column and the parents that come next."""
    return NoisyQuery("column and its parents", SCORES_MOVED, scale, times=times)


def parents_scale(epsilon: Fraction, rounds: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units of 1/UNIT, of the noise on scores of parents, in each of the rounds that share ε."""
    return (SCORE_SENSITIVITY + SLACK) * choice_scale(epsilon, rounds, adjacency)
