"""For `packages.package`: clipping limits of base cells, and moments of their clipped sums, from the reference.

A record has e = w/ω and r = (y − m)/s, with ω, m and s the levels of its base cell. The law of (e, r) is that of the
base cell's group. Its first columns define a group, as many as leave `FEWEST_RECORDS` reference records. A group's
limits u, k, h have the least predicted error. So a base cell has the weight cap U = ω u, the centre m + s k and the
half-width s h. All of this is a public function of columns, smooth over base cells.

A record's sums are e and every outcome's e r, which are published, and a = 1 − min(e/u, 1) and every outcome's q =
(1 − a) clip((r − k)/h, −1, 1), which are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints, rows_of_groups
from dpdist.packages.levels import Deviations, Levels, ReferenceRecords, Terms, cell_means, deviations
from dpdist.packages.workload import Workload

FEWEST_RECORDS = 300
"""Reference records that a group must have for limits and a shape of its own."""
MOST_POINTS = 1000
"""Number of a group's reference records that represent its shape in differences between cells."""
QUANTILES = np.array([0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0])
LIMIT_FACTORS = np.array([1.0, 1.3, 2.0])
"""Limits to try: quantiles of the reference, and the last quantile times these factors."""
EDGE = 1e-9
AT_LIMIT = 0.05
"""Distance from a limit, as a part of it, within which an e counts as at it. Growth of these would hardly be seen."""
LEAST_BELOW = 0.02
"""Smallest part of records below the limit of weights by which their sums tell weights."""
RANK = 1e-9
"""A sum whose part beside another is smaller, relative to the sums, is determined by it."""
LEAST_E = 1e-6
"""Smallest e whose logarithm is taken."""
LEAST_WITHIN = 0.1
"""Smallest part of a group's deviations that is left to its cells."""
LEAST_UNIT = 1e-3
"""Least unit of what a group's regression leaves, in the largest of all groups."""
TAIL_MISFIT = 0.1
"""Planned error of what lies beyond the limits, as a part of it."""


def _within(whole: float, between: float) -> float:
    """The factor on deviations that takes the variance between cells out of the whole variance."""
    return float(np.sqrt(max(1.0 - between / max(whole, 1e-12), LEAST_WITHIN**2)))


class Unknown(NamedTuple):
    """What is not known of a cell before it is measured, beside sampling.

    `level` is the standard deviation of levels about the group's; `misfit` is the error beyond the limits, as a part of
    it.
    """

    level: float = 0.0
    misfit: float = TAIL_MISFIT


SAMPLED = Unknown()
"""Levels are a reference's."""


class Interval(NamedTuple):
    """The limits k and h of a group's r. With `whole`, they are the outcome's public range."""

    centre: float
    half: float
    whole: bool

    def clipped(self, r: Floats) -> Floats:
        """The clipped r, within ±1."""
        return np.asarray(np.clip((r - self.centre) / self.half, -1.0, 1.0))


class Clipping(NamedTuple):
    """The limits of a group: u of e, and a clipping interval of every outcome's r."""

    cap: float
    intervals: tuple[Interval, ...]


@dataclass(frozen=True)
class Shape:
    """A group's law of e and all r, as records of equal probability in the order of the first outcome's r.

    Laws of several cells have e and r with cells before records. Results then have cells first.
    """

    e: Floats
    r: Floats
    """(outcome, record)."""
    rate: Floats
    """Derivatives of r by a deviation of the mean level, (outcome, record)."""
    ends: Floats | None = None
    """Least and largest r, (outcome, 2), if deviations move no record beyond public bounds."""

    def sums(self, clipping: Clipping) -> Floats:
        """e, every e r, a, and every q of every record, (record, 2 + 2 outcomes)."""
        v = np.minimum(self.e / clipping.cap, 1.0)
        measured = [v * interval.clipped(r) for r, interval in zip(self.r, clipping.intervals, strict=True)]
        return np.stack([self.e, *(self.e * r for r in self.r), 1.0 - v, *measured], axis=-1)

    def slopes(self, clipping: Clipping) -> Floats:
        """Derivatives of the mean sums by relative deviations of the level of weights, and of every mean level.

        (2 + 2 outcomes, 1 + outcomes).
        """
        below, number = self.e < clipping.cap, len(self.r)
        v = np.minimum(self.e / clipping.cap, 1.0)
        pairs = list(zip(self.r, clipping.intervals, strict=True))
        by_weight = [
            self.e.mean(axis=-1),
            *((self.e * r).mean(axis=-1) for r in self.r),
            -(v * below).mean(axis=-1),
            *((v * below * interval.clipped(r)).mean(axis=-1) for r, interval in pairs),
        ]
        slopes = np.zeros((*self.e.shape[:-1], 2 + 2 * number, 1 + number))
        slopes[..., 0] = np.stack(by_weight, axis=-1)
        for k, (r, interval) in enumerate(pairs, start=1):
            inside, rate = np.abs((r - interval.centre) / interval.half) <= 1.0 - EDGE, self.rate[k - 1]
            slopes[..., k, k] = (self.e * rate).mean(axis=-1)
            slopes[..., 1 + number + k, k] = (v * inside * rate).mean(axis=-1) / interval.half
        return slopes

    def tells_weights(self, clipping: Clipping) -> bool:
        """Whether clipped sums would show larger weights. They do not if e are nearly equal, and so at the limit."""
        return bool((self.e < clipping.cap * (1.0 - AT_LIMIT)).mean() >= LEAST_BELOW)

    def beyond(self, clipping: Clipping) -> Floats:
        """Mean excess of e, and of the size of every e r, beyond the limits, (1 + outcomes,)."""
        v = np.minimum(self.e / clipping.cap, 1.0)
        past = [(self.e - clipping.cap * v).mean(axis=-1)]
        for r, interval in zip(self.r, clipping.intervals, strict=True):
            within = clipping.cap * v * (interval.centre + interval.half * interval.clipped(r))
            past.append(np.abs(self.e * r - within).mean(axis=-1))
        return np.stack(past, axis=-1)

    @property
    def thinned(self) -> Shape:
        """At most `MOST_POINTS` of the records, which suffice for differences between means, but not for means."""
        if len(self.e) <= MOST_POINTS:
            return self
        kept = np.linspace(0, len(self.e) - 1, MOST_POINTS).astype(int)
        return Shape(self.e[kept], self.r[:, kept], self.rate[:, kept], self.ends)

    def of_one_cell(self, of_weight: float, of_means: Sequence[float]) -> Shape:
        """The law of a cell, where this one mixes cells: less the variances of their log weights and of their r.

        Deviations of log e, and of r, are multiplied by κ with κ² = 1 − the variance between cells over this law's. An
        outcome without ends stays as it is.
        """
        log = np.log(np.maximum(self.e, LEAST_E))
        e = np.exp(_within(float(log.var()), of_weight) * (log - log.mean()))
        e, rows = e / e.mean(), list[Floats]()
        ends = np.zeros((len(self.r), 2)) if self.ends is None else self.ends
        bounded = np.asarray(np.isfinite(ends).all(axis=1))
        for r, between, narrows in zip(self.r, of_means, bounded, strict=True):
            kept = _within(float(np.average(r**2, weights=self.e)), between) if narrows else 1.0
            rows.append(kept * (r - np.average(r, weights=e)))
        r = np.array(rows)
        return Shape(e, r, np.where(self.rate == 1.0, 1.0, 1.0 + r), self.ends)

    def moved(self, deviations: Floats) -> Shape:
        """The shapes of cells with these deviations of the levels, (cell, 1 + outcomes)."""
        of_weight, of_means = deviations[:, :1], deviations[:, 1:].T
        r, rate = self.r[:, None] + self.rate[:, None] * of_means[:, :, None], self.rate
        if self.ends is not None:
            low, high = self.ends.T[:, :, None, None]
            rate, r = np.where((low <= r) & (r <= high), rate[:, None], 0.0), np.clip(r, low, high)
        return Shape(self.e * (1.0 + of_weight), r, rate, self.ends)


@dataclass(frozen=True)
class CellLimits:
    """Limits of all base cells, and the shapes and clippings of their groups."""

    cap: Floats
    """(cell,)."""
    centre: Floats
    """(cell, outcome)."""
    half: Floats
    """(cell, outcome)."""
    group: Ints
    shapes: tuple[Shape, ...]
    clippings: tuple[Clipping, ...]
    tilt: Floats
    """The part of 1 − a in a measured sum of outcomes, (cell, outcome); 0 unless the clipping is the whole public
    range.
    """
    share: Floats
    """The part of q in a measured sum of outcomes, (cell, outcome)."""
    misfit: float = TAIL_MISFIT
    """Relative error of the part beyond the limits."""
    mixed: bool = False
    """Whether shapes are those of whole groups, in which cells of unlike levels are mixed."""

    def first(self, cells: int) -> CellLimits:
        """The limits of the first cells."""
        of_cells = ("cap", "centre", "half", "group", "tilt", "share")
        return replace(self, **{name: getattr(self, name)[:cells] for name in of_cells})

    @property
    def tells_weights(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether measured sums of a base cell would show larger weights, (cell,)."""
        pairs = zip(self.shapes, self.clippings, strict=True)
        return np.array([shape.tells_weights(clipping) for shape, clipping in pairs])[self.group]

    @cached_property
    def tail_drift(self) -> Floats:
        """Standard deviations per record of the drift of e and of every e r beyond the limits, (cell, 1 + outcomes)."""
        groups = zip(self.shapes, self.clippings, strict=True)
        return self.misfit * np.array([shape.beyond(clipping) for shape, clipping in groups])[self.group]


def limits_of(
    workload: Workload,
    levels: Levels,
    records: ReferenceRecords,
    bounds: Sequence[tuple[float, float]],
    size: Floats,
    noise: Floats,
) -> CellLimits:
    """Limits of the least predicted error.

    `size` (cell,) is the number of records of a typical published cell. `noise` (cell,) is the variance of the noise on
    its clipped sum of weights, in squared records. All outcomes have equal parts of a record's possible change. Crosses of
    the reference alone are the workload's last cells, beyond those of `size`. `records` are those of the first cells.
    """
    group = _groups(workload, records)
    e, r, *_ = levels.as_new(records)
    of_groups = rows_of_groups(group[records.cell], int(group.max()) + 1)
    shapes = [shape_of(e[rows], r[:, rows], levels) for rows in of_groups]
    two_valued = [len(np.unique(outcome)) <= 2 for outcome in records.outcomes]
    number = np.array([len(rows) for rows in of_groups], dtype=np.float64)
    return cell_limits(workload, levels, group, shapes, number, bounds, size, noise, two_valued)


def cell_limits(
    workload: Workload,
    levels: Levels,
    group: Ints,
    shapes: Sequence[Shape],
    number: Floats,
    bounds: Sequence[tuple[float, float]],
    size: Floats,
    noise: Floats,
    two_valued: Sequence[bool],
    unknown: Unknown = SAMPLED,
) -> CellLimits:
    """Limits of the least predicted error from the groups' shapes, which stand for `number` (group,) records each.

    The first cells, those of `size` and `noise`, decide: later ones have no record in the file.
    """
    ranges, clippings = (np.array(bounds)[:, 1] - np.array(bounds)[:, 0]) / 2.0, []
    for k, shape in enumerate(shapes):
        cells = np.flatnonzero(group[: len(size)] == k)
        widest = [
            max(2.0 * half / float(np.median(of.unit[cells])), float(np.abs(r).max()))
            for half, of, r in zip(ranges, levels.outcomes, shape.r, strict=True)
        ]
        n, variance = float(np.median(size[cells])), float(np.median(noise[cells]))
        reference = float(number[k]) * n / max(float(workload.count[cells].sum()), 1.0)
        few = shape.thinned
        caps = _candidates(few.e) if workload.weight is None else np.ones(1)
        clippings.append(_clipping(few, n, reference, variance, widest, two_valued, unknown, caps))
    cap = np.array([clipping.cap for clipping in clippings])[group]
    intervals = np.array([clipping.intervals for clipping in clippings])[group]
    centre, half, whole = intervals[..., 0], intervals[..., 1], intervals[..., 2] > 0.0
    middle, mean, unit = np.array([(low + high) / 2.0 for low, high in bounds]), levels.mean, levels.unit
    return CellLimits(
        levels.weight * cap,
        np.where(whole, middle, mean + unit * centre),
        np.where(whole, ranges, unit * half),
        group,
        tuple(shapes),
        tuple(clippings),
        np.where(whole, (mean - middle) / ranges, 0.0),
        np.where(whole, unit * half / ranges, 1.0),
        unknown.misfit,
    )


def _groups(workload: Workload, records: ReferenceRecords) -> Ints:
    """The group of every base cell, (cell,). Columns with few levels come first."""
    order = np.argsort(workload.sizes, kind="stable")
    group, number = np.zeros(len(workload), dtype=np.int64), 1
    for last in range(1, len(order) + 1):
        finer = workload.groups(tuple(order[:last]))
        held = np.bincount(finer[records.cell], minlength=int(finer.max()) + 1)
        large = held[finer] >= FEWEST_RECORDS
        group, number = np.where(large, number + finer, group), number + int(finer.max()) + 1
    held = np.bincount(group[records.cell], minlength=number)
    group = np.where(held[group] > 0, group, 0)
    if not held[0] and (group == 0).any():
        group[group == 0] = int(np.argmax(held))
    return np.asarray(np.unique(group, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def shape_of(e: Floats, r: Floats, levels: Levels) -> Shape:
    """The law of records with these e, (record,), and r, (outcome, record)."""
    order, scaled = np.argsort(r[0], kind="stable"), np.array([outcome.scaled for outcome in levels.outcomes])
    rate = np.where(scaled[:, None], 1.0 + r[:, order], 1.0)
    return Shape(e[order], r[:, order], rate)


def _clipping(
    shape: Shape,
    n: float,
    reference: float,
    noise: float,
    widest: Sequence[float],
    two_valued: Sequence[bool],
    unknown: Unknown,
    caps: Floats,
) -> Clipping:
    """The limits of the least predicted error of a cell's count and totals with n records; `caps` are tried."""
    tail, outcomes = n * (1.0 + n / max(reference, 1.0)), len(shape.r)
    best, whole_range = np.inf, tuple(Interval(0.0, width, True) for width in widest)
    chosen = Clipping(float(shape.e.max()), whole_range)
    intervals = [_intervals(*of_one) for of_one in zip(shape.r, widest, two_valued, strict=True)]
    direct = [max(float(shape.e.var()), 0.01), *(max(float((shape.e * r).var()), 1e-12) for r in shape.r)]
    for cap in caps:
        v = np.minimum(shape.e / cap, 1.0)
        if float((v * (shape.e < cap)).mean()) < LEAST_BELOW and shape.e.std() > 1e-9:
            continue
        beyond = n * unknown.misfit * float((shape.e - cap * v).mean())
        moved = _moved(shape, Clipping(float(cap), whole_range), n * unknown.level)
        of_weight = _passed(tail * float(v.var()) + moved[1 + outcomes], noise)
        count = (tail * float(_left(shape.e, v, v[None])[0]) + of_weight * cap**2 + beyond**2) / direct[0] / n
        least, taken = [np.inf] * outcomes, list(whole_range)
        for number, r in enumerate(shape.r):
            k, h, whole = np.array(intervals[number]).T
            c = np.clip((r - k[:, None]) / h[:, None], -1.0, 1.0)  # of all intervals at once, (interval, record)
            left = _left(shape.e * r, v, v * c)
            lost = np.abs(shape.e * r - cap * v * (k[:, None] + h[:, None] * c)).mean(axis=1)
            alone = Shape(shape.e, shape.r[[number]], shape.rate[[number]])
            moves = [_moved(alone, Clipping(float(cap), (one,)), n * unknown.level)[3] for one in intervals[number]]
            variances = (tail * (v * c).var(axis=1) + moves, noise * outcomes**2 * np.where(whole > 0.0, 0.25, 1.0))
            of_outcome = np.array([_passed(*map(float, pair)) for pair in zip(*variances, strict=True)])
            total = (
                tail * left + of_outcome * (h * cap) ** 2 + of_weight * (cap * k) ** 2 + (n * unknown.misfit * lost) ** 2
            )
            chosen_one = int(np.argmin(total))
            least[number], taken[number] = float(total[chosen_one]) / direct[1 + number] / n, intervals[number][chosen_one]
        if count + sum(least) < best:
            best, chosen = count + sum(least), Clipping(float(cap), tuple(taken))
    return chosen


def _moved(shape: Shape, clipping: Clipping, deviation: float) -> Floats:
    """Variances of the sums by deviations of the levels, whose standard deviation times records is given, (sum,)."""
    if deviation == 0.0:
        return np.zeros(2 + 2 * len(shape.r))
    return np.asarray(((deviation * shape.slopes(clipping)) ** 2).sum(axis=1))


def _intervals(r: Floats, widest: float, two_valued: bool) -> list[Interval]:
    """Intervals of an outcome that are tried, the whole public range last."""
    reaches = _candidates(np.abs(r))
    low, top = float(r.min()), float(r.max())
    pairs = {(0.0, reach) for reach in reaches}
    pairs |= {((max(-x, low) + min(x, top)) / 2.0, (min(x, top) - max(-x, low)) / 2.0) for x in reaches}
    tried = [] if two_valued else [(k, h) for k, h in sorted(pairs) if 0.0 < h < widest / 2.0]
    return [*(Interval(float(k), float(h), False) for k, h in tried), Interval(0.0, widest, True)]


def _passed(prior: float, noise: float) -> float:
    """Variance of a figure given its noisy sum and the reference: less than either variance."""
    return prior * noise / (prior + noise) if prior > 0.0 else 0.0


def _left(target: Floats, v: Floats, measured: Floats) -> Floats:
    """Variance that remains after regressions on v, (record,), and on one more sum each, (regression, record).

    A sum that v determines adds nothing.
    """
    x, y, further = v - v.mean(), target - target.mean(), measured - measured.mean(axis=1, keepdims=True)
    size = float(x @ x)
    if size > 0.0:
        y = y - (float(x @ y) / size) * x
        further = further - np.outer(further @ x / size, x)
    square = np.einsum("ij,ij->i", further, further)
    least = RANK**2 * max(size, float(((measured - measured.mean(axis=1, keepdims=True)) ** 2).sum(axis=1).max()))
    slope = np.divide(further @ y, square, out=np.zeros(len(square)), where=square > least)
    return np.asarray(((y - slope[:, None] * further) ** 2).mean(axis=1))


def _candidates(values: Floats) -> Floats:
    candidates = np.concatenate([np.quantile(values, QUANTILES[:-1]), values.max() * LIMIT_FACTORS])
    return np.unique(candidates[candidates > 1e-6 * max(float(values.max()), 1e-300)])


def tails_of(
    workload: Workload, terms: Terms, levels: Levels, limits: CellLimits, records: ReferenceRecords
) -> tuple[Deviations, ...]:
    """Deviations of e and of every e r, per record, from their regressions on the group's clipped sums.

    They show where the part beyond the limits differs from the group's, with the reference's error. They are
    learned in units of what the group's regression leaves. Groups with a small mean outcome have an r hundreds of times
    as large, which would be every group's error.
    """
    e, r, *_ = levels.as_new(records)
    first = 1 + len(r)
    of_groups, left = rows_of_groups(limits.group[records.cell], len(limits.shapes)), np.zeros((len(e), first))
    units = np.ones((len(limits.shapes), first))
    for rows, shape, clipping, unit in zip(of_groups, limits.shapes, limits.clippings, units, strict=True):
        whole = shape.sums(clipping)
        x, y = (part - part.mean(axis=0) for part in (whole[:, first:], whole[:, :first]))
        coefficients = np.linalg.lstsq(x, y, rcond=1e-9)[0]
        unit[:] = (y - x @ coefficients).std(axis=0)
        sums = Shape(e[rows], r[:, rows], r[:, rows]).sums(clipping)
        off = (sums[:, first:] - whole[:, first:].mean(axis=0)) @ coefficients
        left[rows] = sums[:, :first] - whole[:, :first].mean(axis=0) - off
    most, made = units.max(axis=0), list[Deviations]()
    of_cells = np.where(most > 0.0, np.maximum(units, LEAST_UNIT * most), 1.0)[limits.group]
    for k, (residual, of_cell) in enumerate(zip(left.T, of_cells.T, strict=True)):
        if k == 0 and workload.weight is not None:
            made.append(levels.of_weight.exact)
            continue
        relative = cell_means(records.cell, residual / of_cell[records.cell], np.ones(len(e)), len(workload))
        tail = deviations(terms, *relative).relative_to(1.0 / of_cell)
        made.append(replace(tail, value=of_cell * tail.value))
    return tuple(made)
