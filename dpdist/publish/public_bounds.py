"""For tables and synthesis in `publish`: holds estimates to public bounds of weights and outcomes, and totals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import NORMAL_90, STATISTICS, Interval
from dpdist.estimation.raking import Margin, Room, factors, margins_of
from dpdist.models.protocol import Draws, Expectation, StratumModel, Unbiased, expected_of
from dpdist.publish.batches import rows_of_batch
from dpdist.publish.refit import Expected
from dpdist.publish.released import ReleasedObject

FIXED = 1e-9
"""The totals fix a cell's count if its rows, as a 0/1 vector, differ from a linear combination of the totals' rows by less
than this."""
MET = 1e-8
"""Relative distance of a raked count from its total that rounding can cause."""
DIGITS = 13
"""Significant digits of a count that is computed from totals."""


# Printed figures are set into their bounds one by one, where a model's expectations may leave them (`Unbiased`). Margins
# are sums of released sums, and never of figures that were set into bounds. So a margin has no bias unless noise carries it
# beyond its bounds. Then the bias is at most .4 of its error by noise: E max(0, Z) = 1/√(2π) for a normal Z.
#
# A mean is a ratio. If noise cannot tell its count from 0, the ratio can have any value, and the mean is withheld: it has
# the limits of its outcome and no estimate (Fieller 1954).
#
# A frame row is unidentified where the noisy sums give only a range for its mean weight. Raking to totals first fills such
# rows, within their ranges. So identified rows lose none of their weight.
class FigureBounds(NamedTuple):
    """Lowest and highest possible counts, means and totals of the sample's records in every cell, (cell,) each."""

    low: tuple[Floats, Floats, Floats]
    high: tuple[Floats, Floats, Floats]
    only_noise: bool

    @classmethod
    def of(cls, released: ReleasedObject, cells: Cells, outcome: int) -> FigureBounds | None:
        """Bounds for a release whose expectations may leave them; None for other releases and raked weights.

        Bounds of weights and outcomes, and sample counts, are public. If sample counts are noisy, a count is only known
        to be at least 0.
        """
        first = released.model(0)
        if not isinstance(first, Unbiased) or released.job.rake:  # bounds of weights do not hold for raked weights
            return None
        ends = [np.empty(len(released.frame)) for _ in range(2)]
        for stratum in range(len(released.frame.stratum_labels)):
            model = released.model(stratum)
            assert isinstance(model, Unbiased)
            drawn = [model.weight_ends(released.theta(model, stratum, k)) for k in range(len(released.sets))]
            for end, row_ends in zip(ends, np.mean(drawn, axis=0), strict=True):
                end[released.frame.rows_of(stratum)] = row_ends
        low_y, high_y = released.job.columns[released.job.outcomes[outcome]].bounds or (0.0, 1.0)
        if released.job.sizes_secret:
            least, most = np.zeros(len(cells)), np.full(len(cells), np.inf)
        else:
            least, most = (np.asarray(cells.membership @ (released.frame.count * end)) for end in ends)
        means = np.full(len(cells), low_y), np.full(len(cells), high_y)
        low, high = total_ends(least, most, low_y, high_y)
        return cls((least, means[0], low), (most, means[1], high), first.only_noise)

    def within(self, points: Sequence[Floats]) -> list[Floats]:
        """Counts, means and totals, each set into its own bounds."""
        return [np.clip(*figure) for figure in zip(points, self.low, self.high, strict=True)]

    def noise_variances(self, variances: Sequence[Floats]) -> list[Floats]:
        """Variances by noise, limited to the squared distance between the bounds, because no figure errs by more.

        Counts and totals under moved weights may err by more: their bounds are those of moved weights.
        """
        bounded = (self.only_noise, True, self.only_noise)
        ranges = [high - low if holds else np.inf for low, high, holds in zip(self.low, self.high, bounded, strict=True)]
        return [np.fmin(variance, most**2) for variance, most in zip(variances, ranges, strict=True)]


def total_ends(least: Floats, most: Floats, low: float, high: float) -> tuple[Floats, Floats]:
    """Ends of totals (cell,), for counts between `least` and `most` (cell,) and outcomes between `low` and `high`."""
    with np.errstate(invalid="ignore"):
        ends = (least if low > 0.0 else most) * low, (most if high > 0.0 else least) * high
    low_end, high_end = (np.where(np.isnan(end), 0.0, end) for end in ends)  # a count of 0 times an open end
    return low_end, high_end


def count_ends(released: ReleasedObject, cells: Cells) -> tuple[Floats, Floats]:
    """Ends of the population's counts, (cell,) each: 0, and the least public total that contains the cell, or infinity.

    Sample sizes and weight bounds limit an estimate, but not the population.
    """
    most = np.full(len(cells), np.inf)
    for margin in margins_of(released.job, released.frame):
        overlap = (cells.membership @ margin.membership.T).toarray() > 0.0
        most = np.minimum(most, overlap @ margin.totals)
    return np.zeros(len(cells)), most


def without_drowned_means(
    estimates: Mapping[str, Sequence[Interval]], raw_count: Floats, count_error: Floats
) -> dict[str, list[Interval]]:
    """Withholds means whose count noise does not separate from 0: a 90 % interval by noise alone includes 0.

    `raw_count` and its standard error by noise alone are (cell,).
    """
    drowned = raw_count <= NORMAL_90 * count_error
    ends = {"value": np.nan, "standard_error": np.nan, "df": np.nan, "lower": -np.inf, "upper": np.inf}
    by_estimator = {}
    for name, intervals in estimates.items():
        by_statistic = dict(zip(STATISTICS, intervals, strict=True))
        parts = {part: np.where(drowned, end, getattr(by_statistic["mean"], part)) for part, end in ends.items()}
        by_estimator[name] = list((by_statistic | {"mean": Interval(**parts)}).values())
    return by_estimator


def margins_and_room(released: ReleasedObject) -> tuple[list[Margin], Room | None]:
    """Returns margins of the public totals, and the range within which every frame row's weight may move.

    Margins are empty if the job states no totals. The room is None without margins, or if the release has no ranges.
    """
    margins = margins_of(released.job, released.frame)
    if not margins or not released.has_ranges:
        return margins, None
    ends = np.zeros((len(released.frame), 2))
    for stratum in released.completed_strata:
        if stratum.facts.ranges is not None:
            of_weights = stratum.facts.ranges[stratum.model.design.pattern, 0]
            ends[released.frame.rows_of(stratum.number)] = np.nan_to_num(of_weights)
    n = released.frame.count.astype(float)
    return margins, Room(*(n * ends.T))


def fixed_counts(cells: Cells, margins: list[Margin]) -> Floats:
    """1 for a cell whose count follows from the totals alone, else 0, (cell,)."""
    return np.asarray(np.isfinite(fixed_totals(cells, margins)), dtype=float)


def fixed_totals(cells: Cells, margins: list[Margin]) -> Floats:
    """Counts fixed by the totals alone, without rounding errors, (cell,); NaN for other cells."""
    if not margins:
        return np.full(len(cells), np.nan)
    x, held = np.vstack([margin.membership.toarray() for margin in margins]), cells.membership.toarray()
    parts = np.linalg.lstsq(x.T, held.T, rcond=None)[0].T
    follows = np.abs(held - parts @ x).max(axis=1) < FIXED
    totals = parts @ np.concatenate([margin.totals for margin in margins])
    return np.where(follows, [float(f"{total:.{DIGITS}g}") for total in totals], np.nan)


def without_rounding(counts: Interval, totals: Floats) -> Interval:
    """Returns counts in which those fixed by `totals` (cell,) are exact, with error 0.

    Counts that miss their total by more than rounding stay as they are, with their errors.
    """
    with np.errstate(invalid="ignore"):
        met = np.abs(counts.value - totals) <= MET * np.abs(totals)
        exact = met & (counts.standard_error <= MET * np.abs(totals))
    value, error = np.where(met, totals, counts.value), np.where(exact, 0.0, counts.standard_error)
    lower, upper = (np.where(exact, totals, limit) for limit in (counts.lower, counts.upper))
    return counts._replace(value=value, standard_error=error, lower=lower, upper=upper)


def expectations(released: ReleasedObject, outcome: int = 0) -> list[Expected] | None:
    """E(w|x) and E(wy|x) of an outcome by frame row, one pair for each set; None if the model defines none."""
    if not isinstance(released.model(0), Expectation):
        return None
    return raked_to_totals(released, by_row(released, range(len(released.frame.stratum_labels)), expecting(outcome)))


Expecting = Callable[[StratumModel, Draws], Expected]


def expecting(outcome: int) -> Expecting:
    """Returns the expectations of an outcome as a function of model and parameters."""

    def expect(model: StratumModel, theta: Draws) -> Expected:
        assert isinstance(model, Expectation)
        return expected_of(model, theta, outcome)

    return expect


def raked_to_totals(released: ReleasedObject, pairs: list[Expected]) -> list[Expected]:
    """Expectations of every set whose counts meet the public totals; unchanged if the job states none."""
    rake, room = margins_and_room(released)
    if not rake:
        return pairs
    n = released.frame.count.astype(float)
    factor = [factors(n * weight, rake, room) for weight, _ in pairs]
    return [(weight * g, product * g) for (weight, product), g in zip(pairs, factor, strict=True)]


def bounded_expectations(released: ReleasedObject, expected: Sequence[Expected]) -> Sequence[Expected]:
    """Expectations of every set within public bounds, as synthetic records have them; bounded ones are unchanged.

    In small cells, noise makes unbounded expectations differ far more than true cell means do.
    """
    if not isinstance(released.model(0), Unbiased) or released.job.rake:
        return expected

    def expect(model: StratumModel, theta: Draws) -> Expected:
        assert isinstance(model, Unbiased)
        return model.bounded(theta)

    return by_row(released, range(len(released.frame.stratum_labels)), expect)


def by_row(released: ReleasedObject, strata: range, expect: Expecting) -> list[Expected]:
    """Expectations of the first draw by frame row of consecutive strata, (row,) each, one pair for each set."""
    whole = rows_of_batch(released.frame, strata)
    size = whole.stop - whole.start
    pairs = [(np.empty(size), np.empty(size)) for _ in released.sets]
    for stratum in strata:
        model, rows = released.model(stratum), released.frame.rows_of(stratum)
        inside = slice(rows.start - whole.start, rows.stop - whole.start)
        for k, (weight, product) in enumerate(pairs):
            weights, products = expect(model, released.theta(model, stratum, k))
            weight[inside], product[inside] = weights[0], products[0]
    return pairs
