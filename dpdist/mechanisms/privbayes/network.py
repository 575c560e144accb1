"""Chooses the network one column at a time: the column and parents with the highest noisy score of dependence.

The sensitivity of scores is in `sensitivity`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import combinations, count
from math import prod
from typing import Any

import numpy as np

from dpdist.core.records import Floats
from dpdist.engine.protocol import Choice, Pass
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.sensitivity import UNIT
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.privbayes.release import Network
from dpdist.mechanisms.privbayes.sensitivity import parents
from dpdist.mechanisms.stratum_sums import Defined


def candidates(sizes: Sequence[int], met: Sequence[int], parents: int, cells: float) -> tuple[Marginal, ...]:
    """The tables that may be chosen next: one for every column outside the network and maximal set of its parents inside.

    A table has at most `parents` parents, and with parents at most `cells` cells. Its column is the last axis. A column for
    which no parent is allowed stands alone.
    """
    found = list[Marginal]()
    for column in range(len(sizes)):
        if column in met:
            continue
        own = list[frozenset[int]]()
        for number in range(min(parents, len(met)), 0, -1):
            for chosen in map(frozenset, combinations(sorted(met), number)):
                fits = sizes[column] * prod(sizes[each] for each in chosen) <= cells
                if fits and not any(chosen < larger for larger in own):
                    own.append(chosen)
        found += [(*sorted(each), column) for each in own] or [(column,)]
    return tuple(found)


def score(table: Floats) -> float:
    """The score ½ Σ|C − C_x C_π / T| of a table in units, as a whole number; 0 without parents. x is the last axis."""
    counts = table.reshape(-1, table.shape[-1])
    total = counts.sum()
    if table.ndim < 2 or total <= 0.0:
        return 0.0
    alone = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total
    return float(np.rint(0.5 * np.abs(counts - alone).sum()))


def chosen(model: Network, root: Floats, numbers: count[int]) -> Generator[Pass | Choice, Any, tuple[Marginal, ...]]:
    """The tables of all columns but the first, in the order in which they were chosen.

    `root` is the noisy table of the first column; its sum says how large tables may be.
    """
    cells, met, found = model.most_cells(float(root.sum()) / UNIT), [0], list[Marginal]()
    while len(met) < len(model.columns):
        keys = candidates(model.sizes, met, model.parents, cells)
        best = 0
        if len(keys) > 1:
            exact = yield Pass(Count(model.measuring(keys)), "sum")
            values = np.array([score(table[0]) for table in model.split(keys, exact[None]).values()])
            own = Defined.by((model, keys, "scores"))
            (best,) = yield own.scores(values[None], parents(model.score_scale), next(numbers))
        found.append(keys[int(best)])
        met.append(found[-1][-1])
    return tuple(found)
