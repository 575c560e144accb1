"""Which pairs are measured: the tree whose pairs are farthest from independence, as far as noise lets one see (MST).

Scores and their sensitivity stand in `sensitivity`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import combinations, count
from math import prod
from typing import Any

import numpy as np

from dpdist.core.digests import digest
from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise
from dpdist.mechanisms.weighted_marginals.release import Marginals
from dpdist.mechanisms.weighted_marginals.sensitivity import SELECTION, UNIT, choice_scale
from dpdist.mechanisms.weighted_marginals.tree import Marginal

MOST_CELLS = 100_000
"""Of a pair that may be chosen."""


def candidates(model: Marginals) -> tuple[Marginal, ...]:
    """Pairs that may be chosen: public."""
    pairs = combinations(range(len(model.columns)), 2)
    return tuple(key for key in pairs if prod(model.shape(key)) <= MOST_CELLS)


def scores(model: Marginals, margins: list[Floats], exact: Floats) -> Floats:
    """Σ|C − M| − b K of every candidate, (pair,), in whole units. `margins` are the released tables' own, in weights."""
    unit, keys = UNIT / model.weights[1], candidates(model)
    total, found = max(float(margins[0].sum()), 1e-300), []
    for key, table in model.split(keys, exact[None]).items():
        alone = np.rint(unit * np.outer(margins[key[0]], margins[key[1]]) / total)
        noise = round(model.scale_of(key)) * table[0].size
        found.append(float(np.abs(table[0] - alone).sum()) - noise)
    return np.array(found)


def chosen(
    model: Marginals, margins: list[Floats], exact: Floats, numbers: count[int]
) -> Generator[Noise, Any, tuple[Marginal, ...]]:
    """The pairs of a tree, in the order of columns: in each round the one of the largest noisy score that makes no loop."""
    keys, values = candidates(model), scores(model, margins, exact)
    rounds, groups, found = len(model.columns) - 1, list(range(len(model.columns))), list[Marginal]()
    scale = choice_scale(model.epsilon * SELECTION, rounds, model.adjacency)
    query, sums = digest((model, [list(each) for each in margins], "choice")), digest(values)
    for _ in range(rounds):
        open_ones = [k for k, (a, b) in enumerate(keys) if groups[a] != groups[b]]
        if not open_ones:
            break
        noise = yield Noise(scale, len(open_ones), next(numbers), "laplace", query, sums)
        best = keys[open_ones[int(np.argmax(values[open_ones] + noise))]]
        found.append(best)
        groups = joined(groups, best)
    return tuple(sorted(found))


def joined(groups: Iterable[int], pair: Marginal) -> list[int]:
    """Groups of columns after a pair has joined two of them."""
    own = list(groups)
    return [own[pair[0]] if each == own[pair[1]] else each for each in own]
