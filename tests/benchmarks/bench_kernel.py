"""The bound kernel max|f|, min f, max f over draws, beside the GEMM it rests on and beside naive broadcasting."""

from __future__ import annotations

import numpy as np
from conftest import simulated

from dpdist.keys import Key
from dpdist.models.lognormal import TILE_BYTES

ROWS = TILE_BYTES // (8 * 1000)


def fitted(tmp_path, n, draws=1000):
    _, model, records = simulated(n, tmp_path)
    theta = model.draw(model.statistics(records, np.ones(n)), draws, Key(bytes(32)).generator("bench"))
    return model, records, theta


def test_share_of_the_machines_gemm_rate_for_its_shape(ratio, tmp_path):
    """A GEMM of the tiles' shape (64 × 6)·(6 × 1000) over as many tiles; the kernel adds two reductions and features."""
    model, records, theta = fitted(tmp_path, 8192)
    rng = np.random.default_rng(1)
    left, right, out = rng.normal(size=(ROWS, 6)), rng.normal(size=(6, 1000)), np.empty((ROWS, 1000))

    def gemm():
        for _ in range(len(records) // ROWS):
            np.matmul(left, right, out=out)

    ratio("kernel's share of its GEMM's rate", lambda: model.extremes(theta, records), gemm)


def test_share_of_gemm_and_the_reductions_it_needs(ratio, tmp_path):
    """The same GEMM followed by NumPy's max and min of each tile: what the kernel cannot do without."""
    model, records, theta = fitted(tmp_path, 8192)
    rng = np.random.default_rng(1)
    left, right, out = rng.normal(size=(ROWS, 6)), rng.normal(size=(6, 1000)), np.empty((ROWS, 1000))

    def needed():
        for _ in range(len(records) // ROWS):
            np.matmul(left, right, out=out)
            out.max(axis=1)
            out.min(axis=1)

    ratio("kernel's share of GEMM with max and min", lambda: model.extremes(theta, records), needed)


def test_times_as_fast_as_broadcasting(ratio, tmp_path):
    model, records, theta = fitted(tmp_path, 2000)
    x = model.design.matrix[model.design.pattern[records.frame]]
    z = np.log(np.column_stack([records.outcome, records.weight]))

    def broadcast():
        residual = z - x @ theta["coefficients"]
        precision = np.linalg.inv(theta["covariance"])
        quadratic = np.einsum("sni,sij,snj->sn", residual, precision, residual)
        f = -np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(precision)[1][:, None] - 0.5 * quadratic
        return np.abs(f).max(axis=0)

    np.testing.assert_allclose(model.extremes(theta, records).bound, broadcast(), rtol=1e-9)
    ratio("times as fast as broadcasting", lambda: model.extremes(theta, records), broadcast, pairs=5)
