"""Selects the pairs of columns to measure: a tree whose pairs are farthest from independence, under noise (MST).

The sensitivity of scores is in `sensitivity`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import count
from typing import Any

import numpy as np

from dpdist.core.records import Floats
from dpdist.engine.protocol import Choice
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.sensitivity import UNIT
from dpdist.mechanisms.stratum_sums import Defined
from dpdist.mechanisms.weighted_marginals.release import Marginals
from dpdist.mechanisms.weighted_marginals.sensitivity import SELECTION, best_pair, choice_scale


def scores(model: Marginals, margins: list[Floats], exact: Floats) -> Floats:
    """The score Σ|C − M| − b K of every candidate pair, (pair,), in whole units of 1/UNIT.

    C is the pair's table and M the table under independence. K is its number of cells and b the noise scale. `margins`
    are the released tables' margins, in weights. `exact` has the candidates' exact tables.
    """
    unit, keys = UNIT / model.weights[1], model.candidates
    total, found = max(float(margins[0].sum()), 1e-300), []
    for key, table in model.split(keys, exact[None]).items():
        alone = np.rint(unit * np.outer(margins[key[0]], margins[key[1]]) / total)
        noise = round(model.scale_of(key)) * table[0].size
        found.append(float(np.abs(table[0] - alone).sum()) - noise)
    return np.array(found)


def chosen(
    model: Marginals, margins: list[Floats], exact: Floats, numbers: count[int]
) -> Generator[Choice, Any, tuple[Marginal, ...]]:
    """Chooses the pairs of a tree; they are returned in the order of columns.

    Each round takes the pair with the largest noisy score that makes no loop.
    """
    keys, values = model.candidates, scores(model, margins, exact)
    groups, found = list(range(len(model.columns))), list[Marginal]()
    stated = best_pair(choice_scale(model.epsilon * SELECTION, model.pairs, model.adjacency))
    own = Defined.by((model, [list(each) for each in margins], "choice"))
    for _ in range(model.pairs):
        open_ones = [k for k, (a, b) in enumerate(keys) if groups[a] != groups[b]]
        (first,) = yield own.scores(values[None, open_ones], stated, next(numbers))
        best = keys[open_ones[int(first)]]
        found.append(best)
        groups = joined(groups, best)
    return tuple(sorted(found))


def joined(groups: Iterable[int], pair: Marginal) -> list[int]:
    """Groups of columns after a pair has joined two of them; `groups` has each column's group."""
    own = list(groups)
    return [own[pair[0]] if each == own[pair[1]] else each for each in own]
