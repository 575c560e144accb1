"""Laws of weights and outcomes by noisy counts of bins, where no reference teaches them: for `query` and `post`.

Bins grow geometrically with the distance from 0, or from the public bound nearest to it; 0 and public bounds have bins of
their own. So a law over many orders of magnitude takes few counts. Noise fills empty bins, too. A bin is believed if its
count is far above noise, or above noise and next to one that is believed. Beyond the outermost of these the law falls off
in steps that fall as well, whose sizes are posterior means given the noisy counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, Self

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.tables.prediction import ReferenceSample

RATIO = 2.0**0.5
"""Ratio of the distances at which a bin ends."""
REACH = 3e6
"""Ratio of the largest distance to that at which the innermost bin ends."""
NEXT, APART = 2.5, 9.0
"""Counts, in scales of the noise, above which a bin is believed: next to one that is, and of its own."""
FALLS, FALLING = (0.0, 0.05, 0.1, 0.2, 0.3), (0.25, 0.5)
"""First steps of a tail beyond the bins that are believed, and the factors by which later steps are smaller."""


class Bins(NamedTuple):
    """Bins (cuts[k − 1], cuts[k]] of a column; bin 0 is its lower bound alone. Distances are from `anchor`."""

    cuts: Floats
    anchor: float

    @classmethod
    def within(cls, low: float, high: float, anchor: float) -> Self:
        """The bins of a column with these public bounds."""
        farthest = max(high - anchor, anchor - low)
        steps = farthest * RATIO ** -np.arange(int(np.log(REACH) / np.log(RATIO)) + 1.0)
        atoms = np.array([low, high, anchor])
        cuts = np.concatenate([atoms, np.nextafter(atoms, -np.inf), anchor + steps, anchor - steps])
        return cls(np.unique(cuts[(cuts >= low) & (cuts <= high)]), anchor)

    def of(self, values: Floats) -> Ints:
        """The bin of every value; values beyond the bounds are in the outer ones."""
        return np.minimum(np.searchsorted(self.cuts, values, side="left"), len(self.cuts) - 1).astype(np.int64)

    def placed(self, shares: Floats, number: int) -> Floats:
        """Values that have these shares of bins, in rising order, evenly by the logarithm of distances within a bin."""
        reach = np.concatenate([[0.0], np.cumsum(shares)]) / shares.sum()
        u = (np.arange(number) + 0.5) / number
        place = np.clip(np.searchsorted(reach, u, side="right") - 1, 0, len(shares) - 1)
        part = (u - reach[place]) / np.maximum(reach[place + 1] - reach[place], 1e-300)
        left, right = self.cuts[np.maximum(place - 1, 0)] - self.anchor, self.cuts[place] - self.anchor
        near, far = np.minimum(np.abs(left), np.abs(right)), np.maximum(np.abs(left), np.abs(right))
        near = np.where(near > 0.0, near, far / 4.0)
        ratio = np.divide(far, near, out=np.ones_like(far), where=near > 0.0)
        distance = np.where(right > 0.0, near * ratio**part, -near * ratio ** (1.0 - part))
        lone = np.nextafter(self.cuts[place], -np.inf) <= self.cuts[np.maximum(place - 1, 0)]
        values = np.where(lone, self.cuts[place], self.anchor + distance)
        return np.asarray(np.clip(values, self.cuts[0], self.cuts[-1]))


def believed_shares(noisy: Floats, scale: float) -> Floats:
    """Shares of bins from noisy counts, whose noise has the scale of a Laplace law."""
    seen = noisy > APART * scale
    if not seen.any():
        seen[int(noisy.argmax())] = True
    for bins in (range(1, len(noisy)), range(len(noisy) - 2, -1, -1)):
        step = 1 if bins.step > 0 else -1
        for k in bins:
            seen[k] |= seen[k - step] and noisy[k] > NEXT * scale
    first, last = np.flatnonzero(seen)[[0, -1]]
    counts = np.where(seen, np.maximum(noisy, 0.0), 0.0)
    counts[last + 1 :] = _tail(counts[last], noisy[last + 1 :], scale)
    counts[:first] = _tail(counts[first], noisy[:first][::-1], scale)[::-1]
    return counts if counts.sum() > 0.0 else seen.astype(np.float64)


def _tail(start: float, noisy: Floats, scale: float) -> Floats:
    """Posterior mean of the counts of bins that follow a believed one, outwards."""
    step = np.arange(1.0, len(noisy) + 1.0)
    curves = np.array(
        [start * fall**step * falling ** (step * (step - 1.0) / 2.0) for fall, falling in product(FALLS, FALLING)]
    )
    logs = -np.abs(noisy - curves).sum(axis=1) / scale
    weight = np.exp(logs - logs.max())
    return np.asarray(weight @ curves / weight.sum())


class BinnedColumns(NamedTuple):
    """Bins of the weight, if it is measured, and of every outcome. A record adds 1 to one bin of each."""

    columns: tuple[Bins, ...]
    weighted: bool

    @classmethod
    def of(cls, weight: tuple[float, float] | None, outcomes: Sequence[tuple[float, float]]) -> Self:
        """The bins by public bounds, of the weight (None if it is not measured) and of outcomes."""
        of_weight = () if weight is None else (Bins.within(*weight, anchor=0.0),)
        others = (Bins.within(low, high, min(max(low, 0.0), high)) for low, high in outcomes)
        return cls((*of_weight, *others), weight is not None)

    @property
    def ends(self) -> Ints:
        """Where the bins of each column end in the counts of all."""
        return np.cumsum([len(bins.cuts) for bins in self.columns])

    def counts(self, weight: Floats, outcomes: Floats) -> Floats:
        """Numbers of records by bin, (bin,), the bins of columns one after another."""
        values = [*([weight] if self.weighted else []), *outcomes.T]
        pairs = zip(self.columns, values, strict=True)
        return np.concatenate([np.bincount(bins.of(v), minlength=len(bins.cuts)) for bins, v in pairs]).astype(np.float64)

    def sample(self, noisy: Floats, scale: float, number: int) -> ReferenceSample:
        """`number` values that stand for the laws of noisy counts (bin,). Columns are independent of each other."""
        rng = np.random.default_rng(0)
        parts = zip(self.columns, np.split(noisy, self.ends[:-1]), strict=True)
        values = [rng.permutation(bins.placed(believed_shares(part, scale), number)) for bins, part in parts]
        weight = values.pop(0) if self.weighted else np.ones(number)
        return ReferenceSample(np.zeros((0, 0), dtype=np.int64), weight, np.column_stack(values))
