"""A cell made of noisy histograms: its clipped weights as they are, and half of what lies beyond the limit (METHODS §7b).

A group of cells shares its histograms, and the weight's is a mixture of its cells' scales. Turned back through such a
shape, a heavy cell's clipped mean would be stretched by a tail that is the mixture's. So the weight's clip is not turned
back. A mean weight is the clipped one, times one factor for the whole group: as if half of the histogram's mass beyond the
limit were there. The truth lies between no tail and the whole one; half of the tail is the error's part. An outcome's mean
under clipped weights is turned back by the outcome's scale alone, as a reference's is, with half of its tail in the error.

Limits are those of the least predicted error, from the histograms and the law of the noise alone. The public bounds are
among them: there nothing is clipped, and noise is all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.clipping import FARTHEST, FLAT, MISFIT, Cell, Slopes, bisect, cut_off

COUNTED = 1.0 - MISFIT
"""Part of the weight's tail that estimates hold; the deviation of the truth from it is the rest."""
LEAST_V = 1e-3
"""Least mean v that a mean outcome is divided by."""

Limit = tuple[float, float, float]


@dataclass(frozen=True)
class HistogramCell(Cell):
    """`blur` is there, and says where the tails are from."""

    largest_weight: float = np.inf
    """The weight's public upper bound."""

    def seen(self, limits: Limit) -> tuple[float, float]:
        """Mean weight and mean outcome as the limits leave them."""
        centre, cap, reach = limits
        weight, outcome = np.minimum(self.weight, cap), np.clip(self.outcome, centre - reach, centre + reach)
        return float(weight.mean()), float(np.average(outcome, weights=weight))

    def solve(self, v: float, q: float, limits: Limit) -> tuple[float, float]:
        """(log s, log g) that take this cell to its clipped weight with half of the tail, and to its outcome's mean."""
        centre, cap, reach = limits
        weight, outcome = self.seen(limits)
        s = 0.0
        if self.weighted:
            left = (weight + COUNTED * (self.mean_weight - weight)) / self.mean_weight
            s = float(np.clip(np.log(max(v * cap, FLAT * cap) / weight * left), -FARTHEST, FARTHEST))
        ratio = q / (max(v, LEAST_V) if self.weighted else weight / cap)
        if self.two_valued:
            return s, (centre + reach * ratio - outcome) / self.unit
        product = ratio * weight / cap
        return s, bisect(lambda g: self.statistics(0.0, g, limits)[1] - product)

    def slopes(self, limits: Limit) -> Slopes:
        centre, cap, reach = limits
        v, c = np.minimum(self.weight, cap) / cap, np.clip((self.outcome - centre) / reach, -1.0, 1.0)
        rate = self.rate * self.within(centre, reach)
        jacobian = np.array([[v.mean(), 0.0], [(v * c).mean(), (v * rate).mean() / reach]])
        np.fill_diagonal(jacobian, np.maximum(np.diag(jacobian), FLAT))
        inverse = np.linalg.inv(jacobian)
        if not self.weighted:
            inverse[:, 0] = 0.0
        pairs = np.column_stack([v, v * c])
        return Slopes((pairs - pairs.mean(axis=0)) @ inverse.T, inverse)

    def product(self, s: float, g: float, limits: Limit) -> tuple[float, float]:
        """Mean vc under these scales, and its slope by mean v: weights are not turned back, and move both as one."""
        _, cap, _ = limits
        weight = self.seen(limits)[0]
        left = (weight + COUNTED * (self.mean_weight - weight)) / self.mean_weight
        v = min(float(np.exp(s)) * weight / (cap * left), 1.0) if self.weighted else weight / cap
        ratio = self.statistics(0.0, g, limits)[1] / (weight / cap)
        return v * ratio, ratio if self.weighted else 0.0

    def error_of_count(self, cap: float, n: int, noise: float) -> float:
        """Mean squared error that noise of this variance, the histograms' noise and their tails bring, in direct ones."""
        assert self.blur is not None
        if not self.weighted:
            return 0.0
        held, mean, at = float(np.minimum(self.weight, cap).mean()), self.mean_weight, self.blur.weight
        tail = at / mean - np.minimum(at, cap) / held
        lost = noise * (cap / (n * held)) ** 2 + float(tail @ self.blur.of_weight @ tail)
        direct = (float((self.weight / mean).var()) + 1.0) / n
        return (lost + (MISFIT * (1.0 - held / mean)) ** 2) / direct

    def errors_of_mean(self, cap: float, windows: Floats, n: int, noise: tuple[float, float]) -> Floats:
        """The same of a mean outcome, by window (μ, R), (window,); variances of the noise on Σ(1 − v) and on Σvc."""
        assert self.blur is not None
        centre, reach = windows[:, :1], windows[:, 1:]
        variance = max(float(self.direct_influence()[:, 1].var()) / n, 1e-12 * (self.top - self.low) ** 2)
        v = np.minimum(self.weight, cap) / cap
        seen = np.clip(self.outcome[None], centre - reach, centre + reach)
        within = self.within(centre, reach)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = self.mean_rate * reach[:, 0] / (within @ (v * self.rate) / len(v))
            ratio = (seen @ v / v.sum() - centre[:, 0]) / reach[:, 0]
            lost = (gain / n) ** 2 * (noise[1] + noise[0] * ratio**2)
            clipped = np.clip((self.blur.outcome[None] - centre) / reach, -1.0, 1.0)
            tail = self.blur.outcome[None] - gain[:, None] * v.mean() * clipped
            lost += np.einsum("rb,bc,rc->r", tail, self.blur.of_outcome, tail)
            total = (lost + (MISFIT * cut_off(self.outcome, self.weight, centre, reach)) ** 2) / variance
        return np.where(np.isfinite(total), total, np.inf)
