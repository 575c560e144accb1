"""How similar two files of coded records are, weighted or not; distances between an outcome's distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.estimation.estimators import NORMAL_95


class RecordCodes(NamedTuple):
    """Records as codes from 0, (record, column), with the number of levels of every column, and weights, (record,)."""

    codes: Ints
    sizes: tuple[int, ...]
    weight: Floats

    @classmethod
    def of_counts(cls, counts: Floats) -> RecordCodes:
        """Makes a file from a table of counts with one axis per column: each cell is a record weighted by its count."""
        return cls(np.indices(counts.shape).reshape(counts.ndim, -1).T, counts.shape, counts.ravel())

    @property
    def unweighted(self) -> RecordCodes:
        """The same records, each with weight 1."""
        return self._replace(weight=np.ones(len(self.weight)))

    def take(self, which: Ints) -> RecordCodes:
        """A selection of records."""
        return RecordCodes(self.codes[which], self.sizes, self.weight[which])

    def about(self, columns: tuple[int, ...]) -> RecordCodes:
        """The same records with only these columns."""
        return RecordCodes(self.codes[:, list(columns)], tuple(self.sizes[k] for k in columns), self.weight)

    def shares(self, columns: tuple[int, ...]) -> Floats:
        """The share of weight in every cell of the table by these columns, (cell,)."""
        cell = np.ravel_multi_index(tuple(self.codes[:, k] for k in columns), tuple(self.sizes[k] for k in columns))
        mass = np.bincount(cell, weights=self.weight, minlength=prod(self.sizes[k] for k in columns))
        return np.asarray(mass / mass.sum())


# The total variation of two distributions p and q over cells is Σ|p − q|/2: 0 if they are equal, 1 if they share no cell.
# The k-marginal score of NIST's challenges is 1000 (1 − the mean total variation over all tables by k columns). To say how
# good a score is, simple random subsamples of the file itself are scored. The *equivalent share* is the share of records
# that a subsample needs for the same score.
MOST_CELLS = 1_000_000
LADDER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def total_variation(left: RecordCodes, right: RecordCodes, order: int) -> Floats:
    """Total variation of every table by `order` columns, in the order of `combinations`.

    Tables with more than `MOST_CELLS` cells are left out.
    """
    keys = [key for key in combinations(range(len(left.sizes)), order) if prod(left.sizes[k] for k in key) <= MOST_CELLS]
    return np.array([np.abs(left.shares(key) - right.shares(key)).sum() / 2.0 for key in keys])


def k_marginal_score(left: RecordCodes, right: RecordCodes, k: int = 3) -> float:
    """The k-marginal score, from 0 to 1000. All tables by k columns that are not too large count equally."""
    return 1000.0 * (1.0 - float(total_variation(left, right, k).mean()))


def subsample_scores(confidential: RecordCodes, k: int, rng: np.random.Generator) -> Floats:
    """Scores of simple random subsamples without replacement, one for each share of records in LADDER."""
    number = len(confidential.weight)
    subset = (rng.permutation(number)[: max(1, round(share * number))] for share in LADDER)
    return np.array([k_marginal_score(confidential, confidential.take(rows), k) for rows in subset])


def equivalent_share(score: float, scores: Floats) -> float:
    """The share of records whose subsample has this score, interpolated between the shares of LADDER.

    It stays within the range of the ladder.
    """
    return float(np.interp(score, np.maximum.accumulate(scores), LADDER))


# Both files are put together, each with half of the weight. The regression predicts which file a record comes from, by main
# effects of all levels. pMSE is the mean squared distance of the predicted probability from 1/2, from 0 to 1/4 (Woo et al.
# 2009; Snoke et al. 2018). SPECKS is the largest distance between the two files' distribution functions of that
# probability, from 0 to 1 (Bowen, Liu & Su 2021). A small ridge penalty keeps the fit finite where levels separate the
# files.
RIDGE = 1e-6
"""Ridge penalty, where the two files together have the weight 1."""
NEWTON_STEPS, CLOSE = 50, 1e-10
TIE = 1e-8
"""Probabilities this close count as equal, because rounding would order equal ones by file."""


class Propensity(NamedTuple):
    pmse: float
    specks: float


def propensity(confidential: RecordCodes, synthetic: RecordCodes) -> Propensity:
    """pMSE and SPECKS of two files."""
    both = np.concatenate([confidential.codes, synthetic.codes])
    x = indicators(RecordCodes(both, confidential.sizes, np.ones(len(both))))
    weight = np.concatenate([records.weight / (2.0 * records.weight.sum()) for records in (confidential, synthetic)])
    number = len(confidential.weight)
    y = (np.arange(len(both)) >= number).astype(float)
    score = scipy.special.expit(x @ logistic(x, y, weight))
    return Propensity(float(weight @ (score - 0.5) ** 2), _largest(score, weight * (2.0 * y - 1.0)))


def indicators(records: RecordCodes) -> Floats:
    """Design matrix: an intercept, and indicators of all levels but each column's first."""
    codes = zip(records.codes.T, records.sizes, strict=True)
    columns = [(column == level).astype(float) for column, size in codes for level in range(1, size)]
    return np.column_stack([np.ones(len(records.codes)), *columns])


def logistic(x: Floats, y: Floats, weight: Floats, ridge: float = RIDGE) -> Floats:
    """Coefficients of a weighted logistic regression by Newton's method, (column,). The intercept has no penalty."""
    beta, penalty = np.zeros(x.shape[1]), np.full(x.shape[1], ridge)
    penalty[0] = 0.0
    for _ in range(NEWTON_STEPS):
        p = scipy.special.expit(x @ beta)
        gradient = x.T @ (weight * (y - p)) - penalty * beta
        step = np.linalg.lstsq(hessian(x, p, weight) + np.diag(penalty), gradient, rcond=None)[0]
        beta = beta + step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-300))
        if np.abs(step).max() < CLOSE:
            break
    return beta


def hessian(x: Floats, p: Floats, weight: Floats) -> Floats:
    return np.asarray(x.T @ (x * (weight * p * (1.0 - p))[:, None]))


def _largest(score: Floats, signed: Floats) -> float:
    """Largest distance of two files' distribution functions.

    `signed` is half of each record's share of its file's weight, negative for one file.
    """
    order = np.argsort(score, kind="stable")
    ordered, steps = score[order], np.cumsum(signed[order])
    last = np.append(np.diff(ordered) > TIE, True)
    return float(2.0 * np.abs(steps[last]).max())


# The overlap of intervals I and J is the mean of |I ∩ J|/|I| and |I ∩ J|/|J|; it is 0 if they are apart. Standard errors
# come from the sandwich formula for weighted estimating equations, with records as units.
class Regression(NamedTuple):
    """Coefficients and their standard errors, (coefficient,) each."""

    beta: Floats
    error: Floats


def fitted(records: RecordCodes, outcome: int, level: int, predictors: tuple[int, ...]) -> Regression:
    sizes = tuple(records.sizes[k] for k in predictors)
    x = indicators(RecordCodes(records.codes[:, list(predictors)], sizes, records.weight))
    y = (records.codes[:, outcome] == level).astype(float)
    weight = records.weight / records.weight.mean()
    beta = logistic(x, y, weight, ridge=1e-6)
    p = scipy.special.expit(x @ beta)
    inverse = np.linalg.pinv(hessian(x, p, weight))
    scores = x * (weight * (y - p))[:, None]
    covariance = inverse @ (scores.T @ scores) @ inverse
    return Regression(beta, np.sqrt(np.maximum(np.diag(covariance), 0.0)))


def overlap(left: Regression, right: Regression) -> Floats:
    low = np.maximum(left.beta - NORMAL_95 * left.error, right.beta - NORMAL_95 * right.error)
    high = np.minimum(left.beta + NORMAL_95 * left.error, right.beta + NORMAL_95 * right.error)
    shared = np.maximum(high - low, 0.0)
    widths = [np.maximum(2.0 * NORMAL_95 * fit.error, 1e-300) for fit in (left, right)]
    return np.asarray((shared / widths[0] + shared / widths[1]) / 2.0)


# For every pair of columns the test is Pearson's χ² on counts of records. Statistics of m synthetic sets are combined as by
# Li, Meng, Raghunathan and Rubin (1991). Let k be the degrees of freedom, d the mean of the statistics over k, and r = (1 +
# 1/m) times the variance of their square roots. Then D = (d − (m + 1)/(m − 1) r)/(1 + r) is compared with the F law with k
# and k^(−3/m)(m − 1)(1 + 1/r)² degrees of freedom.
def statistics(records: RecordCodes, pairs: Sequence[tuple[int, int]]) -> tuple[Floats, Floats]:
    """χ² and degrees of freedom of every pair, over levels that records have; both are 0 without two such levels."""
    values = np.zeros((2, len(pairs)))
    total = float(records.weight.sum())
    for place, pair in enumerate(pairs):
        table = records.shares(pair).reshape([records.sizes[k] for k in pair]) * total
        table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
        values[:, place] = ((table - expected) ** 2 / expected).sum(), (table.shape[0] - 1) * (table.shape[1] - 1)
    return values[0], values[1]


def p_value(values: Floats, degrees: float) -> float:
    """The p-value of one file's χ², or of several sets' χ² combined; 1 with 0 degrees of freedom."""
    if degrees <= 0:
        return 1.0
    m = len(values)
    if m == 1:
        return float(scipy.stats.chi2.sf(values[0], degrees))
    r = (1.0 + 1.0 / m) * float(np.sqrt(values).var(ddof=1))
    combined = (values.mean() / degrees - (m + 1.0) / (m - 1.0) * r) / (1.0 + r)
    second = degrees ** (-3.0 / m) * (m - 1.0) * (1.0 + 1.0 / max(r, 1e-12)) ** 2
    return float(scipy.stats.f.sf(max(combined, 0.0), degrees, second))


def consistency(confidential: RecordCodes, sets: Sequence[RecordCodes], level: float = 0.05) -> float:
    """Share of pairs of columns, from 0 to 1, with the same conclusion of their tests at this level."""
    pairs = list(combinations(range(len(confidential.sizes)), 2))
    (observed, degrees), of_sets = statistics(confidential, pairs), [statistics(synthetic, pairs) for synthetic in sets]
    values, freedom = (np.array([result[k] for result in of_sets]) for k in (0, 1))
    same = [
        (p_value(observed[place : place + 1], degrees[place]) < level)
        == (p_value(values[:, place], float(freedom[:, place].max())) < level)
        for place in range(len(pairs))
    ]
    return float(np.mean(same))


ORDERS = (1, 2, 3)
MOST_LEVELS = 50
"""Largest number of levels of a column that a regression uses."""


def microdata_measures(confidential: RecordCodes, synthetic: RecordCodes, rng: np.random.Generator) -> Mapping[str, float]:
    """Measures by name, with weights and without.

    A logistic regression predicts the second level of the first column.
    """
    measures: dict[str, float] = {}
    orders = [
        order
        for order in ORDERS
        if order <= len(confidential.sizes) and len(total_variation(confidential, confidential, order))
    ]
    for name, left, right in (
        ("weighted", confidential, synthetic),
        ("unweighted", confidential.unweighted, synthetic.unweighted),
    ):
        for order in orders:
            measures[f"{name} total_variation_{order}"] = float(total_variation(left, right, order).mean())
        score = k_marginal_score(left, right, orders[-1])
        measures[f"{name} k_marginal_score"] = score
        measures[f"{name} subsample_share"] = equivalent_share(score, subsample_scores(left, orders[-1], rng))
        small_columns = tuple(k for k, size in enumerate(confidential.sizes) if size <= MOST_LEVELS)
        measures[f"{name} pmse"], measures[f"{name} specks"] = propensity(
            left.about(small_columns), right.about(small_columns)
        )
        predictors = tuple(k for k in small_columns if k > 0)
        fits = [fitted(records, 0, 1, predictors) for records in (left, right)]
        if predictors:
            measures[f"{name} regression_overlap"] = float(overlap(*fits)[1:].mean())
    return measures


LEVEL = 0.95
QUANTILES = {"q15": 0.15, "median": 0.5, "q90": 0.9}


# The empirical distribution function at t is the share of records that are at most t. Distances are taken at the pooled
# values of both data sets. A value counts as often as it occurs in both ([G] §4.3, after Woo et al. 2009). A quantile is
# interpolated between order statistics (type 7, the default of NumPy and R). Intervals are nominal 95 %. For the mean it is
# mean ± 1.96 s/√n. For a quantile it is the pair of order statistics whose ranks are the 2.5 % and 97.5 % points of
# Binomial(n, p). This needs no density estimate, and covers at least the nominal share. [V] does not say how the intervals
# of its table were made.
class Distances(NamedTuple):
    """Largest absolute difference, and mean squared difference, of two empirical distribution functions."""

    max_ecdf: float
    avg_ecdf: float


class UtilityInterval(NamedTuple):
    estimate: float
    lower: float
    upper: float


def ecdf(sample: Floats, points: Floats, weight: Floats | None = None) -> Floats:
    """The share of the sample, or of its weight, at or below each value in `points`; 0 for an empty sample."""
    order = np.argsort(sample, kind="stable")
    summed = np.concatenate([[0.0], np.cumsum(np.ones(len(sample)) if weight is None else weight[order])])
    return np.asarray(summed[np.searchsorted(sample[order], points, side="right")] / (summed[-1] or 1.0))


def distances(confidential: Floats, synthetic: Floats) -> Distances:
    """Distances at the pooled values of both data sets."""
    pooled = np.concatenate([confidential, synthetic])
    difference = ecdf(confidential, pooled) - ecdf(synthetic, pooled)
    return Distances(float(np.abs(difference).max()), float((difference**2).mean()))


def mean_interval(sample: Floats) -> UtilityInterval:
    """The interval mean ± z s/√n, with z the normal quantile."""
    mean = float(sample.mean())
    half = (
        float(scipy.stats.norm.ppf((1.0 + LEVEL) / 2.0) * sample.std(ddof=1) / np.sqrt(len(sample)))
        if len(sample) > 1
        else np.inf
    )
    return UtilityInterval(mean, mean - half, mean + half)


def quantile_interval(sample: Floats, share: float) -> UtilityInterval:
    """A quantile with the two order statistics that bound it; an end is infinite if the sample has none for it."""
    # With B ~ Binomial(n, p), the order statistic y_(l) is at most the quantile if B ≥ l, and y_(u) is above it if B ≤ u −
    # 1. So l and u − 1 are the (1 ∓ level)/2 points of B.
    ordered, n = np.sort(sample), len(sample)
    low, high = (int(scipy.stats.binom.ppf(tail, n, share)) for tail in ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0))
    lower = ordered[low - 1] if low >= 1 else -np.inf
    upper = ordered[high] if high < n else np.inf
    return UtilityInterval(float(np.quantile(sample, share)), float(lower), float(upper))


def location(sample: Floats) -> dict[str, UtilityInterval]:
    """Mean, 15th, 50th and 90th percentile with their intervals ([G] figures 5 and 11–15, [V] table 1)."""
    return {"mean": mean_interval(sample)} | {name: quantile_interval(sample, p) for name, p in QUANTILES.items()}
