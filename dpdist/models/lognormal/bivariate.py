"""Log densities of two-dimensional normal laws (one outcome and the weight), as a product of two factors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.numerics.tiles import by_pattern

LOG_2PI = float(np.log(2.0 * np.pi))
ROUNDING = 16.0 * float(np.finfo(float).eps)
"""Relative error allowed for a sum of six products and the forming of its coefficients, for a covariance of condition 1;
the inverse of a covariance with correlation ρ loses a further 1/(1 − ρ²)."""
MEANS = ROUNDING / 4.0
"""The same for a mean, a sum of an intercept and a few effects, and for its distance from the centre."""


def factors(
    means: Floats, covariance: Floats, z: Sequence[Floats], pattern: Codes
) -> Iterator[tuple[Ints, Floats, Floats, Floats]]:
    """Log densities per pattern as a product of two factors: f = φ(u)·T with u = z − centre of the pattern.

    `means` (draw, pattern, 2), `z` two arrays (record,). Yields the pattern's records, φ (feature, record), T (feature,
    draw) and, per record, a bound on the error of its values. The bound is proportional to its terms, to log 2π (the log
    determinant may cancel it), and to the means times the slope of f. The error of the means matters where Σ is small.
    Centring at the draws' mean makes the terms of the order of f.
    """
    rounding = ROUNDING / (1.0 - _squared_correlation(covariance)).min()
    constant = _log_peak(covariance)
    p00, p01, p11 = covariance[:, [1, 0, 0], [1, 1, 0]].T * [[1.0], [-1.0], [1.0]] / _determinant(covariance)
    log_y, log_w = z
    for own, number in by_pattern(pattern):
        y, w = np.ascontiguousarray(means[:, number].T)
        centre = y.mean(), w.mean()
        y, w = y - centre[0], w - centre[1]
        linear_y, linear_w = p00 * y + p01 * w, p01 * y + p11 * w
        constants = constant - 0.5 * (y * linear_y + w * linear_w)
        table = np.array([constants, linear_y, linear_w, -0.5 * p00, -p01, -0.5 * p11])
        u, v = log_y[own] - centre[0], log_w[own] - centre[1]
        features = np.array([np.ones(len(own)), u, v, u * u, u * v, v * v])
        reach, size = np.abs(table).max(axis=1), np.abs(features)
        slope = reach[1] + reach[2] + (2.0 * reach[3] + reach[4]) * size[1] + (reach[4] + 2.0 * reach[5]) * size[2]
        location = float(np.abs(means[:, number]).max())
        yield own, features, table, rounding * (LOG_2PI + reach @ size) + MEANS * location * slope


def _determinant(covariance: Floats) -> Floats:
    return np.asarray(covariance[:, 0, 0] * covariance[:, 1, 1] - covariance[:, 0, 1] ** 2)


def _log_peak(covariance: Floats) -> Floats:
    """Log density at its mode."""
    return np.asarray(-LOG_2PI - 0.5 * np.log(_determinant(covariance)))


def _squared_correlation(covariance: Floats) -> Floats:
    return np.asarray(covariance[:, 0, 1] ** 2 / (covariance[:, 0, 0] * covariance[:, 1, 1]))
