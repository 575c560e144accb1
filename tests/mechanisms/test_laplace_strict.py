"""The strict Laplace table: its sensitivity on exact records, its noise by exact shares, a release end to end."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import dpdist
from dpdist.errors import JobError
from dpdist.noise import whole_laplace
from dpdist.privacy.cell_sums import SENSITIVITY, UNIT, CellBounds, noise_scale
from dpdist.records import TOTAL

JOB = """
dataset: strict
period: "2020"
columns:
  field: {levels: [arts, law, none]}
  sex: {levels: [f, m]}
  salary: {bounds: [0, 200000], outside: clip}
  weight: {bounds: [1, 60], outside: clip}
survey: {weight: weight}
strata: [field]
model: {family: cell_sums, outcome: salary}
mechanism: {name: laplace_strict}
budget: {epsilon: "3"}
tables:
  - {name: salaries, by: [field, sex], statistics: [count, {mean: salary}]}
runtime: {executor: serial}
"""

money, weights = st.floats(-1e6, 1e6), st.floats(0.0, 1e4)
wide = CellBounds(60.0, -5e4, 2e5)


@settings(max_examples=300)
@given(weights, money, weights, money)
def test_no_exchange_of_a_record_moves_its_pair_by_more_than_the_sensitivity(w, y, other_w, other_y):
    one, other = wide.pairs(np.array([w, other_w]), np.array([y, other_y]))
    assert np.abs(one - other).sum() <= SENSITIVITY * UNIT
    assert np.abs(one).sum() <= SENSITIVITY * UNIT, "nothing is a neighbour too"
    assert one.tolist() == np.rint(one).tolist()


def test_the_sensitivity_is_attained_and_a_third_less_noise_would_not_do():
    """Control: at the corners of the triangle the distance is the sensitivity itself."""
    corners = wide.pairs(np.array([60.0, 60.0]), np.array([-5e4, 2e5]))
    assert np.abs(corners[0] - corners[1]).sum() == SENSITIVITY * UNIT
    assert np.abs(corners[0] - corners[1]).sum() > SENSITIVITY * UNIT * 2 / 3


@given(st.lists(st.tuples(st.floats(0.0, 60.0), st.floats(-5e4, 2e5)), min_size=1, max_size=30))
def test_sums_within_the_bounds_come_back_to_one_part_in_a_million(records):
    w, y = np.array(records).T
    found = wide.sums(wide.pairs(w, y).sum(axis=0))
    assert found[0] == pytest.approx(w.sum(), abs=60.0 * len(w) / UNIT)
    assert found[1] == pytest.approx((w * y).sum(), abs=60.0 * 1.8e5 * len(w) / UNIT)


def test_the_noise_has_the_scale_that_the_promise_needs():
    """|noise| over its scale is exponential: Kolmogorov–Smirnov at 1e-6; control: 1.2 times the scale."""
    scale = noise_scale(Fraction(3))
    assert scale == Fraction(2 * UNIT, 3)
    noise = np.abs(whole_laplace(scale, 20_000)) / float(scale)
    assert stats.kstest(noise, "expon").pvalue > 1e-6
    assert stats.kstest(noise / 1.2, "expon").pvalue < 1e-6


def survey() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    n = 6000
    return pd.DataFrame(
        {
            "field": rng.choice(["arts", "law"], n, p=[0.3, 0.7]),
            "sex": rng.choice(["f", "m"], n),
            "salary": np.exp(rng.normal(11.0, 0.4, n)),
            "weight": np.minimum(np.exp(rng.normal(3.0, 0.4, n)), 60.0),
        }
    )


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Path]:
    folder, rows = tmp_path_factory.mktemp("strict"), survey()
    rows.to_parquet(folder / "survey.parquet")
    dpdist.run(dpdist.parse_job(JOB), folder / "ws", input=folder / "survey.parquet")
    return rows, folder / "ws"


def test_the_release_is_strict_and_says_what_it_costs(released: tuple[pd.DataFrame, Path]) -> None:
    statement = json.loads((released[1] / "public" / "statement.json").read_text())
    said = {name: statement[name] for name in ("guarantee", "epsilon", "delta", "adjacency")}
    assert said == {"guarantee": "strict", "epsilon": "3", "delta": "0", "adjacency": "zero_out"}
    assert any("2 units of the bounds" in text for text in statement["assumptions"])


def test_tables_add_up_and_err_by_their_noise(released: tuple[pd.DataFrame, Path]) -> None:
    """Counts: noise of scale 2·60/3 = 40 a cell; six times that is exceeded with probability e⁻⁶ = .25 % a cell."""
    rows, space = released
    table = pd.read_parquet(space / "public" / "tables" / "salaries.parquet")
    for estimator in ("parameters", "records"):
        mine = table[table["estimator"] == estimator]
        counts = mine[mine["statistic"] == "count"].set_index(["field", "sex"])["estimate"]
        for field in ("arts", "law"):
            assert counts[field, "f"] + counts[field, "m"] == pytest.approx(counts[field, TOTAL], rel=1e-9)
            for sex in ("f", "m"):
                true = rows[(rows["field"] == field) & (rows["sex"] == sex)]["weight"].sum()
                assert abs(counts[field, sex] - true) < 6 * 40
        clipped = rows["salary"].clip(0, 200_000)
        mean = mine[(mine["statistic"] == "mean") & (mine["field"] == TOTAL) & (mine["sex"] == TOTAL)]["estimate"].iloc[0]
        assert mean == pytest.approx(np.average(clipped, weights=rows["weight"]), rel=0.02)
    errors = table[(table["estimator"] == "parameters") & (table["statistic"] == "count")].set_index(["field", "sex"])
    assert errors.loc[("arts", "f"), "standard_error"] > 40


def test_publishing_again_needs_the_released_sums_alone(released: tuple[pd.DataFrame, Path]) -> None:
    space = released[1]
    before = {p: p.read_bytes() for p in (space / "public").rglob("*") if p.is_file()}
    (space / "confidential").rename(space / "elsewhere")
    try:
        dpdist.publish(space)
        assert {p: p.read_bytes() for p in (space / "public").rglob("*") if p.is_file()} == before
    finally:
        (space / "elsewhere").rename(space / "confidential")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("  weight: {bounds: [1, 60], outside: clip}\n", "", "needs public bounds of the weight"),
        ("weight: {bounds: [1, 60], outside: clip}", "weight: {bounds: [1, 60]}", "state outside: clip"),
        ("salary: {bounds: [0, 200000], outside: clip}", "salary: {bounds: [0, 200000]}", "state outside: clip"),
        ("outside: clip}\n  weight", "outside: clip, zeros: drop}\n  weight", "'laplace_strict' is strict"),
        ("family: cell_sums", "family: lognormal", "laplace_strict has family: cell_sums"),
        ("{name: laplace_strict}", "{name: laplace_strict, fallback: pool}", "whether a fallback is taken"),
    ],
)
def test_what_would_make_the_table_depend_on_the_records_is_refused(old: str, new: str, told: str) -> None:
    assert old in JOB
    with pytest.raises(JobError, match=told):
        dpdist.parse_job(JOB.replace(old, new))
