"""Computes pMSE and SPECKS, which measure how well a logistic regression separates synthetic from confidential records.

Both files are put together, each with half of the weight. The regression predicts which file a record comes from, by main
effects of all levels and, if asked for, products of pairs of columns. pMSE is the mean squared distance of the predicted
probability from 1/2, from 0 to 1/4 (Woo et al. 2009; Snoke et al. 2018). SPECKS is the largest distance between the two
files' distribution functions of that probability, from 0 to 1 (Bowen, Liu & Su 2021). A small ridge penalty keeps the fit
finite where levels separate the files.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.quality.microdata.coded import Coded

RIDGE = 1e-6
"""Ridge penalty, where the two files together have the weight 1."""
NEWTON_STEPS, CLOSE = 50, 1e-10
TIE = 1e-8
"""Probabilities this close together count as equal; otherwise rounding would order equal ones by file."""


class Propensity(NamedTuple):
    pmse: float
    specks: float


def propensity(confidential: Coded, synthetic: Coded, pairs: bool = False) -> Propensity:
    """pMSE and SPECKS of two files; `pairs` adds products of pairs of columns to the regression."""
    both = np.concatenate([confidential.codes, synthetic.codes])
    x = indicators(Coded(both, confidential.sizes, np.ones(len(both))), pairs)
    weight = np.concatenate([records.weight / (2.0 * records.weight.sum()) for records in (confidential, synthetic)])
    number = len(confidential.weight)
    y = (np.arange(len(both)) >= number).astype(float)
    score = scipy.special.expit(x @ logistic(x, y, weight))
    return Propensity(float(weight @ (score - 0.5) ** 2), _largest(score, weight * (2.0 * y - 1.0)))


def indicators(records: Coded, pairs: bool = False) -> Floats:
    """Design matrix: an intercept, an indicator of each level but a column's first, and products for pairs of columns."""
    single = [
        [(records.codes[:, k] == level).astype(float) for level in range(1, size)] for k, size in enumerate(records.sizes)
    ]
    columns = [np.ones(len(records.codes)), *(indicator for column in single for indicator in column)]
    if pairs:
        columns += [a * b for one, other in combinations(single, 2) for a in one for b in other]
    return np.column_stack(columns)


def logistic(x: Floats, y: Floats, weight: Floats, ridge: float = RIDGE) -> Floats:
    """Coefficients of a weighted logistic regression by Newton's method, (column,). The intercept has no penalty."""
    beta, penalty = np.zeros(x.shape[1]), np.full(x.shape[1], ridge)
    penalty[0] = 0.0
    for _ in range(NEWTON_STEPS):
        p = scipy.special.expit(x @ beta)
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
    """Largest distance of two files' distribution functions.

    `signed` is half of each record's share of its file's weight, negative for the records of one file.
    """
    order = np.argsort(score, kind="stable")
    ordered, steps = score[order], np.cumsum(signed[order])
    last = np.append(np.diff(ordered) > TIE, True)
    return float(2.0 * np.abs(steps[last]).max())
