"""Reference records in crosses that the file lacks inform levels and ties of the file's base cells, and no law."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pytest
from simulated_package import BOUNDS, PURE, noisy, planned, reference, workload, world

from dpdist.core.records import Floats, Ints
from dpdist.estimation.donors import AbsentRecords, Donors, donors_from_table, donors_table
from dpdist.packages import large, levels
from dpdist.packages.conjugate import TermPrecision
from dpdist.packages.large import LargePosterior
from dpdist.packages.levels import Levels, Terms
from dpdist.packages.limits import limits_of
from dpdist.packages.package import Package, Reference, package
from dpdist.packages.posterior import Posterior
from dpdist.packages.strategy import PerTable
from dpdist.packages.sums import published_sums
from dpdist.packages.workload import PackageTable, Workload

CELLS = len(world().share)
ABSENT = np.arange(0, CELLS, 3)
"""Base cells of the world that the file lacks."""
PRESENT = np.setdiff1d(np.arange(CELLS), ABSENT)


def _file(public: Floats | None = None) -> Workload:
    whole = workload(np.full(CELLS, 8.0))
    return replace(whole, codes=whole.codes[PRESENT], count=whole.count[PRESENT], weight=public)


def _placed(records: Reference, file: Workload) -> Reference:
    cell, absent = file.placed(world().codes[records.cell])
    return records._replace(cell=cell, absent=absent)


def _signed(seed: int) -> Reference:
    """A reference with outcomes of both signs, whose unit is one for all cells."""
    records = reference(seed)
    return records._replace(outcome=records.outcome - 60.0)


def _of_levels(levels: Levels, cells: int) -> dict[str, Floats]:
    """All that levels have of the first cells."""
    errors = {f"{k} {one.name}": getattr(error, one.name) for k, error in enumerate(levels.errors) for one in fields(error)}
    every = {**errors, "weight": levels.weight, "mean": levels.mean, "unit": levels.unit}
    return {name: values[:cells] for name, values in every.items() if isinstance(values, np.ndarray)}


@pytest.mark.parametrize("weights", ["measured", "public"])
def test_levels_are_those_of_base_cells_with_no_record(weights: str) -> None:
    """The oracle has the crosses as base cells of count 0, in the world's order. Control: levels without their records."""
    records, public = _signed(3), None
    if weights == "public":
        weight = 10.0 + np.arange(CELLS)
        records, public = records._replace(weight=weight[records.cell]), weight[PRESENT]
    file, bounds = _file(public), [(-60.0, 340.0)]
    placed = _placed(records, file)
    crosses = placed.crosses(file)
    size, noise = np.full(len(file), 40.0), np.full(len(file), 30.0)
    terms = Terms.of(crosses)
    of_crosses = placed.levels(crosses, terms, bounds)
    made = placed.prior(file, terms, of_crosses, bounds, size, noise)
    count = np.where(np.isin(np.arange(CELLS), ABSENT), 0.0, 8.0)
    whole = replace(workload(count), weight=None if public is None else weight)
    other = Reference(records.cell, records.weight, records.outcome).levels(whole, Terms.of(whole), bounds)
    shown, wanted = _of_levels(made.levels, len(file)), _of_levels(other, CELLS)
    assert shown.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(shown[name], values[PRESENT], rtol=1e-7, atol=1e-9, err_msg=name)
    assert made.represented is not None
    assert made.represented.size == records.weight.sum()
    kept = placed.inside(len(file))
    common = Reference(placed.cell[kept], placed.weight[kept], placed.outcome[kept])
    limits = limits_of(file, made.levels, common, bounds, size, noise)  # laws are those of the file's crosses
    for name in ("cap", "centre", "half", "tilt", "share"):
        np.testing.assert_array_equal(getattr(made.limits, name), getattr(limits, name), err_msg=name)
    less = package(file, common, bounds, PURE.law, PerTable()).prior
    assert np.median(np.abs(less.levels.mean / made.levels.mean - 1.0)) > 0.002


def test_a_table_s_cell_has_the_figures_of_records_in_absent_crosses_alone() -> None:
    """A region has 900 reference records, all in crosses that the file lacks, of three times the weight and twice the
    outcome of others. The file's cells of the region have these. Control: without the records they are like others.
    """
    rng, codes = np.random.default_rng(5), np.indices((4, 6)).reshape(2, -1).T.astype(np.int64)
    tables = PackageTable("region", (0,)), PackageTable("age", (1,))
    lacked = (codes[:, 0] == 3) & (codes[:, 1] < 3)
    file = Workload(codes[~lacked], (4, 6), np.full((~lacked).sum(), 30.0), tables)
    drawn = np.repeat(np.flatnonzero((codes[:, 0] < 3) | lacked), 300)
    apart = codes[drawn, 0] == 3
    weight = np.where(apart, 30.0, 10.0) * rng.gamma(9.0, 1.0 / 9.0, len(drawn))
    outcome = np.where(apart, 40.0, 20.0) * rng.gamma(9.0, 1.0 / 9.0, len(drawn))
    cell, absent = file.placed(codes[drawn])
    ratios = []
    for records in (Reference(cell, weight, outcome, absent), Reference(*(of[~apart] for of in (cell, weight, outcome)))):
        prior = package(file, records, [BOUNDS], PURE.law, PerTable()).prior
        count, total = (sums.of(prior.mean) for sums in published_sums(file.published(tables[0]), prior.levels))
        ratios.append((count[3] / 90.0 / 30.0, total[3] / count[3] / 40.0))
    np.testing.assert_allclose(ratios[0], 1.0, atol=0.1)
    assert max(ratios[1]) < 0.7


def test_another_budget_learns_from_the_same_levels() -> None:
    """What the package under a law has learned serves it under another."""
    file = _file()
    placed = _placed(reference(3), file)
    made = package(file, placed, [BOUNDS], PURE.law, PerTable())
    again = package(file, placed, [BOUNDS], PURE.law, PerTable(), before=made)
    np.testing.assert_array_equal(again.prior.mean, made.prior.mean)
    np.testing.assert_array_equal(again.prior.limits.cap, made.prior.limits.cap)
    errors = [[one.error for one in of.predicted(records=placed)] for of in (made, again)]
    for one, other in zip(*errors, strict=True):
        np.testing.assert_array_equal(one.means, other.means)


def test_a_reference_without_such_crosses_gives_the_same_package() -> None:
    count, records = np.full(CELLS, 8.0), reference(3)
    made: list[Package] = [
        planned(count, one, PURE) for one in (records, records._replace(absent=np.zeros((0, 4), dtype=np.int64)))
    ]
    np.testing.assert_array_equal(*(one.prior.mean for one in made))
    assert all(one.prior.of_crosses is None for one in made)


def test_a_record_far_above_its_level_in_such_a_cross_leaves_limits_and_figures() -> None:
    """An absent cross has a mean outcome of .1, and one record with 400. In a group's law its r of thousands moved all
    cells. Control: the same record in a cross of the file moves the largest r.
    """
    records = reference(8, n=20_000)
    rare = int(ABSENT[np.argsort(world().share[ABSENT])[0]])
    outcome = np.where(records.cell == rare, 0.1, records.outcome)
    outcome[np.flatnonzero(records.cell == rare)[0]] = 400.0
    records, largest = records._replace(outcome=outcome), []
    for file in (_file(), workload(np.full(CELLS, 8.0))):
        prior = package(file, _placed(records, file), [BOUNDS], PURE.law, PerTable()).prior
        largest.append(max(float(shape.r.max()) for shape in prior.limits.shapes))
    assert largest[0] < 0.5 * largest[1]


def _codes(cells: Ints) -> Ints:
    return np.asarray(world().codes[cells], dtype=np.int32)


def test_records_of_absent_crosses_are_released_and_are_no_donors() -> None:
    """A table of donors gives both again. Control: without them it is the table of donors alone."""
    rng, columns, outcomes = np.random.default_rng(4), tuple("rsaw"), ("y", "z")
    absent = AbsentRecords(columns, _codes(rng.choice(ABSENT, 50)), rng.gamma(3.0, 1.0, 50), rng.gamma(3.0, 1.0, (50, 2)))
    absent.weight[:5] = 0.0
    copied = pa.table({"more": rng.choice(["a", "b"], 90)})
    alone = Donors.of(rng.choice(40, 90), rng.gamma(3.0, 1.0, 90), rng.gamma(3.0, 1.0, (90, 2)), copied)
    table = donors_table({"all": replace(alone, absent=absent.by(columns))}, outcomes)
    made = donors_from_table(table, outcomes, ["more"])["all"]
    assert len(table) == 90 + 45
    assert len(made) == 90
    for name in ("cell", "weight", "outcomes"):
        np.testing.assert_array_equal(getattr(made, name), getattr(alone, name))
    assert made.copied == alone.copied
    assert made.absent is not None
    assert made.absent.columns == columns
    wanted = absent.by(columns)
    assert wanted is not None
    for name in ("codes", "weight", "outcomes"):
        np.testing.assert_array_equal(getattr(made.absent, name), getattr(wanted, name))
    plain = donors_table({"all": alone}, outcomes)
    assert plain.column_names == ["stratum", "cell", "weight", "outcome y", "outcome z", "copied more"]
    assert donors_from_table(plain, outcomes, ["more"])["all"].absent is None


def test_crosses_are_placed_after_base_cells() -> None:
    file = _file()
    cell, absent = file.placed(world().codes[[PRESENT[7], ABSENT[2], ABSENT[1], ABSENT[2]]])
    assert cell.tolist() == [7, len(file) + 1, len(file), len(file) + 1]
    np.testing.assert_array_equal(absent, world().codes[ABSENT[[1, 2]]])


def test_estimates_by_conjugate_gradients_are_those_of_a_dense_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cross of a region with an age is in the file, so that a term of this table has no base cell at all. Control:
    such terms of all crosses are more than those of the file's cells.
    """
    for where, name, value in ((large, "MOST_SUMS", 40), (levels, "MOST_TERMS", 50), (levels, "COARSE_TERMS", 20)):
        monkeypatch.setattr(where, name, value)
    monkeypatch.setattr(levels, "TERMS_LEARNED", 50)
    codes = world().codes
    present = np.setdiff1d(PRESENT, np.flatnonzero((codes[:, 0] == 2) & (codes[:, 2] == 1)))
    file = replace(_file(), codes=codes[present], count=np.full(len(present), 8.0))
    made = package(file, _placed(reference(8), file), [BOUNDS], PURE.law, PerTable())
    assert isinstance(made.posterior, LargePosterior)
    assert isinstance(made.prior.levels.of_weight.terms, TermPrecision)
    assert made.prior.terms.matrix.shape[1] > Terms.of(file).matrix.shape[1]
    rng, one = np.random.default_rng(2), made.posterior
    drawn = world().at(np.repeat(present, 8), rng)
    x = noisy(made, PURE, drawn._replace(cell=file.placed(codes[drawn.cell])[0]), rng)
    dense = Posterior(one.prior, one.measured, one.constant, one.noise, one.drift)
    wanted = dense.estimated(x)
    np.testing.assert_allclose(one.estimated(x), wanted, rtol=0.0, atol=1e-5 * float(np.abs(wanted).max()))
