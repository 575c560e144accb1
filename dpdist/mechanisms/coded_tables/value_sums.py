"""Sums of a column's values, measured beside counts: what they say with the counts, and tables that have these sums.

A value enters by its position u in [−1, 1] between the column's lowest and highest level. A measured sum is Σ min(w, U) u,
over all records or by the level of another column. The noisy counts also say a sum, Σ u times the count. Both are unbiased,
so they are averaged by precision. A table with counts p then gets the counts p e^(λu), the nearest in relative entropy,
with λ such that it has the sum. So of every two levels the relative change is the same for the same distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats

MOST_STEPS, CLOSE = 80, 1e-12
"""Steps of the search for λ, and the tolerance of a mean position."""
OUTERMOST = 1.0 - 1e-6
"""The largest mean position that a table is given: sums beyond it are put there."""
LEAST_MIXED = 1e-9
"""Part of every table that is spread over all levels, so that every sum can be met."""


class ValueSums(NamedTuple):
    """Noisy sums Σ min(w, U) u of a column by the level of another column, or over all records; in weights."""

    column: int
    by: int | None
    u: Floats
    """Positions of the column's levels."""
    values: Floats
    """(draw, level), or (draw, 1) over all records."""
    scale: float
    """Scale of the noise."""


def positions(levels: Sequence[float]) -> Floats:
    """Where levels lie between the lowest (−1) and the highest (1), (level,)."""
    values = np.asarray(levels, dtype=np.float64)
    low, high = values.min(), values.max()
    return np.asarray(np.clip((values - (low + high) / 2.0) / ((high - low) / 2.0), -1.0, 1.0))


def wanted_sum(counts: Floats, precision: float, sums: Sequence[ValueSums], u: Floats, total: Floats) -> Floats:
    """The sum over all records, (draw,), from noisy counts (draw, level) and from measured sums.

    `precision` is that of each count: one over its variance. Constant factors of all variances do not matter.
    """
    held = [(counts @ u, (u @ u) / precision)]
    held += [(each.values.sum(axis=1), each.values.shape[1] * each.scale**2) for each in sums]
    weight = sum(1.0 / variance for _, variance in held)
    mean = sum(values / variance for values, variance in held) / weight
    return np.clip(mean, -OUTERMOST * total, OUTERMOST * total)


def tilted(counts: Floats, u: Floats, wanted: Floats) -> Floats:
    """Counts (row, level) of at least 0, each row p e^(λu) with the sum `wanted` (row,) and the total that it had."""
    total = counts.sum(axis=1)
    if not (total > 0.0).any():
        return counts
    known = np.maximum(total, 1e-300)
    start = (1.0 - LEAST_MIXED) * counts + LEAST_MIXED * known[:, None] / counts.shape[1]
    goal = np.clip(wanted / known, -OUTERMOST, OUTERMOST)
    steepest = (np.log(1.0 / LEAST_MIXED / (1.0 - OUTERMOST)) + np.log(counts.shape[1])) / np.diff(np.sort(u)).min()
    low, high, slope = np.full(len(goal), -steepest), np.full(len(goal), steepest), np.zeros(len(goal))
    for _ in range(MOST_STEPS):
        found = _sloped(start, u, slope)
        mean = found @ u
        off = mean - goal
        open_ones = np.abs(off) > CLOSE
        if not open_ones.any():
            break
        low, high = np.where(off < 0.0, slope, low), np.where(off > 0.0, slope, high)
        variance = np.maximum(found @ u**2 - mean**2, 1e-300)
        further = slope - off / variance
        within = (low < further) & (further < high)
        slope = np.where(open_ones, np.where(within, further, (low + high) / 2.0), slope)
    return np.asarray(total[:, None] * _sloped(start, u, slope))


def _sloped(counts: Floats, u: Floats, slope: Floats) -> Floats:
    """Shares p e^(λu), (row, level)."""
    power = slope[:, None] * u
    made = counts * np.exp(power - power.max(axis=1, keepdims=True))
    return np.asarray(made / np.maximum(made.sum(axis=1, keepdims=True), 1e-300))


def wanted_rows(table: Floats, scale: float, sums: Sequence[ValueSums], u: Floats, margin: Floats, whole: float) -> Floats:
    """The sum of every row (row,), from a noisy table (row, level) and from sums by row; they add up to `whole`.

    No row's sum is larger than its weight, `margin`, allows.
    """
    precision = np.array([1.0 / float(u @ u) / scale**2, *(each.scale**-2.0 for each in sums)])
    mean = np.average([table @ u, *(each.values[0] for each in sums)], axis=0, weights=precision)
    ends, low, high = OUTERMOST * margin, -2.0 * np.abs(mean).max() - margin.sum(), 2.0 * np.abs(mean).max() + margin.sum()
    for _ in range(MOST_STEPS):
        middle = (low + high) / 2.0
        less = np.clip(mean + middle, -ends, ends).sum() < whole
        low, high = (middle, high) if less else (low, middle)
    return np.asarray(np.clip(mean + (low + high) / 2.0, -ends, ends))
