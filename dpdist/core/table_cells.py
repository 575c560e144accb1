"""Cells of a table, for `estimation`, `publish` and `quality`: combinations of levels, with margins (level "Total")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import scipy

from dpdist.core.records import TOTAL, Codes, Crosstab, Ints

Universe: TypeAlias = Mapping[str, Sequence[object]]
"""Whose figures a table has: for each column the levels of records that are in the table."""
NAMED = 10
"""Largest number of cells that a line names."""


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


def cells_of_record(by: Sequence[str], margins: bool) -> int:
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
    labels, ends, rows = _rows_of_cells(crosstab, by, margins, universe)
    matrix = scipy.sparse.csr_array((np.ones(len(rows)), rows, ends), shape=(len(labels), len(crosstab)))
    within = tuple((name, tuple(map(str, levels))) for name, levels in (universe or {}).items())
    return Cells(tuple(by), labels, matrix, within)


def cell_rows(crosstab: Crosstab, by: Sequence[str], margins: bool) -> dict[tuple[str, ...], Ints]:
    """Rows of the crosstab in each cell of `cross`, by the cell's label."""
    labels, ends, rows = _rows_of_cells(crosstab, by, margins, None)
    return dict(zip(labels, np.split(rows, ends[1:-1]), strict=True))


def _rows_of_cells(
    crosstab: Crosstab, by: Sequence[str], margins: bool, universe: Universe | None
) -> tuple[tuple[tuple[str, ...], ...], Ints, Ints]:
    """Labels of the cells of `cross`, where the rows of each begin and end, and the rows of all cells in turn."""
    members = {name: np.array(codes_of(crosstab.levels[name], levels)) for name, levels in (universe or {}).items()}
    within = np.ones(len(crosstab), dtype=bool)
    for name, codes in members.items():
        within &= np.isin(crosstab.codes[name], codes)
    inside = np.flatnonzero(within)
    levels = [members.get(name, np.arange(len(crosstab.levels[name]))) for name in by]
    texts = [
        [*(str(crosstab.levels[name][k]) for k in of), *[TOTAL] * margins] for name, of in zip(by, levels, strict=True)
    ]
    places = [np.searchsorted(of, crosstab.codes[name][inside]) for name, of in zip(by, levels, strict=True)]
    cells = list[Ints]()
    for total in product(*([False, True] if margins else [False] for _ in by)):
        cell = np.zeros(len(inside), dtype=np.int64)
        for place, text, summed in zip(places, texts, total, strict=True):
            cell = cell * len(text) + (len(text) - 1 if summed else place)
        cells.append(cell)
    labels, every = tuple(product(*texts)), np.concatenate(cells)
    order = np.argsort(every, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(every, minlength=len(labels)))]).astype(np.int64)
    return labels, ends, inside[order % len(inside)] if len(inside) else inside


def codes_of(levels: Sequence[object], subset: Sequence[object]) -> tuple[int, ...]:
    """Positions of the kept levels among all, in the order of all."""
    texts = set(map(str, subset))
    return tuple(code for code, level in enumerate(levels) if str(level) in texts)


def split_by(cells: Cells, groups: Codes) -> tuple[scipy.sparse.csr_array, Codes, Codes]:
    """Splits cells by a grouping of crosstab rows: membership (pair, crosstab row), and the cell and group of each pair."""
    coo = cells.membership.tocoo()
    number = int(groups.max()) + 1 if len(groups) else 1
    key = coo.row.astype(np.int64) * number + groups[coo.col]
    distinct, pair = np.unique(key, return_inverse=True)
    matrix = scipy.sparse.csr_array((np.ones(len(pair)), (pair, coo.col)), shape=(len(distinct), cells.membership.shape[1]))
    return matrix, (distinct // number).astype(np.int32), (distinct % number).astype(np.int32)
