"""The crosstab (sample counts by combination of public columns), cells of tables over it, and the types of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Indices = Codes | Ints
Singles = NDArray[np.float32]
Level = str | int | bool

UNIT = 2**20
"""A record's contribution to a noisy sum is rounded to a multiple of 1/UNIT, so that sums are exact."""
MOST_COMBINATIONS = 2**62
"""Number of combinations of codes that one whole number tells apart."""
BATCH_STRATA, BATCH_RECORDS = 64, 2**18
"""Largest number of strata in a batch (half a second of work, and few enough for 10,000 strata to occupy 64 workers), and
of records in a batch of several strata.
"""
POOLED = "all"
TOTAL = "Total"


class SmallCounts(NamedTuple):
    """Numbers of sample counts: below a minimum, equal to 1, and in all."""

    below_minimum: int
    single: int
    every: int


def grouped(columns: Sequence[Codes]) -> tuple[Ints, Ints]:
    """The number of every row's combination of codes, in sorted order, (row,), and the first row of each that occurs.

    Codes are not negative. There is at least one column.
    """
    key, size = columns[0].astype(np.int64), int(columns[0].max(initial=-1)) + 1
    for column in columns[1:]:
        levels = int(column.max(initial=-1)) + 1
        if size * levels >= MOST_COMBINATIONS:
            key = np.unique(key, return_inverse=True)[1].reshape(-1)
            size = int(key.max(initial=-1)) + 1
        key, size = key * levels + column, size * levels
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    return group.reshape(-1).astype(np.int64), first.astype(np.int64)


def first_rows(table: Codes, wanted: Codes) -> Codes:
    """For each row of `wanted`, the first row of `table` with the same codes, or −1; both are (row, column)."""
    both = np.concatenate([table, wanted])
    group = grouped([np.zeros(len(both), dtype=np.int32), *both.T])[0]
    first = np.full(int(group.max(initial=-1)) + 1, -1, dtype=np.int32)
    first[group[: len(table)][::-1]] = np.arange(len(table), dtype=np.int32)[::-1]
    return first[group[len(table) :]]


@dataclass(frozen=True)
class Crosstab:
    """Sample counts, one row for each combination of the public columns, sorted by stratum first.

    `codes[name]` are positions in `levels[name]`, (row,). `count` is the number of sample records, (row,). `sampled` has
    the number of records that were drawn in every design stratum, by its levels, where a universe or a rule leaves
    records out. The crosstab then is that of a domain.
    """

    codes: Mapping[str, Codes]
    levels: Mapping[str, tuple[Level, ...]]
    count: Ints
    strata: tuple[str, ...]
    design_strata: tuple[str, ...]
    sampled: Mapping[tuple[Level, ...], int] | None = None

    def __len__(self) -> int:
        return len(self.count)

    def group(self, names: Sequence[str]) -> tuple[Codes, list[tuple[Level, ...]]]:
        """The group of every row, (row,), and the levels of each group that occurs, in sorted order."""
        if not names:
            return np.zeros(len(self), dtype=np.int32), [()]
        group, first = grouped([self.codes[name] for name in names])
        columns = ([self.levels[name][code] for code in self.codes[name][first].tolist()] for name in names)
        return group.astype(np.int32), list(zip(*columns, strict=True))

    def codes_of(self, names: Iterable[str], rows: slice | Codes | Ints = slice(None)) -> Codes:
        """Codes of these columns, (row, column)."""
        none = np.zeros((len(self.count[rows]), 0), dtype=np.int32)
        return np.column_stack([none, *(self.codes[name][rows] for name in names)])

    @cached_property
    def stratum(self) -> Codes:
        return self.group(self.strata)[0]

    @cached_property
    def stratum_labels(self) -> tuple[str, ...]:
        if not self.strata:
            return (POOLED,)
        return tuple(" / ".join(str(level) for level in levels) for levels in self.group(self.strata)[1])

    @cached_property
    def design_stratum(self) -> Codes:
        return self.group(self.design_strata)[0]

    @cached_property
    def sampled_records(self) -> Ints:
        """Number of records drawn in each design stratum, (design stratum,), with those that are left out."""
        group, labels = self.group(self.design_strata)
        if self.sampled is None:
            return np.bincount(group, weights=self.count, minlength=len(labels)).astype(np.int64)
        return np.array([self.sampled.get(label, 0) for label in labels], dtype=np.int64)

    @cached_property
    def sampled_elsewhere(self) -> int:
        """Number of records drawn in design strata without a row, all of whose records are left out."""
        return 0 if self.sampled is None else sum(self.sampled.values()) - int(self.sampled_records.sum())

    @cached_property
    def stratum_count(self) -> Ints:
        """Number of records in each stratum, (stratum,)."""
        counts = np.zeros(len(self.stratum_labels), dtype=np.int64)
        np.add.at(counts, self.stratum, self.count)
        return counts

    def below(self, least: int, by: Sequence[str] | None = None) -> SmallCounts:
        """Counts that are positive and below `least`. With `by`, counts are by combinations of these columns alone."""
        group = grouped([self.codes[name] for name in by])[0] if by else np.zeros(len(self), dtype=np.int64)
        count = self.count if by is None else np.bincount(group, weights=self.count)
        positive = count[count > 0]
        return SmallCounts(int((positive < least).sum()), int((positive == 1).sum()), len(positive))

    def crossed(self) -> Crosstab:
        """The same counts over all combinations of levels, with 0 if there is no record, in the order of `codes`."""
        sizes = [len(self.levels[name]) for name in self.codes]
        combinations = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), dtype=np.int64)
        place = np.ravel_multi_index(tuple(self.codes.values()), sizes) if sizes else np.zeros(len(self), dtype=np.int64)
        count = np.zeros(combinations.shape[1], dtype=np.int64)
        count[place] = self.count
        codes = {name: column.astype(np.int32) for name, column in zip(self.codes, combinations, strict=True)}
        return replace(self, codes=codes, count=count)

    def pooled(self) -> Crosstab:
        return replace(self, strata=())

    def stratified(self, by: Sequence[str]) -> Crosstab:
        """The crosstab under another design, whose strata are combinations of these columns and have its records alone."""
        return replace(self, design_strata=tuple(by), sampled=None)

    @cached_property
    def by_row(self) -> Crosstab:
        """The crosstab under a design whose strata are its rows."""
        return self.stratified(tuple(self.codes))

    def least_left_out(self, least: int) -> Crosstab:
        """The crosstab with `least` records left out of a design stratum where fewer are, but not none.

        So numbers of drawn records single nobody out.
        """
        if self.sampled is None:
            return self
        group, labels = self.group(self.design_strata)
        count = np.bincount(group, weights=self.count, minlength=len(labels)).astype(np.int64)
        inside = dict(zip(labels, count.tolist(), strict=True))
        left_out = {label: number - inside.get(label, 0) for label, number in self.sampled.items()}
        numbers = {label: inside.get(label, 0) + max(number, least * (number > 0)) for label, number in left_out.items()}
        return replace(self, sampled=numbers)

    def rows_of(self, stratum: int) -> slice:
        """The crosstab rows of a stratum. They are contiguous, because rows are sorted by stratum first."""
        return slice(self._stratum_edges[stratum], self._stratum_edges[stratum + 1])

    def rows_of_batch(self, batch: range) -> slice:
        """The crosstab rows of a batch of strata."""
        return slice(self.rows_of(batch.start).start, self.rows_of(batch.stop - 1).stop)

    def batches(self) -> list[range]:
        """Consecutive strata in batches, which depend on sizes alone, never on workers.

        A stratum with more than `BATCH_RECORDS` is a batch alone.
        """
        batches, start, records = list[range](), 0, 0
        for stratum, count in enumerate(self.stratum_count.tolist()):
            if stratum > start and (stratum - start == BATCH_STRATA or records + count > BATCH_RECORDS):
                batches.append(range(start, stratum))
                start, records = stratum, 0
            records += count
        return [*batches, range(start, len(self.stratum_count))]

    def is_large(self, batch: range) -> bool:
        """True for a stratum whose records are too many for one result."""
        return int(self.stratum_count[batch.start]) > BATCH_RECORDS

    @cached_property
    def _stratum_edges(self) -> list[int]:
        """The first crosstab row of every stratum, and the number of rows, (stratum + 1,)."""
        edges: list[int] = np.searchsorted(self.stratum, np.arange(len(self.stratum_labels) + 1)).tolist()
        return edges

    def expand(self) -> Codes:
        """The crosstab row of every sample record, in the order of the crosstab, (record,)."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.count)

    def expanded(self, rows: slice, size: int) -> Iterator[Codes]:
        """The crosstab rows of the records in these rows, (record,), in parts of `size` records (the last: at most)."""
        edges = np.concatenate([[0], np.cumsum(self.count[rows])])
        for start in range(0, int(edges[-1]), size):
            inside = np.diff(np.clip(edges, start, start + size))
            yield np.repeat(np.arange(rows.start, rows.stop, dtype=np.int32), inside)


def rows_of_groups(groups: Ints, number: int) -> list[Ints]:
    """The positions of every group's entries, in order. One sort serves all groups, so that many cost as much as few."""
    sizes = np.bincount(groups, minlength=number)
    return np.split(np.argsort(groups, kind="stable"), np.cumsum(sizes)[:-1])


Universe: TypeAlias = Mapping[str, Sequence[object]]
"""Whose figures a table has: for each column the levels of records that are in the table."""
MANY_ROWS = 50_000
"""Number of crosstab rows from which sums over tables' cells take long."""
NAMED = 10
"""Largest number of cells that a line names."""
ROWS_OF_PART = 64
"""Largest number of rows whose draws are summed in their own precision."""


def quantiles(values: Floats, levels: Sequence[float], axis: int) -> list[Floats]:
    """`np.quantile` of many short samples, in a fifth of its time and in the precision of the values."""
    ordered, last = np.sort(values, axis=axis), values.shape[axis] - 1

    def at(level: float) -> Floats:
        below = int(level * last)
        left, right = (ordered.take(min(place, last), axis=axis) for place in (below, below + 1))
        part = level * last - below
        between = left + (right - left) * part if part < 0.5 else right - (right - left) * (1.0 - part)
        return np.where(np.isnan(ordered.take(last, axis=axis)), np.nan, between)

    return list(map(at, levels))


def quotient(above: Floats, below: Floats) -> Floats:
    """Elementwise above / below; infinite or NaN where `below` is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(above / below)


def quotient_or(otherwise: Floats | float, above: Floats | Ints | float, below: Floats | Ints) -> Floats:
    """Elementwise above / below where `below` is above 0, and `otherwise` elsewhere."""
    result = np.full(np.broadcast_shapes(np.shape(above), below.shape), otherwise, dtype=np.float64)
    return np.divide(above, below, out=result, where=below > 0.0)


def no_draws(draws: int, rows: int, *more: int) -> Floats:
    """An array for draws of rows, (draw, row, …). Those of many rows have single precision, and lie in memory as sparse
    sums over rows read them. Rounding is far below the errors that a few draws have.
    """
    many = rows >= MANY_ROWS
    return np.empty((draws, rows, *more), dtype=np.float32 if many else np.float64, order="F" if many else "C")


@dataclass(frozen=True)
class Cells:
    """The cells of a table over a crosstab.

    `labels` has a text for each column and cell. `membership` is a matrix of 0 and 1, (cell, crosstab row).
    """

    by: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    membership: scipy.sparse.csr_array
    universe: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Columns with the levels that records in any cell have; empty: the cells hold all records."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> list[str]:
        return [cell_name(label) for label in self.labels]

    @property
    def per_record(self) -> int:
        """Number of cells that contain a record, the same for every record of the table's universe."""
        return int(self.membership.sum(axis=0).max())

    def sums(self, n: Floats, values: Floats) -> Floats:
        """Sums of n (row,) or (side, row) times values (row, side) over the rows of every cell, (cell, side).

        Of many rows, parts of base cells are summed first, few rows in the precision of values, and then all in double: a
        row is in up to 2^columns cells. A matrix then has n, because values times n would take much memory.
        """
        if len(values) < MANY_ROWS or n.ndim > 1:
            return np.asarray(self.membership @ (np.atleast_2d(n).T * values))
        margins, base = self._by_base_cell
        of_rows = (n[base.indices].astype(values.dtype, copy=False), base.indices, base.indptr)
        return np.asarray(margins @ (scipy.sparse.csr_array(of_rows, shape=base.shape) @ values).astype(np.float64))

    @cached_property
    def _by_base_cell(self) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
        """Two matrices whose product is `membership`: (cell, part of a base cell) and (part, row).

        The first cell of a row, in the order of levels, is its base cell, for "Total" comes last. Parts have few rows, so
        that sums of single precision keep its digits.
        """
        by_row = scipy.sparse.csc_array(self.membership)
        by_row.sort_indices()
        inside = np.flatnonzero(np.diff(by_row.indptr))
        cell = by_row.indices[by_row.indptr[inside]]
        order = np.argsort(cell, kind="stable")
        begins, place = np.diff(cell[order], prepend=-1) != 0, np.arange(len(order))
        starts = np.flatnonzero((place - np.maximum.accumulate(begins * place)) % ROWS_OF_PART == 0)
        base = (np.ones(len(order)), inside[order], np.append(starts, len(order)))
        form = (len(starts), by_row.shape[1])
        return scipy.sparse.csr_array(by_row[:, inside[order[starts]]]), scipy.sparse.csr_array(base, shape=form)


def cells_of_record(by: Sequence[object], margins: bool) -> int:
    """Number of cells of `cross` that contain a record, in any crosstab."""
    return 2 ** len(by) if margins else 1


def cell_name(label: Sequence[str]) -> str:
    return ", ".join(label) or TOTAL


def is_margin(label: Sequence[str]) -> bool:
    """True for a margin: a cell that is a total over some column."""
    return not label or TOTAL in label


def first_named(cells: Sequence[str]) -> str:
    more = f"; and {len(cells) - NAMED:,} more" if len(cells) > NAMED else ""
    return "; ".join(cells[:NAMED]) + more


def counted_and_named(labels: Sequence[Sequence[str]]) -> str:
    """The number of published cells, the number of margins among them, and their first names, margins first."""
    margins = [label for label in labels if is_margin(label)]
    base = [label for label in labels if not is_margin(label)]
    kinds = [f"{len(margins):,} margin{'s'[: len(margins) != 1]}"] if margins else []
    kinds += [f"{len(base):,} base cell{'s'[: len(base) != 1]}"] if base else []
    return f"{' and '.join(kinds)} ({first_named([cell_name(label) for label in (*margins, *base)])})"


def cross(crosstab: Crosstab, by: Sequence[str], margins: bool, universe: Universe | None = None) -> Cells:
    """All cells of columns `by`, even empty ones, in the declared order of levels; "Total" comes last.

    Under a `universe`, only rows with its levels are in cells, and other levels of its columns have no cells.
    """
    labels, matrix = _labelled(crosstab, by, margins, universe)
    return Cells(tuple(by), labels, matrix, stated_universe(universe))


def stated_universe(universe: Universe | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """A universe as `Cells` has it."""
    return tuple((name, tuple(map(str, levels))) for name, levels in (universe or {}).items())


def cross_labels(
    crosstab: Crosstab, by: Sequence[str], margins: bool, universe: Universe | None = None
) -> tuple[tuple[str, ...], ...]:
    """Labels of the cells of `cross`, without their records."""
    columns = zip(by, _kept_codes(crosstab, by, universe), strict=True)
    return tuple(
        product(*([*(str(crosstab.levels[name][k]) for k in codes), *[TOTAL] * margins] for name, codes in columns))
    )


def number_of_cells(crosstab: Crosstab, by: Sequence[str], margins: bool, universe: Universe | None = None) -> int:
    """The number of cells of `cross`."""
    return prod(len(codes) + margins for codes in _kept_codes(crosstab, by, universe))


def _kept_codes(crosstab: Crosstab, by: Sequence[str], universe: Universe | None) -> list[Ints]:
    """Codes of every column's levels that have cells."""
    members = {name: np.array(codes_of(crosstab.levels[name], levels)) for name, levels in (universe or {}).items()}
    return [members.get(name, np.arange(len(crosstab.levels[name]))) for name in by]


def cell_rows(crosstab: Crosstab, by: Sequence[str]) -> dict[tuple[str, ...], Ints]:
    """Rows of the crosstab in each cell of `cross`, margins included, by the cell's label."""
    labels, matrix = _labelled(crosstab, by, True, None)
    return dict(zip(labels, np.split(matrix.indices, matrix.indptr[1:-1]), strict=True))


def _labelled(
    crosstab: Crosstab, by: Sequence[str], margins: bool, universe: Universe | None
) -> tuple[tuple[tuple[str, ...], ...], scipy.sparse.csr_array]:
    """Labels and membership of the cells of `cross`."""
    members = {name: np.array(codes_of(crosstab.levels[name], levels)) for name, levels in (universe or {}).items()}
    within = np.ones(len(crosstab), dtype=bool)
    for name, codes in members.items():
        within &= np.isin(crosstab.codes[name], codes)
    inside = np.flatnonzero(within)
    levels = _kept_codes(crosstab, by, universe)
    sizes = [len(of) + margins for of in levels]
    code_of_row = [np.searchsorted(of, crosstab.codes[name][inside]) for name, of in zip(by, levels, strict=True)]
    cells = list[Ints]()
    for total in product(*([False, True] if margins else [False] for _ in by)):
        cell = np.zeros(len(inside), dtype=np.int64)
        for code, size, summed in zip(code_of_row, sizes, total, strict=True):
            cell = cell * size + (size - 1 if summed else code)
        cells.append(cell)
    labels, places = cross_labels(crosstab, by, margins, universe), (np.concatenate(cells), np.tile(inside, len(cells)))
    return labels, scipy.sparse.csr_array((np.ones(len(places[0])), places), shape=(len(labels), len(crosstab)))


def codes_of(levels: Sequence[object], subset: Sequence[object]) -> tuple[int, ...]:
    """Positions of the kept levels among all, in the order of all."""
    texts = set(map(str, subset))
    return tuple(code for code, level in enumerate(levels) if str(level) in texts)


def split_by(cells: Cells, groups: Codes) -> tuple[scipy.sparse.csr_array, Codes, Codes]:
    """Splits cells by a grouping of crosstab rows: membership (pair, crosstab row), and the cell and group of each pair."""
    rows = cells.membership
    cell, number = np.repeat(np.arange(len(cells)), np.diff(rows.indptr)), int(groups.max()) + 1 if len(groups) else 1
    key = cell * number + groups[rows.indices]
    if (key[1:] >= key[:-1]).all():  # as where groups follow the order of rows
        start = np.flatnonzero(np.diff(key, prepend=-1))
        distinct, by_pair = key[start], (np.ones(len(key)), rows.indices, np.append(start, len(key)))
        matrix = scipy.sparse.csr_array(by_pair, shape=(len(distinct), rows.shape[1]))
    else:
        distinct, pair = np.unique(key, return_inverse=True)
        matrix = scipy.sparse.csr_array((np.ones(len(pair)), (pair, rows.indices)), shape=(len(distinct), rows.shape[1]))
    return matrix, (distinct // number).astype(np.int32), (distinct % number).astype(np.int32)
