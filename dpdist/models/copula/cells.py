"""Cells of one stratum for the score model, and groups of small cells that share a fit or a distribution (METHODS §5b).

A unit is a group of cells that share a fit. Units follow from public facts alone: the frame's numbers of records, and
the reference's share of outcomes other than 0 in each cell. A small cell is first grouped with cells that differ from it
in the last predictor only. If together they have too few records, it is grouped with cells that differ in the last two
predictors, and so on. So a job lists the predictors that matter most first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Codes, Floats, Frame, Ints

UNIT = 500
"""Number of sample records below which a cell shares a fit with others, if there are others."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of one stratum: its combinations of predictor levels.

    - `codes` (cell, predictor): levels of each cell, after a first column of zeros.
    - `pattern` (row,): the cell of each frame row of the stratum; `first` is the first of these rows.
    - `count` (cell,): sample records.
    - `labels`: all combinations of predictors in the frame.
    - `kept` (cell,): positions of this stratum's cells among `labels`.
    """

    codes: Codes
    pattern: Codes
    first: int
    count: Ints
    labels: tuple[str, ...]
    kept: Ints

    @classmethod
    def of(cls, frame: Frame, columns: Sequence[str], rows: slice) -> Cells:
        every = np.column_stack([np.zeros(len(frame), dtype=np.int32), *(frame.codes[name] for name in columns)])
        distinct, number = np.unique(every, axis=0, return_inverse=True)
        kept, pattern = np.unique(number.reshape(-1)[rows], return_inverse=True)
        count = np.bincount(pattern, weights=frame.count[rows]).astype(np.int64)
        labels = tuple(
            " / ".join(str(frame.levels[n][c]) for n, c in zip(columns, row[1:], strict=True)) for row in distinct
        )
        return cls(
            distinct[kept], pattern.astype(np.int32), rows.start, count, tuple(name or "all" for name in labels), kept
        )

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def names(self) -> list[str]:
        """Labels of this stratum's cells."""
        return [self.labels[k] for k in self.kept.tolist()]

    def cell(self, frame_row: Codes) -> Codes:
        """The cell of each frame row, given the rows' numbers in the whole frame."""
        return self.pattern[frame_row - self.first]

    def units(self, share: Floats) -> tuple[Ints, Ints]:
        """Units of the outcome's regression, (cell,), and of the weight's law, (cell, part), of at least UNIT records each.

        A stratum with fewer records is one unit. `share` (cell,) is the reference's share of part 1, the records with an
        outcome other than 0. It is public. A small part first joins the other part of its cell.
        """
        size = self.count[:, None] * np.column_stack([1.0 - share, share])
        parts = np.tile(np.arange(2, dtype=self.codes.dtype), len(self))
        codes = np.column_stack([np.repeat(self.codes, 2, axis=0), parts])
        return grouped(self.codes, size[:, 1], UNIT), grouped(codes, size.reshape(-1), UNIT).reshape(-1, 2)

    def wider(self, columns: int) -> Ints:
        """The group of every cell, (cell,): cells that agree in all predictors except the last `columns`."""
        return np.unique(self.codes[:, : self.codes.shape[1] - columns], axis=0, return_inverse=True)[1].reshape(-1)

    @property
    def depth(self) -> int:
        """Number of predictors, all of which `wider` can leave out."""
        return int(self.codes.shape[1]) - 1


def grouped(codes: Codes, count: Ints | Floats, least: int) -> Ints:
    """The group of every cell, (cell,), so that a group has `least` records or more where possible.

    `codes` (cell, column) has one number in the first column. Cells are compared in all columns, then in ever fewer of the
    first. Those that agree and have no group form one if they have `least` records. Otherwise they join the smallest group
    among the cells that agree, or wait for the next step.
    """
    groups_of_cells, number = np.full(len(codes), -1, dtype=np.int64), 0
    for shared in range(codes.shape[1], 0, -1):
        prefix = np.unique(codes[:, :shared], axis=0, return_inverse=True)[1].reshape(-1)
        for key in np.unique(prefix[groups_of_cells < 0]).tolist():
            inside = prefix == key
            free, taken = inside & (groups_of_cells < 0), inside & (groups_of_cells >= 0)
            if count[free].sum() >= least or (shared == 1 and not taken.any()):
                groups_of_cells[free], number = number, number + 1
            elif taken.any():
                groups, group = np.unique(groups_of_cells[taken], return_inverse=True)
                groups_of_cells[free] = groups[np.bincount(group, weights=count[taken]).argmin()]
    return np.unique(groups_of_cells, return_inverse=True)[1].reshape(-1)
