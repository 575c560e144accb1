"""Estimates of base cells raked into public bounds, which keep the sums of measured tables' cells.

A base cell's estimate has two parts, its distances from both bounds. Where one is negative, it becomes a small positive
amount. Both parts are then raked to the sums that they had over every table's cells. Together they are the size of the base
cell: counts follow from the parts of an outcome, since others may leave no room for a record of a large weight in all of
its cells. Their sums stay, too. Sizes that are known are kept instead.

No part is 0 in this, for raking does not revive a 0, and could then not keep all sums. All records come last, so that
their sum stays even where noise has made the tables' sums contradict each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.core.records import Floats, Ints, quotient_or

PASSES = 60
"""Largest number of times that all tables are raked in turn."""
SMALL = 0.01
"""What takes the place of a negative part is smaller than this share of the part that is predicted."""
AGREEMENT = 1e-11
"""Relative difference of sums below which raking stops."""


def within_bounds(
    values: Floats, size: Floats, bounds: tuple[float, float], predicted: Floats, tables: Sequence[Ints], known: bool
) -> tuple[Floats, Floats]:
    """Values (cell,) between `bounds` times sizes, and sizes (cell,); sums over cells of tables stay where bounds allow it.

    `tables` are the cells of base cells by table; `predicted` (cell,) are values between the bounds, of which the upper one
    may be infinite. Sizes stay if they are `known`.
    """
    low, high = bounds
    parts, expected = [values - low * size], [predicted - low * size]
    if np.isfinite(high):
        parts, expected = [*parts, high * size - values], [*expected, high * size - predicted]
    if all((part >= -AGREEMENT * np.abs(values)).all() for part in parts):
        return values, size
    groups = [*tables, np.zeros(len(values), dtype=np.int64)]
    floors = [SMALL * np.maximum(part, 0.0) for part in expected]
    targets_of_groups = [
        [positive(_sums(group, part), _sums(group, floor)) for part, floor in zip(parts, floors, strict=True)]
        for group in groups
    ]
    parts = list(map(positive, parts, floors))
    both = len(parts) == 2
    parts = _raked(parts, groups, targets_of_groups, (high - low) * size if known and both else None)
    if both and not known:
        (size,) = _raked([(parts[0] + parts[1]) / (high - low)], groups, [[_sums(group, size)] for group in groups])
    return low * size + parts[0], size


def _raked(
    parts: Sequence[Floats], groups: Sequence[Ints], targets: Sequence[Sequence[Floats]], together: Floats | None = None
) -> list[Floats]:
    """Parts of base cells with these sums over cells of every table; they add up to `together` (cell,), if it is given."""
    parts = list(parts)
    for _ in range(PASSES):
        if together is not None:
            parts = _adding_up(parts, together)
        furthest = 0.0
        for group, of_group in zip(groups, targets, strict=True):
            for k, target in enumerate(of_group):
                factor = quotient_or(1.0, target, _sums(group, parts[k]))
                furthest = max(furthest, float(np.abs(factor - 1.0).max()))
                parts[k] = parts[k] * factor[group]
        if furthest <= AGREEMENT:
            break
    return parts if together is None else _adding_up(parts, together)


def positive(values: Floats, small: Floats) -> Floats:
    """Values of at least `small` as they are; smaller ones fall to 0 smoothly, and reach it where `small` is 0."""
    below = values < small
    reached = small * np.divide(small, 2.0 * small - values, out=np.zeros_like(values), where=below)
    return np.where(below, reached, values)


def _sums(group: Ints, values: Floats) -> Floats:
    return np.bincount(group, weights=values).astype(np.float64)


def _adding_up(parts: Sequence[Floats], size: Floats) -> list[Floats]:
    """Parts of every base cell, scaled until they add up to its size."""
    total = np.sum(parts, axis=0)
    return [part * quotient_or(0.0, size, total) for part in parts]
