"""Computes means of weights and outcomes in narrow bins of a score, under the reference's own law (METHODS §5b)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from dpdist.core.records import Floats, Ints
from dpdist.models.copula.marginal import Marginal
from dpdist.models.copula.spline import basis

BINS = np.concatenate([[-9.0], np.linspace(-4.0, 4.0, 49), [9.0]])


class Bins(NamedTuple):
    """Bins of a cell's weight: their edges, and the spline at every bin's mean score.

    Further fields are the mean weights of parts 0 and 1, the number of every bin's distribution of outcomes, and, by that
    number, mean outcomes in BINS.
    """

    edges: Floats
    splines: Floats
    zero: Floats
    one: Floats
    outcome: Ints
    means: dict[int, Floats]


def bins_of(marginals: Sequence[Marginal], of_weight: Ints, of_outcome: Ints, between: Floats) -> Bins:
    """Bins of one cell, from its parts' and classes' distributions. No bin crosses an edge `between` classes."""
    zero, one = (marginals[k] for k in of_weight)
    at = one.until(between)
    edges = np.unique(np.concatenate([BINS, at]))
    outcome = of_outcome[(edges[:-1, None] >= at).sum(axis=1)]
    density, chance = np.exp(-(edges**2) / 2.0) / np.sqrt(2.0 * np.pi), np.diff(ndtr(edges))
    middle = (edges[1:] + edges[:-1]) / 2.0
    splines = basis(np.divide(-np.diff(density), chance, out=middle, where=chance > 1e-14))
    means = {int(k): marginals[k].averages(BINS) for k in np.unique(outcome)}
    return Bins(edges, splines, zero.averages(edges), one.averages(edges), outcome, means)
