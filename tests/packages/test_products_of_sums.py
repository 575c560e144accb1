"""Products of functions of base cells' sums are those of dense matrices, and none is made again for other noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy
from simulated_package import BOUNDS, PURE, reference, workload, world

from dpdist.core.records import Floats
from dpdist.packages import sums
from dpdist.packages.conjugate import root_of_inverse
from dpdist.packages.package import package
from dpdist.packages.posterior import factored
from dpdist.packages.prior import Prior
from dpdist.packages.strategy import PerTable
from dpdist.packages.sums import Sums, crossed


def functions(seed: int, rows: int, cells: int) -> Sums:
    """Four matrices, of which one is empty. Some cells are in no row, others in several."""
    rng = np.random.default_rng(seed)
    kept = rng.random((4, rows, cells)) < 0.2
    kept[1], kept[:, :, 0] = False, False
    return Sums(tuple(scipy.sparse.csr_array(np.where(one, rng.normal(size=one.shape), 0.0)) for one in kept))


@pytest.mark.parametrize("entries", [1, 4_000_000])
def test_covariances_are_those_of_dense_matrices(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with another block they differ."""
    monkeypatch.setattr(sums, "ENTRIES_AT_ONCE", entries)
    one, other = functions(1, 7, 30), functions(2, 11, 30)
    roots = np.random.default_rng(3).normal(size=(30, 4, 4))
    block = roots @ roots.swapaxes(1, 2)

    def dense(block: Floats) -> Floats:
        left, right = (np.stack([part.toarray() for part in of.parts]) for of in (one, other))
        return np.einsum("irc,cij,jsc->rs", left, block, right)

    np.testing.assert_allclose(crossed(one, other, block), dense(block), rtol=1e-12, atol=1e-12)
    assert np.abs(crossed(one, other, block) - dense(2.0 * block)).max() > 0.1


def test_a_root_of_an_inverse_is_its_lower_triangular_one() -> None:
    precision = np.cov(np.random.default_rng(4).normal(size=(20, 60)))
    np.testing.assert_allclose(root_of_inverse(precision), np.linalg.cholesky(np.linalg.inv(precision)), atol=1e-12)


def test_a_factor_leaves_the_covariance_as_it_is() -> None:
    covariance, noise = np.cov(np.random.default_rng(5).normal(size=(9, 60))), np.arange(9.0)
    before, (factor, lower) = covariance.copy(), factored(covariance, noise)
    assert lower
    np.testing.assert_allclose(np.tril(factor) @ np.tril(factor).T, covariance + np.diag(noise), rtol=1e-12)
    np.testing.assert_array_equal(covariance, before)


def test_a_plan_makes_covariances_of_its_figures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms of the measurements are made for each of two centrings. Those of all figures are made once, also to predict."""
    made, terms_of = list[int](), Prior.terms_of

    def counted(prior: Prior, functions: Any) -> Any:
        made.append(len(functions))
        return terms_of(prior, functions)

    monkeypatch.setattr(Prior, "terms_of", counted)
    count = np.bincount(world().draw(3000, np.random.default_rng(7)).cell, minlength=len(world().share)).astype(float)
    planned = package(workload(count), reference(8), [BOUNDS], PURE.law, PerTable())
    assert len(made) == 3, made
    assert len(set(made)) == 2
    assert {one.table for one in planned.predicted()} == {table.name for table in planned.prior.workload.tables}
    assert len(made) == 3, made
