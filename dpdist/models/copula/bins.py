"""Cuts normal scores into narrow bins, with the reference's mean weight and mean outcome in each bin (METHODS §5b).

`expectations` sums over these bins to compute expected weights and outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.models.copula.marginal import Marginal
from dpdist.models.copula.spline import basis

BINS = np.concatenate([[-9.0], np.linspace(-4.0, 4.0, 49), [9.0]])
"""Edges of the bins of an outcome's normal score, which are a sixth wide between −4 and 4."""


class Bins(NamedTuple):
    """Bins of one cell.

    - `edges`: edges of the bins of the weight's score.
    - `splines` (bin, BASIS): the regression's basis functions at every bin's mean score.
    - `zero`, `one` (bin,): mean weight in the bin of a record with outcome 0, and of any other record.
    - `outcome` (bin,): number of the distribution of outcomes that a record in the bin has.
    - `means`: by that number, the mean outcomes in BINS.
    """

    edges: Floats
    splines: Floats
    zero: Floats
    one: Floats
    outcome: Ints
    means: dict[int, Floats]


def bins_of(marginals: Sequence[Marginal], of_weight: Ints, of_outcome: Ints, between: Floats) -> Bins:
    """The bins of one cell.

    `of_weight` (part,) and `of_outcome` (class,) are positions in `marginals`. `between` are the weights that separate
    the classes. Each is an edge of the bins, so that a bin lies in one class.
    """
    zero, one = (marginals[k] for k in of_weight)
    class_edges = one.until(between)
    edges = np.unique(np.concatenate([BINS, class_edges]))
    outcome = of_outcome[(edges[:-1, None] >= class_edges).sum(axis=1)]
    density, chance = np.exp(-(edges**2) / 2.0) / np.sqrt(2.0 * np.pi), np.diff(scipy.special.ndtr(edges))
    middle = (edges[1:] + edges[:-1]) / 2.0
    splines = basis(np.divide(-np.diff(density), chance, out=middle, where=chance > 1e-14))
    means = {int(k): marginals[k].averages(BINS) for k in np.unique(outcome)}
    return Bins(edges, splines, zero.averages(edges), one.averages(edges), outcome, means)
