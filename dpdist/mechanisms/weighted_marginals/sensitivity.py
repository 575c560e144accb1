"""Sensitivity of the scores of pairs, and the split of ε over tables and choices.

What a record moves in a table is in `coded_tables.sensitivity`.

Selection. A pair's score is q = Σ|C − M| − b K. C is the pair's exact table. M is the table that follows from the
released tables of its columns if they are independent. K is the number of its cells, and b K is the noise that measuring
it would add. Given what is released before, only C depends on the record. By the triangle inequality q moves by at most
‖C − C'‖ ≤ Δ = 1, or 2 for an exchange. This is attained where C ≥ M in the cells that change, with v = 1. q is a whole
number of units.

Each round selects the largest of q + η, and the first of equal ones. η is discrete Laplace noise of scale s = 2Δ/ε_r,
where ε_r is the round's part of ε. Fix the noise of all other pairs: pair i wins if η_i is at least a threshold t, a
whole number. In a neighbouring file t moves by at most 2Δ. For whole t and j ≥ 0, P(η ≥ t + j) is at least e^(−j/s) P(η ≥
t). So each round costs ε_r. The selected pair is released, and its score is not.

Sums of values. A record adds v u to one cell of each measured sum, with u in [−1, 1] the position of its value between the
column's lowest and highest level. It is rounded to whole multiples of 1/UNIT, of which |v u| ≤ v ≤ 1 has at most UNIT. So
switching a record off, adding or removing it moves the sum by at most 1 in L1, as it does a table. This is attained by
weight U at the lowest or highest level. An exchange moves it by at most 2, attained by two records of weight U, one at the
lowest and one at the highest level, also in one cell. So s sums beside k tables make k + s in L1, or 2(k + s), and all of
this is attained at once. Values outside of the levels are put onto the nearest level before.

Rounds. An adaptive choice (McKenna et al. 2022, AIM) alternates between choosing a pair and measuring it. In each round q
is computed with M from what the fitted tables then say: the pair's own fitted table if it was measured before, otherwise
the product of its columns' fitted margins. M and b are functions of earlier answers, so that q moves by at most Δ as above,
given these answers. This is attained, too, by a record of weight U in a cell where C ≥ M. The parts of ε that a round takes
also depend on earlier answers alone, and their sum never exceeds the whole. The loss of all rounds is the sum of losses
that are at most ε_r each, given what was released before, on every path of answers. So it is at most the sum of ε_r,
although these are chosen in between (Rogers et al. 2016).
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Adjacency
from dpdist.mechanisms.coded_tables.sensitivity import MOVED, UNIT, moved, table_scale
from dpdist.privacy.queries import NoisyQuery

SINGLES, SELECTION, PAIRS = Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)
"""Parts of ε where pairs are chosen: for each column's table, for the choice, and for the pairs' tables."""
OUTRIGHT = Fraction(1, 2)
"""Part of ε for the columns' tables, and for the pairs' tables, if the candidate pairs make no loop.

Nothing is chosen then.
"""

ROUNDS = SELECTION + PAIRS
"""Part of ε for the rounds of an adaptive choice."""
CHOICE_OF_ROUND = Fraction(1, 4)
"""Part of a round's ε for its choice. The rest is for the table."""
ROUNDS_OF_PAIRS = 2
"""Rounds of least ε for each pair of the tree."""


def scales_of_round(epsilon: Fraction, adjacency: Adjacency) -> tuple[Fraction, Fraction]:
    """Scales of the noise on scores and on the pair's table in a round; `epsilon` is its share of the stratum's ε."""
    own = epsilon * ROUNDS
    return choice_scale(own * CHOICE_OF_ROUND, 1, adjacency), table_scale(own * (1 - CHOICE_OF_ROUND), 1, adjacency)


def best_pair(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for the next pair of columns. A neighbour moves differences of scores by twice what it moves tables."""
    return NoisyQuery("pair of columns", MOVED.times(2), scale, times=times)


def choice_scale(epsilon: Fraction, rounds: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units of 1/UNIT, of the noise on scores of pairs, in each of the rounds that share ε."""
    return Fraction(2 * moved(adjacency) * rounds * UNIT) / epsilon
