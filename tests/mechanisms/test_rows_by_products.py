"""Rows of many sums, whose entries are computed at every product, give what stored matrices give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy
from test_tables import population, system_of, unread

from dpdist.mechanisms.tables import posterior as module, rows as rows_module
from dpdist.mechanisms.tables.limits import TableLimits
from dpdist.mechanisms.tables.measured_sums import MeasuredSums
from dpdist.mechanisms.tables.residual_prior import lone_variances
from dpdist.mechanisms.tables.rows import RowsOfTables


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_entries_computed_at_every_product_give_the_digits_of_stored_ones(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where base cells count for unequal parts, and where they are taken few at a time. Control: other means."""
    monkeypatch.setattr(rows_module, "ENTRIES", 64)
    system = system_of(population(seed, records=600), 2.0)[0]
    nothing = unread(system)
    first, *limits = nothing.limits
    rng = np.random.default_rng(seed)
    limits[0] = replace(limits[0], unequal=rng.uniform(0.5, 1.0, (len(system.file.codes), 2)))
    stored = _matrices(nothing, (first, *limits))
    monkeypatch.setattr(module, "MOST_DENSE", 0)
    computed = _matrices(nothing, (first, *limits))
    assert all(isinstance(part, RowsOfTables) for part in computed)
    for matrix, entries in zip(stored, computed, strict=True):
        assert entries.shape == matrix.shape
        for sides in ((), (5,)):
            values = rng.standard_normal((matrix.shape[1], *sides))
            back = rng.standard_normal((matrix.shape[0], *sides))
            assert np.array_equal(entries @ values, matrix @ values)
            assert np.array_equal(entries.T @ back, matrix.T @ back)
            assert np.array_equal(entries.matrix @ values, matrix @ values)
            assert np.array_equal(entries.matrix.T @ back, matrix.T @ back)
            single = entries @ values.astype(np.float32)
            assert single.dtype == np.float32 == (entries.T @ back.astype(np.float32)).dtype
            assert single == pytest.approx(matrix @ values, abs=1e-4 * np.abs(matrix @ values).max())
        some = np.sort(rng.choice(matrix.shape[0], matrix.shape[0] // 3, replace=False))
        assert abs(entries[some] - matrix[some]).nnz == 0
    assert np.array_equal(
        lone_variances(system.file.prior, list(computed[:2])), lone_variances(system.file.prior, list(stored[:2]))
    )
    assert np.array_equal(module.squares_of(computed[2]), module.squares_of(stored[2]))
    other = _matrices(nothing, (first, limits[0], replace(limits[1], mean=limits[1].mean + 0.1), *limits[2:]))[0]
    assert not np.array_equal(other @ values[: len(system.file.codes)], stored[0] @ values[: len(system.file.codes)])


def _matrices(sums: MeasuredSums, limits: tuple[TableLimits, ...]) -> tuple[scipy.sparse.csr_array | RowsOfTables, ...]:
    """Rows by coordinate, and factors of what limits clip with entries in the order of columns."""
    rows, _, _, _, clipped = replace(sums, limits=limits).observed()
    if not isinstance(clipped, RowsOfTables):
        clipped.sort_indices()
    return (*rows, clipped)
