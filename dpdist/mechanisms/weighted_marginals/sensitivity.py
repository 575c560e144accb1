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
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Adjacency
from dpdist.mechanisms.coded_tables.sensitivity import UNIT, moved

SINGLES, SELECTION, PAIRS = Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)
"""Parts of ε where pairs are chosen: for each column's table, for the choice, and for the pairs' tables."""
OUTRIGHT = Fraction(1, 2)
"""Part of ε for the columns' tables, and for the pairs' tables, if the candidate pairs make no loop.

Nothing is chosen then.
"""


def choice_scale(epsilon: Fraction, rounds: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units of 1/UNIT, of the noise on scores of pairs, in each of the rounds that share ε."""
    return Fraction(2 * moved(adjacency) * rounds * UNIT) / epsilon
