"""Models a cell by its reference records: clipping limits, and what clipping removes from sums (METHODS §7b).

All of it follows from the reference's records and from the current file's public size n. No current outcome is used. The
current file is modelled as the reference with weights times s and outcomes times g. Outcomes that can be negative or are
two-valued are also shifted by h. Clipped statistics determine (s, g); the reference determines the rest.
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
"""Standard deviation of the part beyond the limits, relative to that part as predicted by a shape made of histograms."""
EDGE = 1e-9
"""Relative distance within which an outcome is taken to be at the end of a clipping interval."""


class Slopes(NamedTuple):
    """Influence of reference records on (log s, log g) through clipped statistics, and what noise on these does.

    `influence` (record, 2), centred; `inverse` (2, 2) takes errors of the mean statistics to those of (log s, log g).
    """

    influence: Floats
    inverse: Floats


@dataclass(frozen=True)
class Cell(Shape):
    """Model of a cell's clipped statistics: their means under scales, slopes and errors, and scales from means."""

    @property
    def curved(self) -> bool:
        """True if a clipped mean changes less as the scale falls, as for a scale of outcomes (`shrinkage`)."""
        return self.scaled

    @property
    def shape(self) -> Cell:
        """The shape that the scales and shifts change."""
        return self

    def statistics(self, s: float, g: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """Returns means of v and vc under log scales s and g."""
        centre, cap, reach = limits
        v = np.minimum(self.weight * np.exp(s), cap) / cap
        return float(v.mean()), float((v * np.clip((self.moved(g) - centre) / reach, -1.0, 1.0)).mean())

    def product(self, s: float, g: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """Returns mean vc under these scales, and its slope by mean v as the weights' scale changes both."""
        centre, cap, reach = limits
        v = np.minimum(self.weight * np.exp(s), cap) / cap
        product, moving = v * np.clip((self.moved(g) - centre) / reach, -1.0, 1.0), v < 1.0
        along = float((product * moving).mean()) / max(float((v * moving).mean()), FLAT) if self.weighted else 0.0
        return float(product.mean()), along

    def slopes(self, limits: tuple[float, float, float]) -> Slopes:
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
        """Selects outcomes that change with their scale.

        Those at the end of a clipping interval do not, except for a share.
        """
        inside: NDArray[np.bool_] = np.abs(self.outcome - centre) <= (1.0 + EDGE if self.two_valued else 1.0 - EDGE) * half
        return inside

    def blurred(self, limits: tuple[float, float, float]) -> Floats:
        """Returns variances of (log mean weight, mean outcome) from noise in the histograms of the cell's tails, (2,)."""
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
        """Returns deviations of (log mean weight, mean outcome) where the cell's tails differ from the histograms', (2,).

        In a cell with larger weights or outcomes than its group, more lies beyond the limits. The larger part counts:
        that of the group's shape as it is, or at the cell's scales.
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
        """Solves for (log s, log g) under which the reference has these mean statistics, within ±LARGEST_LOG_SCALE.

        A share's g is not limited.
        """
        s = self.solve_weight(v, limits[1]) if self.weighted else 0.0
        return s, self.solve_outcome(s, q, limits)

    def solve_weight(self, v: float, cap: float) -> float:
        return float(self.solve_weights(np.array([v]), cap)[0])

    def solve_weights(self, v: Floats, cap: float) -> Floats:
        """Returns log s of mean statistics v, (value,).

        Mean v is linear between the scales at which a record reaches the cap.
        """
        means, scales = self._weight_curve
        log_scale = np.log(np.interp(v, means, scales)) + np.log(cap)
        log_scale = np.where(v >= means[-1], LARGEST_LOG_SCALE, np.where(v <= 0.0, -LARGEST_LOG_SCALE, log_scale))
        return np.asarray(np.clip(log_scale, -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE))

    def mean_v(self, scales: Floats, cap: float) -> Floats:
        """Returns mean v under log scales, (scale,)."""
        means, at = self._weight_curve
        return np.asarray(np.interp(np.exp(scales) / cap, at, means))

    @cached_property
    def _weight_curve(self) -> tuple[Floats, Floats]:
        """Returns means of min(weight × scale, 1), and the scales: 0, and the scale at which each record reaches 1."""
        heaviest = np.sort(self.weight)[::-1]
        scales = 1.0 / heaviest
        left = heaviest.sum() - np.cumsum(heaviest)
        means = (np.arange(1, len(heaviest) + 1) + scales * left) / len(heaviest)
        means[-1] = 1.0
        return np.append(1e-300, means), np.append(1e-300, scales)

    def solve_outcome(self, s: float, q: float, limits: tuple[float, float, float]) -> float:
        if self.two_valued:
            return self._solve_share(s, q, limits)
        return bisect(lambda g: self.statistics(s, g, limits)[1] - q)

    def _solve_share(self, s: float, q: float, limits: tuple[float, float, float]) -> float:
        """Extrapolates a share linearly beyond its bound, so that noise beyond the bound keeps its size.

        Otherwise shrinkage would treat that noise as drift.
        """
        at, (down, up), whole = self.statistics(s, 0.0, limits)[1], self.movable, (self.top - self.low) / self.unit
        end = whole * (up if (q > at and up > FLAT) or down <= FLAT else -down)
        return (q - at) * end / (self.statistics(s, end, limits)[1] - at)


def cut_off(outcome: Floats, weight: Floats, centre: Floats | float, half_width: Floats | float) -> Floats:
    """Returns what a clipping interval removes from a mean, below and above, as a deviation.

    The two sides do not offset each other. Intervals (interval, 1) give (interval,).
    """
    sides = (np.maximum(centre - half_width - outcome, 0.0), np.maximum(outcome - centre - half_width, 0.0))
    return np.asarray(np.hypot(*(np.average(side, axis=-1, weights=weight) for side in sides)))
