"""The reference's distribution of a cell, moved to the released means: the share of weight at or below a value.

A cell's points are the reference's, moved to the released means. For other means they are moved again: multiplied where
the outcome cannot be negative, otherwise shifted. The reference's own sampling adds an error to a share F at a value q,
given the mean m. It is the error of Σ v (1(y ≤ q) − F + d (y − m)/m) over reference records with weight v and outcome y,
with d = −dF/dlog m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.reference_tables.clipped_cells import ClippedCells
from dpdist.models.protocol import Draws

STEP = 0.05
"""Step of the numerical derivative of a distribution function, as a share of the mean or of the standard deviation."""


@dataclass(frozen=True)
class Transported:
    """The points (weight, outcome) of every outcome and cell, (point, 2) each.

    `standing` (cell,) is the number of records that a cell's points represent.
    """

    cells: ClippedCells
    points: Sequence[Sequence[Floats]]
    standing: Floats

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of the weight with an outcome of at most `value`, for pairs of a frame row and a value, (draw, pair)."""
        cell, found = self.cells.design.pattern[row], np.empty((len(theta), len(row)))
        for k in np.unique(cell).tolist():
            own = np.flatnonzero(cell == k)
            distinct, place = np.unique(value[own], return_inverse=True)
            found[:, own] = self._of_cell(theta, k, distinct, outcome)[:, place]
        return found

    def _of_cell(self, theta: Draws, k: int, value: Floats, outcome: int) -> Floats:
        """Shares of a cell's weight with an outcome of at most each value, (draw, value)."""
        points, (low, top) = self.points[outcome][k], self.cells.bounds[outcome]
        mean = float(np.average(points[:, 1], weights=points[:, 0]))
        moved = theta["means"][:, k, 1 + outcome, None]
        steps = _Steps.of(points)
        if low >= 0 and mean > 0:
            ratio = np.divide(mean, moved, out=np.ones_like(moved), where=moved > 0)
            found = steps.until(value * ratio)
        else:
            found = steps.until(value + mean - moved)
        if "shape" in theta.values:
            error = self._errors(points, steps, mean, value, low >= 0 and mean > 0) / np.sqrt(self.standing[k])
            found = found + theta["shape"][:, k, None] * error
        return np.where(value >= top, 1.0, np.where(value < low, 0.0, np.clip(found, 0.0, 1.0)))

    @staticmethod
    def _errors(points: Floats, steps: _Steps, mean: float, value: Floats, scaled: bool) -> Floats:
        """Standard deviation, for one record, of the share at or below each value if the mean is known, (value,)."""
        weight, outcome = points[:, 0] / points[:, 0].mean(), points[:, 1]
        size = mean if scaled else float(np.sqrt(np.average((outcome - mean) ** 2, weights=weight)))
        if size == 0:
            return np.zeros(len(value))
        ends = [value / (1.0 + sign * STEP) if scaled else value - sign * STEP * size for sign in (1.0, -1.0)]
        slope = (steps.until(ends[1]) - steps.until(ends[0])) / (2.0 * STEP)
        inside = (outcome[:, None] <= value) - steps.until(value) + slope * ((outcome - mean) / size)[:, None]
        return np.asarray(np.sqrt(np.mean((weight[:, None] * inside) ** 2, axis=0)))


@dataclass(frozen=True)
class _Steps:
    """A distribution function with steps: outcomes in rising order, and the share of weight up to each, starting with 0."""

    outcome: Floats
    share: Floats

    @classmethod
    def of(cls, points: Floats) -> _Steps:
        order = np.argsort(points[:, 1], kind="stable")
        weight = np.cumsum(points[order, 0])
        return cls(points[order, 1], np.concatenate([[0.0], weight / weight[-1]]))

    def until(self, value: Floats) -> Floats:
        return np.asarray(self.share[np.searchsorted(self.outcome, value, side="right")])
