"""Comparator tables: least squares makes margins add up and takes noise away."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import lsmr

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import TOTAL, Crosstab, cross
from dpdist.estimation.direct import direct, totals
from dpdist.estimation.least_squares import LeastSquares, consistent, stacked
from dpdist.quality.evaluate import noised

LEVELS = {"field": ("arts", "law", "none"), "sex": ("f", "m")}


def survey() -> tuple[Crosstab, Records]:
    codes = {"field": np.repeat([0, 1], 2).astype(np.int32), "sex": np.tile([0, 1], 2).astype(np.int32)}
    crosstab = Crosstab(codes, LEVELS, np.full(4, 50), (), ())
    rng = np.random.default_rng(2)
    rows, n = crosstab.expand(), 200
    records = Records.of_outcomes(rng.uniform(1, 9, n), rng.uniform(1, 3, n), rows)
    return crosstab, records


def test_a_consistent_table_adds_up_and_leaves_an_additive_one_alone() -> None:
    frame, _ = survey()
    cells = cross(frame, ["field", "sex"], margins=True)
    true = cells.membership @ frame.count.astype(float)
    np.testing.assert_allclose(consistent(true, cells.membership), true, rtol=1e-12)
    noisy = true + np.random.default_rng(1).normal(0.0, 9.0, len(true))
    found = dict(zip(cells.labels, consistent(noisy, cells.membership), strict=True))
    for field in ("arts", "law"):
        assert found[field, "f"] + found[field, "m"] == pytest.approx(found[field, TOTAL])
    assert found["arts", TOTAL] + found["law", TOTAL] == pytest.approx(found[TOTAL, TOTAL])
    assert found["none", "f"] == pytest.approx(0.0, abs=1e-9)


def test_least_squares_over_several_tables_converges() -> None:
    """Random sets of two to four tables of up to four columns, with margins or without, against a dense solution; control:
    `lsmr`'s own limit of steps, the smaller side, misses it."""
    rng, missed = np.random.default_rng(3), 0.0
    for _ in range(60):
        names = [f"c{k}" for k in range(rng.integers(2, 5))]
        levels = {name: tuple(f"l{k}" for k in range(rng.integers(2, 5))) for name in names}
        rows = int(rng.integers(3, 40))
        codes = {name: rng.integers(0, len(levels[name]), rows).astype(np.int32) for name in names}
        crosstab = Crosstab(codes, levels, np.full(rows, 5), (), ())
        tables = []
        for _ in range(rng.integers(2, 5)):
            by = list(rng.permutation(names)[: rng.integers(1, len(names) + 1)])
            tables.append(cross(crosstab, by, margins=bool(rng.integers(0, 2))))
        membership = stacked(tables)
        noisy = membership @ rng.uniform(0.0, 1e5, rows) + rng.laplace(0.0, 1e3, membership.shape[0])
        dense = np.linalg.lstsq(membership.toarray(), noisy, rcond=None)[0]
        np.testing.assert_allclose(
            LeastSquares.of(membership).solve(noisy[None]).rows[0], dense, rtol=0.0, atol=1e-10 * np.abs(noisy).max()
        )
        stepped = LeastSquares(membership, None).solve(noisy[None])
        np.testing.assert_allclose(stepped.rows[0], dense, rtol=0.0, atol=1e-7 * np.abs(noisy).max())
        short = lsmr(membership, noisy, atol=1e-15, btol=1e-15, conlim=0.0)[0]
        missed = max(missed, np.abs(short - dense).max() / np.abs(noisy).max())
    assert missed > 1e-8


def test_least_squares_takes_noise_away() -> None:
    """4 free cells of 9: mean squared error falls to about 4/9; 300 tables, so the ratio's sd is about .03. Control: the
    composed table against itself would be 1."""
    frame, records = survey()
    cells = cross(frame, ["field", "sex"], margins=True)
    found = totals([records], frame, clustered=False)
    names = ("count", "mean", "total")
    values = dict(zip(names, (e.value for e in direct(found, frame, cells)), strict=True))
    occupied = values["count"] > 0
    errors = {"laplace_composed": 0.0, "laplace_consistent": 0.0}
    for how in errors:
        for number in range(300):
            key = Key(b"\x07" * 32).child(str(number))
            table = noised(values, found, cells, 2.0, how, key, "t", 12)
            errors[how] += float(((table["count"] - values["count"])[occupied] ** 2).sum())
            if how == "laplace_consistent":
                product = (table["mean"] * table["count"])[occupied]
                np.testing.assert_allclose(product, table["total"][occupied], rtol=1e-9)
    assert errors["laplace_consistent"] / errors["laplace_composed"] == pytest.approx(4 / 9, abs=0.12)
