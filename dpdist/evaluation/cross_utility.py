"""How alike two files of coded columns are, from their counts by cell of the cross: marginals, and propensity scores.

Counts may be weighted: then the files are compared as their weights say.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from scipy.special import expit

from dpdist.core.records import Floats

FIT_STEPS = 50
CONVERGED = 1e-8


def total_variation(one: Floats, other: Floats, ways: int, among: Sequence[int] | None = None) -> float:
    """Mean over all marginals of `ways` columns (`among`: these alone) of half the L1 distance of shares, 0 to 1.

    Counts are arrays with one axis for every column.
    """
    columns = range(one.ndim) if among is None else among
    found = []
    for kept in combinations(columns, ways):
        others = tuple(axis for axis in range(one.ndim) if axis not in kept)
        p, q = (each.sum(axis=others) / each.sum() for each in (one, other))
        found.append(np.abs(p - q).sum() / 2.0)
    return float(np.mean(found))


def specks(one: Floats, other: Floats, ways: int = 1) -> float:
    """SPECKS [S]: the Kolmogorov–Smirnov distance of propensity scores between both files, 0 to 1.

    Scores are those of a logistic regression on indicators of columns, and their products over up to `ways` columns; both
    files have equal weight in all.
    """
    kept = (one + other).ravel() > 0
    p, q = (each.ravel()[kept] / each.sum() for each in (one, other))
    score = propensity(_indicators(one.shape, ways)[kept], p, q)
    order = np.argsort(score, kind="stable")
    apart = np.cumsum((p - q)[order])
    last = np.append(np.diff(score[order]) > CONVERGED, True)
    return float(np.abs(apart[last]).max())


def propensity(design: Floats, one: Floats, other: Floats) -> Floats:
    """Scores (cell,) that a record is of the other file, by logistic regression with cells' shares as weights.

    A ridge of 1e-6 keeps the coefficients of columns that tell files apart from growing without end.
    """
    beta, total = np.zeros(design.shape[1]), one + other
    ridge = 1e-6 * np.eye(design.shape[1])
    for _ in range(FIT_STEPS):
        score = expit(design @ beta)
        slope = design.T @ (other - total * score) - ridge @ beta
        step = np.linalg.solve((design * (total * score * (1.0 - score))[:, None]).T @ design + ridge, slope)
        beta = beta + step * min(1.0, 5.0 / max(float(np.abs(step).max()), CONVERGED))
        if np.abs(step).max() < 1e-6:
            break
    return np.asarray(expit(design @ beta))


def _indicators(shape: Sequence[int], ways: int) -> Floats:
    """Indicators of every level but the first of every column, and their products over up to `ways` columns."""
    codes = np.indices(tuple(shape)).reshape(len(shape), -1)
    plain = [(codes[k][:, None] == np.arange(1, size)).astype(float) for k, size in enumerate(shape)]
    found = [np.ones((codes.shape[1], 1))]
    for number in range(1, ways + 1):
        for kept in combinations(range(len(shape)), number):
            made = np.ones((codes.shape[1], 1))
            for k in kept:
                made = (made[:, :, None] * plain[k][:, None, :]).reshape(codes.shape[1], -1)
            found.append(made)
    return np.concatenate(found, axis=1)
