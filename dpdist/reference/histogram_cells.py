"""For `reference.limits` and `inversion`: a cell whose reference is a noisy histogram, with its group's tails.

Cells of a group share histograms, which mix cells of different scales (METHODS §7b). So clipping of weights is not
inverted. A mean weight is the clipped mean plus a part of the group's weight beyond its caps (`with_own_tails`). A mean
outcome is the clipped mean plus the shape's part beyond the clipping interval.

The standard deviation of this part's error is half of the part. Noise may hide records: at most one standard deviation
of a count, between the last sure bin and the public bound. They fall there as the histogram falls at that bin, since its
logarithm is concave. Cells share errors of tails, so squares of these errors count `in_common` times
(`histograms.in_common`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.estimation.small_area import shrunk
from dpdist.reference.clipping import FLAT, LARGEST_LOG_SCALE, MISFIT, Cell, Slopes, bisect, cut_off
from dpdist.reference.histograms import paired_levels

LEAST_V = 1e-3
"""Smallest mean v by which a mean outcome is divided."""

GRID = np.linspace(-5.0, 5.0, 61)
"""Log scales to try, in standard deviations of the cells' log scales."""

Limit = tuple[float, float, float]
"""Centre, weight cap and half width of clipping."""


class Ends(NamedTuple):
    """Values from `first` to `last`, whose density by their logarithm falls with the power `fall` of the value."""

    first: float
    last: float
    fall: float = 0.0


class Hidden(NamedTuple):
    """Records that histograms' noise may hide: their share of the group, and the ends between which they lie.

    `weight` and `above` are ends for the weight and for large outcomes; `below` is for small outcomes, with the sign
    turned.
    """

    share: float
    weight: Ends
    below: Ends
    above: Ends


NOTHING = Hidden(0.0, Ends(1.0, 1.0), Ends(1.0, 1.0), Ends(1.0, 1.0))
"""No hidden records."""


def beyond(limit: Floats | float, ends: Ends) -> Floats:
    """Mean excess over a limit of values between two ends. If an end is not positive, all values are at the last."""
    first, last, fall = ends
    if not 0.0 < first < last:
        return np.asarray(np.maximum(last - limit, 0.0))
    least, most = np.clip(limit, first, last) / first, np.asarray(last / first)
    excess = first * _power(1.0 - fall, least, most) - limit * _power(-fall, least, most)
    return np.asarray(excess / _power(-fall, np.asarray(1.0), most))


def _power(exponent: float, low: Floats, high: Floats) -> Floats:
    """The integral of t^(exponent − 1) from `low` to `high`."""
    whole = np.log(high / low)
    return np.asarray(low**exponent * (np.expm1(exponent * whole) / exponent if exponent else whole))


@dataclass(frozen=True)
class HistogramCell(Cell):
    """A cell made of noisy histograms; `blur` is their noise.

    Its g is the distance of the mean outcome from the shape's mean, in widths of the public range.
    """

    largest_weight: float = np.inf
    """The weight's public upper bound."""
    hidden: Hidden = NOTHING
    in_common: float = 1.0
    """Factor on the square of a shared error, in the choice of limits."""
    within_cells: float = 1.0
    """κ, the part of deviations of log weights that lies within the group's cells (`with_own_tails`)."""
    scale_error: float = 0.0
    """Standard deviation of the logarithm of the weights' scale, if histograms are of relative weights."""
    tail: float = 0.0
    """Log ratio of the mean weight under the cell's own tail to that under its group's tail."""

    def of_size(self, typical: float, bounds: tuple[float, float]) -> HistogramCell:
        """The cell with weights that are `typical` times these, within public bounds."""
        assert self.blur is not None
        first, last, fall = self.hidden.weight
        return replace(
            self,
            weight=np.clip(typical * self.weight, *bounds),
            blur=self.blur._replace(weight=np.clip(typical * self.blur.weight, *bounds)),
            hidden=self.hidden._replace(weight=Ends(min(typical * first, bounds[1]), min(typical * last, bounds[1]), fall)),
        )

    @cached_property
    def shape(self) -> Cell:
        """The group's shape, to which log scales are applied. Log scales change it as they change a reference's shape."""
        return Cell(self.weight, self.outcome, self.low, self.top, self.scaled, self.records, self.weighted)

    @property
    def curved(self) -> bool:
        return False

    @property
    def unit(self) -> float:
        return self.top - self.low

    @property
    def farthest(self) -> float:
        return 1.0

    @property
    def rate(self) -> Floats:
        """The derivative of every record's outcome by g, (record,): the width of the public range."""
        return np.full(len(self.outcome), self.unit)

    def growth(self, g: float) -> float:
        return 1.0

    def mean_at(self, g: float) -> float:
        """The mean outcome at g, within the public bounds."""
        return float(np.clip(self.mean + g * self.unit, self.low, self.top))

    def moved(self, g: float) -> Floats:
        """The shape's outcomes after the scaling or shift to the mean at g, or to the nearest possible mean."""
        mean, shape = self.mean_at(g), self.shape
        return shape.moved(
            (mean - self.mean) / shape.unit if self.two_valued else bisect(lambda h: shape.mean_at(h) - mean)
        )

    @cached_property
    def inner(self) -> Cell:
        """The weights of one cell: deviations of log weights are `within_cells` times the group's."""
        weight = np.log(np.maximum(self.weight, FLAT))
        weights = np.exp(self.within_cells * (weight - weight.mean()))
        return replace(self.shape, weight=weights * (self.mean_weight / weights.mean()))

    def rate_of_seen(self, cap: float) -> float:
        """The derivative d log(mean v) / d s by the log scale s of the weights."""
        v = self.inner.weight / cap
        return max(float((v * (v < 1.0)).mean()) / float(np.minimum(v, 1.0).mean()), LEAST_V)

    def tail_of(self, v: float, error: float, cap: float, between: float) -> float:
        """The weight beyond the cap, relative to the clipped mean weight, at a cell's expected log scale.

        Before the noisy mean `v` with standard deviation `error`, the log scale is normal with variance `between`.
        """
        scales = between**0.5 * GRID
        means = self.inner.mean_v(scales, cap)
        loss = 0.5 * ((v - means) / error) ** 2 + 0.5 * GRID**2
        mass = np.exp(loss.min() - loss)
        s = np.array([mass @ scales / mass.sum()])
        return max(0.0, float(self.inner.mean_weight * np.exp(s[0]) / (cap * self.inner.mean_v(s, cap)[0])) - 1.0)

    def seen(self, limits: Limit) -> tuple[float, float]:
        """Mean weight and mean outcome of the shape after clipping."""
        centre, cap, half_width = limits
        weight, outcome = np.minimum(self.weight, cap), np.clip(self.outcome, centre - half_width, centre + half_width)
        return float(weight.mean()), float(np.average(outcome, weights=weight))

    def solve(self, v: float, q: float, limits: Limit) -> tuple[float, float]:
        """Solves for (s, g) that give this cell its clipped figures, with the tails beyond the limits added."""
        centre, cap, half_width = limits
        s, v_shape = 0.0, self.seen(limits)[0] / cap
        if self.weighted:
            s = float(np.clip(np.log(max(v, FLAT) / v_shape) + self.tail, -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE))
        ratio = q / (max(v, LEAST_V) if self.weighted else v_shape)
        mean = centre + half_width * ratio
        if not self._whole(centre, half_width):
            mean += self._beyond(ratio * v_shape, limits)
        return s, (mean - self.mean) / self.unit

    def _whole(self, centre: float, half_width: float) -> bool:
        return bool(centre - half_width <= self.low and centre + half_width >= self.top)

    def _beyond(self, product: float, limits: Limit) -> float:
        """The mean outcome less the clipped mean, at the scale under which the shape has this mean vc."""
        centre, cap, half_width = limits
        outcome = self.shape.moved(bisect(lambda g: self.shape.statistics(0.0, g, limits)[1] - product))
        below = np.minimum(self.weight, cap)
        above = self.weight - below
        mean = float(np.average(outcome, weights=below))
        seen = float(np.average(np.clip(outcome, centre - half_width, centre + half_width), weights=below))
        if not above.any():
            return mean - seen
        share = 1.0 - float(below.mean()) / self.mean_weight * float(np.exp(-self.tail))
        return mean - seen + share * (float(np.average(outcome, weights=above)) - mean)

    def _gains(self, v: Floats, centre: Floats, half_width: Floats) -> Floats:
        """The derivative of the mean outcome by mean vc for each clipping interval, (interval,).

        `v` (record,) are the records' v. `centre` and `half_width` are (interval, 1).
        """
        rate, within = self.shape.rate, self.shape.within(centre, half_width)
        of_seen = within @ (v * rate) / v.sum()
        of_tail = np.where(within, 0.0, rate) @ self.weight / self.weight.sum()
        nothing = (centre - half_width <= self.low) & (centre + half_width >= self.top)
        with np.errstate(divide="ignore", invalid="ignore"):
            more = np.where(nothing[:, 0] | (of_tail <= 0.0), 0.0, of_tail / of_seen)
        return np.asarray(half_width[:, 0] / v.mean() * (1.0 + more))

    def slopes(self, limits: Limit) -> Slopes:
        centre, cap, half_width = limits
        v, c = np.minimum(self.weight, cap) / cap, np.clip((self.outcome - centre) / half_width, -1.0, 1.0)
        gain = float(self._gains(v, np.array([[centre]]), np.array([[half_width]]))[0])
        jacobian = np.array([[v.mean(), 0.0], [(v * c).mean(), self.unit / gain]])
        np.fill_diagonal(jacobian, np.maximum(np.diag(jacobian), FLAT))
        inverse = np.linalg.inv(jacobian)
        if not self.weighted:
            inverse[:, 0] = 0.0
        pairs = np.column_stack([v, v * c])
        return Slopes((pairs - pairs.mean(axis=0)) @ inverse.T, inverse)

    def transported(self, mean_weight: float, mean: float, points: int) -> tuple[Floats, Floats]:
        if self.two_valued:
            return self.shape.transported(mean_weight, mean, points)
        weight, outcome = _fewer(self.weight, self.outcome, points)
        return replace(self.shape, weight=weight, outcome=outcome).transported(mean_weight, mean, points)

    def misfit(self, scales: tuple[float, float], limits: Limit) -> Floats:
        """Half of the shape's part beyond the limits, with what noise may hide there, (2,)."""
        centre, cap, half_width = limits
        ratio = max(self.mean_at(scales[1]), FLAT) / max(self.mean, FLAT) if self.scaled else 1.0
        hidden = self._unknown_weight(cap), ratio * float(self._hidden_outcome(centre, half_width))
        return np.asarray(np.hypot(super().misfit(scales, limits), hidden))

    def _unknown_weight(self, cap: float) -> float:
        """Weight beyond the cap by hidden records and by the scale's error, relative to the mean weight."""
        of_scale = self.scale_error * (1.0 - self.rate_of_seen(cap)) if self.scale_error else 0.0
        return float(np.hypot(self._hidden_weight(cap), of_scale))

    def _hidden_weight(self, cap: float) -> float:
        """Largest mean weight beyond the cap by hidden records, relative to the mean weight."""
        return self.hidden.share * float(beyond(cap, self.hidden.weight)) / self.mean_weight if self.weighted else 0.0

    def _hidden_outcome(self, centre: Floats | float, half_width: Floats | float) -> Floats:
        """Largest mean outcome beyond the clipping interval by hidden records, on its larger side."""
        ends = beyond(centre + half_width, self.hidden.above), beyond(half_width - centre, self.hidden.below)
        return np.asarray(self.hidden.share * np.maximum(*ends))

    def error_of_count(self, cap: float, n: int, noise: float) -> float:
        """Mean squared error of a count from noise of variance `noise`, the histograms' noise and their tails.

        It is in variances of the direct estimate.
        """
        assert self.blur is not None
        if not self.weighted:
            return 0.0
        held, mean, values = float(np.minimum(self.weight, cap).mean()), self.mean_weight, self.blur.weight
        tail = values / mean - np.minimum(values, cap) / held
        lost = noise * (cap / (n * held)) ** 2 + float(tail @ self.blur.of_weight @ tail)
        direct = (float((self.weight / mean).var()) + 1.0) / n
        misfit = (MISFIT * (1.0 - held / mean)) ** 2 + self._unknown_weight(cap) ** 2
        return (lost + self.in_common * misfit) / direct

    def errors_of_mean(self, cap: float, windows: Floats, n: int, noise: tuple[float, float]) -> Floats:
        """Mean squared errors of a mean outcome for each clipping interval (μ, R), (interval,).

        They are in variances of the direct estimate. `noise` are the variances of the noise on Σ(1 − v) and on Σvc.
        """
        assert self.blur is not None
        centre, half_width = windows[:, :1], windows[:, 1:]
        variance = max(float(self.direct_influence()[:, 1].var()) / n, 1e-12 * (self.top - self.low) ** 2)
        v = np.minimum(self.weight, cap) / cap
        seen = np.clip(self.outcome[None], centre - half_width, centre + half_width)
        gain = self._gains(v, centre, half_width)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (seen @ v / v.sum() - centre[:, 0]) / half_width[:, 0]
            lost = (gain / n) ** 2 * (noise[1] + noise[0] * ratio**2)
            clipped = np.clip((self.blur.outcome[None] - centre) / half_width, -1.0, 1.0)
            tail = self.blur.outcome[None] - gain[:, None] * v.mean() * clipped
            lost += np.einsum("rb,bc,rc->r", tail, self.blur.of_outcome, tail)
            misfit = (MISFIT * cut_off(self.outcome, self.weight, centre, half_width)) ** 2 + self._hidden_outcome(
                centre, half_width
            )[:, 0] ** 2
            total = (lost + self.in_common * misfit) / variance
        return np.where(np.isfinite(total), total, np.inf)


TOGETHER = 10
"""Number of points in a block of neighbouring outcomes."""


def _fewer(weight: Floats, outcome: Floats, points: int) -> tuple[Floats, Floats]:
    """At most `points` of these pairs: in blocks by outcome, means of neighbours in outcome and of neighbours in weight.

    So shares of the weight up to every block stay. `condensed` has blocks by weight, which heap outcomes at the same ranks.
    """
    if len(weight) <= points:
        return weight, outcome
    starts = np.linspace(0, len(weight), points, endpoint=False).astype(np.int64)
    order, size = np.argsort(outcome, kind="stable"), np.diff(np.append(starts, len(weight)))
    blocks = np.split(order, starts[TOGETHER::TOGETHER])
    by_weight = np.concatenate([block[np.argsort(weight[block], kind="stable")] for block in blocks])
    weights, outcomes = (np.add.reduceat(values, starts) / size for values in (weight[by_weight], outcome[order]))
    mixed = np.argsort(paired_levels(1)[0][:TOGETHER])
    within = [first + mixed[mixed < points - first] for first in range(0, points, TOGETHER)]
    return weights[np.concatenate(within)], outcomes


ROUNDS = 6
"""Iterations of the fixed point for κ."""
LEAST_OWN = 0.1
"""Smallest κ, and smallest part of a group's tail that its cells' shapes must give.

Below it, every cell has the group's tail.
"""
FEWEST = 3
"""Smallest number of a group's cells for estimating the variance of their scales."""


def with_own_tails(cells: Sequence[Cell], caps: Floats, v: Floats, count: Floats, noise: float) -> list[Cell]:
    """The cells, each with a separate tail of weights, from noisy means `v` (cell,) over `count` (cell,) records.

    `noise` is the variance of the noise on Σ(1 − v). A cell's shape is the histogram with deviations of log weights
    times κ, where κ² Var(log w) + A = Var(log w). A is the variance of the cells' log scales. One factor on all tails
    gives the group the weight beyond its caps that its histogram has. Cells of a reference, of groups of fewer than
    FEWEST cells, and cells without a weight stay as they are.
    """
    cells_now = list(cells)
    groups = np.array([cell.group for cell in cells])
    for number in np.unique(groups):
        rows = np.flatnonzero(groups == number)
        group = [cell for k in rows.tolist() if isinstance(cell := cells[k], HistogramCell) and cell.weighted]
        if len(group) == len(rows) >= FEWEST:
            for k, cell in zip(rows.tolist(), _of_group(group, caps[rows], v[rows], count[rows], noise), strict=True):
                cells_now[k] = cell
    return cells_now


def _of_group(cells: Sequence[HistogramCell], caps: Floats, v: Floats, n: Floats, noise: float) -> list[HistogramCell]:
    first, (distinct, which) = cells[0], np.unique(caps, return_inverse=True)
    clipped = np.array([_moments(first.weight, cap) for cap in distinct.tolist()])[which]
    mean, variance = np.maximum(clipped[:, 0], FLAT), clipped[:, 1] / n
    spread = max(float(np.log(np.maximum(first.weight, FLAT)).var()), FLAT)
    drift = shrunk(v / mean, variance / mean**2, noise / (n * mean) ** 2).drift
    shape, between = first, 0.0
    for _ in range(ROUNDS):
        rates = np.array([shape.rate_of_seen(cap) for cap in distinct.tolist()])[which]
        between = min(drift / float(np.average(rates**2, weights=n)), (1.0 - LEAST_OWN**2) * spread)
        shape = replace(first, within_cells=float(np.sqrt(1.0 - between / spread)))
    error = np.sqrt(variance + noise / n**2)
    tail = np.array([shape.tail_of(*figures, between) for figures in zip(v, error, caps, strict=True)])
    held, of_group = n * np.maximum(v, 0.0) * caps, np.maximum(first.mean_weight / (mean * caps) - 1.0, 0.0)
    of_cells, whole = float(held @ tail), float(held @ of_group)
    tails = of_group if of_cells <= LEAST_OWN * whole else tail * (whole / of_cells)
    return [replace(cell, tail=float(t)) for cell, t in zip(cells, np.log1p(tails) - np.log1p(of_group), strict=True)]


def _moments(weight: Floats, cap: float) -> tuple[float, float]:
    """Mean and variance of v = min(w, cap)/cap."""
    v = np.minimum(weight, cap) / cap
    return float(v.mean()), float(v.var())
