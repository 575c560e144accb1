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
    assert (base.shape[0] < len(cells)) == (margins and bool(by))
    if margins and by:
        assert of_cells.nnz + base.nnz < cells.membership.nnz
