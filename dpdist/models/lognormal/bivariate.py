"""Log densities of a bivariate normal law of log outcome and log weight, for many records and draws, as matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.numerics.tiles import by_pattern

LOG_2PI = float(np.log(2.0 * np.pi))
ROUNDING = 16.0 * float(np.finfo(float).eps)
"""Relative error allowed for a sum of six products with computed coefficients.

This holds for a covariance of condition number 1. With a correlation ρ the error is 1/(1 − ρ²) times as large.
"""
MEANS = ROUNDING / 4.0
"""Relative error allowed for a mean and for its distance from the centre.

A mean is the sum of an intercept and a few effects.
"""


def factors(
    means: Floats, covariance: Floats, z: Sequence[Floats], pattern: Codes
) -> Iterator[tuple[Ints, Floats, Floats, Floats]]:
    """Yields the log densities of each pattern's records as a product of two matrices: f = φ(u)·T, with u = z − centre.

    A pattern is a distinct combination of predictor levels. `means` is (draw, pattern, 2), and `z` has two arrays
    (record,): log outcome and log weight. An item has the positions of the pattern's records, φ (feature, record), T
    (feature, draw), and a bound on the error of each record's values.

    The bound is proportional to the sizes of the products plus log 2π, plus the error of the means times the slope of f;
    the latter matters where the covariance is small. The centre is the draws' mean, so that the products are of the order
    of f.
    """
    rounding = ROUNDING / (1.0 - _squared_correlation(covariance)).min()
    constant = _log_peak(covariance)
    p00, p01, p11 = covariance[:, [1, 0, 0], [1, 1, 0]].T * [[1.0], [-1.0], [1.0]] / _determinant(covariance)
    log_y, log_w = z
    for rows, number in by_pattern(pattern):
        y, w = np.ascontiguousarray(means[:, number].T)
        centre = y.mean(), w.mean()
        y, w = y - centre[0], w - centre[1]
        linear_y, linear_w = p00 * y + p01 * w, p01 * y + p11 * w
        constants = constant - 0.5 * (y * linear_y + w * linear_w)
        table = np.array([constants, linear_y, linear_w, -0.5 * p00, -p01, -0.5 * p11])
        u, v = log_y[rows] - centre[0], log_w[rows] - centre[1]
        features = np.array([np.ones(len(rows)), u, v, u * u, u * v, v * v])
        reach, size = np.abs(table).max(axis=1), np.abs(features)
        slope = reach[1] + reach[2] + (2.0 * reach[3] + reach[4]) * size[1] + (reach[4] + 2.0 * reach[5]) * size[2]
        location = float(np.abs(means[:, number]).max())
        yield rows, features, table, rounding * (LOG_2PI + reach @ size) + MEANS * location * slope


def _determinant(covariance: Floats) -> Floats:
    return np.asarray(covariance[:, 0, 0] * covariance[:, 1, 1] - covariance[:, 0, 1] ** 2)


def _log_peak(covariance: Floats) -> Floats:
    """Log density at the mode, (draw,)."""
    return np.asarray(-LOG_2PI - 0.5 * np.log(_determinant(covariance)))


def _squared_correlation(covariance: Floats) -> Floats:
    return np.asarray(covariance[:, 0, 1] ** 2 / (covariance[:, 0, 0] * covariance[:, 1, 1]))
