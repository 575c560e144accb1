"""Rules for moving an outcome's values: within public bounds, atoms stay unchanged, and round figures stay round.

Atoms are values that many records have for a reason other than their amount: 0, a bound, a top-code, a minimum. The step
of round figures is a power of ten, or five times one, of which nearly all other values are multiples.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Floats

ATOM = 0.002
"""Smallest share of records at which the smallest or the largest value counts as an atom."""
ATOM_RECORDS = 5
"""Smallest number of records at which such a value counts as an atom."""
ON_GRID = 0.95
"""Smallest share of values that must be multiples of a step."""
ROUND_UNITS = tuple(factor * 10.0**power for power in range(5, -3, -1) for factor in (5.0, 1.0))
HALVINGS = 200
"""Number of bisection steps in the search for a scale."""


class Domain(NamedTuple):
    """Public bounds of an outcome, the step of its round figures, and its atoms.

    `whole`: outcomes are whole numbers. `step`: 0 if there are no round figures. `atoms`: 0, the bounds, and those of
    `least` and `largest` that exist. `least` and `largest` are ends that scaling does not pass: a minimum and a top-code,
    where the reference has them.
    """

    low: float
    top: float
    whole: bool = False
    step: float = 0.0
    atoms: tuple[float, ...] = ()
    least: float = -np.inf
    largest: float = np.inf

    @classmethod
    def of(cls, values: Floats, bounds: tuple[float, float], whole: bool) -> Self:
        """The domain from the values of a reference, (record,), of which there is at least one."""
        least = float(values.min()) if _atom(values, values.min()) else -np.inf
        largest = float(values.max()) if _atom(values, values.max()) else np.inf
        atoms = tuple(sorted({0.0, *bounds, *(end for end in (least, largest) if np.isfinite(end))}))
        return cls(*bounds, whole, _step(values[~np.isin(values, atoms)]), atoms, least, largest)

    def still(self, values: Floats) -> NDArray[np.bool_]:
        """Marks the values that are atoms."""
        return np.asarray(np.isin(values, self.atoms))

    def scaled(self, values: Floats, weight: Floats, mean: float) -> Floats | None:
        """Values multiplied, or shifted if they may be negative, until their weighted mean is `mean`; atoms stay.

        None if no scale gives this mean.
        """
        free, low, top = ~self.still(values), max(self.low, self.least), min(self.top, self.largest)
        if not free.any() or not low < mean < top:
            return None
        multiplied = self.low >= 0.0

        def at(share: float) -> Floats:
            if multiplied:
                moved = values * np.tan(share * np.pi / 2.0)
            else:
                moved = values + (2.0 * share - 1.0) * (self.top - self.low)
            return np.asarray(np.where(free, np.clip(moved, low, top), values))

        below, above = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (below + above) / 2.0
            below, above = (middle, above) if np.average(at(middle), weights=weight) < mean else (below, middle)
        found = at(above)
        return found if abs(np.average(found, weights=weight) - mean) <= 1e-9 * (self.top - self.low) else None

    def rounded(self, moved: Floats, before: Floats) -> Floats:
        """Moved values, rounded to the nearest multiple of the step if they were multiples before.

        No value becomes 0 that was not 0, and none passes an end.
        """
        found = moved
        for step in (1.0,) * self.whole + (self.step,) * (self.step > 0.0):
            near = np.rint(moved / step) * step
            near = np.where((near == 0.0) & (before != 0.0), np.sign(moved) * step, near)
            inside = (near >= max(self.low, self.least)) & (near <= min(self.top, self.largest))
            found = np.where(_multiples(before, step) & ~self.still(before) & inside, near, found)
        return np.asarray(found)


def _atom(values: Floats, value: float) -> bool:
    return int((values == value).sum()) >= max(ATOM_RECORDS, ATOM * len(values))


def _step(values: Floats) -> float:
    """The largest step of which nearly all values are multiples, or 0."""
    found = [step for step in ROUND_UNITS if len(values) and _multiples(values, step).mean() >= ON_GRID]
    return found[0] if found else 0.0


def _multiples(values: Floats, step: float) -> NDArray[np.bool_]:
    times = values / step
    return np.asarray(np.abs(times - np.rint(times)) < 1e-6)
