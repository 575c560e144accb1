"""Defines, for all rooms, the crosstab (sample counts by combination of public columns) and the types of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Level = str | int | bool

UNIT = 2**20
"""A record's contribution to a noisy sum is rounded to a multiple of 1/UNIT, so that sums are exact."""
MOST_COMBINATIONS = 2**62
"""Number of combinations of codes that one whole number tells apart."""
POOLED = "all"
TOTAL = "Total"


class SmallCounts(NamedTuple):
    """Numbers of sample counts: below a minimum, equal to 1, and in all."""

    few: int
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
        count = self.count if by is None else np.bincount(self.group(by)[0], weights=self.count)
        met = count[count > 0]
        return SmallCounts(int((met < least).sum()), int((met == 1).sum()), len(met))

    def crossed(self) -> Crosstab:
        """The same counts over all combinations of levels, with 0 if there is no record, in the order of `codes`."""
        sizes = [len(self.levels[name]) for name in self.codes]
        every = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), dtype=np.int64)
        place = np.ravel_multi_index(tuple(self.codes.values()), sizes) if sizes else np.zeros(len(self), dtype=np.int64)
        count = np.zeros(every.shape[1], dtype=np.int64)
        count[place] = self.count
        codes = {name: column.astype(np.int32) for name, column in zip(self.codes, every, strict=True)}
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
        shown = {label: inside.get(label, 0) + max(number, least * (number > 0)) for label, number in left_out.items()}
        return replace(self, sampled=shown)

    def rows_of(self, stratum: int) -> slice:
        """The crosstab rows of a stratum. They are contiguous, because rows are sorted by stratum first."""
        return slice(self._stratum_edges[stratum], self._stratum_edges[stratum + 1])

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
