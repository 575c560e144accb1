"""Sensitivity of weighted marginals, and the split of ε over tables and choices.

A record of weight w has v = min(w, U)/U in [0, 1], where U is the public bound of weights. Without weights v = 1. v is
rounded to whole multiples of 1/UNIT, so that sums are exact. The record adds v to one cell of every measured table.

Tables. A record that is switched off, added or removed changes one cell of each of k tables by v ≤ 1: k in L1. This is
attained by any record of weight U. A record that is exchanged for another leaves a cell with v and enters one with v': at
most 2 for each table, 2k in all. This is attained by two records of weight U that differ in every column. Noise of scale
D/ε on all cells of all tables gives ε, with D the L1 distance.

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

UNIT = 2**20
SINGLES, SELECTION, PAIRS = Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)
"""Parts of ε where pairs are chosen: for each column's table, for the choice, and for the pairs' tables."""
OUTRIGHT = Fraction(1, 2)
"""Part of ε for the columns' tables, and for the pairs' tables, if the candidate pairs make no loop.

Nothing is chosen then.
"""


def moved(adjacency: Adjacency) -> int:
    """The largest L1 change of a table by one record."""
    return 2 if adjacency == "substitution" else 1


def table_scale(epsilon: Fraction, tables: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units of 1/UNIT, of the noise on all cells of tables that are measured together and share ε."""
    return Fraction(moved(adjacency) * tables * UNIT) / epsilon


def choice_scale(epsilon: Fraction, rounds: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units of 1/UNIT, of the noise on scores of pairs, in each of the rounds that share ε."""
    return Fraction(2 * moved(adjacency) * rounds * UNIT) / epsilon
