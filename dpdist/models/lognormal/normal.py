"""Log densities of a normal law of D components for many records and draws, for the lognormal model with several outcomes.

A log density is a dot product of the record's features (1, u, uu') with a table over draws, as with one outcome
(`bivariate`). The products are computed tile by tile, as matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.numerics.tiles import TILE_VALUES, by_pattern

LOG_2PI = float(np.log(2.0 * np.pi))
UNIT = 8.0 * float(np.finfo(float).eps)
"""Relative error allowed per term of the density and per component of the mean, at a condition number of 1."""


def unpacked(d: int) -> Ints:
    """Position of the pair of components (i, j) among the pairs i ≤ j, row by row, (D, D)."""
    place = np.zeros((d, d), dtype=np.int64)
    upper = np.triu_indices(d)
    place[upper] = np.arange(len(upper[0]))
    return np.maximum(place, place.T)


def features(u: Sequence[Floats]) -> Floats:
    """The features 1, u_i, and u_i u_j for i ≤ j, (feature, record)."""
    products = [first * second for k, first in enumerate(u) for second in u[k:]]
    return np.array([np.ones(len(u[0])), *u, *products])


def inverse_bartlett(chi: Floats, normals: Floats) -> Floats:
    """Inverses U = T⁻¹, (draw, D, D), of upper triangular matrices T, from which inverse Wishart draws follow (Bartlett).

    T has χ (D, draw) on its diagonal and `normals` (draw, D(D−1)/2) above it. If χ_k has ν − k degrees of freedom, k = 0
    … D−1, then T'T ~ W(ν, I). So (LU)(LU)' ~ IW(ν, LL').
    """
    d, draws = chi.shape
    above = np.zeros((draws, d, d))
    above[:, *np.triu_indices(d, 1)] = normals
    inverse = np.zeros((draws, d, d))
    for j in range(d):
        inverse[:, j, j] = 1.0 / chi[j]
        for i in reversed(range(j)):
            total = above[:, i, j].copy()
            for k in range(i + 1, j):
                total += above[:, i, k] * inverse[:, k, j] * chi[j]
            inverse[:, i, j] = -total / (chi[i] * chi[j])
    return inverse


def correlations(covariance: Floats) -> Floats:
    """Correlation matrices, (draw, D, D)."""
    sd = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    return np.asarray(covariance / (sd[:, :, None] * sd[:, None, :]))


def independence(covariance: Floats) -> Floats:
    """1 − ρ² for two components, otherwise the smallest eigenvalue of the correlation matrix, (draw,).

    It is NaN where the matrix is not finite.
    """
    if covariance.shape[1] == 2:
        c = covariance
        return np.asarray(1.0 - c[:, 0, 1] ** 2 / (c[:, 0, 0] * c[:, 1, 1]))
    correlation = correlations(covariance)
    least = np.full(len(covariance), np.nan)
    finite = np.isfinite(correlation).all(axis=(1, 2))
    least[finite] = np.linalg.eigvalsh(correlation[finite])[:, 0]
    return least


def factors(
    means: Floats, covariance: Floats, z: Sequence[Floats], pattern: Codes
) -> Iterator[tuple[Ints, Floats, Floats, Floats]]:
    """Yields the log densities of each pattern's records as a product of two matrices: f = φ(u)·T, with u = z − centre.

    `means` is (draw, pattern, D), and `z` has D arrays (record,). An item is as in `bivariate.factors`: positions of
    records, φ (feature, record), T (feature, draw), and a bound on the error of each record's values. The bound has the
    terms that it has with one outcome. With several, the precision matrix errs by more. Let R be the correlation matrix.
    An entry (i, j) of the precision is at most |R⁻¹|/(sd_i sd_j), in the spectral norm. Its relative error is at most R's
    condition number times a few units in the last place.
    """
    d = covariance.shape[1]
    upper = np.triu_indices(d)
    sd = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    correlation = correlations(covariance)
    inverse = np.linalg.inv(correlation)
    precision = (inverse + inverse.transpose(0, 2, 1)) / 2.0 / (sd[:, :, None] * sd[:, None, :])
    peak = -0.5 * (d * LOG_2PI + np.linalg.slogdet(correlation)[1]) - np.log(sd).sum(axis=1)
    eigenvalues = np.linalg.eigvalsh(correlation)
    size = 1.0 / (sd * np.sqrt(eigenvalues[:, :1]))
    entries = (size[:, :, None] * size[:, None, :]).max(axis=0)
    rounding = d * UNIT * float((eigenvalues[:, -1] / eigenvalues[:, 0]).max())
    doubled = np.where(upper[0] == upper[1], 0.5, 1.0)
    logs = float(np.abs(np.log(sd)).sum(axis=1).max())
    for rows, number in by_pattern(pattern):
        centre = means[:, number].mean(axis=0)
        mean = means[:, number] - centre
        linear = np.einsum("sij,sj->si", precision, mean)
        constants = peak - 0.5 * (mean * linear).sum(axis=1)
        table = np.array([constants, *linear.T, *(-doubled * precision[:, *upper]).T])
        u = [values[rows] - middle for values, middle in zip(z, centre, strict=True)]
        products, away = features(u), np.abs(np.array(u))
        shift = np.abs(mean).max(axis=0)
        slope = entries @ (away + shift[:, None])
        magnitude = ((away + shift[:, None]) * slope).sum(axis=0)
        location = float(np.abs(means[:, number]).max())
        slack = rounding * (d * LOG_2PI + logs + np.abs(peak).max() + magnitude)
        yield rows, products, table, slack + UNIT * location * slope.sum(axis=0)


def extremes(bounds: Floats, table: Floats) -> tuple[Floats, Floats]:
    """The largest and smallest φ(i)·T(s) over draws s, (record,) each; NaN where a value is NaN.

    `bounds` is φ (feature, record), and `table` is T (feature, draw).
    """
    records, draws = bounds.shape[1], table.shape[1]
    highest, lowest = np.empty(records), np.empty(records)
    size = max(1, TILE_VALUES // draws)
    buffer = np.empty((min(size, records), draws))
    for low in range(0, records, size):
        part = slice(low, low + size)
        tile = np.matmul(bounds[:, part].T, table, out=buffer[: len(highest[part])])
        tile.max(axis=1, out=highest[part])
        tile.min(axis=1, out=lowest[part])
    return highest, lowest
