"""Numbers of records of base cells, public or predicted. No other module of `tables` knows which.

Where they are secret, every cross of levels is a base cell. A reference of N records has n of them in a cell, which is
Poisson with mean N p (1 + e). p is the product of the columns' shares. e has random effects of columns, tables' cells,
pairs of columns and base cells, as the prediction of weights has (`effects_of`), here with the information N p of Poisson
counts. So cells that the reference lacks are expected to have few records, and not none. The file is expected
to have the reference's numbers times one factor, which its own noisy sums show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.mechanisms.tables.random_effects import Loadings, components, effects_of, families

LEAST_NUMBER = 0.1
"""Smallest predicted number of records, relative to that of independent columns, and in records of the reference."""


@dataclass(frozen=True)
class Sizes:
    """Numbers of records of base cells, (cell,). `shared` and `alone` (cell,) are shared errors, and standard deviations of
    lone errors of predicted ones, in records.
    """

    count: Floats
    shared: Loadings
    alone: Floats
    secret: bool

    @classmethod
    def public(cls, count: Floats) -> Sizes:
        return cls(count, Loadings.none(len(count)), np.zeros(len(count)), False)

    @classmethod
    def predicted(cls, codes: Ints, levels: Sequence[int], tables: Sequence[Sequence[int]], reference: Codes) -> Sizes:
        """From the codes of all crosses, (cell, column), and of the reference's records, (record, column).

        `tables` are positions of columns by measured table.
        """
        cells, records = len(codes), len(reference)
        inverse = np.unique(np.concatenate([codes, reference]), axis=0, return_inverse=True)[1].reshape(-1)
        number = np.empty(cells, dtype=np.int64)
        number[inverse[:cells]] = np.arange(cells)
        place, half = number[inverse[cells:]], np.random.default_rng(0).permutation(records) % 2

        def independent(rows: Ints | Codes) -> Floats:
            share = np.ones(cells)
            for column, size in enumerate(levels):
                of_level = np.bincount(rows[:, column], minlength=size) + 0.5
                share = share * (of_level / of_level.sum())[codes[:, column]]
            return np.asarray(share / share.sum())

        index, expected = families(tables, codes), records * independent(reference)
        # Shares of the other half, so that numbers by level do not cancel.
        halves = [np.bincount(place[half == side], minlength=cells).astype(np.float64) for side in (0, 1)]
        expectation = [part.sum() * independent(reference[half != side]) for side, part in enumerate(halves)]
        counted, size = np.concatenate(halves), np.concatenate(expectation)
        twice = [np.concatenate([2 * family, 2 * family + 1]) for family in index]
        variance = components(counted / size - 1.0, size, counted, twice, distinct=0.0)
        effects = effects_of(np.bincount(place, minlength=cells) / expected - 1.0, expected, index, variance, cells)
        count = np.maximum(expected * (1.0 + effects.shift), np.minimum(LEAST_NUMBER * expected, LEAST_NUMBER))
        shared, alone = effects.loading.scaled(expected), expected * effects.alone
        return cls(count * (records / count.sum()), shared, alone, True)

    @property
    def variance(self) -> Floats:
        """Variance of a cell's number of records in a sample: Poisson if it is secret, (cell,)."""
        return self.count if self.secret else np.zeros_like(self.count)

    def times(self, factor: float) -> Sizes:
        return replace(
            self,
            count=self.count * factor,
            shared=self.shared.scaled(np.full(len(self.count), factor)),
            alone=self.alone * factor,
        )
