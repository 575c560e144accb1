"""Weighted marginals: what one record moves, and how ε is shared.

With a public bound U of weights a record has v = min(w, U)/U in [0, 1]; without weights v = 1. v is rounded to whole
multiples of 1/UNIT, so that sums are exact. It enters one cell of every measured table, by v.

Tables. Switched off, added or removed, a record moves one cell of each of k tables by v ≤ 1: k in L1. Attained by any
record of weight U. Exchanged for another, it leaves a cell by v and enters one by v': at most 2 a table, 2k in all.
Attained by two records of weight U that differ in every column. Noise of scale D/ε on all cells of all tables gives ε.

Selection. A pair's score is q = Σ|C − M| − b K. C is its exact table, M what the released tables of its columns say if
they are independent, K its cells, and b K the noise that it would bring. Given what is released before, C alone moves;
by the triangle inequality q moves by at most ‖C − C'‖ ≤ Δ = 1, or 2 for an exchange. Attained where C ≥ M in the cells
that change, with v = 1. q is a whole number of units. Each round takes the largest of q + η, η discrete Laplace noise of
scale 2Δ/ε_r, and the first of equal ones. Fix the noise of all other pairs: pair i wins if η_i is at least a threshold t,
a whole number; in a neighbouring file t moves by at most 2Δ. P(η ≥ t) falls by at most e^(−s/b) when t rises by s,
for every whole t, so that each round costs ε_r. What is released is which pair won, and not its score.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Adjacency

UNIT = 2**20
SINGLES, SELECTION, PAIRS = Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)
"""Parts of ε where pairs are chosen: for each column's table, for the choice, for the pairs' tables."""
OUTRIGHT = Fraction(1, 2)
"""Part of ε for each column's table, and for the pairs', where there is no choice: candidate pairs make no loop."""


def moved(adjacency: Adjacency) -> int:
    """What one record moves a table by, in L1."""
    return 2 if adjacency == "substitution" else 1


def table_scale(epsilon: Fraction, tables: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units, of the noise on all cells of tables that are measured together with ε."""
    return Fraction(moved(adjacency) * tables * UNIT) / epsilon


def choice_scale(epsilon: Fraction, rounds: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units, of the noise on scores of pairs, in each of the rounds that share ε."""
    return Fraction(2 * moved(adjacency) * rounds * UNIT) / epsilon
