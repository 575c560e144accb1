"""The verdict on a release: do published intervals contain the same sample's direct estimates often enough?

Confidential.

A published figure is the sample's figure plus noise and the mechanism's bias. Its interval allows for sampling error
and noise. The direct figure has the same sampling error. So a correct 90 % interval contains the direct figure in at
least 90 % of cells.

Even a release whose intervals pass may have large errors. The median and the largest error in direct standard errors
show these (FAR_MEDIAN, FAR_LARGEST).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import scipy

from dpdist.core.keys import Key
from dpdist.core.records import TOTAL, Floats, Ints, cell_name
from dpdist.estimation.estimators import NORMAL_90
from dpdist.publish.predicted_errors import EXACT, FAR, FAR_NAMED

# Published standard errors of margins show how far cells err together. Let cell k have the standard deviation s_k, and
# v_k = s_k for counts and totals, or n_k s_k for means of n_k records. A margin f has the variance M_f, and A_f = 1 for
# counts and totals, or the number of its records. Then
#
#     M_f A_f² = Σ v_k² + Σ_{k≠l} c_kl v_k v_l,    c_kl = Σ_S γ_S over the sets S of columns in which k and l agree.
#
# So cells of one region share the error of the region, and all cells share one error. The γ_S ≥ 0 are fitted to the margins
# of every set of columns by least squares. Errors are taken as normal. Negative correlations count as none.
PUBLIC = Key(bytes(32)).child("shared errors")
"""The key of simulated errors. It is public, so that anyone can repeat a verdict."""
ENTRIES, FEWEST_DRAWS, MOST_DRAWS = 2_000_000, 400, 2_000
"""Number of simulated errors, and limits of the number of draws of a table."""


class Counts(NamedTuple):
    """Numbers of cells with a property in simulated tables, (draw,), of the given number of cells."""

    counts: Floats
    cells: int

    def plus(self, other: Counts) -> Counts:
        return Counts(self.counts + other.counts, self.cells + other.cells)


class SimulatedTables(NamedTuple):
    """Simulated tables whose published errors are right.

    - `base_held`, `margins_held`: numbers of base cells, and of margins, whose 90 % interval holds the direct figure.
    - `above`: numbers of base cells above the direct figure.
    - `margin`: true for the rows that are margins of base cells, (row,).
    """

    base_held: Counts
    margins_held: Counts
    above: Counts
    margin: np.ndarray[tuple[int], np.dtype[np.bool_]]


class _Margins(NamedTuple):
    """Margins that keep some columns: each base cell's group, each group's first cell, and each row's group, or −1 for rows
    of other sets.
    """

    group: Ints
    first: Ints
    row: Ints

    def squares_within(self, other: _Margins, v: Floats) -> Floats:
        """Sums of squared sums of v over the parts of each group that `other` divides it into, (group,)."""
        squares = np.asarray(np.bincount(other.group, v), dtype=np.float64) ** 2
        return np.asarray(np.bincount(self.group[other.first], squares), dtype=np.float64)


def shared_errors(rows: pd.DataFrame, deviation: Floats, by: Sequence[str]) -> SimulatedTables:
    """Simulates errors of a statistic's rows, from the standard deviations of their errors, (row,)."""
    labels, deviation = rows[list(by)].astype(str), np.nan_to_num(deviation, posinf=0.0)
    codes = np.column_stack([np.zeros((len(rows), 0), dtype=np.int64), *(pd.factorize(labels[name])[0] for name in by)])
    at_level = (labels != TOTAL).to_numpy()
    base = np.asarray(at_level.all(axis=1))
    n = int(base.sum())
    additive = rows["statistic"].isin(["count", "total"]).all()
    records = np.ones(n) if additive else rows["records"].to_numpy(dtype=float)[base]
    v = records * deviation[base]
    columns = range(len(by))
    sets = {
        frozenset(names): _margins(list(names), codes, at_level, base)
        for k in (range(len(by) + 1) if n else ())
        for names in combinations(columns, k)
    }
    shared = [names for names, margins in sets.items() if len(names) < len(by) and (margins.row >= 0).any()]
    margin_sets = [sets[names] for names in shared]
    joined = [[sets[one | other] for other in shared] for one in shared]
    gamma = _common(margin_sets, joined, v, None if additive else records, deviation)
    rng = PUBLIC.generator(f"{n} cells, {len(rows)} rows")
    scaled = [_scaled(margins, v, gamma, unions) for margins, unions in zip(margin_sets, joined, strict=True)]
    pairs_held, above, held_margins = list[Ints](), list[Ints](), list[Ints]()
    for draws in _parts(len(rows)):
        z = np.sqrt(_unshared(gamma)) * rng.standard_normal((n, draws))
        for common, margins in zip(gamma, margin_sets, strict=True):
            if common > 0.0:
                z += np.sqrt(common) * rng.standard_normal((int(margins.group.max()) + 1, draws))[margins.group]
        within = [np.count_nonzero(np.abs(sums @ z) <= NORMAL_90, axis=0) for sums in scaled]
        held_margins.append(np.sum(within, axis=0) if within else np.zeros(draws, dtype=np.int64))
        pairs_held.append(np.count_nonzero(np.abs(z) <= NORMAL_90, axis=0))
        above.append(np.count_nonzero(z > 0.0, axis=0))
    margin = np.logical_or.reduce([np.zeros(len(rows), dtype=bool), *(margins.row >= 0 for margins in margin_sets)])
    simulated = [np.concatenate(numbers).astype(float) for numbers in (pairs_held, held_margins, above)]
    return SimulatedTables(
        Counts(simulated[0], n), Counts(simulated[1], int(margin.sum())), Counts(simulated[2], n), margin
    )


def _unshared(gamma: Floats) -> float:
    """The variance that a cell shares with no other. Shares that were scaled to 1 may sum to one digit more."""
    return max(1.0 - float(gamma.sum()), 0.0)


def _parts(rows: int) -> list[int]:
    """Numbers of draws that are simulated at once, so that tables of any size take little memory."""
    draws = int(np.clip(ENTRIES // max(rows, 1), FEWEST_DRAWS, MOST_DRAWS))
    most = int(np.clip(ENTRIES // max(rows, 1), 1, draws))
    return [min(most, draws - start) for start in range(0, draws, most)]


def _scaled(margins: _Margins, v: Floats, gamma: Floats, unions: Sequence[_Margins]) -> scipy.sparse.csr_array:
    """Errors of margins, in their standard deviations, from those of base cells, (margin, cell).

    `unions` keep the columns of `margins` and of each set in turn.
    """
    variance = _unshared(gamma) * np.bincount(margins.group, v**2)
    for common, union in zip(gamma, unions, strict=True):
        variance = variance + common * margins.squares_within(union, v)
    inside = scipy.sparse.csr_array((v, (margins.group, np.arange(len(v)))))
    places = margins.row[margins.row >= 0]
    deviations = np.sqrt(np.maximum(variance[places], np.finfo(float).tiny))
    return scipy.sparse.csr_array(scipy.sparse.diags_array(1.0 / deviations) @ inside[places])


def at_most(number: int, simulated: Counts, probability: float) -> float:
    """The probability of at most `number` cells with a property that each has with the given probability.

    The law is beta-binomial, with the variance of the simulated numbers; for independent cells it is binomial.
    """
    n = simulated.cells
    if n == 0:
        return 1.0
    binomial = n * probability * (1.0 - probability)
    variance = float(((simulated.counts - n * probability) ** 2).mean())
    common = (variance / binomial - 1.0) / (n - 1) if n > 1 else 0.0
    if common <= 1e-9:
        return float(scipy.special.bdtr(number, n, probability))
    scale = max(1.0 / common - 1.0, 1e-6)
    a, b, k = scale * probability, scale * (1.0 - probability), np.arange(number + 1)
    choices = scipy.special.gammaln(n + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(n - k + 1)
    shares = scipy.special.betaln(k + a, n - k + b) - scipy.special.betaln(a, b)
    return float(min(np.exp(choices + shares).sum(), 1.0))


def _margins(
    names: Sequence[int],
    codes: Ints,
    at_level: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
    base: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> _Margins:
    """Margins that keep the columns with these numbers; `at_level` (row, column) is false at the word for all levels."""
    key = np.zeros(len(codes), dtype=np.int64)
    for name in names:
        key = np.unique(key * (int(codes[:, name].max()) + 1) + codes[:, name], return_inverse=True)[1]
    keys, first, group = np.unique(key[base], return_index=True, return_inverse=True)
    place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    of_set = (at_level.sum(axis=1) == len(names)) & at_level[:, list(names)].all(axis=1) & (keys[place] == key)
    return _Margins(group, first, np.where(of_set, place, -1))


def _common(
    margin_sets: Sequence[_Margins],
    joined: Sequence[Sequence[_Margins]],
    v: Floats,
    records: Floats | None,
    deviation: Floats,
) -> Floats:
    """The γ of every set of columns: variances of errors that cells which agree in these columns share.

    `joined` has the margins that keep the columns of two sets.
    """
    if not margin_sets:
        return np.zeros(0)
    pairs, excess = np.zeros((len(margin_sets), len(margin_sets))), np.zeros(len(margin_sets))
    for i, margins in enumerate(margin_sets):
        rows = np.flatnonzero(margins.row >= 0)
        places = margins.row[rows]
        size = 1.0 if records is None else np.bincount(margins.group, records)[places]
        squares = np.bincount(margins.group, v**2)
        excess[i] = float(((deviation[rows] * size) ** 2 - squares[places]).sum())
        pairs[i] = [float((margins.squares_within(union, v) - squares)[places].sum()) for union in joined[i]]
    scale = np.where(np.diag(pairs) > 0.0, np.diag(pairs), np.inf)
    gamma = scipy.optimize.nnls(pairs / scale[:, None], excess / scale, maxiter=100 * len(margin_sets))[0]
    return np.asarray(gamma / max(gamma.sum(), 1.0))


# - `error_ratio`: the median ratio of published to direct standard errors, over a table's base cells with a positive
#   direct one. Below SMALL_RATIO a 90 % interval would contain the population's figure in fewer than LEAST_COVERED of
#   samples. Then published errors leave out a part of the design, such as clusters. `too_small` is true where chance does
#   not explain such a ratio.
# - `fixed`: counts that have no direct error, because replicate weights were calibrated to them, or strata fix them. Their
#   errors cannot be stated in direct standard errors. So their relative errors are judged, with the limit FAR_RELATIVE.
NOMINAL = 0.9
REACH = NORMAL_90
"""Half width of a 90 % interval in standard errors."""
SAME = 1e-9
"""Relative difference below which two figures count as equal."""
LEAST_COVERED = 0.7
SMALL_RATIO = NormalDist().inv_cdf((1.0 + LEAST_COVERED) / 2.0) / REACH
"""Ratio of a standard error to the right one at which 90 % intervals cover LEAST_COVERED."""
FAR_RELATIVE = 0.1
"""Relative error, or relative half width, above which a count that the design fixes is called inaccurate."""


class FixedCounts(NamedTuple):
    """Counts that the design fixes: their number, and largest relative error and half width among cells that are large
    enough.
    """

    cells: int
    error: float
    reach: float

    @property
    def inaccurate(self) -> bool:
        return self.error > FAR_RELATIVE or self.reach > FAR_RELATIVE


def without_error(estimate: Floats, error: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True if a standard error is 0 but for rounding, (row,); False if it is unknown.

    A variance is a difference of sums of squares, known to the last digit ε of these. So a standard error of 0 comes out
    as up to √ε = 1.5e-8 of the figure, times a few.
    """
    return np.asarray(error <= EXACT * np.abs(estimate))


def error_ratio(base: pd.DataFrame) -> float:
    """The median ratio of published to direct standard errors; NaN if no cell has a positive direct one."""
    rows = _with_direct_error(base)
    return float((rows["synthetic_se"] / rows["direct_se"]).median()) if len(rows) else np.nan


def too_small(base: pd.DataFrame, level: float) -> bool:
    """True if the median ratio is below SMALL_RATIO, and chance explains this only with a probability below `level`."""
    # A direct variance over the correct one is taken as χ²(df)/df. With correct errors, a cell's ratio is at most r with
    # the probability P(χ²(df) ≥ df/r²). By Markov's inequality, at least half of the cells have such a ratio with at most
    # twice the mean of these probabilities, however the cells depend on each other.
    ratio, df = error_ratio(base), _with_direct_error(base)["direct_df"].to_numpy(dtype=float)
    if not ratio < SMALL_RATIO:
        return False
    df = np.clip(np.nan_to_num(df, nan=1.0), 1.0, 1e6)
    return ratio == 0.0 or bool(2.0 * np.mean(scipy.special.chdtrc(df, df / ratio**2)) < level)


def fixed_counts(rows: pd.DataFrame, fewest: int) -> FixedCounts | None:
    """Counts without a direct error; None if there are none. Cells of fewer than `fewest` records are not measured."""
    direct = rows["direct"].to_numpy(dtype=float)
    without = without_error(direct, rows["direct_se"].to_numpy(dtype=float)) & (direct > 0)
    counts = rows[without & (rows["statistic"] == "count").to_numpy()]
    if counts.empty:
        return None
    large = counts[counts["records"] >= fewest]
    error = (large["synthetic"] - large["direct"]).abs() / large["direct"]
    reach = (large["synthetic_upper"] - large["synthetic_lower"]) / 2.0 / large["direct"]
    return FixedCounts(len(counts), float(error.max()), float(reach.max()))


def _with_direct_error(rows: pd.DataFrame) -> pd.DataFrame:
    error = rows["direct_se"].to_numpy(dtype=float)
    judgeable: pd.DataFrame = rows[np.isfinite(error) & ~without_error(rows["direct"].to_numpy(dtype=float), error)]
    return judgeable


# Results are confidential. The published variance T has two parts: T = E + N, with E from the sample and N from the noise.
# The direct figure has the variance D, all from the sample. Both figures come from one sample. So most of E and D is a
# common error, which cancels in the difference. The difference has the variance
#
#     N + E + D − 2ρ√(ED),    ρ = min(SAME_SAMPLE, √(E/D), √(D/E)).
#
# The two ratios follow from a case: if the figure with the smaller variance is efficient, its covariance with the other
# figure is its own variance (Hausman 1978). The difference then has the variance |E − D|. SAME_SAMPLE limits ρ where E and
# D are equal, because clipped and unclipped records have slightly different errors. A count's variance from random sample
# sizes is in E and in D, but not in the difference. It is subtracted from both where it is known.
#
# Where the mechanism cannot simulate its noise again, N is unknown and may be all of T. Then ρ = 0, which gives the largest
# variance.
SAME_SAMPLE = 0.9


def by_chance(rows: pd.DataFrame) -> Floats:
    """Returns the standard deviation of published less direct figure, (row,), if the published standard error is right."""
    total, direct = rows["synthetic_se"].to_numpy(dtype=float) ** 2, rows["direct_se"].to_numpy(dtype=float) ** 2
    variance = rows.get("direct_se_given_n", pd.Series(np.nan, index=rows.index)).to_numpy(dtype=float) ** 2
    sizes = np.where(np.isfinite(variance), np.maximum(direct - variance, 0.0), 0.0)
    noise = noise_error(rows) ** 2
    finite = np.isfinite(noise)
    noise = np.where(finite, np.minimum(noise, total), 0.0)
    sampling, direct = np.maximum(total - noise - sizes, 0.0), np.maximum(direct - sizes, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(np.minimum(sampling, direct) / np.maximum(sampling, direct))
    rho = np.where(finite, np.fmin(SAME_SAMPLE, np.nan_to_num(ratio)), 0.0)
    return np.asarray(np.sqrt(noise + sampling + direct - 2.0 * rho * np.sqrt(sampling * direct)))


def noise_error(rows: pd.DataFrame) -> Floats:
    """Returns standard errors due to noise alone, (row,).

    They are NaN if unknown, as in evaluations by earlier versions.
    """
    unknown = pd.Series(np.nan, index=rows.index)
    return np.asarray(rows.get("synthetic_noise_se", unknown), dtype=float)


# Every statistic of every table has five tests:
#
# - grand figure (all records): published and direct figure differ by more than chance, and the interval misses the direct
#   one.
# - coverage of base cells, and of margins: intervals miss more direct figures than right ones do.
# - side: more base cells lie above, or below, their direct figures than chance makes likely; and the median distance is
#   more than LEAN published standard errors.
# - furthest cell, margins included: its distance is unlikely under a t law and under a Laplace law. The distance is in
#   published standard errors, or in standard deviations of the difference by chance where these are larger.
#
# Where the job states PSUs or replicate weights, there is a sixth test: published standard errors are far smaller than
# direct ones (`error_ratio`). The other tests do not detect this fault, because both figures come from one sample.
#
# A correct release fails with probability at most FALSE_ALARM, under any dependence between statistics (Bonferroni). The
# constants GRAND to SMALL are the tests' shares of this probability. Cells share errors, and margins have those of their
# cells: `shared_errors` has the model. The noise of a grand figure is taken as normal. If it is a single draw of Laplace
# noise, the grand figures' part of the false-alarm probability is at most 2.7 times as large.
#
# Counts that the design fixes have no direct error, so their relative errors and the widths of their intervals are shown
# instead. Large errors are no fault of the intervals, and have no part in false alarms.
#
# Cells of fewer than two records, figures without standard errors, and totals that a public figure fixes are not judged. A
# release that passes has shown no fault in the judged cells. It may have faults elsewhere.
FALSE_ALARM = 0.05
GRAND, BASE, MARGINS, SIDE, FURTHEST, SMALL = 0.4, 0.2, 0.15, 0.1, 0.1, 0.05
"""Shares of FALSE_ALARM."""
SELDOM = 0.2
"""If correct intervals cover so few direct figures in fewer releases than this, the verdict warns."""
LEAN = 0.5
"""Distance of the median cell, in published standard errors, above which it counts as a bias.

With such a bias, 90 % intervals still contain .87.
"""
FAR_TOO_LOW = 0.75
"""If coverage fails its test and is below this, the release is not for publication."""
FAR_RECORDS = 10
"""Fewest records of a cell whose error may be called large; with fewer, the direct standard error may be near 0 by
chance.
"""
NEAR_ZERO = 0.02
"""Share of a table's median standard error, both for one record, below which a cell's direct one is near 0 by chance.

Nearly all of its records then have one value, such as an income of 0. Its error counts as in a cell of few records.
"""
FAR_MEDIAN, FAR_LARGEST = 1.5, 8.0
"""Errors, in direct standard errors, above which the median cell, or a single cell, is called inaccurate."""


class Errors(NamedTuple):
    """Distances between published and direct figures of a statistic, measured in a run or predicted by a plan.

    - `fixed`: the number of cells of two records or more whose direct standard error is 0: the design fixes the figure.
    - `median`, `largest`, `over_2`, `over_4`: |published − direct| in direct standard errors, without `fixed` cells.
    - `given_n`: the median in direct standard errors given the cells' numbers of records.
    - `relative`, `largest_relative`: shares of the direct figure, of the `fixed` cells, or of all where there are none.

    All but medians are over cells with at least FAR_RECORDS records; unknown figures are NaN.
    """

    cells: int
    fixed: int
    median: float
    largest: float
    over_2: float
    over_4: float
    given_n: float
    relative: float
    largest_relative: float

    @classmethod
    def of(cls, error: Floats, given_n: Floats, relative: Floats, records: Floats) -> Self:
        """Errors from distances over direct standard errors, over those for fixed n, and over direct figures, (cell,)
        each.
        """
        enough = records >= FAR_RECORDS
        fixed = np.isnan(error) & ~np.isnan(relative) & (records > 1)
        of_fixed = fixed if fixed.any() else np.ones(len(error), dtype=bool)
        return cls(
            cells=len(error),
            fixed=int(fixed.sum()),
            median=of_figures(np.median, error),
            largest=of_figures(np.max, error[enough]),
            over_2=float((error[enough] > FAR).sum()),
            over_4=float((error[enough] > FAR_NAMED).sum()),
            given_n=of_figures(np.median, given_n),
            relative=of_figures(np.median, relative[of_fixed]),
            largest_relative=of_figures(np.max, relative[of_fixed & enough]),
        )


def of_figures(function: Callable[[Floats], Any], values: Floats) -> float:
    """A function of the values that are not NaN; NaN if there are none."""
    figures = values[~np.isnan(values)]
    return float(function(figures)) if len(figures) else np.nan


def relative_to(gap: Floats, direct: Floats, error: Floats, given_n: Floats) -> tuple[Floats, Floats, Floats]:
    """Distances over direct standard errors, over those for fixed n, and over direct figures, (cell,) each; NaN over 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        in_errors, in_given = (
            np.where(without_error(direct, of_error), np.nan, gap / of_error) for of_error in (error, given_n)
        )
        return in_errors, in_given, np.where(direct != 0.0, gap / np.abs(direct), np.nan)


class GrandFigure(NamedTuple):
    """The published figure of all records, and the direct one. Distances are in standard errors, NaN if unknown."""

    published: float
    direct: float
    in_published: float
    in_noise: float
    in_chance: float
    """Distance in standard deviations of the difference by chance (`by_chance`)."""
    df: float
    covers: bool
    reach: float
    """Half width of the published interval on the side of the direct figure, in published standard errors."""
    clipped: float = np.nan
    """The direct figure of records whose values are clipped to public bounds."""

    @property
    def clipping(self) -> float:
        """What clipping to public bounds does to the direct figure, as a share of it; 0 if unknown."""
        return self.clipped / self.direct - 1.0 if self.direct and np.isfinite(self.clipped) else 0.0

    @property
    def off_by_bounds(self) -> bool:
        """True if clipping to public bounds explains half of the distance or more, in its direction."""
        return (self.clipped - self.direct) / (self.published - self.direct) >= 0.5 if self.relative else False

    @property
    def relative(self) -> float:
        """The published figure over the direct one, less 1."""
        return self.published / self.direct - 1.0 if self.direct else np.nan


class Unpublished(NamedTuple):
    """A statistic most of whose figures are withheld, while direct figures have standard errors below their sizes.

    `withheld` of `cells` figures are. `direct`, `lower` and `upper` are the direct figure and the published limits of all
    records, NaN without that row. `end` is the value at which all intervals of withheld figures begin, or all end: an end
    of the range; NaN if there is none.
    """

    withheld: int
    cells: int
    direct: float
    lower: float
    upper: float
    end: float


@dataclass(frozen=True)
class Verdict:
    """How many direct estimates lie in published intervals, and what follows.

    - `coverage`: the share of judged cells whose interval contains the direct estimate. `covered`: the same over base
      cells, with intervals widened where chance alone moves the difference by more than the published error.
    - `width`: median ratio of published to direct standard errors over base cells. `small`: it is far too small under the
      survey's design.
    - `chance`: the probability that right intervals hold as few direct figures of base cells and margins, or fewer.
    - `margins`: how many intervals of margins hold, and of how many. `few_margins`: chance does not explain it.
    - `above`: share of base cells above their direct estimates. `lean`: their median distance from these, in published
      standard errors.
    - `far`: the furthest cell, if it is too far.
    - `errors`: distances from direct estimates, as a plan predicts them.
    - `fixed`: counts that the design fixes, if there are any.
    - `beyond`: the published cells, margins too, whose error is above FAR_NAMED, the largest error first.
    """

    cells: int
    coverage: float
    covered: float
    width: float
    above: float
    lean: float
    grand: GrandFigure | None
    too_few: bool
    one_sided: bool
    off: bool
    far: str | None
    errors: Errors
    small: bool = False
    fixed: FixedCounts | None = None
    beyond: tuple[tuple[str, ...], ...] = ()
    chance: float = 1.0
    margins: tuple[int, int] = (0, 0)
    few_margins: bool = False

    @property
    def far_off(self) -> bool:
        """True if figures are far from direct ones, in direct standard errors."""
        return self.errors.median > FAR_MEDIAN or self.errors.largest > FAR_LARGEST

    @property
    def inaccurate(self) -> bool:
        """True if figures are far from direct ones, even if intervals contain these."""
        return self.far_off or (self.fixed is not None and self.fixed.inaccurate)

    @property
    def fails(self) -> bool:
        faults = self.too_few or self.few_margins or self.one_sided or self.off or self.small
        return faults or self.far is not None

    @property
    def unclear(self) -> bool:
        """True if intervals miss too many direct estimates, or the grand one, and no test fails."""
        return not self.fails and (self.coverage < NOMINAL or (self.grand is not None and not self.grand.covers))

    @property
    def warns(self) -> bool:
        """True if an unclear release is seldom a correct one, or covers so few that chance is no answer for a reader."""
        return self.unclear and (self.chance < SELDOM or self.coverage < LEAST_COVERED)

    @property
    def stops(self) -> bool:
        """True if the release must not be published."""
        covered, margins = self.margins
        margins_low = self.few_margins and covered < FAR_TOO_LOW * margins
        return self.off or self.far is not None or margins_low or (self.too_few and self.covered < FAR_TOO_LOW)


def labels_of(rows: pd.DataFrame) -> list[str]:
    """The columns that identify a cell."""
    return list(rows.columns[: rows.columns.get_loc("statistic")])


def place(row: pd.Series, by: list[str]) -> str:
    """A cell's levels as text."""
    return cell_name([str(row[name]) for name in by])


def unpublished_of(rows: pd.DataFrame) -> Unpublished | None:
    """What is known of a statistic most of whose figures are withheld; None if most direct ones would be, too."""
    withheld = rows["synthetic"].isna() & rows["synthetic_lower"].notna()
    precise = (rows["records"] > 1) & (rows["direct_se"] < rows["direct"].abs())
    if not (withheld[precise].mean() > 0.5 and precise[rows["records"] > 1].mean() > 0.5):
        return None
    limits = rows.loc[withheld, ["synthetic_lower", "synthetic_upper"]]
    shared = [float(values.iloc[0]) for _, values in limits.items() if len(values) > 1 and values.nunique() == 1]
    totals = rows[(rows[labels_of(rows)] == TOTAL).all(axis=1) & withheld]
    of_all = totals.iloc[0][["direct", "synthetic_lower", "synthetic_upper"]] if len(totals) == 1 else [np.nan] * 3
    known, lower, upper = map(float, of_all)
    return Unpublished(int(withheld.sum()), len(rows), known, lower, upper, shared[0] if shared else np.nan)


def judge(rows: pd.DataFrame, statistics: int = 1, clustered: bool = False) -> Verdict | Unpublished | None:
    """Judges a statistic by its rows of an evaluation; None if nothing can be judged.

    `statistics` is the number of statistics that are judged together and share the false-alarm rate. `clustered` is
    true if direct errors are those of PSUs or replicate weights.
    """
    alarm, grand, errors = FALSE_ALARM / statistics, _grand(rows), errors_of(rows)
    judgeable = (rows["records"] > 1) & (rows["synthetic_se"] > EXACT * rows["synthetic"].abs())
    judgeable &= rows[["direct", "direct_se", "synthetic_lower"]].notna().all(axis=1)
    if (unpublished := unpublished_of(rows)) is not None:
        return unpublished
    if not judgeable.any():
        return None
    rows = rows[judgeable]
    by, gap = labels_of(rows), (rows["synthetic"] - rows["direct"]).to_numpy(dtype=float)
    error, chance = rows["synthetic_se"].to_numpy(dtype=float), by_chance(rows)
    base = (rows[by] != TOTAL).all(axis=1).to_numpy()
    covers, wide = holds_direct(rows), np.maximum(chance / error, 1.0)
    distances, off = gap[base] / error[base], grand is not None and _too_far(grand, alarm * GRAND)
    number, above = int(base.sum()), int((distances > 0).sum())
    lean = float(np.median(distances)) if number else np.nan
    shared = shared_errors(rows, chance, by)
    hold, of_margins = _held(rows, wide), shared.margin
    judged = base | of_margins
    sides = 2.0 * at_most(min(above, number - above), shared.above, 0.5)
    margins = int(hold[of_margins].sum()), int(of_margins.sum())
    distance = np.abs(gap) / (error * wide)
    tail = np.maximum(2.0 * scipy.special.stdtr(_df(rows), -distance), np.exp(-np.sqrt(2.0) * distance))
    furthest = int(np.nanargmin(tail))
    direct_error = rows["direct_se"].to_numpy(dtype=float)
    known_error = ~without_error(rows["direct"].to_numpy(dtype=float), direct_error)
    sizes = np.abs(gap)[known_error] / direct_error[known_error]
    return Verdict(
        cells=len(rows),
        coverage=float(covers.mean()),
        covered=float(hold[base].mean()) if number else float(covers.mean()),
        width=error_ratio(rows[base]),
        above=above / number if number else np.nan,
        lean=lean,
        grand=grand,
        too_few=at_most(int(hold[base].sum()), shared.base_held, NOMINAL) < alarm * BASE,
        one_sided=sides < alarm * SIDE and abs(lean) > LEAN,
        off=off,
        far=place(rows.iloc[furthest], by) if tail[furthest] * len(rows) < alarm * FURTHEST else None,
        errors=errors,
        small=clustered and too_small(rows[base], alarm * SMALL),
        fixed=fixed_counts(rows, FAR_RECORDS),
        beyond=_beyond(rows[known_error], sizes),
        chance=at_most(int(hold[judged].sum()), shared.base_held.plus(shared.margins_held), NOMINAL),
        margins=margins,
        few_margins=at_most(margins[0], shared.margins_held, NOMINAL) < alarm * MARGINS,
    )


def errors_of(rows: pd.DataFrame) -> Errors:
    """The errors of a release's statistic from all its rows of an evaluation."""
    unknown = pd.Series(np.nan, index=rows.index)
    of_direct = rows["direct"], rows["direct_se"], rows.get("direct_se_given_n", unknown)
    direct, error, given_n = (np.asarray(column, dtype=np.float64) for column in of_direct)
    gap = np.abs(rows["synthetic"].to_numpy(dtype=float) - direct)
    in_errors, in_given, relative = relative_to(gap, direct, error, given_n)
    records = rows["records"].to_numpy(dtype=float)
    additive = rows["statistic"].isin(["count", "total"]).all()
    with np.errstate(divide="ignore", invalid="ignore"):
        of_record = error / np.sqrt(records) if additive else error * np.sqrt(records)
    typical = of_figures(np.median, np.where((of_record > 0.0) & np.isfinite(of_record), of_record, np.nan))
    return Errors.of(in_errors, in_given, relative, np.where(of_record < NEAR_ZERO * typical, 0.0, records))


def _beyond(rows: pd.DataFrame, sizes: Floats) -> tuple[tuple[str, ...], ...]:
    """Labels of the published cells whose errors, (row,) in direct standard errors, are above FAR_NAMED."""
    order = np.argsort(-sizes, kind="stable")
    named = rows.iloc[order[sizes[order] > FAR_NAMED]]
    return tuple(named[labels_of(rows)].astype(str).itertuples(index=False, name=None))


def holds_direct(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True if the published interval contains the direct estimate, (row,); False without an interval."""
    return _held(rows, np.ones(len(rows)))


def _held(rows: pd.DataFrame, times: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True if the direct estimate lies within the interval, after its half widths are multiplied by `times`."""
    gap = (rows["direct"] - rows["synthetic"]).to_numpy(dtype=float)
    below, above = rows["synthetic"] - rows["synthetic_lower"], rows["synthetic_upper"] - rows["synthetic"]
    reach = times * np.where(gap < 0, below, above)
    return np.asarray(np.abs(gap) <= reach + SAME * rows["direct"].abs().to_numpy(dtype=float))


def _df(rows: pd.DataFrame) -> Floats:
    """Degrees of freedom of a difference: the smaller number of the two figures."""
    return np.where(rows["direct_se"] > 0, np.fmin(rows["synthetic_df"], rows["direct_df"]), rows["synthetic_df"])


def _too_far(grand: GrandFigure, level: float) -> bool:
    """True if chance does not explain the grand figure's distance, and its interval misses the direct figure."""
    return bool(not grand.covers and 2.0 * scipy.special.stdtr(grand.df, -abs(grand.in_chance)) < level)


def _grand(rows: pd.DataFrame) -> GrandFigure | None:
    """The figure of all records. Without this row, counts and totals are summed over base cells, as if independent."""
    by = labels_of(rows)
    totals = rows[(rows[by] == TOTAL).all(axis=1)]
    base = rows[(rows[by] != TOTAL).all(axis=1)]
    if totals.empty and len(base) and base["statistic"].isin(["count", "total"]).all():
        totals = _summed(base)
    if len(totals) != 1 or not totals[["synthetic", "direct", "synthetic_se", "direct_se"]].notna().all(axis=None):
        return None
    row = totals.iloc[0]
    if not (row["synthetic_se"] > EXACT * abs(row["synthetic"]) and row["records"] > 1):
        return None
    gap, covers = float(row["synthetic"] - row["direct"]), bool(holds_direct(totals)[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = row["synthetic_se"], noise_error(totals)[0], by_chance(totals)[0]
        published, noise, chance = (float(np.float64(gap) / spread) for spread in errors)
    end = row["synthetic_upper"] - row["synthetic"] if gap < 0 else row["synthetic"] - row["synthetic_lower"]
    reach = float(end / row["synthetic_se"])
    return GrandFigure(
        float(row["synthetic"]),
        float(row["direct"]),
        published,
        noise,
        chance,
        float(_df(totals)[0]),
        covers,
        reach,
        float(row.get("direct_clipped", np.nan)),
    )


def _summed(base: pd.DataFrame) -> pd.DataFrame:
    """One row with the sums of the cells' figures; standard errors are added in squares."""
    filled = base[base["records"] > 0]
    errors = [name for name in ("synthetic_se", "direct_se", "direct_se_given_n", "synthetic_noise_se") if name in filled]
    sums = [name for name in ("synthetic", "direct", "records", "direct_clipped") if name in filled]
    row = filled.iloc[:1].assign(**{name: filled[name].sum(skipna=False) for name in sums})
    row = row.assign(**{name: np.sqrt((filled[name] ** 2).sum(skipna=False)) for name in errors})
    reach = REACH * row["synthetic_se"]
    return row.assign(synthetic_lower=row["synthetic"] - reach, synthetic_upper=row["synthetic"] + reach)
