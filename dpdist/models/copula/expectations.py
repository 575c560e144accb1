"""Expected weights and outcomes of cells under the score model, and their error from the reference's sampling.

Scores are cut into narrow bins. Within a bin, the weight w and the outcome y are replaced by their means under the
reference's own law. This is exact for that law. For another law the error is of the order of the squared bin width
(METHODS §5b).
"""

from __future__ import annotations

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.records import Floats, Ints
from dpdist.models.copula.marginal import BINS
from dpdist.models.copula.normal_scores import Kind, ScoredRecords
from dpdist.models.copula.reference_summary import Facts, Law
from dpdist.models.copula.shapes import FEWEST_UNMIXED
from dpdist.models.copula.spline import basis
from dpdist.models.numerics.tiles import by_pattern

DRAWS = 64
"""Number of draws that are computed together, so that their products of bins take only some megabytes."""


def expectations(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float]) -> tuple[Floats, Floats]:
    """E(w) and E(wy) of every cell, (draw, cell) each, with outcomes clipped to `bounds`."""
    draws, cells = law.share.shape
    weight, product = np.empty((draws, cells)), np.empty((draws, cells))
    for cell in range(cells):
        bins = facts.bins[cell]
        for low in range(0, draws, DRAWS):
            rows = slice(low, low + DRAWS)
            share = law.share[rows, cell]
            chances = [_chances(law.mean[rows, cell, part], law.sd[rows, cell, part], bins.edges) for part in range(2)]
            ones = chances[1] * bins.of_rest
            weight[rows, cell] = share * ones.sum(axis=1) + (1.0 - share) * (chances[0] @ bins.of_zeros)
            if kind == "binary":
                product[rows, cell] = share * ones.sum(axis=1)
                continue
            located = facts.untied[cell] * (law.slopes[rows, cell] @ bins.splines.T) + facts.tie[cell] * bins.splines[:, 1]
            residual = facts.untied[cell] * law.residual[rows, cell]
            moments = np.empty_like(located)
            for k, values in bins.means.items():
                inside = bins.outcome == k
                moments[:, inside] = _mean(np.clip(values, *bounds), located[:, inside], residual)
            product[rows, cell] = share * (ones * moments).sum(axis=1)
    return weight, product


def _chances(mean: Floats, sd: Floats, edges: Floats) -> Floats:
    """Probability of every bin under N(mean, sd²), (draw, bin); the outermost bins include the tails."""
    below = scipy.special.ndtr((edges[1:-1] - mean[:, None]) / sd[:, None])
    return np.diff(below, prepend=0.0, append=1.0, axis=1)


def _mean(values: Floats, located: Floats, sd: Floats) -> Floats:
    """Mean of an outcome whose score follows N(located, sd²), (draw, …); `values` (bin,) are its means in BINS."""
    below = scipy.special.ndtr((BINS[1:-1] - located[..., None]) / sd[:, None, None])
    return np.asarray(values[-1] - below @ np.diff(values))


def borrowed(facts: Facts, law: Law, scored: ScoredRecords, records: Records, share: Floats) -> Floats:
    """Covariance of errors of (E w, E wy) by the sampling of the reference, (cell, 2, 2).

    `share` (cell,) is the cell's share of its unit's records: only this share of the fit follows from them. `records`
    of the current file have the scores `scored`.
    """
    # A record's influence on an efficient estimate is that on the direct estimate, projected on the statistics of the fit.
    # The current records determine this projection; the remainder comes from the reference's own records.
    pairs = np.column_stack([records.weight, records.weight * records.outcome])
    covariance = np.zeros((len(share), 2, 2))
    for rows, cell in by_pattern(scored.cell):
        z_w, z_y, part = scored.weight[rows], scored.outcome[rows], scored.part[rows].astype(np.float64)
        splines = basis(z_w)
        residual = part * (z_y - splines @ law.slopes[0, cell])
        statistics = [(1.0 - part) * z_w, (1.0 - part) * z_w**2, part * z_w, part * z_w**2, residual**2]
        functions = np.column_stack([np.ones(len(rows)), part, *statistics, residual[:, None] * splines])
        coefficients = np.linalg.lstsq(functions, pairs[rows], rcond=1e-8)[0]
        coefficients[2:] *= share[cell]
        residuals = pairs[rows] - functions @ coefficients
        residuals -= residuals.mean(axis=0)
        covariance[cell] = residuals.T @ residuals / len(rows) / float(facts.effective[cell])
    return covariance


def shares(count: Ints, unit: Ints) -> Floats:
    """Each cell's share of the records of its unit, (cell,); a unit is a set of cells that share a fit."""
    return np.asarray(count / np.bincount(unit, weights=count)[unit])


# Scores are not exactly normal about their regression. So mean outcomes under the fit differ a little from the reference's
# weighted means. A shift of the intercept of each cell's regression reduces the difference.
LARGEST_SCORE_SHIFT, HALVINGS = 4.0, 40
"""Largest shift, and number of bisection steps that find a shift.

A shift is in units of the outcome's score, or of the share's logit for a yes-or-no outcome.
"""
STEP = 0.01
"""Step of the numerical derivative of a mean outcome, in units of the outcome's score."""
PRIOR = 0.03
"""Prior standard deviation of a shift, in units of the outcome's score; in six surveys it was 0 to .03."""


def shifted(law: Law, kind: Kind, by: Floats) -> Law:
    """The law with a shift, `by` (cell,), added to the intercept of each cell's regression of outcomes.

    For a yes-or-no outcome the shift is added to the logit of the cell's share.
    """
    if kind == "binary":
        return law._replace(share=scipy.special.expit(scipy.special.logit(law.share) + by))
    slopes = law.slopes.copy()
    slopes[:, :, 0] += by
    return law._replace(slopes=slopes)


def shifts(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float], means: Floats, group: Ints) -> Floats:
    """Finds the shift of every cell, (cell,), that gives the law of the first draw the requested mean outcomes.

    `means` (group,) are the requested means, and `group` (cell,) is the number of each cell's group. A group's mean
    weights cells by their numbers of reference records. If no shift gives a mean, the nearest possible mean is taken.
    """
    low, high = np.full(len(means), -LARGEST_SCORE_SHIFT), np.full(len(means), LARGEST_SCORE_SHIFT)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        below = _means(facts, law, kind, bounds, middle[group], group)[0] < means
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high)[group] / 2.0)


def misfit(facts: Facts, fits: Law, kind: Kind, bounds: tuple[float, float], sums: Floats, prior: float = PRIOR) -> Law:
    """Estimates the shifts that give a law fitted to a file like the reference the file's weighted mean outcomes.

    The result is a law of one draw that holds only the shifts, on the scales of `Law.free`; 0 for a yes-or-no outcome.
    The first draw of `fits` (draw, …) is the fit to all reference records; each other draw leaves out a group of
    records. `sums` (draw, cell, 2) are Σw and Σwy of the same records. Cells that share a distribution of outcomes
    share a shift. `prior` is the standard deviation of a shift around the mean of all. A cell has no shift if fewer
    than FEWEST_UNMIXED records follow its distribution, or if no shift gives the mean.
    """
    # Without shifts, the median error of a cell's mean was a third of its direct standard error in a large file.
    # But one record with a large weight can dominate a shift. So each is shrunk towards their common value m, under a prior
    # N(m, prior²) and the jackknife's variance: a law that errs in one cell mostly errs in the same direction in others.
    cells = sums.shape[1]
    none = Law.nothing(cells)
    if kind == "binary":
        return none
    distributions, group = np.unique(facts.of_outcome, axis=0, return_inverse=True)
    group = group.reshape(-1)
    member = (group[:, None] == np.arange(len(distributions))).astype(np.float64)
    records, totals = facts.records @ member, np.einsum("dcj,cg->dgj", sums, member)
    means = np.divide(totals[..., 1], totals[..., 0], out=np.zeros(totals.shape[:-1]), where=totals[..., 0] > 0)
    overall = Law(*(values[:1] for values in fits))

    def reached(law: Law, by: Floats) -> Floats:
        return _means(facts, law, kind, bounds, by, group)

    lowest, highest = (reached(overall, np.full(cells, end))[0] for end in (-LARGEST_SCORE_SHIFT, LARGEST_SCORE_SHIFT))
    told_of = (records >= FEWEST_UNMIXED) & (lowest < means[0]) & (means[0] < highest)
    by = shifts(facts, overall, kind, bounds, means[0], group)
    slope = np.subtract(*(reached(overall, by + step)[0] for step in (STEP, -STEP))) / (2.0 * STEP)
    away = np.divide(
        means[1:] - reached(Law(*(values[1:] for values in fits)), by), slope, where=told_of, out=0.0 * means[1:]
    )
    variance = (len(away) - 1) * away.var(axis=0)
    of_groups = np.array([by[group == number][0] for number in range(len(distributions))])
    common = _common(of_groups, away, np.where(told_of, 1.0 / (prior**2 + variance), 0.0))
    shrinkage = 1.0 / (1.0 + variance / prior**2)
    return shifted(none, kind, np.where(told_of, common + shrinkage * (of_groups - common), 0.0)[group])


def _common(by: Floats, away: Floats, precision: Floats) -> float:
    """The shift that all groups have in common, shrunk towards 0 for its sampling error (James & Stein).

    `by` (group,) are the shifts of groups of cells. `away` (draw, group) are their changes if records are left out.
    """
    if not precision.sum() > 0.0:
        return 0.0
    share = precision / precision.sum()
    mean, variance = float(share @ by), (len(away) - 1) * float((away @ share).var())
    return mean * max(0.0, 1.0 - variance / mean**2) if mean else 0.0


def _means(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float], by: Floats, group: Ints) -> Floats:
    """Weighted mean outcomes of groups of cells, (draw, group), under a law whose cells are shifted by `by` (cell,)."""
    positive = law._replace(share=np.ones_like(law.share)) if kind == "positive" else law
    weight, product = expectations(facts, shifted(positive, kind, by), kind, bounds)
    of_group = (group[:, None] == np.arange(int(group.max()) + 1)) * facts.records[:, None]
    total, outcome = weight @ of_group, product @ of_group
    return np.asarray(np.divide(outcome, total, out=np.zeros_like(total), where=total > 0))
