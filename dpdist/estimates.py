"""Survey estimators as pure kernels over sums per frame row; the same for records, synthetic records and models.

Totals and ratio means with Taylor-linearised variances under stratified sampling of PSUs with replacement
(Särndal, Swensson & Wretman 1992, §5.5 and §4.6): Var(Σ u) = Σ_h n_h/(n_h−1) Σ_psu (t_hp − t̄_h)², where t_hp is the
PSU's total of u, u = w for a count and u = w(y − R)/Ŵ for a mean R.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from dpdist.cells import Cells, split_by
from dpdist.records import Codes, Floats, Frame, Ints


class Sums(NamedTuple):
    """Sums over PSUs of their totals a = Σw and b = Σwy within a frame row, every array of shape (row,).

    Where no PSU is declared a record is its own PSU, and the sums need one pass and no memory of records.
    """

    a: Floats
    b: Floats
    aa: Floats
    ab: Floats
    bb: Floats

    def plus(self, other: Sums) -> Sums:
        return Sums(*(x + y for x, y in zip(self, other, strict=True)))


class Estimate(NamedTuple):
    """Point estimates and variances, shape (cell,)."""

    value: Floats
    variance: Floats


def record_sums(frame_row: Codes, weight: Floats, outcome: Floats, rows: int) -> Sums:
    """Sums for records that are their own PSUs."""
    product = weight * outcome

    squares = (weight * weight, weight * product, product * product)
    return Sums(*(group_sums(frame_row, values, rows) for values in (weight, product, *squares)))


def group_sums(group: Codes | Ints, values: Floats, groups: int) -> Floats:
    """Σ values per group, shape (group,)."""
    return np.asarray(np.bincount(group, weights=values, minlength=groups), dtype=np.float64)


def counts_and_means(sums: Sums, frame: Frame, cells: Cells) -> tuple[Estimate, Estimate]:
    """Weighted counts and means per cell; PSU = record; design strata and their sizes from the frame."""
    pairs, cell, design_stratum = split_by(cells, frame.design_stratum)
    strata = int(frame.design_stratum.max()) + 1
    size = group_sums(frame.design_stratum, frame.count.astype(np.float64), strata)[design_stratum]
    per_pair = Sums(*(pairs @ values for values in sums))
    return _linearised(per_pair, cell, size, len(cells))


def clustered_counts_and_means(
    frame_row: Codes, psu: Codes, a: Floats, b: Floats, psus_per_stratum: Ints, frame: Frame, cells: Cells
) -> tuple[Estimate, Estimate]:
    """The same with PSUs: a, b are totals of w and wy per (frame row, PSU), all of shape (frame row × PSU met,)."""
    coo = cells.membership.tocsc()[:, frame_row].tocoo()
    key = coo.row.astype(np.int64) * (int(psu.max()) + 1) + psu[coo.col]
    distinct, group = np.unique(key, return_inverse=True)
    total_a = group_sums(group, a[coo.col], len(distinct))
    total_b = group_sums(group, b[coo.col], len(distinct))
    first = np.full(len(distinct), -1, dtype=np.int64)
    first[group] = coo.col
    design_stratum = frame.design_stratum[frame_row[first]]
    cell_of = distinct // (int(psu.max()) + 1)
    strata = len(psus_per_stratum)
    pair_key, pair = np.unique(cell_of * strata + design_stratum, return_inverse=True)
    products = (total_a, total_b, total_a**2, total_a * total_b, total_b**2)
    sums = Sums(*(group_sums(pair, values, len(pair_key)) for values in products))
    size = psus_per_stratum[pair_key % strata].astype(np.float64)
    return _linearised(sums, (pair_key // strata).astype(np.int32), size, len(cells))


def _linearised(pair: Sums, cell: Codes, size: Floats, cells: int) -> tuple[Estimate, Estimate]:
    def over_cells(values: Floats) -> Floats:
        return group_sums(cell, values, cells)

    correction = size / (size - 1.0)
    count = over_cells(pair.a)
    count_variance = over_cells(correction * (pair.aa - pair.a**2 / size))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = over_cells(pair.b) / count
        ratio = mean[cell]
        squares = pair.bb - 2.0 * ratio * pair.ab + ratio**2 * pair.aa
        total = pair.b - ratio * pair.a
        mean_variance = over_cells(correction * (squares - total**2 / size)) / count**2
    return (
        Estimate(count, np.maximum(count_variance, 0.0)),
        Estimate(mean, np.maximum(mean_variance, 0.0)),
    )


class Interval(NamedTuple):
    """Estimate, standard error, degrees of freedom and a symmetric t interval, shape (cell,)."""

    value: Floats
    standard_error: Floats
    df: Floats
    lower: Floats
    upper: Floats


def t_interval(value: Floats, variance: Floats, df: Floats, level: float = 0.9) -> Interval:
    error = np.sqrt(variance)
    reach = scipy.stats.t.ppf(0.5 + level / 2.0, df) * error
    return Interval(value, error, df, value - reach, value + reach)


def combine_sets(values: Floats, variances: Floats, df_within: float) -> Interval:
    """Combine m synthetic sets, arrays of shape (set, cell): T = B/m + W, df = (m−1)(1 + W/(B/m))² (MODIPS; METHODS §6).

    With m = 1 there is no between-set variance: T = W alone, too small; its df is the design's.
    """
    sets = len(values)
    within = variances.mean(axis=0)
    if sets == 1:
        return t_interval(values[0], within, np.full(values.shape[1], df_within))
    between = values.var(axis=0, ddof=1) / sets
    with np.errstate(divide="ignore", invalid="ignore"):
        df = np.where(between > 0, (sets - 1) * (1.0 + within / between) ** 2, np.inf)
    return t_interval(values.mean(axis=0), between + within, df)
