"""Sensitivity of counts over a tree and of scores of attributes, and the noise scales of both ([S]; METHODS §9).

Counts. A record has v = min(w, U)/U in [0, 1], where w is its weight and U the weight's public bound; v = 1 without
weights. It lies in one node of every layer of the tree, and adds v to it. One more sum, of 1 − v over all records, is
measured with the first layer. So the L1 norm of a record's contributions to a layer is at most 1. Under zero_out a layer
changes by at most 1. Under substitution other contributions replace the record's, so a layer changes by at most 2. Each of
L layers has an equal part of ε, and discrete Laplace noise of scale 1 or 2 over that part.

Scores. Let an attribute have K levels in a node, with counts c_1..c_K and their sum n. Its AIC is 2K − 2 log L. The
multinomial likelihood at its maximum has log L = g(n) − Σ g(c_k), with g(c) = log Γ(c + 1) − c log c. K is the public
number of levels. Let a record of weight v enter level j. Then log L changes by the integral of g'(n + t) − g'(c_j + t)
over t from 0 to v. The function h(c) = g'(c) + 1 = ψ(c + 1) − log c falls from ∞ to 0, and its integral over [0, 1] is 1.
As c_j ≤ n, the change lies between −1 and 0, and AIC rises by 0 to 2, for every attribute of that node.

Selection. The attribute with the lowest noisy score is selected; every score has Laplace noise of scale b. An attribute
stays selected in a neighbouring file if its own noise is lower by the largest change of a difference of scores (report
noisy max, Dwork & Roth 2014, claim 3.9). Under zero_out a record lowers all scores of one node by 0 to 2. Differences
change by at most 2, so b = 2/ε. Under substitution the record leaves one node and enters another, at a loss of 2/b each,
or changes differences in one node by 4. So b = 4/ε. Nodes of a layer are disjoint, so the cost is one ε for a layer. L
layers need L − 1 selections, which share the selections' part of ε.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Adjacency
from dpdist.privacy.queries import Moved, NoisyQuery

UNIT = 2**20
"""Counts and scores are whole multiples of 1/UNIT."""
AIC_SENSITIVITY = Fraction(2)
SLACK = Fraction(1, 2**10)
"""The most by which rounding errors of log Γ change a score, in all files of up to 10⁹ records."""


COUNTS_MOVED = Moved(*(Fraction(distance * UNIT) for distance in (1, 2, 2)))
"""By how much a neighbour moves the counts of one layer."""
SCORES_MOVED = Moved(*(distance * (AIC_SENSITIVITY + SLACK) * UNIT for distance in (1, 2, 2)))
"""By how much a neighbour moves differences of scores of one layer, in all of its nodes together."""


def layer_counts(scale: Fraction, layers: int, times: int = 1) -> NoisyQuery:
    """The query for the counts of all layers."""
    return NoisyQuery("counts of nodes", COUNTS_MOVED.times(layers), scale, times=times)


def selection(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for the attributes of one layer."""
    return NoisyQuery("attribute of nodes", SCORES_MOVED, scale, times=times)


def count_scale(epsilon: Fraction, adjacency: Adjacency) -> Fraction:
    """Scale of the noise on a layer's counts, in units of 1/UNIT; `epsilon` is the layer's part."""
    return (2 if adjacency == "substitution" else 1) * UNIT / epsilon


def score_scale(epsilon: Fraction, adjacency: Adjacency) -> Fraction:
    """Scale of the noise on scores, in units of 1/UNIT; `epsilon` is the part of one layer's selections."""
    return (2 if adjacency == "substitution" else 1) * (AIC_SENSITIVITY + SLACK) * UNIT / epsilon
