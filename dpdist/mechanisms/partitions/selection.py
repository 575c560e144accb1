"""Selects the attribute that splits a node of a partition: the one with the least AIC under noise ([S]; METHODS §9).

See eq. 4 and lemma 1 of [S].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.partitions.sensitivity import UNIT
from dpdist.mechanisms.partitions.tree import codes_of, grown


def aic(counts: Floats) -> Floats:
    """2K − 2 log L of every row of K counts (…, level), with log L = g(n) − Σ g(c) and g(c) = log Γ(c + 1) − c log c.

    c are the counts and n is their sum.
    """

    def g(value: Floats) -> Floats:
        return np.asarray(scipy.special.gammaln(value + 1.0) - scipy.special.xlogy(value, value))

    return np.asarray(2.0 * counts.shape[-1] - 2.0 * (g(counts.sum(axis=-1)) - g(counts).sum(axis=-1)))


def scores(cells: Floats, selected: Sequence[Ints], levels: Sequence[int]) -> Floats:
    """The AIC of every attribute in every node of the present tree, (node, attribute), in whole units of 1/UNIT.

    It is infinite for attributes that already split the node. `cells` are the cells' counts in whole units of 1/UNIT.
    """
    layers, used = grown(selected, levels)
    nodes, codes = layers[-1], codes_of(levels)
    found = np.empty(used.shape)
    for each, number in enumerate(levels):
        counts = np.bincount(nodes * number + codes[each], weights=cells, minlength=len(used) * number)
        found[:, each] = np.rint(aic(counts.reshape(-1, number) / UNIT) * UNIT)
    return np.where(used, np.inf, found)
