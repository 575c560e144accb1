"""Sensitivity of a tree's counts and of attributes' scores, with noise scales ([S]).

Counts. A record has v = min(w, U)/U in [0, 1], with weight w and its public bound U; v = 1 without weights. It adds v
to one node of every layer, and 1 − v to one further sum. So zero_out changes a layer by at most 1 in L1, and
substitution by at most 2. L layers have equal parts of ε. Scores. The AIC of an attribute with counts c_1..c_K and
their sum n is 2K − 2 (g(n) − Σ g(c_k)), with g(c) = log Γ(c + 1) − c log c and the public K. If a record of weight v
enters level j, g(n) − Σ g(c_k) changes by the integral of g'(n + t) − g'(c_j + t) over t from 0 to v. The function
h(c) = g'(c) + 1 = ψ(c + 1) − log c falls from ∞ to 0, and its integral over [0, 1] is 1. Because c_j ≤ n, the AIC of
every attribute of the node rises by 0 to 2. Selection. The attribute with the lowest score under Laplace noise of
scale b wins (report noisy max, Dwork & Roth 2014, claim 3.9). Under zero_out, differences of scores change by at most
2, so b = 2/ε. Under substitution two nodes change by 2, or one by 4, so b = 4/ε. A layer's nodes are disjoint and
share one ε; L layers need L − 1 selections.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.core.records import UNIT
from dpdist.job import Job
from dpdist.mechanisms.partitions.spec import Partitioned
from dpdist.privacy.guarantees import Moved, NoisyQuery, neighbour_of, record_epsilon

AIC_SENSITIVITY = Fraction(2)
SLACK = Fraction(1, 2**10)
"""The most that rounding errors of log Γ change a score, in files of up to 10⁹ records."""
COUNTS_MOVED = Moved.of(UNIT)
"""L1 distance of a layer's counts under neighbouring files."""
SCORES_MOVED = Moved.of((AIC_SENSITIVITY + SLACK) * UNIT)
"""Largest change of a layer's differences of scores, over all of its nodes together, under neighbouring files."""


def layer_counts(job: Job, settings: Partitioned) -> NoisyQuery:
    """The query for the counts of all layers of a set."""
    distance, epsilon = COUNTS_MOVED.times(settings.layers_of(job)), record_epsilon(job, job.epsilon_per_set)
    part = (1 - settings.selecting) * epsilon
    return NoisyQuery.losing("counts of nodes", distance, part, neighbour_of(job), job.synthetic_sets)


def selection(job: Job, settings: Partitioned) -> NoisyQuery | None:
    """The query for the attributes of one layer, once for each selection of a set; None: nothing is selected."""
    selections, epsilon = settings.selections(job), record_epsilon(job, job.epsilon_per_set)
    if not selections:
        return None
    part, times = settings.selecting * epsilon / selections, job.synthetic_sets * selections
    return NoisyQuery.losing("attribute of nodes", SCORES_MOVED, part, neighbour_of(job), times)
