"""Counts, means and totals of cells from sums by crosstab row, with design-based errors; raking to public totals.

Direct estimates, synthetic records and models use the same estimators. Variances are Taylor-linearised (`variance`):
each is the variance of a sum Σ u, with u = w for a count and u = w(y − R)/Ŵ for a mean R. Here w is the weight, y the
outcome and Ŵ the cell's estimated count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import TOTAL, Cells, Codes, Crosstab, Floats, Ints, cross, quotient, split_by
from dpdist.job import Job, Lonely, StatisticName

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

    Variances are computed from the residuals of a regression on the margins. Without margins nothing is raked.
    """
    if not margins:
        return counts_and_means(sums, crosstab, cells, stage)
    inside, unraked = cells.membership.toarray(), sums
    sums = raked(unraked, factors(unraked.a, margins))
    count, total = (cells.membership @ values for values in (sums.a, sums.b))
    mean, share = quotient(total, count), quotient(inside, count[:, None])
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


RANK_TOLERANCE = 1e-5
"""Tolerance of a matrix's rank, as in R's `qr`."""
CENSUS = 1e-7
"""A stratum counts as a census, without sampling error, if at most this share of it was not sampled."""


# Over strata h and their PSUs p, V = Σ_h (1 − f_h) n_h/(n_h − 1) Σ_p (t_hp − t̄_h)².
#
# - t_hp is the total of a linearised variable in PSU p, and t̄_h the mean of these totals.
# - f_h is the sampling fraction; sampling with replacement has f = 0.
# - n_h is the number of all PSUs of the stratum, with or without a record of the cell. A universe is a domain: PSUs and
#   records outside it are in n_h, too. With n_h = ∞ the sample's size in the stratum is Poisson, and V_h is Σ_p t_hp².
#
# A second stage, of n_hp records sampled with the fraction f_hp in PSU p, adds Σ_hp f_h (1 − f_hp) n_hp/(n_hp − 1) Σ_i (u_i
# − ū_hp)². The last sum is over records i with the linearised variable u_i (Särndal, Swensson & Wretman 1992, §4.3 and
# §5.5).
#
# Figures agree with R's `survey`, with one exception: the total of a whole stratum under the option "centred" for a lonely
# PSU, one that is alone in its stratum. There R uses the squared deviation from 0. This code uses the deviation from the
# grand mean, the mean of all PSUs' totals.
class Stage(NamedTuple):
    """One stage of sampling, arrays (stratum,): the number of units sampled, and their share of the population."""

    size: Floats
    fraction: Floats
    lonely: Lonely = "error"
    elsewhere: float = 0.0
    """Number of units sampled in strata that no estimate is about."""

    @classmethod
    def of(
        cls, size: Ints | Floats, population: Floats | None = None, lonely: Lonely = "error", elsewhere: float = 0.0
    ) -> Stage:
        """Makes a stage; `population` (stratum,) is the number of units in every stratum's population.

        None means sampling with replacement.
        """
        n = np.asarray(size, dtype=np.float64)
        return cls(n, np.zeros(len(n)) if population is None else n / population, lonely, elsewhere)

    @property
    def alone(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.asarray((self.size == 1) & (1.0 - self.fraction > CENSUS))


class Stages(NamedTuple):
    """A sampling design: every PSU's stratum (psu,), and the stages that draw PSUs and records within PSUs.

    Without a second stage all records of a drawn PSU are in the sample.
    """

    stratum: Codes
    first: Stage
    second: Stage | None = None


class PsuSums(NamedTuple):
    """Sums over the PSUs of a crosstab row, (row,): a PSU's a = Σw and b = Σwy, and the products aa, ab and bb.

    If no PSU is declared, every record is a PSU. The sums then need one pass, and no records stay in memory. Other sums a
    and b stand for the linearised variable u = (b − R a)/D, with R and D constants of a cell.
    """

    a: Floats
    b: Floats
    aa: Floats
    ab: Floats
    bb: Floats

    @classmethod
    def of_records(cls, a: Floats, b: Floats) -> PsuSums:
        return cls(a, b, a * a, a * b, b * b)

    def plus(self, other: PsuSums) -> PsuSums:
        return PsuSums(*(x + y for x, y in zip(self, other, strict=True)))


def stratified_variance(
    total: Floats, squares: Floats, cell: Codes | Ints, stratum: Codes | Ints, stage: Stage, cells: int
) -> Floats:
    """First-stage variance (cell,) from Σ_p t and Σ_p t² of every pair of a cell and a stratum that share records, (pair,).

    The options for a lonely PSU, one that is alone in its stratum:

    - "error" raises ValueError.
    - "certainty" adds no variance.
    - "average" adds the mean variance of the cell's other strata.
    - "centred" adds the squared deviation from the mean PSU of the whole design.
    """
    n, free = stage.size[stratum], 1.0 - stage.fraction[stratum]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.where(np.isinf(n), 1.0, n / (n - 1.0)) * (squares - total**2 / n)
    part = np.where(n > 1, free * np.maximum(spread, 0.0), 0.0)
    alone = stage.alone[stratum]
    if not alone.any():
        return group_sums(cell, part, cells)
    if stage.lonely == "error":
        raise ValueError("a stratum with a single PSU has no variance estimate")
    if stage.lonely == "centred":
        grand = group_sums(cell, total, cells) / (stage.size.sum() + stage.elsewhere)
        part = np.where(alone, free * (total - grand[cell]) ** 2, part)
    by_cell = group_sums(cell, part, cells)
    if stage.lonely == "average":
        with np.errstate(divide="ignore", invalid="ignore"):
            by_cell = by_cell * np.bincount(cell, minlength=cells) / group_sums(cell, (~alone).astype(float), cells)
    return by_cell


def linearised_variance(
    variable: PsuSums, ratio: Floats, scale: Floats, membership: scipy.sparse.csr_array, psu: Codes | Ints, stages: Stages
) -> Floats:
    """Variance (cell,) of Σ (b − R a)/D over a cell's rows; `ratio` is R and `scale` is D, (cell,) each.

    `membership` is (cell, row). `psu` (row,) numbers PSUs across strata without repetition.
    """
    entries = membership.tocoo()
    r, d = ratio[entries.row], scale[entries.row]
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = (variable.b[entries.col] - r * variable.a[entries.col]) / d
        squares = (variable.bb[entries.col] - 2.0 * r * variable.ab[entries.col] + r**2 * variable.aa[entries.col]) / d**2
    return _of_parts(entries, parts, squares, psu, stages)


def of_sums(parts: scipy.sparse.csr_array, psu: Codes | Ints, stages: Stages) -> Floats:
    """Variance (cell,) of sums over records, whose parts of the sums are (cell, record)."""
    entries = parts.tocoo()
    return _of_parts(entries, entries.data, entries.data**2, psu, stages)


def _of_parts(entries: scipy.sparse.coo_array, parts: Floats, squares: Floats, psu: Codes | Ints, stages: Stages) -> Floats:
    cells, psus = entries.shape[0], len(stages.stratum)
    pair, entry = np.unique(entries.row.astype(np.int64) * psus + psu[entries.col], return_inverse=True)
    cell, unit = pair // psus, pair % psus
    with np.errstate(divide="ignore", invalid="ignore"):
        t = group_sums(entry, parts, len(pair))
        between, group = np.unique(cell * len(stages.first.size) + stages.stratum[unit], return_inverse=True)
        stratum = between % len(stages.first.size)
        total = group_sums(group, t, len(between))
        n = stages.first.size[stratum]
        mean = total / n
        present = np.bincount(group, minlength=len(between))
        # Σ t² is summed as deviations from the stratum's mean, so that it is exactly 0 where PSUs do not differ.
        between_squares = group_sums(group, (t - mean[group]) ** 2, len(between)) + (n - present) * mean**2 + total**2 / n
        by_cell = stratified_variance(
            total, between_squares, between // len(stages.first.size), stratum, stages.first, cells
        )
        if stages.second is not None:
            second = Stage(stages.second.size, stages.second.fraction, "certainty")
            share = stages.first.fraction[stages.stratum[unit]]
            within = _within(t, group_sums(entry, squares, len(pair)), unit, second)
            by_cell = by_cell + group_sums(cell, share * within, cells)
    return by_cell


def _within(total: Floats, squares: Floats, unit: Ints, stage: Stage) -> Floats:
    """Second-stage variance, (pair,), of every pair of a cell and a PSU with common records.

    Each PSU is treated as a stratum of its records.
    """
    n, free = stage.size[unit], 1.0 - stage.fraction[unit]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = n / (n - 1.0) * (squares - total**2 / n)
    return np.where(n > 1, free * np.maximum(spread, 0.0), 0.0)


def met_units(membership: scipy.sparse.csr_array, psu: Codes | Ints, stages: Stages) -> Floats:
    """Degrees of freedom (cell,): PSUs minus strata among the records of the cell."""
    entries = membership.tocoo()
    pair = np.unique(entries.row.astype(np.int64) * len(stages.stratum) + psu[entries.col])
    cell, stratum = pair // len(stages.stratum), stages.stratum[pair % len(stages.stratum)]
    strata = np.unique(cell * len(stages.first.size) + stratum) // len(stages.first.size)
    cells = membership.shape[0]
    return np.asarray(np.bincount(cell, minlength=cells) - np.bincount(strata, minlength=cells), dtype=np.float64)


class Replication(NamedTuple):
    """Variance from replicate weights: V = scale Σ_r factor_r (θ_r − θ̂)², with θ_r the estimate under replicate r.

    θ̂ is the estimate, or the replicates' mean if `about_mean`.
    """

    scale: float
    factors: Floats
    about_mean: bool = False

    def variance(self, value: Floats, replicates: Floats) -> Floats:
        """Variance (cell,) from the estimates (cell,) and the estimates under every replicate (replicate, cell).

        A replicate without a record of the cell has no estimate (NaN) and is left out; the scale stays, as in R's
        `svrVar`. If no replicate has a record of the cell, the variance is NaN.
        """
        there = np.isfinite(replicates)
        mask = there & (self.factors > 0)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(mask, replicates, 0.0).sum(axis=0) / mask.sum(axis=0)
        deviation = np.where(mask, replicates - (mean if self.about_mean else value), 0.0)
        by_cell = self.scale * (self.factors[:, None] * deviation**2).sum(axis=0)
        return np.where(mask.any(axis=0), by_cell, np.nan)


def crossed_products(replicates: Floats) -> Floats:
    """The matrix W'W of replicate weights W (record, replicate).

    Sums over blocks of records give the argument of `replicate_df`.
    """
    return np.asarray(replicates.T @ replicates)


def replicate_df(products: Floats) -> float:
    """Degrees of freedom of replicate weights W: the rank of W minus 1, from W'W (R's `degf`).

    A column counts if projection on the other columns leaves more than `RANK_TOLERANCE` of its length.
    """
    length = np.sqrt(np.diag(products))
    length = np.where(length > 0, length, 1.0)
    *_, rank, _ = scipy.linalg.lapack.dpstrf(products / np.outer(length, length), tol=RANK_TOLERANCE**2)
    return float(rank) - 1.0


def df_in_cells(df: float, records: Floats) -> Floats:
    """Degrees of freedom (cell,) under replicate weights: at most n − 1 for n records, and none without records."""
    return np.clip(records - 1.0, 0.0, df)


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
    count_variance = stratified_variance(pair.a, pair.aa, cell, design_stratum, stage, len(cells))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = over_cells(pair.b) / count
        ratio, scale = mean[cell], count[cell]
        total = (pair.b - ratio * pair.a) / scale
        squares = (pair.bb - 2.0 * ratio * pair.ab + ratio**2 * pair.aa) / scale**2
    mean_variance = np.where(
        count > 0, stratified_variance(total, squares, cell, design_stratum, stage, len(cells)), np.nan
    )
    product_variance = stratified_variance(pair.b, pair.bb, cell, design_stratum, stage, len(cells))
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
    mean = quotient(total, count)
    nothing = np.zeros(len(sums.a))
    counted = PsuSums(nothing, sums.a, nothing, nothing, sums.aa)
    added = PsuSums(nothing, sums.b, nothing, nothing, sums.bb)
    return (
        Estimate(count, linearised_variance(counted, zeros, ones, membership, psu, stages)),
        Estimate(mean, np.where(count > 0, linearised_variance(sums, mean, count, membership, psu, stages), np.nan)),
        Estimate(total, linearised_variance(added, zeros, ones, membership, psu, stages)),
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
    symmetric = t_interval(value, variance, df, level)
    reach = symmetric.upper - value
    clear = reach < value
    factor = np.exp(np.divide(reach, value, out=np.zeros_like(reach), where=clear))
    lower = np.where(clear, value / factor, np.maximum(symmetric.lower, 0.0))
    return symmetric._replace(lower=lower, upper=np.where(clear, value * factor, np.maximum(symmetric.upper, 0.0)))


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
