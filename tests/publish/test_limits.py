"""Limits that are published: within public bounds, and as far apart as cells that the sums do not identify put them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpdist
from dpdist.cli.report import report
from dpdist.core.records import TOTAL, Frame
from dpdist.core.table_cells import cross
from dpdist.estimation.estimators import t_interval
from dpdist.mechanisms.reference_tables.post import ReferenceCells
from dpdist.mechanisms.reference_tables.typical_weights import TypicalWeights
from dpdist.publish.interval_limits import Ranges, Wider, farthest_means, wider
from dpdist.publish.named_cells import _sampling, beyond_sampling
from dpdist.publish.released import read_released

Named = Callable[[str], AbstractContextManager[None]]
JOB = """
dataset: unlike
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  kind: {{levels: [van, bus, truck, tractor, trailer]}}
  miles: {{bounds: {bounds}, outside: clip}}
  weight: {{bounds: [0.5, 1000], outside: clip}}
survey: {{weight: weight}}
outcome: miles
mechanism: {{name: {name}}}
budget: {{epsilon: "{epsilon}"}}
{reference}
tables:
  - {{name: one, by: [kind], statistics: [count, {{mean: miles}}, {{total: miles}}]}}
runtime: {{executor: serial}}
"""
KINDS = np.array(["van", "bus", "truck", "tractor", "trailer"])
HISTOGRAM = 'reference: {histogram: {epsilon: "0.3"}}'


def unlike(weights: tuple[float, ...], vans: int = 600, trailers: int = 400) -> pd.DataFrame:
    """Five cells of these mean weights, with few different weights and a long tail of miles."""
    rng, size = np.random.default_rng(3), [vans, 2500, 3000, 2500, trailers]
    kind = np.repeat(np.arange(5), size)
    miles = np.exp(rng.normal(np.array([9.0, 12.0, 9.5, 11.0, 10.0])[kind], 1.0))
    weight = np.array(weights)[kind] * rng.choice([0.6, 0.9, 1.2], len(kind))
    return pd.DataFrame({"kind": KINDS[kind], "miles": np.minimum(miles, 2e6), "weight": weight})


def ran(folder: Path, rows: pd.DataFrame, **said: str) -> Path:
    plain = {"name": "reference_tables", "reference": HISTOGRAM}
    plain |= {"epsilon": "1", "bounds": "[0, 2000000]"} | said
    rows.to_parquet(folder / "now.parquet")
    dpdist.run(dpdist.parse_job(JOB.format(folder=folder, **plain)), folder / "ws")
    return folder / "ws"


def table(space: Path) -> pd.DataFrame:
    rows = pd.read_parquet(space / "public" / "tables" / "one.parquet")
    return rows[rows["estimator"] == "parameters"].set_index(["statistic", "kind"])


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Vans are too few for a typical weight."""
    return unlike((1.0, 80.0, 80.0, 60.0, 70.0), vans=120)


@pytest.fixture(scope="module")
def space(rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory, noise_of: Named) -> Path:
    with noise_of("unlike"):
        return ran(tmp_path_factory.mktemp("unlike"), rows)


def direct(rows: pd.DataFrame) -> pd.Series:
    """Count, mean and total of every kind and of all."""
    product = rows["weight"] * rows["miles"]
    found = {}
    for kind in (*KINDS, TOTAL):
        own = (rows["kind"] == kind) | (kind == TOTAL)
        count, total = rows["weight"][own].sum(), product[own].sum()
        found |= {("count", kind): count, ("mean", kind): total / count, ("total", kind): total}
    return pd.Series(found)


def test_no_cell_with_an_estimate_is_off_by_over_four_of_its_errors(space: Path, rows: pd.DataFrame) -> None:
    """Without a look at the sums the van's count was 200 direct standard errors too large, within a tight interval."""
    found = table(space)
    known = found["estimate"].notna()
    away = (found["estimate"] - direct(rows).reindex(found.index)) / found["standard_error"]
    assert away[known].abs().max() < 4.0
    hidden = {kind for _, kind in found.index[~known]}
    assert "van" in hidden
    assert len(hidden) <= 2


def test_a_cell_with_a_typical_weight_has_limits_of_its_scale(
    tmp_path: Path, noise_of: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 vans of weight 1 beside 8,400 others of 60 to 80. Control: with weights as they are vans have no estimate."""
    rows = unlike((1.0, 80.0, 80.0, 60.0, 70.0))
    true, tables = direct(rows)["count"], []
    for folder in (tmp_path / "relative", tmp_path / "plain"):
        folder.mkdir()
        with noise_of("typical"):
            tables.append(table(ran(folder, rows)).loc["count"])
        monkeypatch.setattr(TypicalWeights, "relative", lambda typical, noisy, chosen: typical.histograms)
    relative, plain = tables
    assert not relative["suppressed"].any()
    np.testing.assert_allclose(relative["estimate"], true.reindex(relative.index), rtol=0.15)
    assert list(plain.index[plain["suppressed"]]) == ["van"]


def test_a_cell_without_an_estimate_has_limits_that_hold_it_and_so_has_what_is_made_of_it(
    space: Path, rows: pd.DataFrame
) -> None:
    found, true = table(space), direct(rows)
    hidden = found[found["suppressed"]]
    assert ("count", "van") in hidden.index
    for at, own in hidden.iterrows():
        assert own["lower"] <= true[at] <= own["upper"], at
        assert np.isnan(own["standard_error"])
    width = found["upper"] - found["lower"]
    assert width["count", TOTAL] >= width["count", "van"]
    assert not found.loc["count", TOTAL]["suppressed"]


@pytest.fixture(scope="module")
def heavy() -> pd.DataFrame:
    """Weights of trailers lie beyond a limit that is the others'. They are too few for a typical weight."""
    return unlike((40.0, 50.0, 50.0, 40.0, 700.0), trailers=120)


@pytest.fixture(scope="module")
def tables(heavy: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory, noise_of: Named) -> list[pd.DataFrame]:
    """The same release without a public total, and where the number of all is one."""
    total = f"rake: [{{by: [], totals: {{Total: {direct(heavy)['count', TOTAL]}}}}}]"
    found = []
    for added in ("", total):
        with noise_of("heavy"):
            folder = tmp_path_factory.mktemp("totalled")
            found.append(table(ran(folder, heavy, reference=f"{HISTOGRAM}\n{added}")).loc["count"])
    return found


def test_a_public_total_tells_the_cell_that_sums_do_not_and_takes_nothing_from_others(
    tables: list[pd.DataFrame], heavy: pd.DataFrame
) -> None:
    """Scaled as they are, all cells gave or took what trailers had too much or too little."""
    (plain, found), true, told = tables, direct(heavy)["count"], list(KINDS[:4])
    assert list(plain.index[plain["suppressed"]]) == ["trailer"]
    assert not found["suppressed"].any()
    np.testing.assert_allclose(found.loc[told, "estimate"], plain.loc[told, "estimate"], rtol=1e-6)
    assert found.loc["trailer", "estimate"] == pytest.approx(true[TOTAL] - found.loc[told, "estimate"].sum(), rel=1e-9)
    assert found.loc["trailer", "lower"] <= true["trailer"] <= found.loc["trailer", "upper"]


def test_a_count_that_is_a_public_total_has_no_width(tables: list[pd.DataFrame], heavy: pd.DataFrame) -> None:
    """Control: without the total it has the width of the trailers' range."""
    before, one = (each.loc[TOTAL] for each in tables)
    assert one["estimate"] == pytest.approx(direct(heavy)["count", TOTAL], rel=1e-9)
    assert one["upper"] - one["lower"] < 1e-6 * one["estimate"] < 0.01 * (before["upper"] - before["lower"])


def test_statement_and_report_name_the_cells(space: Path) -> None:
    said = json.loads((space / "public" / "statement.json").read_text())
    hidden = table(space).query("suppressed").loc["count"].index
    assert said["not_identified"]["weight"] == list(hidden) == ["van"]
    assert "not identified, weight: van" in report(space)
    assert any("chance of at most 0.001" in step for step in said["post_processing"])


def test_cells_are_named_from_what_the_release_describes(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A released job that does not name an earlier release has a model without some of the described parameters.

    Control: without the described error of the tails other ratios are named.
    """
    release = read_released(space / "public" / "released")
    found = beyond_sampling(release)
    described = {label: {k: v for k, v in said.items() if k != "tail"} for label, said in release.sets[0].items()}
    assert beyond_sampling(replace(release, sets=(described,))) != found
    parameters = [each for each in release.model(0).parameters if each.name != "tail"]  # type: ignore[attr-defined]
    monkeypatch.setattr(ReferenceCells, "parameters", parameters)
    assert "tail" not in release.theta(release.model(0), 0, 0).values
    assert beyond_sampling(release) == found


def test_cells_of_two_records_or_fewer_have_no_sampling_error_that_a_sample_must_show() -> None:
    """Control: with three records the least influential is left."""
    points = np.column_stack([np.array([1.0, 2.0, 4.0]), np.array([3.0, 5.0, 9.0])])
    for of_weight in (True, False):
        assert [_sampling(points, n, of_weight)[1] for n in (1.0, 2.0)] == [0.0, 0.0]
        assert _sampling(points, 3.0, of_weight)[1] > 0.0


def test_where_cells_are_alike_none_is_named(tmp_path: Path, noise_of: Named) -> None:
    """Control: the same file with one mean weight, and of one law of miles."""
    rows = unlike((70.0,) * 5)
    rows["miles"] = np.minimum(np.exp(np.random.default_rng(5).normal(10.0, 1.0, len(rows))), 2e6)
    with noise_of("alike"):
        space = ran(tmp_path, rows)
    said = json.loads((space / "public" / "statement.json").read_text())
    assert "not_identified" not in said
    assert not table(space)["suppressed"].any()
    assert "not identified" not in report(space)


STRICT = {
    "reference_tables": HISTOGRAM,
    "laplace_strict": "",
    "laplace_composed, sensitivity: public": "",
}


@pytest.mark.parametrize("bounds", ["[0, 2000000]", "[-2000000, 0]", "[0, 1]"])
@pytest.mark.parametrize("name", STRICT)
def test_limits_of_strict_tables_stand_within_the_public_bounds(
    name: str, bounds: str, tmp_path: Path, noise_of: Named
) -> None:
    """Under noise that reaches far beyond them."""
    low, top = json.loads(bounds)
    rows = unlike((1.0, 80.0, 80.0, 60.0, 70.0))[::5]
    rows["miles"] = -rows["miles"] if top == 0 else (rows["miles"] > 150_000) * 1.0 if top == 1 else rows["miles"]
    with noise_of(f"bounds {name}"):
        space = ran(tmp_path, rows, name=name, reference=STRICT[name], bounds=bounds, epsilon="0.4")
    made = pd.read_parquet(space / "public" / "tables" / "one.parquet")
    lower, upper = ({what: own[end] for what, own in made.groupby("statistic")} for end in ("lower", "upper"))
    assert (lower["count"] >= 0.0).all()
    assert (lower["mean"] >= low).all()
    assert (upper["mean"] <= top).all()
    assert (lower["total"] >= 0.0).all() if low == 0 else (upper["total"] <= 0.0).all()


FRAME = Frame({"kind": np.arange(4, dtype=np.int32)}, {"kind": tuple("abcd")}, np.array([3, 5, 2, 9]), (), ())
ends = st.tuples(st.floats(0.5, 50.0), st.floats(0.0, 40.0))


@given(st.lists(ends, min_size=4, max_size=4), st.lists(ends, min_size=4, max_size=4))
def test_thefarthest_means_mean_is_that_of_the_worst_corner(
    weights: list[tuple[float, float]], means: list[tuple[float, float]]
):
    """Every corner of the ranges tried."""
    low, apart = np.array(weights).T
    y, more = np.array(means).T
    ranges, n = Ranges(low, low + apart, y, y + more), FRAME.count.astype(float)
    cells = cross(FRAME, ("kind",), margins=True)
    corners = [np.average(ranges.most, weights=n * np.array(w)) for w in product(*zip(low, low + apart, strict=True))]
    assert farthest_means(cells, n, ranges, ranges.most, 1.0)[-1] == pytest.approx(max(corners), rel=1e-9)
    corners = [np.average(ranges.least, weights=n * np.array(w)) for w in product(*zip(low, low + apart, strict=True))]
    assert farthest_means(cells, n, ranges, ranges.least, -1.0)[-1] == pytest.approx(min(corners), rel=1e-9)


def test_an_interval_that_holds_nothing_unidentified_stays_as_it_was() -> None:
    plain = t_interval(np.array([5.0, 7.0, 9.0]), np.array([1.0, 4.0, 1.0]), np.full(3, np.inf))
    none = np.zeros(3)
    for one, other in zip(plain, wider(plain, Wider(none, none, none)), strict=True):
        assert (one == other).all()
    moved = wider(plain, Wider(np.array([0.0, 3.0, 1.0]), np.array([0.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0])))
    assert moved.lower[1] == plain.lower[1] - 3.0
    assert moved.value[1] - 1.6448536 * moved.standard_error[1] == pytest.approx(moved.lower[1])
    assert np.isnan(moved.value[2])
    assert (moved.lower[2], moved.upper[2]) == (plain.lower[2] - 1.0, plain.upper[2] + 1.0)


BOUNDED = """
dataset: bounded
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  kind: {{levels: [van, bus]}}
  miles: {{bounds: [10, 90], outside: clip}}
  weight: {{bounds: [2, 50], outside: clip}}
survey: {{weight: weight}}
outcome: miles
mechanism: {{name: laplace_strict}}
budget: {{epsilon: "0.005"}}
tables:
  - {{name: one, by: [kind], statistics: [count, {{mean: miles}}, {{total: miles}}]}}
withhold_above: null
runtime: {{executor: serial}}
{added}
"""


def test_no_interval_reaches_beyond_a_public_total(tmp_path: Path, noise_of: Named) -> None:
    """Noise is far larger than every figure. Control: without the total, limits lie beyond it."""
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"kind": ["van"] * 100 + ["bus"] * 300, "miles": rng.uniform(10, 90, 400), "weight": 20.0})
    rows.to_parquet(tmp_path / "now.parquet")
    upper = {}
    for name, added in (("with", "rake: [{by: [], totals: {Total: 9000}}]"), ("without", "")):
        with noise_of("bounded"):
            dpdist.run(dpdist.parse_job(BOUNDED.format(folder=tmp_path, added=added)), tmp_path / name)
        found = pd.read_parquet(tmp_path / name / "public" / "tables" / "one.parquet")
        upper[name] = found.groupby("statistic")["upper"].max()
        assert (found["lower"] >= np.where(found["statistic"] == "mean", 10.0, 0.0)).all()
    assert upper["with"]["count"] <= 9_000 * (1 + 1e-9)
    assert upper["with"]["total"] <= 810_000 * (1 + 1e-9)
    assert upper["without"]["count"] > 9_000
    assert upper["without"]["total"] > 810_000
