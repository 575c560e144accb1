"""Total variation of marginals, and the k-marginal score compared with scores of subsamples.

Total variation of two distributions p and q over cells is Σ|p − q|/2: 0 if they are equal, 1 if they share no cell. The
k-marginal score of NIST's challenges is 1000 (1 − the mean total variation over marginals of k columns). The ladder says
how good a score is: the share of records that a plain subsample needs to reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

import numpy as np

from dpdist.core.records import Floats
from dpdist.evaluation.microdata.coded import Coded

MOST_CELLS = 1_000_000
LADDER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def total_variation(one: Coded, other: Coded, order: int) -> Floats:
    """Total variation of every marginal of `order` columns, in the order of `combinations`.

    Marginals of too many cells are left out.
    """
    keys = [key for key in combinations(range(len(one.sizes)), order) if prod(one.sizes[k] for k in key) <= MOST_CELLS]
    return np.array([np.abs(one.shares(key) - other.shares(key)).sum() / 2.0 for key in keys])


def k_marginal_score(one: Coded, other: Coded, k: int = 3) -> float:
    """From 0 to 1000, all marginals of k columns counted alike."""
    return 1000.0 * (1.0 - float(total_variation(one, other, k).mean()))


def subsample_scores(confidential: Coded, k: int, rng: np.random.Generator, ladder: Sequence[float] = LADDER) -> Floats:
    """The score of a simple random subsample without replacement, for each share of the ladder."""
    number = len(confidential.weight)
    kept = (rng.permutation(number)[: max(1, round(share * number))] for share in ladder)
    return np.array([k_marginal_score(confidential, confidential.take(each), k) for each in kept])


def equivalent_share(score: float, scores: Floats, ladder: Sequence[float] = LADDER) -> float:
    """The share of records whose subsample scores as much, between the ladder's steps in proportion; its ends at most."""
    return float(np.interp(score, np.maximum.accumulate(scores), ladder))
