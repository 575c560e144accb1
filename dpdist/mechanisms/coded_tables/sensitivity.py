"""For `query` and `post` of `privbayes` and `weighted_marginals`: sensitivity of weighted tables, and scale of noise.

A record of weight w adds v = min(w, U)/U in [0, 1] to one cell of every measured table, with the public bound U; without
weights v = 1. v is rounded to whole multiples of 1/UNIT, so that sums are exact.

A record that is switched off, added or removed moves k tables by at most k in L1: attained by any record of weight U. An
exchange leaves a cell with v and enters one with v': at most 2k, attained by two records of weight U that differ in every
column. Noise of scale D/ε on all cells gives ε, with D the L1 distance.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.core.records import UNIT
from dpdist.job import Adjacency
from dpdist.privacy.queries import Moved, NoisyQuery

MOVED = Moved(*(Fraction(distance * UNIT) for distance in (1, 2, 2)))
"""By how much a neighbour moves one table."""


def tables(number: int, scale: Fraction) -> NoisyQuery:
    """The query for all cells of that many tables, under Laplace noise of this scale."""
    return NoisyQuery("weighted tables", MOVED.times(number), scale)


def moved(adjacency: Adjacency) -> int:
    """The largest L1 change of a table by one record."""
    return 2 if adjacency == "substitution" else 1


def table_scale(epsilon: Fraction, tables: int, adjacency: Adjacency) -> Fraction:
    """Scale, in units of 1/UNIT, of the noise on all cells of tables that share ε."""
    return Fraction(moved(adjacency) * tables * UNIT) / epsilon
