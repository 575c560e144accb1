"""Maps levels of a column (county) to those of a coarser one (state), for `job.hierarchies` and `planning.plan`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Codes, Frame, Level

UNSEEN = -1
"""The parent of a level if the job does not state it and no public record has the level."""


@dataclass(frozen=True)
class Nesting:
    """Columns of a hierarchy, the coarsest first, and the map between them.

    `parents[k]` has, for every level of `columns[k + 1]`, the position of its parent in `columns[k]`, or `UNSEEN`.
    """

    name: str
    columns: tuple[str, ...]
    parents: tuple[Codes, ...]

    def __str__(self) -> str:
        return f"{self.name}: {' > '.join(self.columns)}"


class UnnestedError(Exception):
    """A level that lies in two levels of the coarser column; `fine`, `level`, `coarse` and `both` say which."""

    def __init__(self, fine: str, level: Level, coarse: str, both: tuple[Level, Level]) -> None:
        super().__init__(f"{fine} {level}: {coarse} {both[0]} and {both[1]}")
        self.fine, self.level, self.coarse, self.both = fine, level, coarse, both


def parents_in(frames: Iterable[Frame], fine: str, coarse: str, stated: Codes) -> Codes:
    """The coarser level of every level of a column, from a stated map and from records of public frames.

    `stated` has `UNSEEN` for levels that the records decide. Raises `UnnestedError` if a level has two parents.
    """
    parent = stated.copy()
    for frame in frames:
        levels, occurs = frame.levels, frame.count > 0
        pairs = np.unique(np.column_stack([frame.codes[fine], frame.codes[coarse]])[occurs], axis=0)
        for level, within in pairs.tolist():
            if parent[level] not in (UNSEEN, within):
                both = (levels[coarse][parent[level]], levels[coarse][within])
                raise UnnestedError(fine, levels[fine][level], coarse, both)
            parent[level] = within
    return parent
