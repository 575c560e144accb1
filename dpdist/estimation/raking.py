"""Raking of weights to public totals by iterative proportional fitting, with one factor for each crosstab row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import TOTAL, Cells, Crosstab, Floats, cross
from dpdist.estimation.estimators import Estimate, Figures, PsuSums, Stage, group_sums, stratified_variance
from dpdist.job import Job

ROUNDS = 1_000
"""Rounds of proportional fitting, after which Newton's method solves for unmet totals."""
NEWTON_STEPS = 200
"""Largest number of steps of Newton's method."""
MET = 1e-11
"""Relative distance from a total at which it counts as met."""


class Margin(NamedTuple):
    """Public totals (cell,), the 0/1 matrix (cell, crosstab row) of their cells, and names of these and of the margin.

    Every row is in one cell.
    """

    membership: scipy.sparse.csr_array
    totals: Floats
    labels: tuple[str, ...] = ()
    by: str = ""


class NotMet(Exception):
    """Raised if no factors meet all totals."""


def margins_of(job: Job, crosstab: Crosstab) -> list[Margin]:
    margins = []
    for rake in job.rake:
        cells = cross(crosstab, rake.by, margins=False)
        labels = tuple(" / ".join(label) or TOTAL for label in cells.labels)
        totals = np.array([rake.totals[label] for label in labels])
        margins.append(Margin(cells.membership, totals, labels, ", ".join(rake.by) or "all records"))
    return margins


# The variance of a raked estimate is the variance of its residuals from a regression on the margins. The regression uses
# the weights before raking, and the residuals are multiplied by the factors (Deville & Särndal 1992; R's `calibrate` with
# calfun="raking").
def factors(weights: Floats, margins: Sequence[Margin]) -> Floats:
    """Factors (…, row) that bring the sums of weights (…, row) to the total of every cell that has weight. Raises `NotMet`.

    Totals of cells without weight are ignored here; `totals_checks` refuses them before a release.
    Whether factors exist depends only on which rows have weights.
    """
    flat = weights.reshape(-1, weights.shape[-1])
    factor = np.ones_like(flat)
    for _ in range(ROUNDS):
        distance = np.zeros(len(flat))
        for margin in margins:
            ratio = _ratio(margin, flat * factor)
            factor *= (margin.membership.T @ ratio.T).T
            distance = np.maximum(distance, np.abs(ratio - 1.0).max(axis=1, initial=0.0))
        if distance.max(initial=0.0) < MET:
            return factor.reshape(weights.shape)
    for k in np.flatnonzero(distance >= MET):
        factor[k] *= _solve(flat[k] * factor[k], margins)
    return factor.reshape(weights.shape)


def _ratio(margin: Margin, weights: Floats) -> Floats:
    now = (margin.membership @ weights.T).T
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(now > 0, margin.totals / now, 1.0)


def _solve(weights: Floats, margins: Sequence[Margin]) -> Floats:
    """Solves for the factors of one set of weights, (row,), by minimising Σ w exp(x'λ) − t'λ, which is convex in λ.

    x is the margins' matrix, t are the totals, and a row's factor is exp(x'λ). Proportional fitting is slow if few rows
    link the cells of different margins. Raises `NotMet` if no finite λ is the minimum.
    """
    x = np.vstack([margin.membership.toarray() for margin in margins])
    totals = np.concatenate([margin.totals for margin in margins])
    power = np.zeros(weights.shape[0])

    def cost(powers: Floats, along: float) -> float:
        return float((weights * np.exp(np.minimum(powers, 500.0))).sum()) - along

    reached = 0.0
    for _ in range(NEWTON_STEPS):
        scaled = weights * np.exp(power)
        now = x @ scaled
        if np.abs(now - totals).max() <= MET * totals.max() and np.abs(_apart(now, totals)).max() < MET:
            return np.asarray(np.exp(power))
        scale = 1.0 / np.sqrt(np.maximum(now, np.finfo(float).tiny))
        curvature = (x * scaled) @ x.T * np.outer(scale, scale)
        step = scale * np.linalg.lstsq(curvature, scale * (totals - now), rcond=1e-14)[0]
        length, gain = 1.0, float(totals @ step)
        while length > 1e-10 and cost(power + length * (x.T @ step), reached + length * gain) > cost(power, reached):
            length /= 2.0
        power, reached = power + length * (x.T @ step), reached + length * gain
    raise NotMet


def _apart(now: Floats, totals: Floats) -> Floats:
    return np.where(now > 0, totals / np.maximum(now, np.finfo(float).tiny) - 1.0, 0.0)


def raked(sums: PsuSums, factor: Floats) -> PsuSums:
    """Sums of records after their weights were multiplied by the factor of their row, `factor` (row,)."""
    return PsuSums(sums.a * factor, sums.b * factor, *(values * factor**2 for values in (sums.aa, sums.ab, sums.bb)))


def raked_counts_and_means(
    sums: PsuSums, crosstab: Crosstab, cells: Cells, margins: Sequence[Margin], stage: Stage
) -> Figures:
    """Counts, means and totals after raking, from the sums before it, if every record is its own PSU.

    Variances are computed from the residuals of a regression on the margins.
    """
    inside, unraked = cells.membership.toarray(), sums
    sums = raked(unraked, factors(unraked.a, margins))
    count, total = (cells.membership @ values for values in (sums.a, sums.b))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / count
        share = inside / count[:, None]
    x = np.vstack([margin.membership.toarray() for margin in margins])
    gram = np.linalg.pinv((x * unraked.a) @ x.T)
    counted = _residual(inside, np.zeros_like(inside), unraked, x, gram)
    averaged = _residual(-np.nan_to_num(mean)[:, None] * np.nan_to_num(share), np.nan_to_num(share), unraked, x, gram)
    added = _residual(np.zeros_like(inside), inside, unraked, x, gram)
    variances = [_variance(*coefficients, sums, crosstab, stage) for coefficients in (counted, averaged, added)]
    averages = Estimate(mean, np.where(count > 0, variances[1], np.nan))
    return Estimate(count, variances[0]), averages, Estimate(total, variances[2])


def _residual(p: Floats, q: Floats, sums: PsuSums, x: Floats, gram: Floats) -> tuple[Floats, Floats]:
    """The residual of p + q y from its regression on the margins; p and q are coefficients (cell, row).

    `sums` has the weights of the regression.
    """
    slopes = (p * sums.a + q * sums.b) @ x.T @ gram
    return p - slopes @ x, q


def _variance(p: Floats, q: Floats, sums: PsuSums, crosstab: Crosstab, stage: Stage) -> Floats:
    """Variance (cell,) of Σ w(p + q y) over records, with coefficients p and q (cell, row)."""
    cells = len(p)
    total = p * sums.a + q * sums.b
    squares = p**2 * sums.aa + 2.0 * p * q * sums.ab + q**2 * sums.bb
    strata = len(stage.size)
    group = (np.arange(cells)[:, None] * strata + crosstab.design_stratum).reshape(-1)
    pairs = np.arange(cells * strata)
    sum_t, sum_tt = (group_sums(group, values.reshape(-1), cells * strata) for values in (total, squares))
    return stratified_variance(sum_t, sum_tt, pairs // strata, pairs % strata, stage, cells)
