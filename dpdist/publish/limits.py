"""Sets the limits of published intervals: within public bounds, and wide enough for cells that noise leaves unidentified.

Noisy sums may not identify a cell's mean weight or mean outcome, but only a range of it. A
figure over several cells then includes the ranges of its unidentified cells. For a mean, every weight and cell mean is set
to the value in its range that moves the mean farthest. A figure made of unidentified cells alone has limits and no
estimate. Public totals narrow the ranges. A count that follows from public totals has no range. All of this is
post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import STATISTICS, Interval
from dpdist.estimation.raking import factors, within_totals
from dpdist.models.outputs import looked_through
from dpdist.publish.met_totals import fixed_counts, margins_and_room
from dpdist.publish.reference_strata import cells_where, strata_with
from dpdist.publish.released import ReleasedObject
from dpdist.reference.clipping import AT_THE_BOUND
from dpdist.reference.drift import DRIFTED

ROUNDS = 50
DRIFT_ALARM = 0.05
"""Largest probability that a release without drift names any cell as drifted."""
NEAR_THE_BOUND = 0.9
"""Share of the public upper bound from which mean clipped weights stop a release, where histograms do not show more."""
SATURATED = (
    "about {share:.0f} % of the weights lie at or above the public bound of {weight}, {top:,.10g}: counts and totals are "
    "too low by an unknown factor. Correct the bound, its unit first; a release under other bounds costs ε again"
)
PERHAPS_SATURATED = (
    "clipped weights are near the public bound of {weight}, {top:,.10g}, on average, and noise hides how many lie above "
    "it: counts and totals may be too low by an unknown factor. Correct the bound, its unit first, or give histograms more "
    "of the budget; either costs ε again"
)


class Ranges(NamedTuple):
    """Smallest and largest E(w|x) and E(y|x) of every frame row, (row,).

    Both are the estimate where a row is identified.
    """

    least_weight: Floats
    most_weight: Floats
    least: Floats
    most: Floats


def unidentified(release: ReleasedObject) -> dict[str, list[str]]:
    """Names of cells whose means noisy sums do not identify: by outcome, and under "weight" for the mean weight."""
    return {variable: list(cells) for variable, cells in cells_where(release, "spans", isfinite, every=2).items()}


def saturated(release: ReleasedObject) -> str | None:
    """The reason not to publish, if many weights lie at or beyond their public upper bound; otherwise None.

    Weights beyond the bound count as the bound, so counts are too low by an unknown amount. Noisy histograms give the share
    of such weights. The table's noisy sums, which have independent noise, must also allow this share. Where noise hides the
    share, as in small files, or where a release of an earlier version lacks it, mean clipped weights near the bound are a
    sufficient reason.
    """
    weight = release.job.survey.weight
    if weight is None or not looked_through(release):
        return None
    top = (release.job.columns[weight].bounds or (0.0, np.inf))[1]
    clipped, shares, records = list[Floats](), list[Floats](), list[Floats]()
    for _, model, theta, _ in strata_with(release, "spans"):
        clipped.append(model.clipped_weights(theta) / top)
        known = "at_bound" in theta.values
        shares.append(theta["at_bound"][0] if known else np.full(len(model.count), np.nan))
        records.append(np.asarray(model.count, dtype=np.float64))
    seen, share, count = (np.concatenate(each) for each in (clipped, shares, records))
    beyond, hidden = float(count @ np.nan_to_num(share)), np.isnan(share)
    if min(beyond, seen.sum()) >= AT_THE_BOUND * count.sum():
        return SATURATED.format(share=100.0 * beyond / count.sum(), weight=weight, top=top)
    if count[hidden].sum() > 0 and seen[hidden].sum() >= NEAR_THE_BOUND * count[hidden].sum():
        return PERHAPS_SATURATED.format(weight=weight, top=top)
    return None


def drifted(release: ReleasedObject) -> dict[str, list[str]]:
    """Cells whose noisy sums differ from what a reference file or an earlier release predicts, by variable.

    Where a reference's weights do not vary, a departure is Laplace noise alone: it exceeds t standard deviations with the
    probability exp(−√2 t). Sampling makes its tails lighter. So without drift no cell is named, but for a probability of
    DRIFT_ALARM over all departures (Bonferroni).

    Empty where the job pays for histograms in place of such a reference.
    """
    reference = release.job.reference
    if reference is None or reference.paid is not None:
        return {}
    tests = sum(theta["departure"][0].size for _, _, theta, _ in strata_with(release, "departure"))
    beyond = max(DRIFTED, float(np.log(max(tests, 1) / DRIFT_ALARM) / np.sqrt(2.0)))
    found = cells_where(release, "departure", lambda departure: abs(departure) > beyond)
    return {variable: list(cells) for variable, cells in found.items()}


def limited(
    release: ReleasedObject, cells: Cells, outcome: int, estimates: Mapping[str, Sequence[Interval]]
) -> dict[str, list[Interval]]:
    """Intervals by estimator, with limits that respect the public bounds and include unidentified cells."""
    if not release.job.mechanism.adds_noise:
        return {name: list(each) for name, each in estimates.items()}
    found = {name: list(each) for name, each in estimates.items()}
    ranges, weight, mean = _ranges(release, outcome)
    if ranges is not None:
        widened = _widened(release, cells, ranges, weight, mean)
        found = {name: [wider(*pair) for pair in zip(each, widened, strict=True)] for name, each in found.items()}
    column = release.job.columns[release.job.outcomes[outcome]]
    low, top = column.bounds or (-np.inf, np.inf)
    ends = {"count": (0.0, np.inf), "mean": (low, top)}
    ends["total"] = (0.0 if low >= 0.0 else -np.inf, 0.0 if top <= 0.0 else np.inf)
    return {
        name: [_cut(interval, *ends[statistic]) for statistic, interval in zip(STATISTICS, each, strict=True)]
        for name, each in found.items()
    }


def _cut(interval: Interval, low: float, top: float) -> Interval:
    return interval._replace(lower=np.clip(interval.lower, low, top), upper=np.clip(interval.upper, low, top))


class Wider(NamedTuple):
    """What missing identification adds below and above a figure, and 1 where it leaves no estimate, (cell,) each."""

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


def unidentified_rows(release: ReleasedObject, outcome: int) -> NDArray[np.bool_]:
    """True for rows of the frame whose mean weight or mean outcome the noisy sums do not identify, (row,)."""
    ranges = _ranges(release, outcome)[0]
    if ranges is None:
        return np.zeros(len(release.frame), dtype=bool)
    return np.asarray((ranges.most_weight > ranges.least_weight) | (ranges.most > ranges.least))


def _ranges(release: ReleasedObject, outcome: int) -> tuple[Ranges | None, Floats, Floats]:
    """Ranges of the frame's rows, None if all are identified; and the rows' mean weights and mean outcomes."""
    rows = len(release.frame)
    weight, mean, found = np.ones(rows), np.zeros(rows), np.full((rows, 4), np.nan)
    if not looked_through(release):
        return None, weight, mean
    for stratum, model, theta, _ in strata_with(release, "spans"):
        own, pattern = release.frame.rows_of(stratum), model.design.pattern
        ends, means = theta["spans"][0][pattern], theta["means"][0][pattern]
        found[own] = np.column_stack([ends[:, :2], ends[:, 2 + 2 * outcome : 4 + 2 * outcome]])
        weight[own], mean[own] = means[:, 0], means[:, 1 + outcome]
    if not np.isfinite(found).any():
        return None, weight, mean
    margins, room = margins_and_room(release)
    n = release.frame.count.astype(float)
    if room is not None:
        met = n * weight * factors(n * weight, margins, room)
        kept = within_totals(met, margins, room)
        weight = np.divide(met, n, out=weight, where=n > 0)
        found[:, :2] = np.divide(np.column_stack(kept), n[:, None], out=np.full((rows, 2), np.nan), where=n[:, None] > 0)
    known = np.column_stack([weight, weight, mean, mean])
    return Ranges(*np.where(np.isfinite(found), found, known).T), weight, mean


def _widened(release: ReleasedObject, cells: Cells, ranges: Ranges, weight: Floats, mean: Floats) -> list[Wider]:
    """How far counts, means and totals may lie from their estimates because cells are not identified."""
    n = release.frame.count.astype(float)
    least_weight, most_weight, least, most = ranges
    held = cells.membership
    of_weight, of_mean = most_weight > least_weight, most > least
    products = np.array([w * y for w in ranges[:2] for y in ranges[2:]])
    total = [held @ (n * each) for each in (weight * mean - products.min(axis=0), products.max(axis=0) - weight * mean)]
    told = 1.0 - fixed_counts(cells, margins_and_room(release)[0])
    count = [told * (held @ (n * each)) for each in (weight - least_weight, most_weight - weight)]
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = (held @ (n * weight * mean)) / (held @ (n * weight))
    below = middle - farthest_means(cells, n, ranges, least, -1.0)
    above = farthest_means(cells, n, ranges, most, 1.0) - middle
    only = [_only(cells, rows) for rows in (of_weight, of_mean, of_weight | of_mean)]
    only[0] = only[0] * told
    pairs = (count, (below, above), total)
    return [Wider(np.fmax(down, 0.0), np.fmax(up, 0.0), none) for (down, up), none in zip(pairs, only, strict=True)]


def farthest_means(cells: Cells, n: Floats, ranges: Ranges, mean: Floats, sign: float) -> Floats:
    """The largest (sign 1) or least (−1) mean Σ n w y / Σ n w of every cell over its rows' ranges (Dinkelbach 1967)."""
    held = cells.membership.toarray() > 0
    found = np.full(len(cells), np.nan)
    for cell, own in enumerate(held):
        if not n[own].sum() > 0.0:
            continue
        low, high, y = ranges.least_weight[own], ranges.most_weight[own], mean[own]
        at = float(np.average(y, weights=n[own] * np.maximum(low, np.finfo(float).tiny)))
        for _ in range(ROUNDS):
            weight = n[own] * np.where(sign * (y - at) > 0, high, low)
            moved = float((weight * y).sum() / weight.sum()) if weight.sum() > 0 else at
            if moved == at:
                break
            at = moved
        found[cell] = at
    return found


def _only(cells: Cells, rows: NDArray[np.bool_]) -> Floats:
    """1 for a cell that has rows and all of them satisfy the condition `rows`, else 0."""
    size, such = cells.membership.sum(axis=1), cells.membership @ rows.astype(float)
    return np.asarray((such == size) & (such > 0), dtype=float)
