"""Sums over a table's cells of many rows: base cells first, then margins."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from dpdist.core import records
from dpdist.core.records import Crosstab, cross

LEVELS = {"county": tuple(f"c{k}" for k in range(30)), "age": ("young", "old"), "sex": ("f", "m", "x")}


@pytest.mark.parametrize(
    ("by", "margins", "universe"),
    [
        (("county", "age", "sex"), True, None),
        (("county", "sex"), False, None),
        (("age",), True, {"sex": ("f", "x")}),
        (("age", "sex"), True, {"sex": ("m", "x")}),
        ((), True, None),
    ],
)
def test_base_cells_first_and_then_margins_give_the_sums_of_all_rows(
    monkeypatch: pytest.MonkeyPatch, by: tuple[str, ...], margins: bool, universe: Mapping[str, tuple[str, ...]] | None
) -> None:
    """Control: sums of base cells alone are others, where there are margins."""
    rng = np.random.default_rng(1)
    codes = {name: rng.integers(0, len(levels), 500).astype(np.int32) for name, levels in LEVELS.items()}
    crosstab = Crosstab(codes, LEVELS, np.ones(500, dtype=np.int64), (), ())
    values = rng.integers(0, 1000, (500, 3)).astype(np.float64)
    cells = cross(crosstab, by, margins, universe)
    n = rng.integers(1, 9, 500).astype(np.float64)
    direct = cells.sums(n, values)
    assert np.array_equal(direct, cells.membership @ (n[:, None] * values))
    monkeypatch.setattr(records, "MANY_ROWS", 0)
    assert np.array_equal(cells.sums(n, values), direct)
    of_cells, base = cells._by_base_cell
    assert (of_cells @ base != cells.membership).nnz == 0
    assert np.diff(base.indptr).max() <= records.ROWS_OF_PART
    if margins and by:
        assert of_cells.nnz + base.nnz < cells.membership.nnz


def test_sums_of_single_precision_keep_its_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: added up without parts, sums of many rows lose some of them."""
    rows, rng = 200_000, np.random.default_rng(2)
    codes = {name: rng.integers(0, len(levels), rows).astype(np.int32) for name, levels in LEVELS.items()}
    crosstab = Crosstab(codes, LEVELS, np.ones(rows, dtype=np.int64), (), ())
    values, n = rng.uniform(1.0, 2.0, (rows, 2)).astype(np.float32), rng.integers(1, 9, rows).astype(np.float64)

    def largest_error() -> float:
        cells = cross(crosstab, ("sex",), True)
        direct = cells.membership @ (n[:, None] * values.astype(np.float64))
        return float(np.abs(cells.sums(n, values) / direct - 1.0).max())

    assert largest_error() < 2e-8
    monkeypatch.setattr(records, "ROWS_OF_PART", rows)
    assert largest_error() > 2e-7


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 2, 72, 101])
def test_quantiles_are_those_of_numpy(axis: int, size: int) -> None:
    values = np.random.default_rng(3).standard_normal([size if k == axis else 5 for k in range(3)])
    values.flat[7 % values.size] = np.nan
    levels = [0.0, 0.05, 0.5, 0.9, 1.0]
    assert np.array_equal(records.quantiles(values, levels, axis), np.quantile(values, levels, axis=axis), equal_nan=True)


@pytest.mark.parametrize("margins", [False, True])
@pytest.mark.parametrize("universe", [None, {"sex": ("f",)}, {"sex": ("m", "x"), "age": ("old",)}])
def test_labels_alone_are_those_of_cells(margins: bool, universe: Mapping[str, tuple[str, ...]] | None) -> None:
    codes = {name: np.zeros(3, dtype=np.int32) for name in LEVELS}
    crosstab = Crosstab(codes, LEVELS, np.ones(3, dtype=np.int64), (), ())
    labels = records.cross_labels(crosstab, ("county", "sex"), margins, universe)
    inside = (universe or {}).get("sex", LEVELS["sex"])
    assert labels == cross(crosstab, ("county", "sex"), margins, universe).labels
    assert records.number_of_cells(crosstab, ("county", "sex"), margins, universe) == len(labels)
    assert {label[1] for label in labels} == {*map(str, inside), *["Total"] * margins}
