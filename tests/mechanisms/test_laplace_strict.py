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
from dpdist.core.errors import JobError
from dpdist.core.records import TOTAL, UNIT
from dpdist.privacy.cell_sums import SENSITIVITY, CellBounds, noise_scale
from dpdist.privacy.noise import whole_laplace

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
outcome: salary
mechanism: {name: laplace_strict}
budget: {epsilon: "3"}
tables:
  - {name: salaries, by: [field, sex], statistics: [count, {mean: salary}]}
runtime: {executor: serial}
"""

money, weights = st.floats(-1e6, 1e6), st.floats(0.0, 60.0)
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


def expected(rows: pd.DataFrame, space: Path, share: float = 1.0) -> pd.DataFrame:
    """Count and total of every cell: those of the clipped records and a share of the noise that was kept, both in units of
    60/2^20 on the weight and on its product with the outcome's distance from 100,000, in units of 100,000."""
    found = []
    for stratum, field in enumerate(("arts", "law")):
        noise = np.load(space / "confidential" / "noise" / f"strata-{stratum:06d}-001.npz")["noise"].reshape(2, 2)
        for sex, (of_weight, of_product) in zip(("f", "m"), share * noise * 60 / UNIT, strict=True):
            own = rows[(rows["field"] == field) & (rows["sex"] == sex)]
            total = (own["weight"] * own["salary"].clip(0, 200_000)).sum()
            found.append((field, sex, own["weight"].sum() + of_weight, total + 100_000 * (of_weight + of_product)))
    return pd.DataFrame(found, columns=["field", "sex", "count", "total"])


def test_tables_add_up_and_err_by_their_noise_exactly(released: tuple[pd.DataFrame, Path]) -> None:
    """To within the rounding of records to units. Control: with half as much noise again, or half of it, they are others,
    unless four counts all have less than 1 % of the noise's scale: 10⁻⁸."""
    rows, space = released
    table = pd.read_parquet(space / "public" / "tables" / "salaries.parquet")
    true, *controls = (expected(rows, space, share) for share in (1.0, 0.5, 1.5))
    for estimator in ("parameters", "records"):
        mine = table[table["estimator"] == estimator]
        counts = mine[mine["statistic"] == "count"].set_index(["field", "sex"])["estimate"]
        means = mine[mine["statistic"] == "mean"].set_index(["field", "sex"])["estimate"]
        for field in ("arts", "law"):
            assert counts[field, "f"] + counts[field, "m"] == pytest.approx(counts[field, TOTAL], rel=1e-9)
        for (field, sex), own in true.set_index(["field", "sex"]).iterrows():
            assert counts[field, sex] == pytest.approx(own["count"], abs=0.1)
            assert means[field, sex] == pytest.approx(own["total"] / own["count"], rel=2e-5)
        assert counts[TOTAL, TOTAL] == pytest.approx(true["count"].sum(), abs=0.4)
        assert means[TOTAL, TOTAL] == pytest.approx(true["total"].sum() / true["count"].sum(), rel=2e-5)
        for other in controls:
            cells = counts.loc[list(zip(other["field"], other["sex"], strict=True))].to_numpy()
            assert np.abs(cells - other["count"]).max() > 0.1, "control"
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
        ("mechanism:", "model: {family: lognormal}\nmechanism:", "'laplace_strict' fits no likelihood"),
        ("{name: laplace_strict}", "{name: laplace_strict, fallback: pool}", "whether a fallback is taken"),
    ],
)
def test_what_would_make_the_table_depend_on_the_records_is_refused(old: str, new: str, told: str) -> None:
    assert old in JOB
    with pytest.raises(JobError, match=told):
        dpdist.parse_job(JOB.replace(old, new))
