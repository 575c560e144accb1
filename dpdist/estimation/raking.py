"""Raking: weights scaled by one factor a frame row until every public total is met (iterative proportional fitting).

The raked estimate's variance is that of its residuals from a regression on the margins with the weights before raking,
times the factors (Deville & Särndal 1992; R's `calibrate` with calfun="raking").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from dpdist.core.records import TOTAL, Floats, Frame
from dpdist.core.table_cells import Cells, cross
from dpdist.estimation.estimators import Estimate, Figures, Sums, group_sums
from dpdist.estimation.variance import Stage, stratified
from dpdist.job import Job

ROUNDS = 10_000
MET = 1e-11


class Margin(NamedTuple):
    """Public totals (cell,) and the 0/1 matrix (cell, frame row); every row is in one cell."""

    membership: csr_array
    totals: Floats


class NotMet(Exception):
    """No factors meet all totals: some combination that they need has no record."""


def margins_of(job: Job, frame: Frame) -> list[Margin]:
    found = []
    for said in job.rake:
        cells = cross(frame, said.by, margins=False)
        found.append(
            Margin(cells.membership, np.array([said.totals[" / ".join(label) or TOTAL] for label in cells.labels]))
        )
    return found


def factors(weights: Floats, margins: Sequence[Margin]) -> Floats:
    """Factors (…, row) that bring the sums of weights (…, row) to every total. Raises `NotMet`."""
    flat = weights.reshape(-1, weights.shape[-1])
    factor = np.ones_like(flat)
    for _ in range(ROUNDS):
        apart = 0.0
        for margin in margins:
            now = (margin.membership @ (flat * factor).T).T
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(now > 0, margin.totals / now, 1.0)
            factor *= (margin.membership.T @ ratio.T).T
            apart = max(apart, float(np.abs(ratio - 1.0).max(initial=0.0)))
        if apart < MET:
            return factor.reshape(weights.shape)
    raise NotMet


def raked(sums: Sums, factor: Floats) -> Sums:
    """Sums of records whose weights were multiplied by their row's factor."""
    return Sums(sums.a * factor, sums.b * factor, *(values * factor**2 for values in (sums.aa, sums.ab, sums.bb)))


def raked_counts_and_means(sums: Sums, frame: Frame, cells: Cells, margins: Sequence[Margin], stage: Stage) -> Figures:
    """Counts, means and totals after raking, from the sums before it; variances of residuals, records as PSUs."""
    inside, plain = cells.membership.toarray(), sums
    sums = raked(plain, factors(plain.a, margins))
    count, total = (cells.membership @ values for values in (sums.a, sums.b))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / count
        share = inside / count[:, None]
    x = np.vstack([margin.membership.toarray() for margin in margins])
    gram = np.linalg.pinv((x * plain.a) @ x.T)
    counted = _residual(inside, np.zeros_like(inside), plain, x, gram)
    averaged = _residual(-np.nan_to_num(mean)[:, None] * np.nan_to_num(share), np.nan_to_num(share), plain, x, gram)
    added = _residual(np.zeros_like(inside), inside, plain, x, gram)
    variances = [_variance(*each, sums, frame, stage) for each in (counted, averaged, added)]
    averages = Estimate(mean, np.where(count > 0, variances[1], np.nan))
    return Estimate(count, variances[0]), averages, Estimate(total, variances[2])


def _residual(p: Floats, q: Floats, sums: Sums, x: Floats, gram: Floats) -> tuple[Floats, Floats]:
    """p + q y, coefficients (cell, row), less its regression on the margins, weighted as `sums`: another p."""
    slopes = (p * sums.a + q * sums.b) @ x.T @ gram
    return p - slopes @ x, q


def _variance(p: Floats, q: Floats, sums: Sums, frame: Frame, stage: Stage) -> Floats:
    cells = len(p)
    total = p * sums.a + q * sums.b
    squares = p**2 * sums.aa + 2.0 * p * q * sums.ab + q**2 * sums.bb
    strata = len(stage.size)
    group = (np.arange(cells)[:, None] * strata + frame.design_stratum).reshape(-1)
    pairs = np.arange(cells * strata)
    sum_t, sum_tt = (group_sums(group, values.reshape(-1), cells * strata) for values in (total, squares))
    return stratified(sum_t, sum_tt, pairs // strata, pairs % strata, stage, cells)
