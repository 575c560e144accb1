"""For `weighted_marginals.query` and `post`: sensitivity of scores and sums, split of ε over tables and choices.

`coded_tables.sensitivity` has the sensitivity of tables.

Scores. A pair's score is q = Σ|C − M| − b K, rounded to whole units. Given earlier answers, it depends on the records
only by the pair's table C. By the triangle inequality, q changes by at most ‖C − C'‖ ≤ Δ, with Δ = 1, or 2 for an
exchange. This is attained if C ≥ M in the changed cells, with v = 1. Choice. The largest q + η wins, with discrete
Laplace noise η of scale s = 2Δ/ε_r. For fixed noise of the other pairs, pair i wins if η_i ≥ t. In a neighbouring file,
the whole number t changes by at most 2Δ. P(η ≥ t + j) is at least e^(−j/s) P(η ≥ t). So a round costs ε_r. The pair is
released, but not its score. Sums of values. A record adds v u with |u| ≤ 1 to one cell of each sum. So a sum of values
changes by at most 1 in L1, or 2 for an exchange, attained by weight U at the lowest or highest level. With s sums
beside k tables the distance is k + s, attained at once. Rounds. M, b and each round's ε_r follow from earlier answers,
and Σ ε_r is fixed. So the losses add up to it on every path of answers (Rogers et al. 2016).
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.core.records import UNIT
from dpdist.job import Adjacency
from dpdist.mechanisms.coded_tables.sensitivity import MOVED, moved, table_scale
from dpdist.privacy.queries import NoisyQuery

SINGLES, SELECTION, PAIRS = Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)
"""Parts of ε where pairs are chosen: for each column's table, for the choice, and for the pairs' tables."""
OUTRIGHT = Fraction(1, 2)
"""Parts of ε for the columns' tables and for the pairs' tables, if nothing needs to be chosen."""

ROUNDS = SELECTION + PAIRS
"""Part of ε for the rounds of an adaptive choice."""
CHOICE_OF_ROUND = Fraction(1, 4)
"""Part of a round's ε for its choice. The rest is for the table."""
ROUNDS_OF_PAIRS = 2
"""Number of rounds of least ε for each pair of the tree."""


def scales_of_round(epsilon: Fraction, adjacency: Adjacency) -> tuple[Fraction, Fraction]:
    """Scales of the noise on scores and on the pair's table in a round; `epsilon` is its share of the stratum's ε."""
    share = epsilon * ROUNDS
    return choice_scale(share * CHOICE_OF_ROUND, 1, adjacency), table_scale(share * (1 - CHOICE_OF_ROUND), 1, adjacency)


def best_pair(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for the next pair of columns.
    A neighbour changes differences of scores by twice the distance of tables.
    """
    return NoisyQuery("pair of columns", MOVED.times(2), scale, times=times)


def choice_scale(epsilon: Fraction, rounds: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units of 1/UNIT, of the noise on scores of pairs, in each of the rounds that share ε."""
    return Fraction(2 * moved(adjacency) * rounds * UNIT) / epsilon
