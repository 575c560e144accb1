"""pMSE and SPECKS: measures of how well a logistic regression separates synthetic records from confidential ones.

Both files are stacked, each with half of the weight. Main effects of all levels, and products of all pairs of columns if
asked for, predict which file a record is of. pMSE is the mean squared distance of the predicted probability from 1/2,
from 0 to 1/4 (Woo et al. 2009; Snoke et al. 2018). SPECKS is the largest distance of the two files' distribution
functions of that probability, from 0 to 1 (Bowen, Liu & Su 2021). A small ridge keeps the fit finite where levels
separate the files.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from dpdist.core.records import Floats
from dpdist.evaluation.microdata.coded import Coded

RIDGE = 1e-6
"""Ridge penalty for a stacked file of total weight 1."""
NEWTON_STEPS, CLOSE = 50, 1e-10
TIE = 1e-8
"""Scores no farther apart than this are one: rounding orders equal ones by file."""


class Propensity(NamedTuple):
    pmse: float
    specks: float


def propensity(confidential: Coded, synthetic: Coded, pairs: bool = False) -> Propensity:
    """Distances of two files by the probability of being synthetic."""
    both = np.concatenate([confidential.codes, synthetic.codes])
    x = indicators(Coded(both, confidential.sizes, np.ones(len(both))), pairs)
    weight = np.concatenate([each.weight / (2.0 * each.weight.sum()) for each in (confidential, synthetic)])
    number = len(confidential.weight)
    y = (np.arange(len(both)) >= number).astype(float)
    score = expit(x @ logistic(x, y, weight))
    return Propensity(float(weight @ (score - 0.5) ** 2), _largest(score, weight * (2.0 * y - 1.0)))


def indicators(records: Coded, pairs: bool = False) -> Floats:
    """An intercept, each level but a column's first, and products of those of two columns."""
    single = [
        [(records.codes[:, k] == level).astype(float) for level in range(1, size)] for k, size in enumerate(records.sizes)
    ]
    columns = [np.ones(len(records.codes)), *(each for column in single for each in column)]
    if pairs:
        columns += [a * b for one, other in combinations(single, 2) for a in one for b in other]
    return np.column_stack(columns)


def logistic(x: Floats, y: Floats, weight: Floats, ridge: float = RIDGE) -> Floats:
    """Coefficients by Newton's method, (column,); the ridge leaves out the first column."""
    beta, penalty = np.zeros(x.shape[1]), np.full(x.shape[1], ridge)
    penalty[0] = 0.0
    for _ in range(NEWTON_STEPS):
        p = expit(x @ beta)
        gradient = x.T @ (weight * (y - p)) - penalty * beta
        step = np.linalg.lstsq(hessian(x, p, weight) + np.diag(penalty), gradient, rcond=None)[0]
        beta = beta + step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-300))
        if np.abs(step).max() < CLOSE:
            break
    return beta


def hessian(x: Floats, p: Floats, weight: Floats) -> Floats:
    """Second derivatives of the weighted negative log likelihood, (column, column)."""
    return np.asarray(x.T @ (x * (weight * p * (1.0 - p))[:, None]))


def _largest(score: Floats, signed: Floats) -> float:
    """Largest distance of two distribution functions of a score, from weights of the one and minus those of the other."""
    order = np.argsort(score, kind="stable")
    ordered, steps = score[order], np.cumsum(signed[order])
    last = np.append(np.diff(ordered) > TIE, True)
    return float(2.0 * np.abs(steps[last]).max())
