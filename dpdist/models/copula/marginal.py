"""A distribution function that a reference tells, and its inverse: values become scores, scores values again (METHODS §5b).

Nodes a_1 < … < a_K with F(a−) = low and F(a) = high; F is a line from one node to the next. At an atom low < high: a
record there takes the place F(a−) + U (F(a) − F(a−)) that its own uniform U gives, and comes back to a exactly. Of a
continuous variable half a record of every value's step lies on the line at either side, so that a value that one record
has is no atom, and the mean is the reference's. Probabilities stay half a record away from 0 and 1: every score is
finite, and the inverse keeps to the reference's range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
        """The distribution of a reference's values; if it is not continuous and has few values, every value is an atom."""
        return cls._of(values, np.ones(len(values), dtype=np.int64), continuous)

    @classmethod
    def mixed(cls, values: Floats, others: Floats, share: float, continuous: bool) -> Marginal:
        """The distribution of a mixture: own values have `share` of the probability, others the rest.

        Without others, own values have all.
        """
        one, other = round(share * len(others)), round((1.0 - share) * len(values))
        if len(others) == 0 or other == 0 < len(values):
            return cls.of(values, continuous)
        if len(values) == 0 or one == 0:
            return cls.of(others, continuous)
        counts = np.repeat(np.array([one, other], dtype=np.int64), [len(values), len(others)])
        return cls._of(np.concatenate([values, others]), counts // np.gcd(one, other), continuous)

    @classmethod
    def _of(cls, values: Floats, counts: Ints, continuous: bool) -> Marginal:
        """Of values that count as often as said; half a record is half of the smallest such count."""
        distinct, place = np.unique(values, return_inverse=True)
        count = np.bincount(place, weights=counts).astype(np.int64)
        total = int(count.sum())
        above = np.cumsum(count, dtype=np.int64)
        below = above - count
        least = int(counts.min())
        kept = _kept(below, above, total, least)
        halves = count / np.bincount(place) / 2.0 if continuous or len(distinct) > NODES else np.zeros(len(count))
        low, high = (below + halves)[kept] / total, (above - halves)[kept] / total
        return cls(distinct[kept], low, high, len(values))

    @property
    def edge(self) -> float:
        """Half a record."""
        return 0.5 / self.records

    def scores(self, values: Floats, uniforms: Floats) -> Floats:
        """Φ⁻¹ F, each record at an atom by its own uniform: finite, and rising in the value.

        Between atoms with no probability between them a value has a step between theirs: part of its records is placed at
        either, so that a small change of scale moves a mean by as much. One beyond the outermost atom is placed as that."""
        last = np.searchsorted(self.value, values, side="right") - 1
        node, following = np.maximum(last, 0), np.minimum(last + 1, len(self.value) - 1)
        start, step = self.value[node], self.value[following] - self.value[node]
        place = MARGIN + (1.0 - 2.0 * MARGIN) * uniforms
        at, next_at = (self.low[k] + place * (self.high[k] - self.low[k]) for k in (node, following))
        share = np.clip(np.divide(values - start, step, out=np.zeros_like(start), where=step > 0), 0.0, 1.0)
        gap = self.low[following] - self.high[node]
        between = np.where(gap > 0, self.high[node] + share * gap, at + share * (next_at - at))
        found = np.where((values == start) | (last != node) | (node == following), at, between)
        return np.asarray(ndtri(np.clip(found, self.edge, 1.0 - self.edge)))

    def until(self, values: Floats) -> Floats:
        """Φ⁻¹ of the probability of the nodes at or below values that are no nodes."""
        above = np.searchsorted(self.value, values, side="right")
        return np.asarray(ndtri(np.clip(np.concatenate([[0.0], self.high])[above], self.edge, 1.0 - self.edge)))

    def values(self, scores: Floats) -> Floats:
        """F⁻¹ Φ, within the reference's range; atoms come back exactly."""
        p = np.clip(ndtr(scores), self.edge, 1.0 - self.edge)
        return np.asarray(np.interp(p, *self._steps))

    def averages(self, edges: Floats) -> Floats:
        """Mean value between neighbouring scores, (edge − 1,), under the reference's own law: that of F⁻¹ on (Φ, Φ)."""
        p, (at, heights, areas) = ndtr(edges), self._areas
        # Within a line of F⁻¹ the area is a parabola; a kink at p is found by the last node at or below it.
        k = np.clip(np.searchsorted(at, p, side="right") - 1, 0, len(at) - 2)
        width = at[k + 1] - at[k]
        share = np.divide(p - at[k], width, out=np.zeros_like(p), where=width > 0)
        until = areas[k] + (p - at[k]) * (heights[k] + share * (heights[k + 1] - heights[k]) / 2.0)
        chance = np.diff(p)
        middle = self.values((edges[1:] + edges[:-1]) / 2.0)
        return np.asarray(np.divide(np.diff(until), chance, out=middle, where=chance > 1e-14))

    @cached_property
    def _steps(self) -> tuple[Floats, Floats]:
        """Corners of F⁻¹: probabilities, not falling, and values."""
        return np.column_stack([self.low, self.high]).reshape(-1), np.repeat(self.value, 2)

    @cached_property
    def _areas(self) -> tuple[Floats, Floats, Floats]:
        """Corners of F⁻¹ from 0 to 1: probabilities, values, and the area until each."""
        p, value = self._steps
        at, heights = np.concatenate([[0.0], p, [1.0]]), np.concatenate([value[:1], value, value[-1:]])
        return at, heights, np.concatenate([[0.0], np.cumsum(np.diff(at) * (heights[1:] + heights[:-1]) / 2.0)])


def _kept(below: Ints, above: Ints, total: int, record: int) -> NDArray[np.bool_]:
    """Which distinct values are nodes: all of few; else the tails', the heavy ones, and one every 1/NODES."""
    if len(below) <= NODES:
        return np.ones(len(below), dtype=bool)
    grid = below * NODES // total != above * NODES // total
    return np.asarray(grid | (below < TAIL * record) | (above > total - TAIL * record))
