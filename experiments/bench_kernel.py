"""The bound kernel, max f and min f over draws, beside the GEMM of its shape and beside naive broadcasting."""

from __future__ import annotations

import numpy as np
from conftest import simulated

from dpdist.core.keys import Key
from dpdist.models.numerics import tiles

ROWS = 64
"""Records of a tile of 1000 draws, half a megabyte: the GEMM is slower on larger ones and on smaller ones."""


def fitted(tmp_path, n, draws=1000):
    _, model, records = simulated(n, tmp_path)
    theta = model.draw(model.statistics(records, np.ones(n)), draws, Key(bytes(32)).generator("bench"))
    return model, records, theta


def gemm(reduced):
    """A GEMM of shape (64 × 6)·(6 × 1000) over 8192 records, with max and min of each tile or without."""
    rng = np.random.default_rng(1)
    left, right, out = rng.normal(size=(ROWS, 6)), rng.normal(size=(6, 1000)), np.empty((ROWS, 1000))

    def run():
        for _ in range(8192 // ROWS):
            np.matmul(left, right, out=out)
            if reduced:
                np.maximum.reduce(out, axis=1)
                np.minimum.reduce(out, axis=1)

    return run


def test_share_of_the_machines_gemm_rate_for_its_shape(ratio, tmp_path):
    """All of the kernel: grouping of records, features, tables of coefficients, extremes, rounding."""
    model, records, theta = fitted(tmp_path, 8192)
    ratio("kernel's share of its GEMM's rate", lambda: model.extremes(theta, records), gemm(reduced=False))


def test_share_of_the_gemm_rate_of_the_loop_alone(ratio):
    rng = np.random.default_rng(1)
    features, table = rng.normal(size=(6, 8192)), rng.normal(size=(6, 1000))
    ratio("compiled loop's share of its GEMM's rate", lambda: tiles.extremes(features, table), gemm(reduced=False))


def test_times_as_fast_as_gemm_with_numpys_reductions(ratio, tmp_path):
    """What the kernel could at best be without a compiled loop."""
    model, records, theta = fitted(tmp_path, 8192)
    ratio("times as fast as GEMM with max and min", lambda: model.extremes(theta, records), gemm(reduced=True))


def test_times_as_fast_as_broadcasting(ratio, tmp_path):
    model, records, theta = fitted(tmp_path, 2000)
    x = model.design.matrix[model.design.pattern[records.row]]
    z = np.log(np.column_stack([records.outcome, records.weight]))

    def broadcast():
        residual = z - x @ theta["coefficients"]
        precision = np.linalg.inv(theta["covariance"])
        quadratic = np.einsum("sni,sij,snj->sn", residual, precision, residual)
        f = -np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(precision)[1][:, None] - 0.5 * quadratic
        return np.abs(f).max(axis=0)

    np.testing.assert_allclose(model.extremes(theta, records).bound, broadcast(), rtol=1e-9)
    ratio("times as fast as broadcasting", lambda: model.extremes(theta, records), broadcast, pairs=5)
