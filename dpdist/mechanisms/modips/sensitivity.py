"""Bounded sufficient statistics of a record, and the noise that they need (METHODS §8).

With public bounds a record has v = min(w, U)/U in [0, 1] and u in [−1, 1], its outcome (or log outcome) less the middle of
the bounds over their half width. It enters by (1 − v, vu, v(u² − 1/2)). For a fixed u this is linear in v, so that
distances are largest at v = 0, the point (1, 0, 0), or v = 1, the curve (0, u, u² − 1/2). L1 norms are at most 3/2, at
v = 1, u = ±1. L1 distances are at most 5/2, from there to v = 0; on the curve 9/4, from u = 1 to u = −1/2, which is the
most of a file without weights. Where the variance is public the last term is left out: 1 and 2. An outcome with levels
enters by (1 − v, v 1[y = k]): corners of a simplex, of norm 1 and 2 apart.

Conjoint sanitization noises all statistics with the L1 sensitivity over ε. Individual sanitization gives each of G groups
of statistics ε/G, for that group alone. Clamping to the public domain of a sum is post-processing. Drawing again
until a sum lies in its domain is not: with x = d/b for a sum that moves by d, the constant of the truncated law
changes by at most 2 − e^(−x), so the loss is x + log(2 − e^(−x)) = log(2e^x − 1). This is concave in x: if at most C sums
move, by X scales of the noise in all, the loss is at most C log(2e^(X/C) − 1). It is ε at X = C log((1 + e^(ε/C))/2): the
scale is the sensitivity over X. That is the bounded-domain scale of Holohan et al. (2018) for the widest domain.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from dpdist.job import Adjacency, Law, Sanitization, Truncation

UNIT = 2**20
"""Statistics are whole multiples of 1/UNIT, so that sums are exact."""
ROUNDING = Fraction(4, UNIT)
"""What rounding to whole units can add to an L1 distance on the curve."""


class Group(NamedTuple):
    """Statistics that are sanitised together: their L1 sensitivity, and how many of them one record can move."""

    name: str
    sensitivity: Fraction
    moved: int


def groups(law: Law, weighted: bool, known: bool, adjacency: Adjacency) -> tuple[Group, ...]:
    """Statistics of a law; `known`: its variance is public."""
    exchanged = adjacency == "substitution"
    first = (Group("1 - v", Fraction(1), 1),) if weighted else ()
    if law in ("bernoulli", "multinomial"):
        return (*first, Group("v 1[y = k]", Fraction(1 + exchanged), 1 + exchanged))
    second = () if known else (Group("v (u^2 - 1/2)", Fraction(1 + exchanged, 2), 1),)
    return (*first, Group("v u", Fraction(1 + exchanged), 1), *second)


def together(law: Law, weighted: bool, known: bool, adjacency: Adjacency) -> Fraction:
    """L1 sensitivity of all statistics at once."""
    exchanged = adjacency == "substitution"
    if known or law in ("bernoulli", "multinomial"):
        return Fraction(1 + exchanged)
    if not exchanged:
        return Fraction(3, 2)
    return Fraction(5, 2) if weighted else Fraction(9, 4) + ROUNDING


def scales(
    kinds: tuple[Group, ...], whole: Fraction, epsilon: Fraction, sanitization: Sanitization, truncation: Truncation
) -> tuple[Fraction, ...]:
    """Scales of the noise of every group, in units; `whole` is the L1 sensitivity of all, `epsilon` that of one set."""
    if sanitization == "individual":
        return tuple(scale(each.sensitivity, epsilon / len(kinds), each.moved, truncation) for each in kinds)
    return (scale(whole, epsilon, sum(each.moved for each in kinds), truncation),) * len(kinds)


def scale(sensitivity: Fraction, epsilon: Fraction, moved: int, truncation: Truncation) -> Fraction:
    """Scale in units under which sums that move by `sensitivity` in all, at most `moved` of them, cost ε."""
    if truncation != "bounded":
        return sensitivity * UNIT / epsilon
    return Fraction(math.ceil(float(sensitivity * UNIT) / (moved * distance(float(epsilon) / moved)) * (1.0 + 1e-12)))


def distance(epsilon: float) -> float:
    """x with log(2e^x − 1) = ε: log((1 + e^ε)/2)."""
    return (
        math.log1p(math.expm1(epsilon) / 2.0) if epsilon < 1.0 else epsilon + math.log1p(math.exp(-epsilon)) - math.log(2.0)
    )


def renormalised_loss(epsilon: float) -> float:
    """What the truncated law costs at the scale of the plain one, in a wide domain: ε + log(2 − e^(−ε))."""
    return epsilon + math.log(2.0 - math.exp(-epsilon))
