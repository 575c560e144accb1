"""For `tables`, `publish` and `quality`: public reference records by cell.

A donor is a whole tuple (weight, outcomes), as in a hot deck. Donors are public because the reference is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.core.records import Codes, Floats, Ints
from dpdist.estimation.history import PeriodTotals

MOST = 10_000
"""Largest number of donors of a cell. More donors are thinned to this many, evenly by outcome."""
DONORS = "donors.parquet"
"""Name of the file of donors, which are records of the reference, in the folder `released/`."""
FEWEST = 20
"""A cell with fewer donors uses the donors of a wider group."""
OUTCOME = "outcome "
"""Prefix of the names of the outcomes' columns."""
COPIED = "copied "
"""Prefix of the names of columns that the job copies."""
LEVEL = "level "
"""Prefix of the names of columns with the levels of records in crosses that the file lacks, as positions in it."""


@dataclass(frozen=True, eq=False)
class AbsentRecords:
    """A reference's records in crosses of columns that the current file lacks. No synthetic record is taken from them.

    `codes` (record, column) are levels of `columns`; `weight` is (record,), and `outcomes` (record, outcome).
    """

    columns: tuple[str, ...]
    codes: Codes
    weight: Floats
    outcomes: Floats

    def by(self, columns: Sequence[str]) -> AbsentRecords | None:
        """Those with a weight above 0 by these columns alone, in order of levels, outcomes and weight; None without any."""
        codes = self.codes[:, [self.columns.index(name) for name in columns]]
        order = np.lexsort((self.weight, *self.outcomes.T[::-1], *codes.T[::-1]))
        order = order[self.weight[order] > 0]
        return AbsentRecords(tuple(columns), codes[order], self.weight[order], self.outcomes[order]) if len(order) else None

    def within(self, levels: Mapping[str, int]) -> AbsentRecords:
        """Those with these levels of some columns."""
        kept = np.ones(len(self.weight), dtype=np.bool_)
        for name, level in levels.items():
            kept &= self.codes[:, self.columns.index(name)] == level
        return AbsentRecords(self.columns, self.codes[kept], self.weight[kept], self.outcomes[kept])

    def table(self, outcomes: Sequence[str]) -> pa.Table:
        """One row for every record."""
        levels = {LEVEL + name: pa.array(self.codes[:, k].copy()) for k, name in enumerate(self.columns)}
        values = {OUTCOME + name: pa.array(self.outcomes[:, k].copy()) for k, name in enumerate(outcomes)}
        return pa.table({"weight": pa.array(self.weight), **values, **levels})

    @classmethod
    def from_table(cls, table: pa.Table, outcomes: Sequence[str]) -> Self:
        """The inverse of `table`."""
        columns = tuple(name.removeprefix(LEVEL) for name in table.column_names if name.startswith(LEVEL))
        codes = [np.zeros((len(table), 0), dtype=np.int32), *(table.column(LEVEL + name).to_numpy() for name in columns)]
        values = np.column_stack([table.column(OUTCOME + name).to_numpy() for name in outcomes])
        return cls(columns, np.column_stack(codes).astype(np.int32), table.column("weight").to_numpy(), values)


@dataclass(frozen=True, eq=False)
class Donors:
    """Donors in order of their cell, and within a cell in order of outcomes and weight.

    `cell` (record,) is a cell's number in the stratum; `weight` (record,) is above 0; `outcomes` is (record, outcome).
    `copied` has the donors' values in further columns, which the job lists. `absent` are no donors: the package learns
    levels from them. `history` are totals of earlier periods since the reference.
    """

    cell: Ints
    weight: Floats
    outcomes: Floats
    copied: pa.Table | None = None
    absent: AbsentRecords | None = None
    history: tuple[PeriodTotals, ...] = ()

    @classmethod
    def of(cls, cell: Codes, weight: Floats, outcomes: Floats, copied: pa.Table | None = None) -> Self:
        """Donors from a reference's records with a weight above 0, at most MOST in a cell."""
        order = np.lexsort((weight, *outcomes.T[::-1], cell))
        order = order[weight[order] > 0]
        _, start, size = np.unique(cell[order], return_index=True, return_counts=True)
        kept = [begin + _evenly(0.5, min(n, MOST), n) for begin, n in zip(start, size, strict=True)]
        order = order[np.concatenate(kept)] if kept else order
        taken = None if copied is None else copied.take(pa.array(order))
        return cls(cell[order].astype(np.int64), weight[order], outcomes[order], taken)

    @classmethod
    def none(cls, outcomes: int) -> Self:
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, outcomes)))

    def __len__(self) -> int:
        return len(self.cell)

    def by_levels(self, columns: Sequence[str], codes: Ints) -> AbsentRecords:
        """All records, those in crosses that the file lacks too, by levels. `codes` (cell, column) are those of cells."""
        if (self.cell < 0).any():
            raise IndexError("a cell below 0")
        present = AbsentRecords(tuple(columns), codes[self.cell].astype(np.int32), self.weight, self.outcomes)
        if (absent := self.absent) is None:
            return present
        if absent.columns != present.columns:
            raise ValueError("other columns")
        pairs = ((getattr(one, name) for one in (present, absent)) for name in ("codes", "weight", "outcomes"))
        return AbsentRecords(present.columns, *(np.concatenate(list(pair)) for pair in pairs))

    def by_cell(self, codes: Codes) -> DonorsByCell:
        """The donors of every cell; `codes` (cell, column) are the levels of the table's columns."""
        return DonorsByCell(self, codes)


@dataclass(frozen=True, eq=False)
class DonorsByCell:
    """The donors of every cell, in order of outcomes and weight.

    A cell with fewer than FEWEST donors uses the donors of all cells with the same levels in its first columns. As many of
    these columns are used as leave enough donors.
    """

    records: Donors
    codes: Codes

    @cached_property
    def _shared(self) -> Ints:
        """The number of first columns in which a cell's donors have its levels, (cell,)."""
        columns = self.codes.shape[1]
        shared = np.zeros(len(self.codes), dtype=np.int64)
        for number in range(1, columns + 1):
            group = self._groups(number)
            held = np.bincount(group[self.records.cell], minlength=int(group.max(initial=0)) + 1)
            shared[held[group] >= FEWEST] = number
        return shared

    def _groups(self, shared: int) -> Ints:
        """The group of every cell by its levels in the first columns, (cell,); a cell is a group of all columns."""
        if shared == self.codes.shape[1]:
            return np.arange(len(self.codes))
        return np.unique(self.codes[:, :shared], axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)

    @cached_property
    def group(self) -> Ints:
        """Numbers of the cells' groups, (cell,). Cells of one group use the same donors."""
        number = np.zeros(len(self.codes), dtype=np.int64)
        for shared in np.unique(self._shared).tolist():
            cells = self._shared == shared
            number[cells] = int(number.max(initial=0)) + 1 + self._groups(shared)[cells]
        return np.asarray(np.unique(number, return_inverse=True)[1].reshape(-1), dtype=np.int64)

    @cached_property
    def _ordered(self) -> dict[int, tuple[Ints, Ints, Ints]]:
        """By number of shared columns: positions in order of groups, the groups of cells, and where each group begins."""
        made = {}
        for shared in np.unique(self._shared).tolist():
            group = self._groups(shared)
            of_donor = group[self.records.cell]
            order = np.lexsort((self.records.weight, *self.records.outcomes.T[::-1], of_donor))
            begins = np.searchsorted(of_donor[order], np.arange(int(group.max(initial=0)) + 2))
            made[shared] = order, group, begins
        return made

    def of_cell(self, cell: int) -> Ints:
        """Positions of a cell's donors."""
        order, group, begins = self._ordered[int(self._shared[cell])]
        return np.asarray(order[begins[group[cell]] : begins[group[cell] + 1]])

    def drawn(self, cell: int, count: int, rng: np.random.Generator) -> Ints:
        """Positions of `count` donors for a cell: a systematic sample in order of the first outcome, from a random start.

        Its distribution function is within one record of the donors' own, at any value. The positions are returned in
        random order.
        """
        positions = self.of_cell(cell)
        return np.asarray(rng.permutation(positions[_evenly(rng.random(), count, len(positions))]))


def _evenly(start: float, count: int, size: int) -> Ints:
    return np.asarray(np.minimum((start + np.arange(count)) * size / count, size - 1), dtype=np.int64)


def donors_table(donors: Mapping[str, Donors], outcomes: Sequence[str]) -> pa.Table:
    """A table of every stratum's donors, one row each; a cell's number is its position in the released parameters.

    Records in crosses that the file lacks follow, without a cell.
    """

    def strata(sizes: Sequence[int]) -> pa.DictionaryArray:
        labels = np.repeat(np.arange(len(donors), dtype=np.int32), sizes)
        return pa.DictionaryArray.from_arrays(pa.array(labels), pa.array(list(donors), pa.string()))

    stratum = strata([len(stratum_donors) for stratum_donors in donors.values()])
    cell, weight = (
        np.concatenate([getattr(stratum_donors, name) for stratum_donors in donors.values()]) for name in ("cell", "weight")
    )
    values = np.concatenate([stratum_donors.outcomes for stratum_donors in donors.values()])
    columns = {OUTCOME + name: pa.array(values[:, k].copy()) for k, name in enumerate(outcomes)}
    further = [stratum_donors.copied for stratum_donors in donors.values() if stratum_donors.copied is not None]
    copied = pa.concat_tables(further) if further else pa.table({})
    columns |= {COPIED + name: column for name, column in zip(copied.column_names, copied.columns, strict=True)}
    whole = pa.table({"stratum": stratum, "cell": cell, "weight": weight, **columns})
    every = [stratum_donors.absent for stratum_donors in donors.values()]
    absent = [None if one is None else one.table(outcomes) for one in every]
    if not (met := [one for one in absent if one is not None]):
        return whole
    sizes = [0 if one is None else len(one) for one in absent]
    further = pa.concat_tables(met).append_column("stratum", strata(sizes))
    return pa.concat_tables([whole, further], promote_options="default").combine_chunks()


def donors_from_table(table: pa.Table, outcomes: Sequence[str], copied: Sequence[str] = ()) -> dict[str, Donors]:
    """The inverse of `donors_table`; `copied` names the columns that the job copies."""
    rest = table.filter(pc.is_null(table.column("cell")))
    table = table.filter(pc.is_valid(table.column("cell"))) if len(rest) else table
    stratum, of_rest = (part.column("stratum").combine_chunks() for part in (table, rest))
    labels, codes = stratum.dictionary.to_pylist(), stratum.indices.to_numpy()
    cell, weight = (table.column(name).to_numpy() for name in ("cell", "weight"))
    values = np.column_stack([table.column(OUTCOME + name).to_numpy() for name in outcomes])
    masks: list[NDArray[np.bool_]] = [codes == k for k in range(len(labels))]
    further = table.select([COPIED + name for name in copied]).rename_columns(list(copied)) if copied else None
    made = {
        label: Donors(cell[rows], weight[rows], values[rows], None if further is None else further.filter(pa.array(rows)))
        for label, rows in zip(labels, masks, strict=True)
    }
    for label in of_rest.unique().to_pylist():
        absent = AbsentRecords.from_table(rest.filter(pc.equal(of_rest.cast(pa.string()), label)), outcomes)
        made[label] = replace(made[label], absent=absent)
    return made
