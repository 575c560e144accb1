"""Bias correction: shifts the fitted law in score space towards the reference's weighted means (METHODS §5b, §7b)."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from dpdist.core.records import Floats, Ints
from dpdist.models.copula import expectations
from dpdist.models.copula.law import Kind
from dpdist.models.copula.reference_summary import Facts, Law
from dpdist.models.copula.shapes import FEWEST_UNMIXED

LARGEST_SCORE_SHIFT, HALVINGS = 4.0, 40
"""Largest shift of an outcome's score, and of a share's logit; number of halvings in the search."""
STEP = 0.01
"""Step of the numerical derivative of a mean, in the outcome's score."""
PRIOR = 0.03
"""Standard deviation of the distance between a spline's fit and a mean, in an outcome's score: 0 to .03 in six surveys."""


def shifted(law: Law, kind: Kind, by: Floats) -> Law:
    """Moves the outcomes of each cell by one shift, (cell,). For a yes-or-no outcome the logit of its share moves."""
    if kind == "binary":
        return law._replace(share=expit(logit(law.share) + by))
    slopes = law.slopes.copy()
    slopes[:, :, 0] += by
    return law._replace(slopes=slopes)


def shifts(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float], means: Floats, group: Ints) -> Floats:
    """Finds the shift of every cell, (cell,), under which a draw's law has the given means of groups, (group,).

    Where no shift gives such a mean, the nearest possible mean is taken. `group` (cell,) numbers the groups. The cells of a
    group share a shift, and are weighted by their reference records.
    """
    low, high = np.full(len(means), -LARGEST_SCORE_SHIFT), np.full(len(means), LARGEST_SCORE_SHIFT)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        below = _means(facts, law, kind, bounds, middle[group], group)[0] < means
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high)[group] / 2.0)


def misfit(facts: Facts, fits: Law, kind: Kind, bounds: tuple[float, float], sums: Floats, prior: float = PRIOR) -> Law:
    """Estimates shifts, on the free scale, that give fits of files like the reference the weighted means of the reference.

    `fits` (draw, …) are the fits to all records first, then to the records without each of several groups in turn. Σw and
    Σwy are (draw, cell, 2). Cells that share a distribution of outcomes have one shift.

    The law of the scores is not exactly normal about a spline. Without these shifts the mean of the median cell errs by a
    third of a direct error in a file of 35,000 records. The distance between a mean and its fit is a sample's figure,
    which one record with a large weight can dominate. The jackknife gives its variance v. Under a prior N(m, prior²) of
    the shift, its distance from m is shrunk by prior²/(prior² + v). All groups have m in common, as a law that is wrong
    in one cell is mostly wrong in the others too. A cell has no shift if it has fewer than FEWEST_UNMIXED
    records, or if no shift gives the mean (one value, no weight). The parts of a yes-or-no outcome have the right means
    by construction.
    """
    cells = sums.shape[1]
    none = Law.nothing(cells)
    if kind == "binary":
        return none
    distributions, group = np.unique(facts.of_outcome, axis=0, return_inverse=True)
    group = group.reshape(-1)
    member = (group[:, None] == np.arange(len(distributions))).astype(np.float64)
    records, held = facts.records @ member, np.einsum("dcj,cg->dgj", sums, member)
    means = np.divide(held[..., 1], held[..., 0], out=np.zeros(held.shape[:-1]), where=held[..., 0] > 0)
    whole = Law(*(values[:1] for values in fits))

    def reached(law: Law, by: Floats) -> Floats:
        return _means(facts, law, kind, bounds, by, group)

    lowest, highest = (reached(whole, np.full(cells, end))[0] for end in (-LARGEST_SCORE_SHIFT, LARGEST_SCORE_SHIFT))
    told_of = (records >= FEWEST_UNMIXED) & (lowest < means[0]) & (means[0] < highest)
    by = shifts(facts, whole, kind, bounds, means[0], group)
    slope = np.subtract(*(reached(whole, by + step)[0] for step in (STEP, -STEP))) / (2.0 * STEP)
    away = np.divide(
        means[1:] - reached(Law(*(values[1:] for values in fits)), by), slope, where=told_of, out=0.0 * means[1:]
    )
    variance = (len(away) - 1) * away.var(axis=0)
    of_groups = np.array([by[group == number][0] for number in range(len(distributions))])
    common = _common(of_groups, away, np.where(told_of, 1.0 / (prior**2 + variance), 0.0))
    kept = 1.0 / (1.0 + variance / prior**2)
    return shifted(none, kind, np.where(told_of, common + kept * (of_groups - common), 0.0)[group])


def _common(by: Floats, away: Floats, precision: Floats) -> float:
    """The shift that all groups have in common, less what sampling alone may have made of it (James & Stein).

    `by` (group,) are shifts, and `away` (draw, group) what leaving records out changes of them.
    """
    if not precision.sum() > 0.0:
        return 0.0
    share = precision / precision.sum()
    mean, variance = float(share @ by), (len(away) - 1) * float((away @ share).var())
    return mean * max(0.0, 1.0 - variance / mean**2) if mean else 0.0


def _means(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float], by: Floats, group: Ints) -> Floats:
    """Weighted means of outcomes in groups of cells, (draw, group), under a law moved by the given shifts."""
    own = law._replace(share=np.ones_like(law.share)) if kind == "positive" else law
    weight, product = expectations.expectations(facts, shifted(own, kind, by), kind, bounds)
    of_group = (group[:, None] == np.arange(int(group.max()) + 1)) * facts.records[:, None]
    total, outcome = weight @ of_group, product @ of_group
    return np.asarray(np.divide(outcome, total, out=np.zeros_like(total), where=total > 0))
