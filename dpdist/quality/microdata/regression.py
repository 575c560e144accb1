"""Measures how far the confidence intervals of a logistic regression on two files overlap (Karr et al. 2006).

The overlap of intervals I and J is the mean of |I ∩ J|/|I| and |I ∩ J|/|J|; it is 0 if they are apart. Standard errors come
from the sandwich formula for weighted estimating equations, with records as units.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.estimation.estimators import NORMAL_95
from dpdist.quality.microdata.coded import Coded
from dpdist.quality.microdata.propensity import hessian, indicators, logistic


class Fitted(NamedTuple):
    """Coefficients and their standard errors, (coefficient,) each."""

    beta: Floats
    error: Floats


def fitted(records: Coded, outcome: int, level: int, predictors: tuple[int, ...]) -> Fitted:
    """Fits a logistic regression: does column `outcome` have this level, given the levels of other columns?"""
    sizes = tuple(records.sizes[k] for k in predictors)
    x = indicators(Coded(records.codes[:, list(predictors)], sizes, records.weight))
    y = (records.codes[:, outcome] == level).astype(float)
    weight = records.weight / records.weight.mean()
    beta = logistic(x, y, weight, ridge=1e-6)
    p = scipy.special.expit(x @ beta)
    inverse = np.linalg.pinv(hessian(x, p, weight))
    scores = x * (weight * (y - p))[:, None]
    covariance = inverse @ (scores.T @ scores) @ inverse
    return Fitted(beta, np.sqrt(np.maximum(np.diag(covariance), 0.0)))


def overlap(one: Fitted, other: Fitted) -> Floats:
    """Overlap of the 95 % intervals of each coefficient, (coefficient,)."""
    low = np.maximum(one.beta - NORMAL_95 * one.error, other.beta - NORMAL_95 * other.error)
    high = np.minimum(one.beta + NORMAL_95 * one.error, other.beta + NORMAL_95 * other.error)
    shared = np.maximum(high - low, 0.0)
    widths = [np.maximum(2.0 * NORMAL_95 * fit.error, 1e-300) for fit in (one, other)]
    return np.asarray((shared / widths[0] + shared / widths[1]) / 2.0)
