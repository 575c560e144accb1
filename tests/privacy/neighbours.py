"""Exact losses of Laplace noise on sums, over all neighbours of at most three records on a public grid.

The exact loss of Laplace noise of scale b on sums is their L1 distance over b; the supremum over outputs is attained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement

import numpy as np
from scipy.spatial.distance import cdist

from dpdist.core.records import Floats

Record = tuple[int, float, float]
"""Cell, outcome, weight; a switched-off record has cell −1."""
Sums = Callable[[tuple[Record, ...]], Floats]
OFF: Record = (-1, 0.0, 0.0)


def held(database: tuple[Record, ...]) -> tuple[Floats, Floats, Floats]:
    """Cell, outcome and weight of the records that are on."""
    columns = np.array([record for record in database if record[0] >= 0], dtype=float).reshape(-1, 3)
    return columns[:, 0].astype(np.int64), columns[:, 1], columns[:, 2]


def largest_distance(sums: Sums, grid: Sequence[Record], adjacency: str, most: int = 3, metric: str = "cityblock") -> float:
    """The largest distance, L1 unless said, of the sums of neighbours of at most `most` records."""
    known: dict[tuple[Record, ...], Floats] = {}
    worst = 0.0
    for rest in (rest for size in range(most) for rest in combinations_with_replacement(grid, size)):
        own = [tuple(sorted((*rest, one))) for one in grid]
        for database in own:
            if database not in known:
                known[database] = sums(database).reshape(-1)
        mine = np.array([known[database] for database in own])
        others = mine if adjacency == "substitution" else sums((*rest, OFF)).reshape(1, -1)
        worst = max(worst, float(cdist(mine, others, metric).max()))
    return worst
