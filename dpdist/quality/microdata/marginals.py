"""Computes total variation between tables of two files, and NIST's k-marginal score, with subsamples as a scale.

The total variation of two distributions p and q over cells is Σ|p − q|/2: 0 if they are equal, 1 if they share no cell. The
k-marginal score of NIST's challenges is 1000 (1 − the mean total variation over all tables by k columns). To say how good a
score is, simple random subsamples of the file itself are scored. The *equivalent share* is the share of records that a
subsample needs for the same score.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

import numpy as np

from dpdist.core.records import Floats
from dpdist.quality.microdata.coded import Coded

MOST_CELLS = 1_000_000
LADDER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def total_variation(one: Coded, other: Coded, order: int) -> Floats:
    """Total variation of every table by `order` columns, in the order of `combinations`.

    Tables with more than `MOST_CELLS` cells are left out.
    """
    keys = [key for key in combinations(range(len(one.sizes)), order) if prod(one.sizes[k] for k in key) <= MOST_CELLS]
    return np.array([np.abs(one.shares(key) - other.shares(key)).sum() / 2.0 for key in keys])


def k_marginal_score(one: Coded, other: Coded, k: int = 3) -> float:
    """The k-marginal score, from 0 to 1000. Every table by k columns that is not too large counts alike."""
    return 1000.0 * (1.0 - float(total_variation(one, other, k).mean()))


def subsample_scores(confidential: Coded, k: int, rng: np.random.Generator, ladder: Sequence[float] = LADDER) -> Floats:
    """Scores of simple random subsamples without replacement, one for each share of records in `ladder`."""
    number = len(confidential.weight)
    kept = (rng.permutation(number)[: max(1, round(share * number))] for share in ladder)
    return np.array([k_marginal_score(confidential, confidential.take(rows), k) for rows in kept])


def equivalent_share(score: float, scores: Floats, ladder: Sequence[float] = LADDER) -> float:
    """The share of records whose subsample has this score, interpolated between the shares of `ladder`.

    It is never below the first of them or above the last.
    """
    return float(np.interp(score, np.maximum.accumulate(scores), ladder))
