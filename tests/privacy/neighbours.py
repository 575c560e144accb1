"""Exact losses of Laplace noise on sums, over all neighbours of at most three records on a public grid.

The exact loss of Laplace noise of scale b on sums is their L1 distance over b; the supremum over outputs is attained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import beta

from dpdist.core.records import Floats
from dpdist.privacy.noise import whole_laplace

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


def epsilon_at_least(near: Floats, far: Floats, scale: Fraction, draws: int = 30_000) -> float:
    """A lower bound of ε of the real sampler between two vectors of sums, by events {log likelihood ratio ≥ t}:
    Clopper–Pearson at 1e-6."""
    near, far = near[near != far], far[near != far]
    noise = whole_laplace(scale, 2 * draws * len(near)).reshape(2, draws, len(near))
    one, other = (np.abs(o - far).sum(axis=1) - np.abs(o - near).sum(axis=1) for o in (near + noise[0], far + noise[1]))
    best = 0.0
    for t in np.abs(near - far).sum() * np.linspace(0.0, 1.0, 6):
        high, low = int((one >= t).sum()), int((other >= t).sum())
        bounds = beta.ppf(1e-6 / 12, high, draws - high + 1), beta.ppf(1 - 1e-6 / 12, low + 1, draws - low)
        best = max(best, float(np.log(bounds[0] / bounds[1])))
    return best
