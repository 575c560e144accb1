"""Sums over the units of a table's cells, by draw; a unit is a record, or a frame row with its expectations.

The sums are of weights, of products with outcomes, and of the weight at or below a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints

ENTRIES = 4_000_000
"""Largest number of values, over units and draws, that are in memory at a time."""

Below = Callable[[int, Ints, Floats], Floats]
"""A function of an outcome's number and of pairs (unit, value): the weight at or below the value, (draw, pair)."""


@dataclass(frozen=True)
class Units:
    """Units with their weights (draw, unit), the products of outcomes with weights, and numbers of repetitions (unit,).

    `products` has one array (draw, unit) for each outcome.
    """

    times: Floats
    weight: Floats
    products: Sequence[Floats]
    below: Below | None = None
    outcomes: Sequence[Floats] | None = None
    """The outcomes of units that are records."""


class Sum(NamedTuple):
    """A sum over the units of cells: of `values` (draw, unit), or of the weight with an outcome of at most `cut` (cell,).

    `inside` is the 0/1 matrix (cell, unit).
    """

    inside: scipy.sparse.csr_array
    values: Floats
    outcome: int = 0
    cut: Floats | None = None


def total_of(of: Sum, units: Units) -> Floats:
    """The sum in every cell, (draw, cell)."""
    if of.cut is None:
        return np.asarray((of.inside @ (units.times * of.values).T).T)
    return below_of(of.inside, units, of.outcome, of.cut)


def each_of(of: Sum, units: Units) -> scipy.sparse.csr_array:
    """What one unit, without its repetitions, adds to the sum under the first draw, (cell, unit)."""
    made = of.inside.copy()
    if of.cut is None:
        made.data = of.values[0, made.indices]
    else:
        assert units.below is not None
        made.data = units.below(of.outcome, made.indices.astype(np.int64), np.repeat(of.cut, np.diff(made.indptr)))[0]
    return made


def below_of(inside: scipy.sparse.csr_array, units: Units, outcome: int, cut: Floats) -> Floats:
    """The weight with an outcome of at most `cut` (cell,), (draw, cell), computed in batches of cells."""
    assert units.below is not None
    draws, sizes = len(units.weight), np.diff(inside.indptr)
    weight_below = np.zeros((draws, len(cut)))
    batch = np.cumsum(sizes * draws) // ENTRIES
    for number in np.unique(batch):
        members = np.flatnonzero(batch == number)
        part = inside if len(members) == len(cut) else scipy.sparse.csr_array(inside[members])
        row, value = part.indices.astype(np.int64), np.repeat(cut[members], np.diff(part.indptr))
        weights = units.times[row] * units.below(outcome, row, value)
        ends = np.concatenate([np.zeros((draws, 1)), np.cumsum(weights, axis=1)], axis=1)
        weight_below[:, members] = np.diff(ends[:, part.indptr], axis=1)
    return weight_below
