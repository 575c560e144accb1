"""For `query` and `post` of `privbayes` and `weighted_marginals`: sensitivity of weighted tables, and scale of noise.

A record of weight w adds v = min(w, U)/U in [0, 1] to one cell of every measured table, with the public bound U.
Without weights v is 1. Rounding to multiples of 1/UNIT keeps sums exact.

Switching off, adding or removing a record changes k tables by at most k in L1. Any record of weight U attains this
bound. An exchange changes them by at most 2k: one cell loses v, another gains v'. Two records of weight U that differ
in every column attain this. With L1 distance D, noise of scale D/ε on all cells gives ε.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.core.records import UNIT
from dpdist.job import Adjacency
from dpdist.privacy.queries import Moved, NoisyQuery

MOVED = Moved(*(Fraction(distance * UNIT) for distance in (1, 2, 2)))
"""L1 distance of one table under neighbouring files."""


def tables(number: int, scale: Fraction) -> NoisyQuery:
    """The query for all cells of that many tables, under Laplace noise of this scale."""
    return NoisyQuery("weighted tables", MOVED.times(number), scale)


def moved(adjacency: Adjacency) -> int:
    """The largest L1 change of a table by one record."""
    return 2 if adjacency == "substitution" else 1


def table_scale(epsilon: Fraction, tables: int, adjacency: Adjacency) -> Fraction:
    """Noise scale of tables that share ε, in units of 1/UNIT."""
    return Fraction(moved(adjacency) * tables * UNIT) / epsilon
