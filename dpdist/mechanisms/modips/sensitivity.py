"""Sensitivities of bounded sufficient statistics, and noise scales, for `modips` (METHODS §8).

A record has a weight w in [L, U], its public bounds, and v = w/U in [0, 1]. It has u in [−1, 1]: its outcome (or log
outcome), less the middle of the bounds, over their half width. Its contribution to the sums is (1 − v, vu, v(u² −
1/2)), linear in v for a fixed u. So the extreme points are the point (1, 0, 0), at v = 0, and the curve (0, u, u² −
1/2), at v = 1. L1 norms are at most 3/2, attained at v = 1, u = ±1. L1 distances between two records are at most 5/2,
attained between v = 0 and v = 1, u = ±1. Without weights, distances are at most 9/4, attained between u = 1 and u =
−1/2. If the variance is public, the third sum is not needed, and the bounds are 1 and 2. For levels k, the contribution
is (1 − v, v 1[y = k]). It is a point of a simplex, with norm 1 and distances of at most 2.

Conjoint sanitization adds noise to all statistics, of scale L1 sensitivity over ε. Individual sanitization gives each of
G groups of statistics a part ε/G. Clamping a noisy sum to its public range is post-processing.

Redrawing until a sum lies in its range is not post-processing, and has a loss of its own. Let a sum move by d, let b be
the noise scale, and x = d/b. Truncation changes the law's constant by a factor of at most 2 − e^(−x). So the loss is x
+ log(2 − e^(−x)) = log(2e^x − 1), which is concave in x. If at most C sums move, by X noise scales in total, the loss
is at most C log(2e^(X/C) − 1). It equals ε at X = C log((1 + e^(ε/C))/2), and the scale is the sensitivity over X. This
equals the bounded-domain scale of Holohan et al. (2018) for the widest domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from dpdist.core.records import UNIT
from dpdist.job import Adjacency, Job
from dpdist.mechanisms.modips.spec import Law, Modips
from dpdist.privacy.guarantees import Moved, Neighbour, NoisyQuery, moves, neighbour_of, record_epsilon

ROUNDING = Fraction(4, UNIT)
"""What rounding to whole units can add to an L1 distance on the curve."""


class Group(NamedTuple):
    """A kind of statistics that are sanitised together: L1 sensitivity, and how many of them one record can change."""

    name: str
    sensitivity: Fraction
    changes: int


def groups(law: Law, weighted: bool, variance_public: bool, adjacency: Adjacency) -> tuple[Group, ...]:
    """The groups of statistics of a law; `variance_public` concerns the normal law."""
    exchanged = adjacency == "substitution"
    first = (Group("1 - v", Fraction(1), 1),) if weighted else ()
    if law in ("bernoulli", "multinomial"):
        return (*first, Group("v 1[y = k]", Fraction(1 + exchanged), 1 + exchanged))
    second = () if variance_public else (Group("v (u^2 - 1/2)", Fraction(1 + exchanged, 2), 1),)
    return (*first, Group("v u", Fraction(1 + exchanged), 1), *second)


def together(law: Law, weighted: bool, variance_public: bool, adjacency: Adjacency) -> Fraction:
    """L1 sensitivity of all statistics together."""
    exchanged = adjacency == "substitution"
    if variance_public or law in ("bernoulli", "multinomial"):
        return Fraction(1 + exchanged)
    if not exchanged:
        return Fraction(3, 2)
    return Fraction(5, 2) if weighted else Fraction(9, 4) + ROUNDING


@dataclass(frozen=True)
class BoundedQuery(NoisyQuery):
    """Sums whose noise is drawn again until they lie in their domain.
    `moved` states how often a change of one record costs `epsilon`.

    Such a change moves at most `sums` sums, by `distance` in total, in the sums' units.
    """

    epsilon: Fraction = Fraction(0)
    distance: Fraction = Fraction(0)
    sums: int = 1

    def loss(self, neighbour: Neighbour) -> Fraction:
        return self.times * self.epsilon * self.moved.by(neighbour)

    @property
    def entry(self) -> dict[str, Any]:
        within = {"law": "bounded_discrete_laplace", "distance": str(self.distance), "changes": self.moved.texts}
        return {**super().entry, **within, "sums": self.sums, "epsilon": str(self.epsilon)}


def sums_of(job: Job) -> tuple[Law, bool, bool, Adjacency]:
    """What determines the sums: law, presence of weights, whether the variance is public, and adjacency.

    If sample sizes are secret the adjacency is zero_out, because an exchange for any other record is two such changes.
    """
    settings = Modips.of(job)
    adjacency: Adjacency = "zero_out" if job.sizes_secret else job.budget.adjacency
    return settings.law, job.survey.weight is not None, settings.variance is not None, adjacency


def queries_of(job: Job, settings: Modips) -> tuple[NoisyQuery, ...]:
    """The queries of one sanitization: one for all sums together, or one for each group.

    An exchange at the same x costs two zero-outs, unless all sums share one query.
    """
    columns, adjacency = sums_of(job)[:3], sums_of(job)[3]
    kinds, part = groups(*columns, adjacency), record_epsilon(job, settings.epsilon(job))
    if settings.sanitization == "conjoint":
        names = ["all sums"]
        changes = [(together(*columns, adjacency), sum(group.changes for group in kinds))]
        off, same_x = [together(*columns, "zero_out")], [together(*columns, "substitution")]
    else:
        names, part = [group.name for group in kinds], part / len(kinds)
        changes = [(group.sensitivity, group.changes) for group in kinds]
        off = [group.sensitivity for group in groups(*columns, "zero_out")]
        same_x = [distance for distance, _ in changes] if adjacency == "substitution" else [2 * each for each in off]
    if settings.truncation == "bounded":
        once, part = Moved(Fraction(1), Fraction(1 if adjacency == "substitution" else 2), Fraction(2)), part / moves(job)
        return tuple(
            BoundedQuery(
                name, once, bounded_scale(distance, part, number), epsilon=part, distance=UNIT * distance, sums=number
            )
            for name, (distance, number) in zip(names, changes, strict=True)
        )
    distances = (Moved(UNIT * one, UNIT * other, 2 * UNIT * one) for one, other in zip(off, same_x, strict=True))
    return tuple(
        NoisyQuery.losing(name, moved, part, neighbour_of(job)) for name, moved in zip(names, distances, strict=True)
    )


def by_group(job: Job, settings: Modips) -> tuple[NoisyQuery, ...]:
    """The query of each group's sums; a shared query is divided into parts."""
    queries, number = queries_of(job, settings), len(groups(*sums_of(job)))
    return queries if len(queries) == number else (queries[0], *[queries[0].further()] * (number - 1))


def bounded_scale(sensitivity: Fraction, epsilon: Fraction, changes: int) -> Fraction:
    """Scale of truncated noise, in units of 1/UNIT, at which `changes` sums that move by `sensitivity` in total cost ε."""
    return Fraction(math.ceil(float(sensitivity * UNIT) / (changes * distance(float(epsilon) / changes)) * (1.0 + 1e-12)))


def distance(epsilon: float) -> float:
    """The x at which log(2e^x − 1) = ε: log((1 + e^ε)/2)."""
    return (
        math.log1p(math.expm1(epsilon) / 2.0) if epsilon < 1.0 else epsilon + math.log1p(math.exp(-epsilon)) - math.log(2.0)
    )
