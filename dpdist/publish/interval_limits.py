"""For `publish.tables`: keeps intervals within public bounds, and wide enough for cells that noise leaves unidentified.

A cell is unidentified if noisy sums give only a range for its mean weight or mean outcome. A figure over several cells
includes the ranges of unidentified ones; over unidentified cells alone it has limits and no estimate. Public totals
narrow the ranges. All of this is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import STATISTICS, Interval
from dpdist.estimation.raking import factors, within_totals
from dpdist.publish.public_bounds import count_ends, fixed_counts, margins_and_room, total_ends
from dpdist.publish.released import ReleasedObject

ROUNDS = 50


class Ranges(NamedTuple):
    """Smallest and largest E(w|x) and E(y|x) of every frame row, (row,).

    For an identified row, both are the estimate.
    """

    least_weight: Floats
    most_weight: Floats
    least: Floats
    most: Floats


def limited(
    released: ReleasedObject, cells: Cells, outcome: int, estimates: Mapping[str, Sequence[Interval]]
) -> dict[str, list[Interval]]:
    """Intervals by estimator, with limits within public bounds that include unidentified cells."""
    held = {name: list(intervals) for name, intervals in estimates.items()}
    ranges, weight, mean = _ranges(released, outcome)
    if ranges is not None:
        widened = _widened(released, cells, ranges, weight, mean)
        held = {name: [wider(*pair) for pair in zip(intervals, widened, strict=True)] for name, intervals in held.items()}
    column = released.job.columns[released.job.outcomes[outcome]]
    low, top = column.bounds or (-np.inf, np.inf)
    counts = count_ends(released, cells)
    means = np.full(len(cells), low), np.full(len(cells), top)
    ends = {"count": counts, "mean": means, "total": total_ends(*counts, low, top)}
    return {
        name: [_cut(interval, *ends[statistic]) for statistic, interval in zip(STATISTICS, intervals, strict=True)]
        for name, intervals in held.items()
    }


def _cut(interval: Interval, low: Floats, top: Floats) -> Interval:
    return interval._replace(lower=np.clip(interval.lower, low, top), upper=np.clip(interval.upper, low, top))


class Wider(NamedTuple):
    """What missing identification adds below and above a figure, and 1 if no estimate remains, (cell,) each."""

    below: Floats
    above: Floats
    none: Floats


def wider(interval: Interval, by: Wider) -> Interval:
    """Returns intervals with wider limits; standard errors grow until estimate ± t standard errors reaches the limits."""
    lower, upper = interval.lower - by.below, interval.upper + by.above
    reach = np.maximum(upper - interval.value, interval.value - lower)
    moved = (by.below > 0) | (by.above > 0)
    error = np.where(moved, reach / scipy.special.stdtrit(interval.df, 0.95), interval.standard_error)
    gone = by.none > 0
    value, error, df = (np.where(gone, np.nan, values) for values in (interval.value, error, interval.df))
    return Interval(value, error, df, lower, upper)


def unidentified_rows(released: ReleasedObject, outcome: int) -> NDArray[np.bool_]:
    """True for rows of the frame whose mean weight or mean outcome the noisy sums do not identify, (row,)."""
    ranges = ranges_of(released, outcome)
    if ranges is None:
        return np.zeros(len(released.frame), dtype=bool)
    return np.asarray((ranges.most_weight > ranges.least_weight) | (ranges.most > ranges.least))


def ranges_of(released: ReleasedObject, outcome: int) -> Ranges | None:
    """Ranges of mean weights and mean outcomes of the frame's rows; None if all are identified."""
    return _ranges(released, outcome)[0]


def _ranges(released: ReleasedObject, outcome: int) -> tuple[Ranges | None, Floats, Floats]:
    """Ranges of the frame's rows, None if all are identified; and the rows' mean weights and mean outcomes."""
    size = len(released.frame)
    weight, mean, ends = np.ones(size), np.zeros(size), np.full((size, 4), np.nan)
    if not released.has_ranges:
        return None, weight, mean
    for stratum in released.completed_strata:
        if stratum.facts.ranges is not None:
            rows, pattern = released.frame.rows_of(stratum.number), stratum.model.design.pattern
            means, both = stratum.facts.means[pattern], stratum.facts.ranges[pattern]
            ends[rows] = np.column_stack([both[:, 0], both[:, 1 + outcome]])
            weight[rows], mean[rows] = means[:, 0], means[:, 1 + outcome]
    if not np.isfinite(ends).any():
        return None, weight, mean
    margins, room = margins_and_room(released)
    n = released.frame.count.astype(float)
    if room is not None:
        met = n * weight * factors(n * weight, margins, room)
        within = within_totals(met, margins, room)
        weight = np.divide(met, n, out=weight, where=n > 0)
        ends[:, :2] = np.divide(np.column_stack(within), n[:, None], out=np.full((size, 2), np.nan), where=n[:, None] > 0)
    estimates = np.column_stack([weight, weight, mean, mean])
    return Ranges(*np.where(np.isfinite(ends), ends, estimates).T), weight, mean


def _widened(released: ReleasedObject, cells: Cells, ranges: Ranges, weight: Floats, mean: Floats) -> list[Wider]:
    """Largest distance of counts, means and totals from their estimates by unidentified cells."""
    n = released.frame.count.astype(float)
    least_weight, most_weight, least, most = ranges
    held = cells.membership
    of_weight, of_mean = most_weight > least_weight, most > least
    products = np.array([w * y for w in ranges[:2] for y in ranges[2:]])
    total = [
        held @ (n * farthest) for farthest in (weight * mean - products.min(axis=0), products.max(axis=0) - weight * mean)
    ]
    open_counts = 1.0 - fixed_counts(cells, margins_and_room(released)[0])
    count = [open_counts * (held @ (n * added)) for added in (weight - least_weight, most_weight - weight)]
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = (held @ (n * weight * mean)) / (held @ (n * weight))
    below = middle - farthest_means(cells, n, ranges, least, -1.0)
    above = farthest_means(cells, n, ranges, most, 1.0) - middle
    only = [_only(cells, rows) for rows in (of_weight, of_mean, of_weight | of_mean)]
    only[0] = only[0] * open_counts
    pairs = (count, (below, above), total)
    return [Wider(np.fmax(down, 0.0), np.fmax(up, 0.0), none) for (down, up), none in zip(pairs, only, strict=True)]


def farthest_means(cells: Cells, n: Floats, ranges: Ranges, mean: Floats, sign: float) -> Floats:
    """The largest (sign 1) or least (−1) mean Σ n w y / Σ n w of every cell over its rows' ranges (Dinkelbach 1967)."""
    held = cells.membership.toarray() > 0
    means = np.full(len(cells), np.nan)
    for cell, rows in enumerate(held):
        if not n[rows].sum() > 0.0:
            continue
        low, high, y = ranges.least_weight[rows], ranges.most_weight[rows], mean[rows]
        centre = float(np.average(y, weights=n[rows] * np.maximum(low, np.finfo(float).tiny)))
        for _ in range(ROUNDS):
            weight = n[rows] * np.where(sign * (y - centre) > 0, high, low)
            moved = float((weight * y).sum() / weight.sum()) if weight.sum() > 0 else centre
            if moved == centre:
                break
            centre = moved
        means[cell] = centre
    return means


def _only(cells: Cells, rows: NDArray[np.bool_]) -> Floats:
    size, such = cells.membership.sum(axis=1), cells.membership @ rows.astype(float)
    return np.asarray((such == size) & (such > 0), dtype=float)
