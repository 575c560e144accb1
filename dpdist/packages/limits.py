"""Clipping limits of every base cell, and the moments of its clipped sums, from the reference (docs/methods.md, §9c).

A record has e = w/ω and r = (y − m)/s, with ω, m and s the levels of its base cell. The law of (e, r) is that of the base
cell's group: its first columns, as many as leave the group `FEWEST_RECORDS` reference records. A group's limits u, k, h
have the least predicted error. So a base cell has the weight cap U = ω u, the centre m + s k and the half-width s h. All
of this is a public function of columns, smooth over base cells.

A record's four sums are e, e r, a = 1 − min(e/u, 1) and q = (1 − a) clip((r − k)/h, −1, 1). The first two are published,
the others measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.packages.levels import Deviations, Levels, ReferenceRecords, Terms, cell_means, deviations
from dpdist.packages.workload import Workload

FEWEST_RECORDS = 300
"""Reference records that a group must have for limits and a shape of its own."""
MOST_POINTS = 1000
"""Reference records of a group that stand for its shape where differences are computed cell by cell."""
QUANTILES = np.array([0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0])
LIMIT_FACTORS = np.array([1.0, 1.3, 2.0])
"""Limits that are tried: quantiles of the reference, the last of them times these factors."""
EDGE = 1e-9
TAIL_MISFIT = 0.1
"""Planned error of what lies beyond the limits, as a part of it."""


class Unknown(NamedTuple):
    """What is not known of a cell before it is measured, beside sampling.

    `level` is the standard deviation of its levels about its group's; `misfit` the error of what lies beyond the limits, as
    a part of it.
    """

    level: float = 0.0
    misfit: float = TAIL_MISFIT


SAMPLED = Unknown()
"""Levels are a reference's."""


class Clipping(NamedTuple):
    """The limits of a group: u of e; k and h of r. `whole`: the outcome's public range takes the place of k and h."""

    cap: float
    centre: float
    half: float
    whole: bool


@dataclass(frozen=True)
class Shape:
    """A group's law of (e, r), as records of equal probability in the order of r."""

    e: Floats
    r: Floats
    rate: Floats
    """Derivative of r by a deviation of the mean level."""

    def sums(self, clipping: Clipping) -> Floats:
        """e, e r, a and q of every record, (record, 4)."""
        v = np.minimum(self.e / clipping.cap, 1.0)
        c = np.clip((self.r - clipping.centre) / clipping.half, -1.0, 1.0)
        return np.column_stack([self.e, self.e * self.r, 1.0 - v, v * c])

    def slopes(self, clipping: Clipping) -> Floats:
        """Derivatives of the mean sums by relative deviations of the weight level, and of the mean level, (4, 2)."""
        below, c = self.e < clipping.cap, (self.r - clipping.centre) / clipping.half
        v, inside = np.minimum(self.e / clipping.cap, 1.0), np.abs(c) <= 1.0 - EDGE
        by_weight = [
            self.e.mean(),
            (self.e * self.r).mean(),
            -(v * below).mean(),
            (v * below * np.clip(c, -1.0, 1.0)).mean(),
        ]
        by_mean = [0.0, (self.e * self.rate).mean(), 0.0, (v * inside * self.rate).mean() / clipping.half]
        return np.column_stack([by_weight, by_mean])

    def beyond(self, clipping: Clipping) -> Floats:
        """What a record's e, and its e r in size, have beyond the limits, in the mean, (2,)."""
        v = np.minimum(self.e / clipping.cap, 1.0)
        c = np.clip((self.r - clipping.centre) / clipping.half, -1.0, 1.0)
        within = clipping.cap * v * (clipping.centre + clipping.half * c)
        return np.array([(self.e - clipping.cap * v).mean(), np.abs(self.e * self.r - within).mean()])

    @property
    def thinned(self) -> Shape:
        """At most `MOST_POINTS` of the records, for differences between means; means themselves need all of them."""
        if len(self.e) <= MOST_POINTS:
            return self
        kept = np.linspace(0, len(self.e) - 1, MOST_POINTS).astype(int)
        return Shape(self.e[kept], self.r[kept], self.rate[kept])

    def moved(self, of_weight: float, of_mean: float) -> Shape:
        """The shape under deviations of the levels."""
        return Shape(self.e * (1.0 + of_weight), self.r + self.rate * of_mean, self.rate)


@dataclass(frozen=True)
class CellLimits:
    """Limits of all base cells, (cell,) each, and the shapes and clippings of their groups."""

    cap: Floats
    centre: Floats
    half: Floats
    group: Ints
    shapes: tuple[Shape, ...]
    clippings: tuple[Clipping, ...]
    tilt: Floats
    """What a measured sum of outcomes holds of 1 − a, (cell,); 0 unless the clipping is the whole public range."""
    share: Floats
    """What a measured sum of outcomes holds of q, (cell,)."""
    misfit: float = TAIL_MISFIT
    """Error of what lies beyond the limits, as a part of it."""

    @cached_property
    def tail_drift(self) -> Floats:
        """Standard deviations per record of the drift of e and of e r beyond the limits, (cell, 2)."""
        groups = zip(self.shapes, self.clippings, strict=True)
        return self.misfit * np.array([shape.beyond(clipping) for shape, clipping in groups])[self.group]


def limits_of(
    workload: Workload,
    levels: Levels,
    records: ReferenceRecords,
    bounds: tuple[float, float],
    size: Floats,
    noise: Floats,
) -> CellLimits:
    """Limits of the least predicted error.

    `size` (cell,) is the number of records of a typical published cell. `noise` (cell,) is the variance of the noise on
    its two clipped sums, in squared records.
    """
    group = _groups(workload, records)
    e, r = levels.standardised(records)
    held = group[records.cell]
    members = [np.flatnonzero(held == number) for number in range(int(group.max()) + 1)]
    shapes = [shape_of(e[rows], r[rows], levels.scaled) for rows in members]
    two_valued = len(np.unique(records.outcome)) <= 2
    number = np.array([len(rows) for rows in members], dtype=np.float64)
    return cell_limits(workload, levels, group, shapes, number, bounds, size, noise, two_valued)


def cell_limits(
    workload: Workload,
    levels: Levels,
    group: Ints,
    shapes: Sequence[Shape],
    number: Floats,
    bounds: tuple[float, float],
    size: Floats,
    noise: Floats,
    two_valued: bool,
    unknown: Unknown = SAMPLED,
) -> CellLimits:
    """Limits of the least predicted error from the groups' shapes, which stand for `number` (group,) records each."""
    half_range, clippings = (bounds[1] - bounds[0]) / 2.0, []
    for k, shape in enumerate(shapes):
        cells = group == k
        widest = max(2.0 * half_range / float(np.median(levels.unit[cells])), float(np.abs(shape.r).max()))
        n, variance = float(np.median(size[cells])), float(np.median(noise[cells]))
        reference = float(number[k]) * n / max(float(workload.count[cells].sum()), 1.0)
        clippings.append(_clipping(shape.thinned, n, reference, variance, widest, two_valued, unknown))
    cap, centre, half = (
        np.array([getattr(clipping, name) for clipping in clippings])[group] for name in ("cap", "centre", "half")
    )
    whole = np.array([clipping.whole for clipping in clippings])[group]
    middle = (bounds[0] + bounds[1]) / 2.0
    return CellLimits(
        levels.weight * cap,
        np.where(whole, middle, levels.mean + levels.unit * centre),
        np.where(whole, half_range, levels.unit * half),
        group,
        tuple(shapes),
        tuple(clippings),
        np.where(whole, (levels.mean - middle) / half_range, 0.0),
        np.where(whole, levels.unit * half / half_range, 1.0),
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


def shape_of(e: Floats, r: Floats, scaled: bool) -> Shape:
    """The law of records with these e and r."""
    order = np.argsort(r, kind="stable")
    return Shape(e[order], r[order], 1.0 + r[order] if scaled else np.ones_like(r))


def _clipping(
    shape: Shape, n: float, reference: float, noise: float, widest: float, two_valued: bool, unknown: Unknown
) -> Clipping:
    """The limits of the least predicted error of a cell's count and total with n records."""
    tail = n * (1.0 + n / max(reference, 1.0))
    best, chosen = np.inf, Clipping(float(shape.e.max()), 0.0, widest, True)
    reaches = _candidates(np.abs(shape.r))
    low, top = float(shape.r.min()), float(shape.r.max())
    pairs = {(0.0, reach) for reach in reaches}
    pairs |= {((max(-x, low) + min(x, top)) / 2.0, (min(x, top) - max(-x, low)) / 2.0) for x in reaches}
    clippings = [] if two_valued else [(k, h) for k, h in sorted(pairs) if 0.0 < h < widest / 2.0]
    direct = max(float(shape.e.var()), 0.01), max(float((shape.e * shape.r).var()), 1e-12)
    for cap in _candidates(shape.e):
        v = np.minimum(shape.e / cap, 1.0)
        if float((v * (shape.e < cap)).mean()) < 0.02 and shape.e.std() > 1e-9:
            continue
        beyond = n * unknown.misfit * float((shape.e - cap * v).mean())
        moved = _moved(shape, Clipping(float(cap), 0.0, widest, True), n * unknown.level)
        of_weight = _passed(tail * float(v.var()) + moved[2], noise)
        count = (tail * _left(shape.e, v[:, None]) + of_weight * cap**2 + beyond**2) / direct[0] / n
        for k, h, whole in [*((k, h, False) for k, h in clippings), (0.0, widest, True)]:
            c = np.clip((shape.r - k) / h, -1.0, 1.0)
            left = _left(shape.e * shape.r, np.column_stack([v, v * c]))
            reach = (h / 2.0 if whole else h) * cap
            lost = n * unknown.misfit * float(np.abs(shape.e * shape.r - cap * v * (k + h * c)).mean())
            moved = _moved(shape, Clipping(float(cap), float(k), float(h), whole), n * unknown.level)
            of_outcome = _passed(tail * float((v * c).var()) + moved[3], noise * (reach / (h * cap)) ** 2)
            total = (tail * left + of_outcome * (h * cap) ** 2 + of_weight * (cap * k) ** 2 + lost**2) / direct[1] / n
            if count + total < best:
                best, chosen = count + total, Clipping(float(cap), float(k), float(h), whole)
    return chosen


def _moved(shape: Shape, clipping: Clipping, deviation: float) -> Floats:
    """Variances of the four sums by deviations of the levels, whose standard deviation times records is given, (4,)."""
    return np.zeros(4) if deviation == 0.0 else np.asarray(((deviation * shape.slopes(clipping)) ** 2).sum(axis=1))


def _passed(prior: float, noise: float) -> float:
    """Variance that a noisy sum leaves of what the reference does not tell of it: less than either."""
    return prior * noise / (prior + noise) if prior > 0.0 else 0.0


def _left(target: Floats, measured: Floats) -> float:
    """Variance of what a regression on measured sums leaves."""
    x = measured - measured.mean(axis=0)
    y = target - target.mean()
    coefficients = np.linalg.lstsq(x, y, rcond=1e-9)[0]
    return float(np.mean((y - x @ coefficients) ** 2))


def _candidates(values: Floats) -> Floats:
    candidates = np.concatenate([np.quantile(values, QUANTILES[:-1]), values.max() * LIMIT_FACTORS])
    return np.unique(candidates[candidates > 1e-6 * max(float(values.max()), 1e-300)])


def tails_of(
    workload: Workload, terms: Terms, levels: Levels, limits: CellLimits, records: ReferenceRecords
) -> tuple[Deviations, Deviations]:
    """Deviations of e and of e r, per record, from their regressions on the group's clipped sums.

    They tell where what lies beyond the limits differs from the group's, with the reference's error.
    """
    e, r = levels.standardised(records)
    group, left = limits.group[records.cell], np.zeros((len(e), 2))
    for number, (shape, clipping) in enumerate(zip(limits.shapes, limits.clippings, strict=True)):
        members = group == number
        whole = shape.sums(clipping)
        x = whole[:, 2:] - whole[:, 2:].mean(axis=0)
        coefficients = np.linalg.lstsq(x, whole[:, :2] - whole[:, :2].mean(axis=0), rcond=1e-9)[0]
        sums = Shape(e[members], r[members], r[members]).sums(clipping)
        left[members] = sums[:, :2] - whole[:, :2].mean(axis=0) - (sums[:, 2:] - whole[:, 2:].mean(axis=0)) @ coefficients
    ones = np.ones(len(e))
    of_weight, of_outcome = (
        deviations(terms, *cell_means(records.cell, residual, ones, len(workload))) for residual in left.T
    )
    return of_weight, of_outcome
