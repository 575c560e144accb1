"""Models the clipped statistics of a table cell by its reference records, for given clipping limits (METHODS §7b).

The limits of a cell are a centre μ, a weight cap U and a half width R. A record with weight w and outcome y has v =
min(w, U)/U, and c = (y − μ)/R clipped to ±1. The statistics are the means of v and of vc. The current file is modelled as
the reference with weights multiplied by exp(s) and outcomes by exp(g). Outcomes that may be negative, or have two values
only, are shifted by g units instead. The clipped statistics determine (s, g), which are called log scales. The reference
determines what lies beyond the limits. All of this follows from the reference's records and from the current file's
public size n; no current outcome is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.cell_shape import FLAT, LARGEST_LOG_SCALE, Shape, bisect

MISFIT = 0.5
"""Standard deviation of the error in what lies beyond the limits, relative to what a histogram's shape predicts there."""
EDGE = 1e-9
"""Relative distance within which an outcome counts as being at the end of a clipping interval."""


class Slopes(NamedTuple):
    """How reference records, and noise, change the log scales (s, g) that are solved from clipped statistics.

    `influence` (record, 2) is each record's influence, centred. `inverse` (2, 2) converts errors of the mean statistics
    to errors of (s, g).
    """

    influence: Floats
    inverse: Floats


@dataclass(frozen=True)
class Cell(Shape):
    """A cell's clipped statistics: their means under log scales, slopes and errors, and log scales from means."""

    @property
    def curved(self) -> bool:
        """True if the clipped mean changes less and less as g falls, as where outcomes are multiplied (`shrinkage`)."""
        return self.scaled

    @property
    def shape(self) -> Cell:
        """The shape that log scales change; here the cell itself."""
        return self

    def statistics(self, s: float, g: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """Means of v and of vc under log scales s and g."""
        centre, cap, reach = limits
        v = np.minimum(self.weight * np.exp(s), cap) / cap
        return float(v.mean()), float((v * np.clip((self.moved(g) - centre) / reach, -1.0, 1.0)).mean())

    def product(self, s: float, g: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """Mean vc under log scales s and g, and its derivative by mean v if s changes both."""
        centre, cap, reach = limits
        v = np.minimum(self.weight * np.exp(s), cap) / cap
        product, moving = v * np.clip((self.moved(g) - centre) / reach, -1.0, 1.0), v < 1.0
        along = float((product * moving).mean()) / max(float((v * moving).mean()), FLAT) if self.weighted else 0.0
        return float(product.mean()), along

    def slopes(self, limits: tuple[float, float, float]) -> Slopes:
        """Influence of records and errors on the log scales, at s = g = 0."""
        centre, cap, reach = limits
        v = np.minimum(self.weight, cap) / cap
        c = np.clip((self.outcome - centre) / reach, -1.0, 1.0)
        below, within = self.weight < cap, self.within(centre, reach)
        jacobian = np.array([[(v * below).mean(), 0.0], [(v * c * below).mean(), (v * within * self.rate / reach).mean()]])
        pairs = np.column_stack([v, v * c])
        np.fill_diagonal(jacobian, np.maximum(np.diag(jacobian), FLAT))
        inverse = np.linalg.inv(jacobian)
        if not self.weighted:
            inverse[:, 0] = 0.0
        return Slopes((pairs - pairs.mean(axis=0)) @ inverse.T, inverse)

    def within(self, centre: Floats | float, half: Floats | float) -> NDArray[np.bool_]:
        """Marks the outcomes whose clipped value changes with g.

        An outcome at the end of the clipping interval does not change, except for an outcome of two values.
        """
        inside: NDArray[np.bool_] = np.abs(self.outcome - centre) <= (1.0 + EDGE if self.two_valued else 1.0 - EDGE) * half
        return inside

    def blurred(self, limits: tuple[float, float, float]) -> Floats:
        """Variances of (log mean weight, mean outcome) from noise of the histograms that give the cell's tails, (2,)."""
        if self.blur is None:
            return np.zeros(2)
        centre, cap, reach = limits
        inverse = self.slopes(limits).inverse
        of_weight = self.blur.weight / self.mean_weight - inverse[0, 0] * np.minimum(self.blur.weight, cap) / cap
        share = np.minimum(self.weight, cap).mean() / cap
        clipped = share * np.clip((self.blur.outcome - centre) / reach, -1.0, 1.0)
        of_outcome = self.blur.outcome - self.mean - self.mean_rate * inverse[1, 1] * clipped
        noise = np.array([of_weight @ self.blur.of_weight @ of_weight, of_outcome @ self.blur.of_outcome @ of_outcome])
        return np.asarray(np.maximum(noise, 0.0))

    def misfit(self, scales: tuple[float, float], limits: tuple[float, float, float]) -> Floats:
        """Standard deviations of (log mean weight, mean outcome) where the cell's tails differ from its histograms', (2,).

        If a cell has larger weights or outcomes than its group, more lies beyond the limits. What lies beyond is computed
        for the group's shape as it is and for the shape at the cell's log scales; the larger part counts.
        """
        if self.blur is None:
            return np.zeros(2)
        centre, cap, reach = limits
        found = []
        for s, outcome in ((0.0, self.outcome), (scales[0], self.moved(scales[1]))):
            weight = self.weight * np.exp(s)
            found.append(
                [1.0 - np.minimum(weight, cap).sum() / weight.sum(), float(cut_off(outcome, weight, centre, reach))]
            )
        return np.asarray(MISFIT * np.max(found, axis=0))

    def solve(self, v: float, q: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """Solves for the log scales (s, g) under which the reference has the mean statistics v and q = mean vc.

        They are limited to ±LARGEST_LOG_SCALE, except g for an outcome of two values.
        """
        s = self.solve_weight(v, limits[1]) if self.weighted else 0.0
        return s, self.solve_outcome(s, q, limits)

    def solve_weight(self, v: float, cap: float) -> float:
        """The log scale s under which the reference has the mean statistic v."""
        return float(self.solve_weights(np.array([v]), cap)[0])

    def solve_weights(self, v: Floats, cap: float) -> Floats:
        """The log scales s of several mean statistics v, (value,).

        As a function of exp(s), mean v is linear between the scales at which a record reaches the cap.
        """
        means, scales = self._weight_curve
        log_scale = np.log(np.interp(v, means, scales)) + np.log(cap)
        log_scale = np.where(v >= means[-1], LARGEST_LOG_SCALE, np.where(v <= 0.0, -LARGEST_LOG_SCALE, log_scale))
        return np.asarray(np.clip(log_scale, -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE))

    def mean_v(self, scales: Floats, cap: float) -> Floats:
        """Mean v under log scales s, (scale,)."""
        means, at = self._weight_curve
        return np.asarray(np.interp(np.exp(scales) / cap, at, means))

    @cached_property
    def _weight_curve(self) -> tuple[Floats, Floats]:
        """Means of min(weight × scale, 1), and the scales: almost 0, then the scale at which each record reaches 1."""
        heaviest = np.sort(self.weight)[::-1]
        scales = 1.0 / heaviest
        left = heaviest.sum() - np.cumsum(heaviest)
        means = (np.arange(1, len(heaviest) + 1) + scales * left) / len(heaviest)
        means[-1] = 1.0
        return np.append(1e-300, means), np.append(1e-300, scales)

    def solve_outcome(self, s: float, q: float, limits: tuple[float, float, float]) -> float:
        """The log scale g, given s, under which the reference has the mean statistic q = mean vc."""
        if self.two_valued:
            return self._solve_share(s, q, limits)
        return bisect(lambda g: self.statistics(s, g, limits)[1] - q)

    def _solve_share(self, s: float, q: float, limits: tuple[float, float, float]) -> float:
        """The shift g for an outcome of two values; it is continued linearly where the share would leave [0, 1].

        So noise beyond a bound keeps its size. Otherwise shrinkage would treat that noise as drift.
        """
        at, (down, up), whole = self.statistics(s, 0.0, limits)[1], self.movable, (self.top - self.low) / self.unit
        end = whole * (up if (q > at and up > FLAT) or down <= FLAT else -down)
        return (q - at) * end / (self.statistics(s, end, limits)[1] - at)


def cut_off(outcome: Floats, weight: Floats, centre: Floats | float, half_width: Floats | float) -> Floats:
    """What clipping intervals remove from a mean outcome, as the root of squares of the parts below and above.

    So the two sides do not offset each other. Intervals (interval, 1) give (interval,).
    """
    sides = (np.maximum(centre - half_width - outcome, 0.0), np.maximum(outcome - centre - half_width, 0.0))
    return np.asarray(np.hypot(*(np.average(side, axis=-1, weights=weight) for side in sides)))
