"""Numbers of records of base cells, public or predicted, and their changes. No other module of `tables` knows which.

Where they are secret, every cross of levels is a base cell. A reference of N records has n of them in a cell, which is
Poisson with mean N p (1 + e). p is the product of the columns' shares. e has random effects of columns, tables' cells,
pairs of columns and base cells, as the prediction of weights has (`effects_of`), here with the information N p of Poisson
counts. So cells that the reference lacks are expected to have few records, and not none. The file is expected
to have the reference's numbers times one factor, which its own noisy sums show.

Public numbers that have changed since the reference by more than chance show that sampling fractions have changed, and
weights with them, or that the population has, and weights have not (`changes_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints
from dpdist.mechanisms.tables.random_effects import Loadings, cell_index, components, effects_of, families

LEAST_NUMBER = 0.1
"""Smallest predicted number of records, relative to that of independent columns, and in records of the reference."""

BEYOND_CHANCE = 3.0
"""Standard deviations of a sample of single records beyond which a number has changed; a sample of groups varies more."""


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


@dataclass(frozen=True)
class NumberChanges:
    """Relative changes of weights by which populations stay the same with other public numbers of records, where these have
    changed beyond chance: of levels and tables' cells, (cell, change), and of all records.
    """

    of_cells: scipy.sparse.csr_array
    of_all: float
    of_numbers: Floats
    """Factors of shares of records that crosses had before, (cross,): 0 for those of levels that are gone."""

    @classmethod
    def none(cls, cells: int) -> NumberChanges:
        return cls(scipy.sparse.csr_array((cells, 0)), 0.0, np.zeros(0))

    @classmethod
    def of(
        cls, codes: Ints, count: Floats, tables: Sequence[Sequence[int]], before: Ints | Codes, number: Floats
    ) -> NumberChanges:
        """Arguments are those of `changes_of`."""
        of_cells, of_numbers = _compared(codes, count, tables, before, number)
        return cls(of_cells, change_of(float(count.sum()), float(number.sum())), of_numbers)

    def room(self, drift: float, coordinates: int, together: bool) -> Floats:
        """Relative drift of cells' weights and outcomes that limits have room for, (cell, coordinate)."""
        room = np.full((self.of_cells.shape[0], coordinates), drift)
        of_cells = np.asarray(self.of_cells.power(2).sum(axis=1)).ravel()
        room[:, 0] = np.sqrt(drift**2 + of_cells + together * self.of_all**2)
        return room


def changes_in_sums(changes: scipy.sparse.csr_array, predicted: Floats) -> Loadings | None:
    """Changes of cells, (cell, change), in predicted sums of weights, (cell,); None if there is no change."""
    number = changes.shape[1]
    if not number:
        return None
    design = (scipy.sparse.diags_array(predicted) @ changes).tocsr()
    variance = np.asarray(design.power(2).sum(axis=1)).ravel()
    return Loadings(design, np.ones(number), np.zeros((number, 0)), variance)


def change_of(now: float, then: float) -> float:
    """The relative change of weights by which a population stays the same with another number of records, or 0 where the
    number is within chance.
    """
    log_ratio = float(np.log(then / now))
    return float(np.expm1(log_ratio)) if abs(log_ratio) > BEYOND_CHANCE * np.sqrt(1.0 / now + 1.0 / then) else 0.0


def changes_of(
    codes: Ints, count: Floats, tables: Sequence[Sequence[int]], before: Ints | Codes, number: Floats
) -> scipy.sparse.csr_array:
    """Relative changes of weights by which populations of levels and tables' cells stay the same share of all with other
    numbers of records, (cell, change).

    `codes` (cell, column) and `count` are the file's, `before` and `number` the reference's or an earlier period's. Columns
    of few levels come first, then tables: numbers are compared with those that changes so far let expect, so that a change
    of a state is none of its counties. Ratios within chance are left out, and so are levels that only one of both has.
    """
    return _compared(codes, count, tables, before, number)[0]


def _compared(
    codes: Ints, count: Floats, tables: Sequence[Sequence[int]], before: Ints | Codes, number: Floats
) -> tuple[scipy.sparse.csr_array, Floats]:
    """`changes_of`, and factors of the shares of numbers of records that crosses had before (`NumberChanges`)."""
    both, cells = np.concatenate([codes, before]), len(codes)
    columns = [cell_index(both[:, [k]]) for k in range(codes.shape[1])]
    crosses = [cell_index(both[:, list(by)]) for by in tables if len(by) > 1]
    in_both = _in_both(columns, np.concatenate([count, np.zeros(len(before))]), np.append(np.zeros(cells), number))
    count, number, factor = count * in_both[:cells], number * in_both[cells:], np.ones(len(before))
    changes = [scipy.sparse.csr_array((cells, 0))]
    for index in (*sorted(columns, key=np.max), *sorted(crosses, key=np.max)):
        now_in, then_in = np.split(index, [cells])
        now, expected, variance = (
            np.bincount(place, values, 1 + int(index.max()))
            for place, values in ((now_in, count), (then_in, number * factor), (then_in, number * factor**2))
        )
        compared = np.flatnonzero((now > 0.0) & (expected > 0.0))
        ratio, chance = np.zeros(len(now)), np.zeros(len(now))
        ratio[compared] = np.log(now[compared] * expected.sum() / (expected[compared] * now.sum()))
        chance[compared] = np.sqrt(1.0 / now[compared] + variance[compared] / expected[compared] ** 2)
        changed = np.abs(ratio) > BEYOND_CHANCE * chance
        rows, place = np.flatnonzero(changed[now_in]), np.cumsum(changed) - 1
        entries = np.expm1(-ratio[now_in[rows]]), (rows.astype(np.int32), place[now_in[rows]].astype(np.int32))
        changes.append(scipy.sparse.csr_array(entries, shape=(cells, int(changed.sum()))))
        factor *= np.where(changed, np.exp(ratio), 1.0)[then_in]
    return scipy.sparse.hstack(changes).tocsr(), factor * in_both[cells:]


def _in_both(columns: Sequence[Codes], count: Floats, number: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """False for cells of levels that only one of both samples has, and the other would have beyond chance, (cell,)."""
    in_both, scale = np.ones(len(count), dtype=bool), count.sum() / number.sum()
    for index in columns:
        now, then = np.bincount(index, count), np.bincount(index, number)
        most = np.where(now == 0.0, scale * then, np.where(then == 0.0, now, 0.0))
        in_both &= most[index] <= BEYOND_CHANCE**2
    return in_both


def changes_in_turn(
    codes: Ints, numbers: Sequence[Floats], tables: Sequence[Sequence[int]], before: Ints | Codes, number: Floats
) -> Iterator[scipy.sparse.csr_array]:
    """`changes_of` from period to period, (cell, change), relative to weights of the reference, `before` and `number`:
    every period's changes multiply what weights have become before. Where weights may have fallen, the population may have
    grown instead, and changes are relative to the reference's.
    """
    level = np.ones(len(codes))
    for count in numbers:
        changes = changes_of(codes, count, tables, before, number)
        yield (scipy.sparse.diags_array(np.maximum(level, 1.0)) @ changes).tocsr()
        level, before, number = level * np.exp(changes.log1p().sum(axis=1)), codes, count
