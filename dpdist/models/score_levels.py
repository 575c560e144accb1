"""Outcomes of a score model moved in score space until their weighted means are told ones (METHODS §5b, §7b)."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from dpdist.estimates import group_sums
from dpdist.models import score_tables
from dpdist.models.score_facts import LEAST, Facts, Law
from dpdist.models.score_law import Kind
from dpdist.records import Floats, Ints

FARTHEST, STEPS = 4.0, 40
"""Of an outcome's score, and of a share's logit; halvings until it is found."""


def shifted(law: Law, kind: Kind, by: Floats) -> Law:
    """Outcomes of every cell moved by as much, (cell,): a yes-or-no outcome's by the logit of its share."""
    if kind == "binary":
        return law._replace(share=expit(logit(law.share) + by))
    slopes = law.slopes.copy()
    slopes[:, :, 0] += by
    return law._replace(slopes=slopes)


def shifts(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float], means: Floats, group: Ints) -> Floats:
    """Of every cell, (cell,): under these a law, of one draw, has the weighted means of groups of cells that are asked for,
    (group,), or as near as it comes. `group` (cell,) moves as one, each cell by its reference records."""
    low, high = np.full(len(means), -FARTHEST), np.full(len(means), FARTHEST)
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        below = _means(facts, law, kind, bounds, middle[group], group) < means
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high)[group] / 2.0)


def misfit(facts: Facts, fit: Law, kind: Kind, bounds: tuple[float, float], sums: Floats) -> Law:
    """Differences, on the free scale, that give a fit of the reference's records their weighted means; from their Σw and
    Σwy, (cell, 2). Cells that share a distribution of outcomes move as one.

    A law that is normal about a spline is not quite the scores' own: without this the median cell's mean is off by a third
    of a direct error in a file of 35,000. Nothing is moved where fewer than LEAST records tell of it, or where no moving
    reaches it (one value, no weight); and the parts of a yes-or-no outcome have their means by construction.
    """
    none = Law.nothing(len(sums))
    if kind == "binary":
        return none
    distributions, group = np.unique(facts.of_outcome, return_inverse=True)
    held = np.zeros((len(distributions), 3))
    np.add.at(held, group, np.column_stack([sums, facts.records]))
    means = np.divide(held[:, 1], held[:, 0], out=np.zeros(len(held)), where=held[:, 0] > 0)
    ends = (np.full(len(sums), end) for end in (-FARTHEST, FARTHEST))
    lowest, highest = (_means(facts, fit, kind, bounds, end, group) for end in ends)
    told_of = (held[:, 2] >= LEAST) & (lowest < means) & (means < highest)
    by = shifts(facts, fit, kind, bounds, means, group)
    return shifted(none, kind, np.where(told_of[group], by, 0.0))


def _means(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float], by: Floats, group: Ints) -> Floats:
    """Weighted means of outcomes in groups of cells, (group,), under a law moved by as much."""
    own = law._replace(share=np.ones_like(law.share)) if kind == "positive" else law
    weight, product = score_tables.expectations(facts, shifted(own, kind, by), kind, bounds)
    total, outcome = (group_sums(group, facts.records * each[0], int(group.max()) + 1) for each in (weight, product))
    return np.asarray(np.divide(outcome, total, out=np.zeros_like(total), where=total > 0))
