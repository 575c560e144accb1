"""Products by way of the terms that identify others are those with the terms themselves."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy

from dpdist.packages import levels
from dpdist.packages.levels import Terms, squares_of
from dpdist.packages.nested import NestedTerms
from dpdist.packages.workload import PackageTable, Workload

CELLS, COUNTIES, AGES, STATES = 400, 30, 4, 5


def terms(nested: bool) -> Terms:
    """Base cells by county, age and state: counties of a state if `nested`, or states in any order."""
    rng = np.random.default_rng(4)
    county, age = rng.integers(COUNTIES, size=CELLS), rng.integers(AGES, size=CELLS)
    state = county % STATES if nested else rng.integers(STATES, size=CELLS)
    tables = tuple(PackageTable(str(by), by) for by in ((0, 1), (2, 1)))
    codes = np.column_stack([county, age, state])
    return Terms.of(Workload(codes, (COUNTIES, AGES, STATES), np.ones(CELLS), tables))


@pytest.mark.parametrize(("nested", "finest"), [(True, 1), (False, 2)], ids=["nested", "crossed"])
def test_products_are_those_with_the_terms(nested: bool, finest: int) -> None:
    """Sums of whole numbers are exact. Where counties do not identify states, two tables are added up to base cells."""
    whole = terms(nested)
    z, rng = whole.matrix, np.random.default_rng(5)
    of_terms, of_cells = rng.integers(-9, 9, (z.shape[1], 3)).astype(float), rng.integers(-9, 9, (CELLS, 3)).astype(float)
    few = np.array([0, 7, 40])
    for made, matrix, values in ((whole.nested, z, of_terms), (whole.nested.few(few), z[:, few], of_terms[few])):
        np.testing.assert_array_equal(made @ values, matrix @ values)
        np.testing.assert_array_equal(made @ values[:, 0], matrix @ values[:, 0])
        np.testing.assert_array_equal(made.back(of_cells), matrix.T @ of_cells)
        np.testing.assert_array_equal(made.matrix.toarray(), matrix.toarray())
        assert made.finest.nnz == finest * CELLS
    np.testing.assert_array_equal(whole.nested.columns(few).toarray(), z[:, few].toarray())


def test_terms_of_no_base_cell_have_products_too() -> None:
    whole = terms(True)
    none = NestedTerms.of(whole.matrix[:0])
    assert (none @ np.ones(whole.matrix.shape[1])).shape == (0,)
    assert not none.back(np.zeros(0)).any()


@pytest.mark.parametrize("kept", [0, 10_000])
def test_squares_of_terms_have_the_bits_of_sparse_products(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variances of levels are tried tens of times. Every sum keeps the order of the cells, so that no published digit
    moves. Pairs of terms that would take much room are not kept."""
    monkeypatch.setattr(levels, "MOST_PAIRS", kept)
    z = terms(True).matrix
    squares = squares_of(z)
    assert isinstance(squares, partial) is not bool(kept)
    for seed in range(3):
        weights = np.random.default_rng(seed).uniform(0.1, 9.0, CELLS)
        whole = (z.T @ scipy.sparse.diags_array(weights) @ z).toarray()
        np.testing.assert_array_equal(np.tril(squares(weights)), np.tril(whole))
