"""The symmetric root of a covariance matrix, by which normal draws get that covariance."""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats

SMALLEST_SHARE = 1e-12
"""Eigenvalues below this share of the largest one are 0: they are what rounding leaves of a matrix without full rank."""


def symmetric_root(covariance: Floats) -> Floats:
    """R (…, k, k) with R = R' and RR = covariance (…, k, k), which is symmetric and has no eigenvalue below 0.

    Eigenvectors alone would be a root, too. But their signs, and their directions where eigenvalues are alike, hang on
    the last digits of the matrix, so that the same normal draws would become others on another processor.
    """
    values, vectors = np.linalg.eigh(covariance)
    kept = np.where(values > SMALLEST_SHARE * values[..., -1:], np.maximum(values, 0.0), 0.0)
    return np.asarray((vectors * np.sqrt(kept)[..., None, :]) @ vectors.swapaxes(-1, -2))
