"""A distribution function that a reference tells, and its inverse: values become scores, scores values again (METHODS §5b).

Nodes a_1 < … < a_K with F(a−) = low and F(a) = high; F is a line from one node to the next. At an atom low < high: a record
there takes the place F(a−) + U (F(a) − F(a−)) that its own uniform U gives, and comes back to a exactly. Of a continuous
variable half a record of every value's step lies on the line at either side, so that a value that one record has is no
atom, and the mean is the reference's. Probabilities stay half a record away from 0 and 1: every score is finite, and the
inverse keeps to the reference's range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpdist.core.records import Floats, Ints

NODES = 1_000
"""About as many nodes stand for a distribution, apart from its tails."""
TAIL = 50
"""Records of either tail whose values are nodes all the same."""
MARGIN = 1e-6
"""Share of an atom's step at either end that no record is placed in: Φ and Φ⁻¹ err by less."""


@dataclass(frozen=True, eq=False)
class Marginal:
    """`value`, `low` and `high` (node,), each rising; `records` of the reference stand behind it."""

    value: Floats
    low: Floats
    high: Floats
    records: int

    @classmethod
    def of(cls, values: Floats, continuous: bool) -> Marginal:
        """Of a reference's values: where the variable is not continuous, and has few values, every one is an atom."""
        distinct, count = np.unique(values, return_counts=True)
        total = len(values)
        above = np.cumsum(count, dtype=np.int64)
        below = above - count
        kept = _kept(below, above, total)
        spread = 0.5 if continuous or len(distinct) > NODES else 0.0
        return cls(distinct[kept], (below + spread)[kept] / total, (above - spread)[kept] / total, total)

    @property
    def edge(self) -> float:
        """Half a record."""
        return 0.5 / self.records

    def scores(self, values: Floats, uniforms: Floats) -> Floats:
        """Φ⁻¹ F, each record at an atom by its own uniform: finite, and rising in the value."""
        last = np.searchsorted(self.value, values, side="right") - 1
        node, following = np.maximum(last, 0), np.minimum(last + 1, len(self.value) - 1)
        start, step = self.value[node], self.value[following] - self.value[node]
        place = MARGIN + (1.0 - 2.0 * MARGIN) * uniforms
        at = self.low[node] + place * (self.high[node] - self.low[node])
        share = np.divide(values - start, step, out=np.zeros_like(start), where=step > 0)
        between = self.high[node] + share * (self.low[following] - self.high[node])
        found = np.where(values == start, at, np.where(last < 0, self.low[0], between))
        return np.asarray(ndtri(np.clip(found, self.edge, 1.0 - self.edge)))

    def values(self, scores: Floats) -> Floats:
        """F⁻¹ Φ, within the reference's range; atoms come back exactly."""
        p = np.clip(ndtr(scores), self.edge, 1.0 - self.edge)
        return np.asarray(np.interp(p, *self._steps))

    def averages(self, edges: Floats) -> Floats:
        """Mean value between neighbouring scores, (edge − 1,), under the reference's own law: that of F⁻¹ on (Φ, Φ)."""
        p, steps = ndtr(edges), self._steps
        at, heights = np.concatenate([[0.0], steps[0], [1.0]]), np.concatenate([steps[1][:1], steps[1], steps[1][-1:]])
        areas = np.concatenate([[0.0], np.cumsum(np.diff(at) * (heights[1:] + heights[:-1]) / 2.0)])
        # Within a line of F⁻¹ the area is a parabola; a kink at p is found by the last node at or below it.
        k = np.clip(np.searchsorted(at, p, side="right") - 1, 0, len(at) - 2)
        width = at[k + 1] - at[k]
        share = np.divide(p - at[k], width, out=np.zeros_like(p), where=width > 0)
        until = areas[k] + (p - at[k]) * (heights[k] + share * (heights[k + 1] - heights[k]) / 2.0)
        chance = np.diff(p)
        middle = self.values((edges[1:] + edges[:-1]) / 2.0)
        return np.asarray(np.divide(np.diff(until), chance, out=middle, where=chance > 1e-14))

    @property
    def _steps(self) -> tuple[Floats, Floats]:
        """Corners of F⁻¹: probabilities, not falling, and values."""
        return np.column_stack([self.low, self.high]).reshape(-1), np.repeat(self.value, 2)


def _kept(below: Ints, above: Ints, total: int) -> NDArray[np.bool_]:
    """Which distinct values are nodes: all of few; else the tails', the heavy ones, and one every 1/NODES."""
    if len(below) <= NODES:
        return np.ones(len(below), dtype=bool)
    grid = below * NODES // total != above * NODES // total
    return np.asarray(grid | (below < TAIL) | (above > total - TAIL))
