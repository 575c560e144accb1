"""From limits and clipping, for `reference_tables`: finds cells whose noisy sums do not identify a mean, and a range.

Histograms fix limits by the shape of a group. If all weights of a cell lie beyond its cap, mean v is 1, whatever the
weights. If all are far below the cap, mean v is mostly noise. The same holds for outcomes at an end of their interval.

A cell is suspected if its sums differ from its shape's by more than chance allows, or if its mean v is within noise of 1.
It gets a range in place of an estimate if too much lies beyond the limits. One end of the range is the clipped mean, less
or plus its noise. The other follows from the shape if most of the figure was observed; otherwise it is the public bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.records import UNIT, Floats
from dpdist.reference.clipping import LARGEST_LOG_SCALE, Cell
from dpdist.reference.limits import Limits, Noise

ALARM = 1e-3
"""Probability with which Laplace noise alone moves a sum by more than `reach_v` or `reach_q`, in one direction."""
SAMPLING = 4.0
"""Standard deviations of a cell's sampling that a departure must exceed, besides noise."""
UNSEEN = 0.5
"""A figure is not identified if more than this share lies beyond the limits: only the shape is known there."""
PLAIN = 0.1
"""A mean v within noise and within this of 1 shows, without a departure, that the cap is too low."""
HIDING = 0.3
"""Largest noise on a mean v at which such a v is sought. Under more, weights that are all beyond the cap may be hidden."""
END = 1e-6
"""A log scale this close to the largest one counts as the end of the search."""

Span = tuple[float, float]
NOWHERE: Span = (np.nan, np.nan)


class Sums(NamedTuple):
    """A cell's noisy mean statistics v and q = mean vc, with c the outcome's position in its clipping interval, −1 to 1.

    `reach_v` and `reach_q` are how far noise may move v and q. `s` is the log scale of the weights that gives v.
    """

    v: float
    q: float
    reach_v: float
    reach_q: float
    s: float
    limits: tuple[float, float, float]


def most_hidden(noise: Noise) -> float:
    """Largest number of records of a cell in which noise may hide that all weights lie beyond the cap."""
    return float(np.log(0.5 / ALARM) * np.sqrt(noise.weight / 2.0)) / HIDING


def set_into(values: Floats, ends: Floats) -> Floats:
    """Values clipped to their ranges, `ends` (cell, 2), where there is a range."""
    return np.where(np.isfinite(ends[:, 0]), np.clip(values, ends[:, 0], ends[:, 1]), values)


def spans(
    cells: Sequence[Cell], limits: Limits, sums: Floats, count: Floats, noise: Noise, weight_bounds: Span
) -> tuple[Floats, Floats]:
    """Ranges of mean weights and of mean outcomes, (cell, 2) each; NaN if the mean is identified.

    `limits` and `sums` (cell, 2), in units of 1/UNIT, belong to one outcome.
    """
    scales = [float(np.log(0.5 / ALARM) * np.sqrt(variance / 2.0)) for variance in noise]
    weights, outcomes = [], []
    for cell, cell_limits, total, n in zip(
        [cell.shape for cell in cells], zip(*limits, strict=True), sums / UNIT, count, strict=True
    ):
        v, q = 1.0 - total[0] / n, total[1] / n
        s = cell.solve_weight(v, cell_limits[1]) if cell.weighted else 0.0
        cell_sums = Sums(float(v), float(q), scales[0] / n, scales[1] / n, s, cell_limits)
        weights.append(_of_weight(cell, cell_sums, float(n), weight_bounds))
        outcomes.append(_of_outcome(cell, cell_sums, float(n)))
    return np.array(weights), np.array(outcomes)


def _of_weight(cell: Cell, sums: Sums, n: float, bounds: Span) -> Span:
    """The range of a cell's mean weight, or NaN."""
    cap = sums.limits[1]
    if not cell.weighted:
        return NOWHERE
    clipped = np.minimum(cell.weight, cap) / cap
    least_departure = sums.reach_v + SAMPLING * float(clipped.std()) / n**0.5
    departure = sums.v - float(clipped.mean())
    above = min(1.0, sums.v + sums.reach_v)
    s_above = cell.solve_weight(above, cap)
    heavy = departure > least_departure and _unseen_weight(cell, s_above, cap) > UNSEEN
    heavy = cap < bounds[1] and (heavy or (1.0 - sums.v <= min(sums.reach_v, PLAIN) and sums.reach_v <= HIDING))
    light = departure < -least_departure and _at_end(cell.solve_weight(sums.v - sums.reach_v, cap))
    if not (heavy or light):
        return NOWHERE
    least = min(max(bounds[0], cap * (sums.v - sums.reach_v)), bounds[1])
    unclipped = cell.mean_weight * np.exp(s_above)
    most = above * bounds[1] if heavy else max(unclipped, cap * above)
    return least, max(least, min(most, bounds[1]))


def _unseen_weight(cell: Cell, s: float, cap: float) -> float:
    """Share of the weights beyond the cap under log scale s; 1 at the end of the search."""
    weight = cell.weight * np.exp(s)
    return 1.0 if _at_end(s) else 1.0 - float(np.minimum(weight, cap).sum() / weight.sum())


def _at_end(scale: float) -> bool:
    return abs(scale) >= LARGEST_LOG_SCALE - END


def _of_outcome(cell: Cell, sums: Sums, n: float) -> Span:
    """The range of a cell's mean outcome, or NaN."""
    centre, cap, reach = sums.limits
    if cell.weighted and sums.v <= sums.reach_v:
        at_shape = float((np.minimum(cell.weight, cap) / cap).mean())
        return (cell.low, cell.top) if at_shape > 2.0 * sums.reach_v else NOWHERE
    if cell.two_valued:
        return NOWHERE
    weight = np.minimum(cell.weight * np.exp(sums.s), cap) / cap
    product = weight * np.clip((cell.outcome - centre) / reach, -1.0, 1.0)
    departure = sums.q - float(product.mean())
    room = sums.reach_q + sums.reach_v * abs(sums.q) / sums.v
    if abs(departure) <= room + SAMPLING * float(product.std()) / n**0.5:
        return NOWHERE
    ends = [cell.solve_outcome(sums.s, sums.q + by, sums.limits) for by in (-room, room)]
    high = departure > 0 and centre + reach < cell.top and _unseen_outcome(cell, ends[1], sums) > UNSEEN
    low = departure < 0 and centre - reach > cell.low and _at_end(ends[0])
    if not (high or low):
        return NOWHERE
    seen = [centre + reach * min(1.0, max(-1.0, (sums.q + by) / sums.v)) for by in (-room, room)]
    least, most = cell.low if low else seen[0], cell.top if high else max(seen[1], cell.mean_at(ends[1]))
    return min(max(least, cell.low), cell.top), min(max(most, cell.low), cell.top)


def _unseen_outcome(cell: Cell, g: float, sums: Sums) -> float:
    """Share of a mean outcome, above the clipping interval's lower end, that lies beyond the interval under log scale g.

    It is 1 at the end of the search.
    """
    if _at_end(g):
        return 1.0
    centre, _, reach = sums.limits
    least = max(cell.low, centre - reach)
    seen = np.average(np.clip(cell.moved(g), centre - reach, centre + reach), weights=cell.weight)
    return 1.0 - float(seen - least) / max(cell.mean_at(g) - least, END * reach)
