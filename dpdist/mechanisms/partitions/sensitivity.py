"""For `partitions.query` and `post`: sensitivity of a tree's counts and of attributes' scores, with noise scales ([S]).

Counts. A record has v = min(w, U)/U in [0, 1], with weight w and its public bound U; v = 1 without weights. It adds v to
one node of every layer, and 1 − v to one sum beside the first layer. So the L1 norm of its contributions to a layer is at
most 1: a layer changes by at most 1 under zero_out and by 2 under substitution. L layers have equal parts of ε.
Scores. The AIC of an attribute with counts c_1..c_K and their sum n is 2K − 2 (g(n) − Σ g(c_k)), with g(c) = log Γ(c + 1) −
c log c and the public K. A record of weight v in level j changes log L by the integral of g'(n + t) − g'(c_j + t) over t
from 0 to v. h(c) = g'(c) + 1 = ψ(c + 1) − log c falls from ∞ to 0, and its integral over [0, 1] is 1. As c_j ≤ n, AIC rises
by 0 to 2, for every attribute of that node.
Selection. The attribute with the lowest score under Laplace noise of scale b wins (report noisy max, Dwork & Roth 2014,
claim 3.9). Differences of scores change by at most 2 under zero_out: b = 2/ε. Under substitution two nodes change by 2, or
one by 4: b = 4/ε. Nodes of a layer are disjoint, so a layer costs one ε; L layers need L − 1 selections.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.core.records import UNIT
from dpdist.job import Adjacency, Job
from dpdist.mechanisms.partitions.spec import Partitioned
from dpdist.privacy.queries import Moved, NoisyQuery, record_epsilon

AIC_SENSITIVITY = Fraction(2)
SLACK = Fraction(1, 2**10)
"""The most by which rounding errors of log Γ change a score, in all files of up to 10⁹ records."""


COUNTS_MOVED = Moved(*(Fraction(distance * UNIT) for distance in (1, 2, 2)))
"""By how much a neighbour moves the counts of one layer."""
SCORES_MOVED = Moved(*(distance * (AIC_SENSITIVITY + SLACK) * UNIT for distance in (1, 2, 2)))
"""By how much a neighbour moves differences of scores of one layer, in all of its nodes together."""


def scales_of(job: Job, settings: Partitioned) -> tuple[Fraction, Fraction | None]:
    """Scales of the noise on counts and on scores, in units of 1/UNIT; None: nothing is selected."""
    epsilon, adjacency = record_epsilon(job, job.epsilon_per_set), job.budget.adjacency
    selections = settings.selections(job)
    score = score_scale(settings.selecting * epsilon / selections, adjacency) if selections else None
    return count_scale((1 - settings.selecting) * epsilon / settings.layers_of(job), adjacency), score


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
