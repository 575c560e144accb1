"""Counts, means and totals of cells from sums by crosstab row, with variances and intervals, for `publish` and `quality`.

Direct estimates, synthetic records and models use the same estimators. Variances are Taylor-linearised (`variance`):
each is the variance of a sum Σ u, with u = w for a count and u = w(y − R)/Ŵ for a mean R. Here w is the weight, y the
outcome and Ŵ the cell's estimated count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Cells, Codes, Crosstab, Floats, Ints, split_by
from dpdist.estimation.variance import Stage, Stages, Variable, linearised, stratified
from dpdist.job import StatisticName


class PsuSums(NamedTuple):
    """Sums over the PSUs of a crosstab row, (row,): a PSU's a = Σw and b = Σwy, and the products aa, ab and bb.

    If no PSU is declared, every record is a PSU. The sums then need one pass, and no records stay in memory.
    """

    a: Floats
    b: Floats
    aa: Floats
    ab: Floats
    bb: Floats

    def plus(self, other: PsuSums) -> PsuSums:
        return PsuSums(*(x + y for x, y in zip(self, other, strict=True)))


class Estimate(NamedTuple):
    """Point estimates and variances, shape (cell,)."""

    value: Floats
    variance: Floats


Figures = tuple[Estimate, Estimate, Estimate]
"""Estimates of Σw, Σwy/Σw and Σwy; jobs call them count, mean and total."""
STATISTICS: tuple[StatisticName, ...] = ("count", "mean", "total")
"""Names of the three figures in a job."""
LARGEST_VALUE = 1e50
"""Largest weight or outcome before clipping that estimates use. Squares of products of two of them can be added up."""
NORMAL_90, NORMAL_95 = 1.6448536269514722, 1.959963984540054
"""Half widths of the normal law's 90 % and 95 % intervals, in standard errors: its quantiles of .95 and .975."""


def summable(values: Floats) -> Floats:
    """Weights or outcomes before clipping; those beyond `LARGEST_VALUE` are set to it, so that no sum overflows."""
    return np.clip(values, -LARGEST_VALUE, LARGEST_VALUE)


def record_sums(crosstab_row: Codes, weight: Floats, outcome: Floats, rows: int) -> PsuSums:
    product = weight * outcome

    squares = (weight * weight, weight * product, product * product)
    return PsuSums(*(group_sums(crosstab_row, values, rows) for values in (weight, product, *squares)))


def group_sums(group: Codes | Ints, values: Floats, groups: int) -> Floats:
    """Σ values per group, shape (group,)."""
    return np.asarray(np.bincount(group, weights=values, minlength=groups), dtype=np.float64)


def counts_and_means(sums: PsuSums, crosstab: Crosstab, cells: Cells, stage: Stage | None = None) -> Figures:
    """Weighted counts, means and totals of cells, if every record is its own PSU.

    `sums` are by crosstab row. `stage` has the sampling fractions of the design strata; without it sampling is with
    replacement.
    """
    pairs, cell, design_stratum = split_by(cells, crosstab.design_stratum)
    stage = Stage.of(stratum_sizes(crosstab)) if stage is None else stage
    pair = PsuSums(*(pairs @ values for values in sums))

    def over_cells(values: Floats) -> Floats:
        return group_sums(cell, values, len(cells))

    count = over_cells(pair.a)
    count_variance = stratified(pair.a, pair.aa, cell, design_stratum, stage, len(cells))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = over_cells(pair.b) / count
        ratio, scale = mean[cell], count[cell]
        total = (pair.b - ratio * pair.a) / scale
        squares = (pair.bb - 2.0 * ratio * pair.ab + ratio**2 * pair.aa) / scale**2
    mean_variance = np.where(count > 0, stratified(total, squares, cell, design_stratum, stage, len(cells)), np.nan)
    product_variance = stratified(pair.b, pair.bb, cell, design_stratum, stage, len(cells))
    return (Estimate(count, count_variance), Estimate(mean, mean_variance), Estimate(over_cells(pair.b), product_variance))


def stratum_sizes(crosstab: Crosstab) -> Floats:
    """Number of records drawn in every design stratum, (stratum,): a universe is a domain, so those outside it count."""
    return crosstab.sampled_records.astype(np.float64)


def clustered_counts_and_means(crosstab_row: Codes, psu: Codes, sums: PsuSums, stages: Stages, cells: Cells) -> Figures:
    """Weighted counts, means and totals of cells, with PSUs numbered across all strata.

    `sums` are over the records of each pair of crosstab row and PSU; `crosstab_row` and `psu` (pair,) name the pairs.
    """
    membership = scipy.sparse.csr_array(cells.membership.tocsc()[:, crosstab_row])
    count, total = (membership @ values for values in (sums.a, sums.b))
    zeros, ones = np.zeros(len(cells)), np.ones(len(cells))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / count
    nothing = np.zeros(len(sums.a))
    counted = Variable(nothing, sums.a, nothing, nothing, sums.aa)
    averaged = Variable(sums.a, sums.b, sums.aa, sums.ab, sums.bb)
    added = Variable(nothing, sums.b, nothing, nothing, sums.bb)
    return (
        Estimate(count, linearised(counted, zeros, ones, membership, psu, stages)),
        Estimate(mean, np.where(count > 0, linearised(averaged, mean, count, membership, psu, stages), np.nan)),
        Estimate(total, linearised(added, zeros, ones, membership, psu, stages)),
    )


class Interval(NamedTuple):
    """Estimate, standard error, degrees of freedom and a symmetric t interval, shape (cell,)."""

    value: Floats
    standard_error: Floats
    df: Floats
    lower: Floats
    upper: Floats


def t_interval(value: Floats, variance: Floats, df: Floats, level: float = 0.9) -> Interval:
    """A symmetric t interval at a confidence level, with `df` degrees of freedom."""
    error = np.sqrt(variance)
    reach = scipy.special.stdtrit(df, 0.5 + level / 2.0) * error
    return Interval(value, error, df, value - reach, value + reach)


def positive_interval(value: Floats, variance: Floats, df: Floats, level: float = 0.9) -> Interval:
    """A t interval for a nonnegative figure: on the log scale, or symmetric and cut at 0 if it is wider than twice the
    figure.
    """
    plain = t_interval(value, variance, df, level)
    reach = plain.upper - value
    clear = reach < value
    factor = np.exp(np.divide(reach, value, out=np.zeros_like(reach), where=clear))
    lower = np.where(clear, value / factor, np.maximum(plain.lower, 0.0))
    return plain._replace(lower=lower, upper=np.where(clear, value * factor, np.maximum(plain.upper, 0.0)))


def combine_sets(values: Floats, variances: Floats, df_within: float) -> Interval:
    """Combines the estimates of m synthetic sets, (set, cell): T = B/m + W with (m−1)(1 + W/(B/m))² degrees of freedom.

    T is the total variance, B the variance between sets and W the mean variance within a set (MODIPS; METHODS §6). With
    m = 1, B is unknown: T = W, which is too small, with the design's degrees of freedom `df_within`.
    """
    sets = len(values)
    within = variances.mean(axis=0)
    if sets == 1:
        return t_interval(values[0], within, np.full(values.shape[1], df_within))
    between = values.var(axis=0, ddof=1) / sets
    with np.errstate(divide="ignore", invalid="ignore"):
        df = np.where(between > 0, (sets - 1) * (1.0 + within / between) ** 2, np.inf)
    return t_interval(values.mean(axis=0), between + within, df)
