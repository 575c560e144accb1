"""Public bounds of published figures: limits of intervals, counts that public totals fix, and raked expectations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dpdist.core.records import Cells, Floats
from dpdist.estimation.estimators import STATISTICS, Interval
from dpdist.estimation.raking import Margin, factors, margins_of
from dpdist.models.protocol import Draws, Expectation, StratumModel, expected_of
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


def limited(
    released: ReleasedObject, cells: Cells, outcome: int, estimates: Mapping[str, Sequence[Interval]]
) -> dict[str, list[Interval]]:
    """Intervals by estimator, with limits within public bounds."""
    column = released.job.columns[released.job.outcomes[outcome]]
    low, top = column.bounds or (-np.inf, np.inf)
    counts = count_ends(released, cells)
    means = np.full(len(cells), low), np.full(len(cells), top)
    ends = {"count": counts, "mean": means, "total": total_ends(*counts, low, top)}
    return {
        name: [_cut(interval, *ends[statistic]) for statistic, interval in zip(STATISTICS, intervals, strict=True)]
        for name, intervals in estimates.items()
    }


def _cut(interval: Interval, low: Floats, top: Floats) -> Interval:
    return interval._replace(lower=np.clip(interval.lower, low, top), upper=np.clip(interval.upper, low, top))


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
    for margin in margins_of(released.job, released.crosstab):
        overlap = (cells.membership @ margin.membership.T).toarray() > 0.0
        most = np.minimum(most, overlap @ margin.totals)
    return np.zeros(len(cells)), most


def fixed_totals(cells: Cells, margins: list[Margin]) -> Floats:
    """Counts fixed by the totals alone, without rounding errors, (cell,); NaN for other cells."""
    if not margins:
        return np.full(len(cells), np.nan)
    x, constant = np.vstack([margin.membership.toarray() for margin in margins]), cells.membership.toarray()
    parts = np.linalg.lstsq(x.T, constant.T, rcond=None)[0].T
    follows = np.abs(constant - parts @ x).max(axis=1) < FIXED
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
    """E(w|x) and E(wy|x) of an outcome by crosstab row, one pair for each set; None if the model defines none."""
    if not isinstance(released.model(0), Expectation):
        return None
    return raked_to_totals(released, by_row(released, range(len(released.crosstab.stratum_labels)), expecting(outcome)))


Expecting = Callable[[StratumModel, Draws], Expected]


def expecting(outcome: int) -> Expecting:
    """Returns the expectations of an outcome as a function of model and parameters."""
    return lambda model, theta: expected_of(model, theta, outcome)


def raked_to_totals(released: ReleasedObject, pairs: list[Expected]) -> list[Expected]:
    """Expectations of every set whose counts meet the public totals; unchanged if the job states none."""
    rake = margins_of(released.job, released.crosstab)
    if not rake:
        return pairs
    n = released.crosstab.count.astype(float)
    factor = [factors(n * weight, rake) for weight, _ in pairs]
    return [(weight * g, product * g) for (weight, product), g in zip(pairs, factor, strict=True)]


def by_row(released: ReleasedObject, strata: range, expect: Expecting) -> list[Expected]:
    """Expectations of the first draw by crosstab row of consecutive strata, (row,) each, one pair for each set."""
    batch_rows = rows_of_batch(released.crosstab, strata)
    size = batch_rows.stop - batch_rows.start
    pairs = [(np.empty(size), np.empty(size)) for _ in released.sets]
    for stratum in strata:
        model, rows = released.model(stratum), released.crosstab.rows_of(stratum)
        inside = slice(rows.start - batch_rows.start, rows.stop - batch_rows.start)
        for k, (weight, product) in enumerate(pairs):
            weights, products = expect(model, released.theta(model, stratum, k))
            weight[inside], product[inside] = weights[0], products[0]
    return pairs
