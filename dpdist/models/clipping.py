"""A cell as the reference tells it: where to clip, and what clipping loses (METHODS §7b).

All of it follows from the reference's records and from the current file's public size n: no current outcome is used.
The current file is thought of as the reference with weights times s and outcomes times g (plus h, where outcomes can be
negative or are two-valued); clipped statistics tell (s, g), and the reference the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpdist.records import Floats

QUANTILES = np.array([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, 0.985, 0.995, 1.0])
BEYOND = np.array([1.3, 2.0])
"""Limits that are tried: quantiles of the reference, and its largest value times these."""
DRIFT = 1.1
"""Planned drift of shape: weights and outcomes to this power."""
FARTHEST = 3.0
"""Largest |log s| and |log g|; of a shift, in the outcome's reference deviations."""
STEPS = 50
FEW = 250
"""Reference records below which a cell borrows the others' shape, at its own mean weight and mean outcome."""
LENT = 2_000
FLAT = 1e-9


class Slopes(NamedTuple):
    """Influence of reference records on (log s, log g) through clipped statistics, and what noise on these does.

    `influence` (record, 2), centred; `inverse` (2, 2) takes errors of the mean statistics to those of (log s, log g).
    """

    influence: Floats
    inverse: Floats


@dataclass(frozen=True)
class Cell:
    """Reference records of one cell, or others in their place; `records` is how many its means stand on.

    `low` and `top` are the outcome's public bounds; `scaled` if outcomes are multiplied, not shifted; without a weight
    column (`weighted` False) every weight is 1 for good.
    """

    weight: Floats
    outcome: Floats
    low: float
    top: float
    scaled: bool
    records: int
    weighted: bool = True

    @classmethod
    def of(cls, weight: Floats, outcome: Floats, bounds: tuple[float, float], weighted: bool = True) -> Cell:
        positive = bounds[0] >= 0.0 and bool((outcome > 0).any())
        return cls(weight, outcome, *bounds, positive and len(np.unique(outcome)) > 2, len(weight), weighted)

    def lent(self, weight: Floats, outcome: Floats) -> Cell:
        """Weights and outcomes relative to their own cells' means in place of this cell's, at its means."""
        return replace(self, weight=weight * self.mean_weight, outcome=np.minimum(outcome * self.mean, self.top))

    def under(self, s: float, g: float) -> Cell:
        return replace(self, weight=self.weight * np.exp(s), outcome=self.moved(g))

    @property
    def mean_weight(self) -> float:
        return float(self.weight.mean())

    @property
    def mean(self) -> float:
        return float(np.average(self.outcome, weights=self.weight))

    @property
    def unit(self) -> float:
        """Of a shift: a reference deviation of the outcome."""
        deviation = float(np.sqrt(np.average((self.outcome - self.mean) ** 2, weights=self.weight)))
        return deviation if deviation > 1e-6 * (self.top - self.low) else self.top - self.low

    def moved(self, g: float) -> Floats:
        """Outcomes under log scale g, or shifted by g units; never beyond the public bounds."""
        moved = self.outcome * np.exp(g) if self.scaled else self.outcome + g * self.unit
        return np.clip(moved, self.low, self.top)

    def mean_at(self, g: float) -> float:
        return float(np.clip(np.average(self.moved(g), weights=self.weight), self.low, self.top))

    @property
    def rate(self) -> Floats:
        """d outcome / d g of every record, (record,)."""
        inside = (self.outcome < self.top) if self.scaled else np.ones(len(self.outcome), dtype=bool)
        return inside * (self.outcome if self.scaled else np.full(len(self.outcome), self.unit))

    @property
    def mean_rate(self) -> float:
        return float(np.average(self.rate, weights=self.weight))

    def direct_influence(self) -> Floats:
        """Influence of a record on (log mean weight, mean outcome), (record, 2)."""
        share = self.weight / self.mean_weight
        return np.column_stack([share - 1.0, share * (self.outcome - self.mean)])

    def statistics(self, s: float, g: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """Means of v and vc under log scales s and g."""
        centre, cap, reach = limits
        v = np.minimum(self.weight * np.exp(s), cap) / cap
        return float(v.mean()), float((v * np.clip((self.moved(g) - centre) / reach, -1.0, 1.0)).mean())

    def slopes(self, limits: tuple[float, float, float]) -> Slopes:
        centre, cap, reach = limits
        v = np.minimum(self.weight, cap) / cap
        c = np.clip((self.outcome - centre) / reach, -1.0, 1.0)
        below, within = self.weight < cap, np.abs(self.outcome - centre) < reach
        jacobian = np.array([[(v * below).mean(), 0.0], [(v * c * below).mean(), (v * within * self.rate / reach).mean()]])
        pairs = np.column_stack([v, v * c])
        np.fill_diagonal(jacobian, np.maximum(np.diag(jacobian), FLAT))
        inverse = np.linalg.inv(jacobian)
        if not self.weighted:
            inverse[:, 0] = 0.0
        return Slopes((pairs - pairs.mean(axis=0)) @ inverse.T, inverse)

    def choose(self, n: int, noise_variance: float) -> tuple[float, float, float]:
        """μ, U and R of the least predicted error, in direct variances: tails of both files, noise, planned drift.

        `noise_variance` is that of the noise on a sum.
        """
        direct = self.direct_influence()
        variance = np.maximum(direct.var(axis=0) + np.array([1.0, 0.0]), 1e-12) / n
        variance[1] = max(variance[1], 1e-12 * (self.top - self.low) ** 2)
        files, deviation = 1.0 / n + 1.0 / self.records, np.abs(self.outcome - self.mean)
        caps, reaches = _candidates(self.weight), _candidates(deviation)
        if len(np.unique(self.outcome)) <= 2:
            reaches = np.array([max(self.top - self.mean, self.mean - self.low)])
        if not self.weighted:
            caps = np.array([1.0])
        heavier, wider = self._drifted()
        best, limits = np.inf, (self.mean, float(caps[-1]), float(reaches[-1]))
        for cap in caps:
            v, moved = np.minimum(self.weight, cap) / cap, np.minimum(heavier, cap) / cap
            slope = float((v * (self.weight < cap)).mean()) if self.weighted else np.inf
            if slope <= FLAT:
                continue
            told = (v - v.mean()) / slope
            lost = (direct[:, 0] - told).var() * files + noise_variance / (n * slope) ** 2
            count = (lost + ((moved.mean() - v.mean()) / slope) ** 2) / variance[0]
            if count >= best:
                continue
            c = np.clip((self.outcome - self.mean)[None] / reaches[:, None], -1.0, 1.0)
            c_moved = np.clip((wider - self.mean)[None] / reaches[:, None], -1.0, 1.0)
            within = deviation[None] < reaches[:, None]
            steep = (within * (v * self.rate)).mean(axis=1) / reaches
            with np.errstate(divide="ignore", invalid="ignore"):
                gain = self.mean_rate / steep
                across = (c * (v * (self.weight < cap))).mean(axis=1) / slope
                q = c * v
                found = gain[:, None] * (q - q.mean(axis=1, keepdims=True) - across[:, None] * (v - v.mean()))
                lost = (direct[:, 1][None] - found).var(axis=1) * files + (gain / n) ** 2 * noise_variance * (1 + across**2)
                total = count + (lost + (gain * ((c_moved - c) * v).mean(axis=1)) ** 2) / variance[1]
            total = np.where(np.isfinite(total), total, np.inf)
            if total.min() < best:
                best, limits = float(total.min()), (self.mean, float(cap), float(reaches[total.argmin()]))
        return limits

    def _drifted(self) -> tuple[Floats, Floats]:
        """Weights and outcomes of another shape and the same means."""
        heavier = self.weight**DRIFT
        heavier = heavier * self.mean_weight / heavier.mean()
        if not self.scaled:
            return heavier, np.clip(self.mean + DRIFT * (self.outcome - self.mean), self.low, self.top)
        wider = self.outcome**DRIFT
        return heavier, np.minimum(wider * self.mean / np.average(wider, weights=self.weight), self.top)

    def solve(self, v: float, q: float, limits: tuple[float, float, float]) -> tuple[float, float]:
        """(log s, log g) under which the reference has these mean statistics, within ±FARTHEST."""
        s = _bisect(lambda s: self.statistics(s, 0.0, limits)[0] - v) if self.weighted else 0.0
        return s, self.solve_outcome(s, q, limits)

    def solve_outcome(self, s: float, q: float, limits: tuple[float, float, float]) -> float:
        return _bisect(lambda g: self.statistics(s, g, limits)[1] - q)


def complete(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of which those with FEW records borrow the shape of the others together."""
    rich = [cell for cell in cells if cell.records >= FEW] or list(cells)
    lending = [cell for cell in rich if cell.scaled]
    if not lending:
        return list(cells)
    weight = np.concatenate([cell.weight / cell.mean_weight for cell in lending])
    outcome = np.concatenate([cell.outcome / cell.mean for cell in lending])
    some = np.linspace(0, len(weight) - 1, min(LENT, len(weight))).astype(np.int64)
    weight, outcome = weight[some] / weight[some].mean(), outcome[some]
    outcome = outcome / np.average(outcome, weights=weight)
    return [cell.lent(weight, outcome) if cell.records < FEW and cell.mean > 0 else cell for cell in cells]


def _candidates(values: Floats) -> Floats:
    largest = float(values.max())
    if largest <= 0.0:
        return np.array([1.0])
    found = np.concatenate([np.quantile(values, QUANTILES), largest * BEYOND])
    return np.unique(found[found > 0])


def _bisect(rising: Callable[[float], float]) -> float:
    low, high = -FARTHEST, FARTHEST
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2.0
