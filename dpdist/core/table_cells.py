"""Cells of a table, for `estimation`, `publish` and `quality`: combinations of levels, with margins (level "Total")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import scipy

from dpdist.core.records import TOTAL, Codes, Frame, Ints

Universe: TypeAlias = Mapping[str, Sequence[object]]
"""Whose figures a table has: for each column the levels of records that are in the table."""
NAMED = 10
"""Largest number of cells that a line names."""


@dataclass(frozen=True)
class Cells:
    """The cells of a table over a frame.

    `labels` has a text for each column and cell. `membership` is a matrix of 0 and 1, (cell, frame row).
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


def cells_of_record(by: Sequence[str], margins: bool) -> int:
    """Number of cells of `cross` that contain a record, in any frame."""
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


def cross(frame: Frame, by: Sequence[str], margins: bool, universe: Universe | None = None) -> Cells:
    """All cells of columns `by`, even empty ones, in the declared order of levels; "Total" comes last.

    Under a `universe`, only rows with its levels are in cells, and other levels of its columns have no cells.
    """
    rows = cell_rows(frame, by, margins, universe)
    indptr = np.concatenate([[0], np.cumsum([len(inside) for inside in rows.values()])])
    indices = np.concatenate(list(rows.values())) if rows else np.empty(0, dtype=np.int64)
    matrix = scipy.sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(len(rows), len(frame)))
    within = tuple((name, tuple(map(str, levels))) for name, levels in (universe or {}).items())
    return Cells(tuple(by), tuple(rows), matrix, within)


def cell_rows(
    frame: Frame, by: Sequence[str], margins: bool, universe: Universe | None = None
) -> dict[tuple[str, ...], Ints]:
    """Rows of the frame in each cell of `cross`, by the cell's label."""
    kept = {name: codes_of(frame.levels[name], levels) for name, levels in (universe or {}).items()}
    within = np.ones(len(frame), dtype=bool)
    for name, codes in kept.items():
        within &= np.isin(frame.codes[name], codes)
    every = {name: len(frame.levels[name]) for name in by}
    axes = [(*kept.get(name, range(every[name])), *([every[name]] if margins else [])) for name in by]
    rows = dict[tuple[str, ...], Ints]()
    for codes in product(*axes):
        inside = within.copy()
        label = []
        for name, code in zip(by, codes, strict=True):
            levels = frame.levels[name]
            if code < len(levels):
                inside &= frame.codes[name] == code
                label.append(str(levels[code]))
            else:
                label.append(TOTAL)
        rows[tuple(label)] = np.flatnonzero(inside)
    return rows


def codes_of(levels: Sequence[object], kept: Sequence[object]) -> tuple[int, ...]:
    """Positions of the kept levels among all, in the order of all."""
    texts = set(map(str, kept))
    return tuple(code for code, level in enumerate(levels) if str(level) in texts)


def split_by(cells: Cells, groups: Codes) -> tuple[scipy.sparse.csr_array, Codes, Codes]:
    """Splits cells by a grouping of frame rows: membership (pair, frame row), and the cell and group of each pair."""
    coo = cells.membership.tocoo()
    number = int(groups.max()) + 1 if len(groups) else 1
    key = coo.row.astype(np.int64) * number + groups[coo.col]
    distinct, pair = np.unique(key, return_inverse=True)
    matrix = scipy.sparse.csr_array((np.ones(len(pair)), (pair, coo.col)), shape=(len(distinct), cells.membership.shape[1]))
    return matrix, (distinct // number).astype(np.int32), (distinct % number).astype(np.int32)
