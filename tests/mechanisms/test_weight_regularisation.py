"""Weight regularisation: exact sensitivity of its stages with controls, the choice by an oracle, releases end to end."""

from __future__ import annotations

import json
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.errors import JobError
from dpdist.core.keys import Key
from dpdist.core.records import UNIT, Floats, Frame
from dpdist.job.loading import parse_job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.weight_regularisation.post import RegularisedCells
from dpdist.mechanisms.weight_regularisation.query import Distances, MovedSums, WeightRegularisation, WeightSum
from dpdist.mechanisms.weight_regularisation.sensitivity import CHOICE, MEAN, MOVED_BY, least_error
from dpdist.mechanisms.weight_regularisation.spec import WeightRegularisation as Settings
from dpdist.models.protocol import Draws
from dpdist.privacy.cell_sums import SENSITIVITY
from dpdist.publish.standard_errors import normal_variance
from dpdist.studies.kinds.one_stratum import released as released_once

JOB = """
dataset: moved
publish: always
period: "2020"
columns:
  field: {levels: [arts, law]}
  pay: {bounds: [-50, 150], outside: clip}
  weight: {bounds: [0.5, 200], outside: clip}
survey: {weight: weight}
outcome: pay
withhold_above: null
mechanism: {name: weight_regularisation}
budget: {epsilon: "1"}
tables:
  - {name: pay, by: [field], statistics: [count, {mean: pay}]}
"""
CAP = 200.0


def model(job: str = JOB) -> RegularisedCells:
    read = parse_job(job)
    frame = Frame({"field": np.arange(2, dtype=np.int32)}, {"field": ("arts", "law")}, np.array([400, 600]), (), ())
    built = builder_of(read).build(read, frame, slice(0, 2))
    assert isinstance(built, RegularisedCells)
    return built


def record(weight: float, outcome: float, row: int = 0) -> Records:
    one = np.array([outcome])
    return Records(np.zeros(1, np.int64), np.array([row], np.int32), one, np.array([weight]), np.full(1, -1, np.int32))


def stages(weight: float, outcome: float, common: float, regularisation: float) -> tuple[Floats, Floats, Floats]:
    """What one record adds to the sum of weights, to the cells' distances before |.|, and to the cells' sums."""
    built, one = model(), record(weight, outcome)
    parts = WeightSum(CAP), Distances(built.plain, common), MovedSums.of(built, common, regularisation)
    first, second, third = (part.sums(one) for part in parts)
    return first, second, third


@pytest.mark.parametrize("noisy_sum", [-1e12, 0.0, 1.0])
@pytest.mark.parametrize("weight", [0.0, 1.0, 200.0])
def test_sums_are_whole_numbers_however_small_the_noisy_mean_weight_is(noisy_sum: float, weight: float) -> None:
    """At a lower bound of 0 and λ = 1. Control: a common weight of 0 leaves no unit for a cell with a record."""
    built, one = model(JOB.replace("[0.5, 200]", "[0, 200]")), record(weight, 10.0)
    common = built.common(noisy_sum)
    assert common > 0
    sums = MovedSums.of(built, common, 1.0).sums(one)
    assert np.array_equal(sums, np.rint(sums))
    assert sums[0, 0] > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        assert not np.isfinite(MovedSums.of(built, 0.0, 1.0).sums(one)).all()


@pytest.mark.parametrize(("exchange", "mean", "distances"), [("", 1, 2), (", exchange: anywhere", 2, 4)])
def test_a_promise_names_the_scales_that_are_drawn(exchange: str, mean: int, distances: int) -> None:
    said = JOB.replace('epsilon: "1"', f'epsilon: "1", adjacency: substitution{exchange}')
    said += 'predictors: {protect: {epsilon: "0.2"}}\n' if exchange else ""
    job, built = parse_job(said), model(said)
    assert isinstance(job.mechanism, Settings)
    text = " ".join(map(str, asdict(WeightRegularisation().promise(job)).values()))
    assert f"scale {mean} over 1/20" in text
    assert f"scale {distances} over 1/10" in text
    assert built.mean_scale == Fraction(mean * UNIT) / (MEAN * job.epsilon_per_set)
    assert built.choice_scale == Fraction(distances * UNIT) / (CHOICE * job.epsilon_per_set)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(st.floats(0.0, CAP), st.floats(-1e3, 1e3)),
    st.tuples(st.floats(0.0, CAP), st.floats(-1e3, 1e3)),
    st.floats(0.5, CAP),
    st.floats(0.0, 1.0),
)
def test_no_record_moves_a_stage_by_more_than_its_sensitivity(
    one: tuple[float, float], other: tuple[float, float], common: float, regularisation: float
) -> None:
    """Switched off, there or exchanged. Distances of sums move by no more than the sums (triangle inequality)."""
    here, there = (stages(*each, common, regularisation) for each in (one, other))
    for a, b, most in zip(here, there, (MOVED_BY[0], MOVED_BY[1], SENSITIVITY), strict=True):
        assert np.abs(a).sum() <= most * UNIT
        assert np.abs(a - b).sum() <= most * UNIT
        assert a.tolist() == np.rint(a).tolist()


@pytest.mark.parametrize("common", [0.5, 40.0, 200.0])
def test_the_sensitivities_are_attained(common: float) -> None:
    """Control: noise for anything less would be too little. In a cell of its own a record's distance is its own sum."""
    heavy, none = stages(200.0, 150.0, common, 0.0), stages(0.0, 150.0, common, 0.0)
    assert np.abs(heavy[0] - none[0]).sum() == UNIT
    assert np.abs(heavy[1] - none[1]).sum() == 2 * UNIT
    low = stages(200.0, -50.0, common, 0.7)
    assert np.abs(stages(200.0, 150.0, common, 0.7)[2] - low[2]).sum() == 2 * UNIT


def test_the_noise_of_every_stage_has_its_part_of_the_budget() -> None:
    """Σ of Δ over scale is ε = 1. Control: with all of ε in every stage it is 3."""
    built = model()
    spent = [moved * UNIT / each for moved, each in ((1, built.mean_scale), (2, built.choice_scale), (2, built.scale))]
    assert spent == [MEAN, CHOICE, 1 - MEAN - CHOICE]
    assert sum(spent) == 1
    fixed = model(JOB.replace("weight_regularisation", "weight_regularisation, towards: 40, regularisation: 0.5"))
    assert 2 * UNIT / fixed.scale == 1
    assert sum(3 * [2 * UNIT / fixed.scale]) == 3


def test_the_choice_has_the_least_predicted_error() -> None:
    """By the closed form: with b² the bias at λ = 1 and s² the noise's variance, λ = s²d/(b² + s²d²), d = 1 − t/U."""
    shares, noise, common = np.array([0.4, 0.6]), 3.0, 0.1
    for squares in (0.0, 40.0, 400.0, 1e9):
        bias, spread, d = squares * (shares**2).sum(), 8.0 * noise**2, 1 - common
        exact = min(1.0, spread * d / (bias + spread * d**2))
        assert least_error(squares, shares, noise, common) == pytest.approx(exact, abs=0.005)
    assert least_error(0.0, shares, noise, common) == 1.0
    assert least_error(1e9, shares, noise, common) == 0.0


def survey(seed: int, apart: float, n: int = 4000) -> pd.DataFrame:
    """Weights of a few large values; those of one field are `apart` times the other's."""
    rng = np.random.default_rng(seed)
    law = rng.random(n) < 0.5
    weight = np.where(rng.random(n) < 0.01, 150.0, rng.uniform(1.0, 3.0, n)) * np.where(law, apart, 1.0)
    return pd.DataFrame(
        {"field": np.where(law, "law", "arts"), "pay": rng.normal(50, 20, n), "weight": np.clip(weight, 0.5, 200)}
    )


def released(folder: Path, rows: pd.DataFrame, how: str = "", epsilon: str = "1") -> tuple[pd.DataFrame, dict[str, float]]:
    """The published table of estimator `parameters`, and the common weight and λ that were used."""
    rows.to_parquet(folder / "file.parquet")
    job = JOB.replace("{name: weight_regularisation}", f"{{name: weight_regularisation{how}}}")
    dpdist.run(
        parse_job(job.replace('epsilon: "1"', f'epsilon: "{epsilon}"')), folder / "ws", input=folder / "file.parquet"
    )
    table = pd.read_parquet(folder / "ws" / "public" / "tables" / "pay.parquet")
    said = json.loads((folder / "ws" / "public" / "released" / "set-1.json").read_text())["strata"]["all"]["used"]["values"]
    return table[table["estimator"] == "parameters"], dict(zip(("common", "regularisation"), said, strict=True))


def chosen(cells: int, distance: float, epsilon: float, draws: int) -> Floats:
    """Degrees that are chosen from noisy distances; both are `distance` in units of U, and the common weight is 2."""
    levels = ", ".join(f"f{each}" for each in range(cells))
    read = parse_job(JOB.replace("[arts, law]", f"[{levels}]").replace('epsilon: "1"', f'epsilon: "{epsilon}"'))
    count, names = np.full(cells, 40), tuple(f"f{each}" for each in range(cells))
    frame = Frame({"field": np.arange(cells, dtype=np.int32)}, {"field": names}, count, (), ())
    built = builder_of(read).build(read, frame, slice(0, cells))
    assert isinstance(built, RegularisedCells)
    noise = np.random.default_rng(5).laplace(0.0, float(built.choice_scale), (draws, 2))
    return np.array([built.chosen(each, 2.0) for each in distance * UNIT + noise])


def test_weights_that_tell_nothing_are_moved_far_and_those_that_tell_are_not() -> None:
    """400 choices over 100 cells. A distance has Laplace noise of scale 2/(.1 ε), a cell's sums of 2/(.85 ε)."""
    alike, apart = chosen(100, 0.0, 0.05, 400), chosen(100, 5000.0, 5.0, 400)
    assert np.mean(alike > 0.8) > 0.95
    assert np.mean(apart < 0.2) > 0.95


def test_a_fixed_release_is_the_moved_table_but_for_noise(tmp_path: Path) -> None:
    """At ε = 1000 counts are Σ (w + t)/2 to within 1 % of the cell (20 scales of noise); control: not Σ w."""
    rows = survey(2, 5.0)
    table, used = released(tmp_path, rows, ", towards: 20, regularisation: 0.5", "1000")
    assert used == {"common": 20.0, "regularisation": 0.5}
    counts = table[table["statistic"] == "count"].set_index("field")["estimate"]
    errors = table.set_index(["field", "statistic"])["standard_error"]
    for field, own in rows.groupby("field"):
        assert counts[field] == pytest.approx(((own["weight"] + 20.0) / 2.0).sum(), rel=0.01)
        assert abs(counts[field] / own["weight"].sum() - 1.0) > 0.1
        assert errors[field, "count"] > 0.0


def test_errors_hold_the_bias_of_moved_weights() -> None:
    """Simulated means spread by λ times the distance over n, cell by cell. Control: not at all where λ = 0.

    The bound of a distance is not reached: 5,000 U over 1,000 records is less than a mean weight of U and t = U together.
    """
    built, draws = model(), 4000
    spread = []
    for regularisation in (0.0, 0.5):
        theta = Draws(
            {
                "sums": np.array([[[4e8, 1e8], [6e8, 1e8]]]),
                "asked": np.array([[1e9, 100.0 * UNIT, 0.0]]),
                "used": np.array([[200.0, regularisation]]),
            }
        )
        again = built.noised_again(theta, 0, draws, np.random.default_rng(1))
        spread.append(again["apart"][:, :, 0].std(axis=0))
        assert set(again.values) == {"sums", "asked", "used", "apart"}
    common = np.sqrt(2.0) * 20.0 * CAP / 1000.0
    bias = np.hypot(100.0, np.sqrt(2.0) * 20.0) * CAP / 1000.0 * np.sqrt(np.pi / 2)
    assert spread[0].tolist() == [0.0, 0.0]
    assert spread[1] == pytest.approx(0.5 * np.hypot(common, bias) * np.ones(2), rel=0.05)


def held(epsilon: str, apart: float, releases: int, whole: bool = True) -> tuple[float, float]:
    """Shares of counts and means of cells whose 90 % interval holds the file's own figure, over releases of one file.

    Without `whole`, intervals leave out how far the true means may be away, and only simulate noise on cells.
    """
    levels, rng = [f"f{k}" for k in range(6)], np.random.default_rng(7)
    read = parse_job(JOB.replace("[arts, law]", f"[{', '.join(levels)}]").replace('epsilon: "1"', f'epsilon: "{epsilon}"'))
    row = np.repeat(np.arange(6, dtype=np.int32), [190, 380, 570, 760, 950, 1150])
    weight = np.where(rng.random(4000) < 0.01, 150.0, rng.uniform(1.0, 3.0, 4000)) * apart ** (row / 5.0)
    file = Records(np.arange(4000), row, rng.normal(50, 20, 4000), np.clip(weight, 0.5, CAP), np.full(4000, -1, np.int32))
    n = np.bincount(row).astype(float)
    frame = Frame({"field": np.arange(6, dtype=np.int32)}, {"field": tuple(levels)}, n.astype(np.int64), (), ())
    built = builder_of(read).build(read, frame, slice(0, 6))
    assert isinstance(built, RegularisedCells)
    count = np.bincount(row, weights=file.weight)
    truth = count, np.bincount(row, weights=file.weight * file.outcome) / count
    found = np.empty((releases, 2))
    for release in range(releases):
        key = Key(release.to_bytes(4, "little"))
        (theta,) = released_once(read, built, file, key)
        again = built.noised_again(theta, 4000, 400, key.generator("errors"))
        if not whole:
            again = Draws({name: values for name, values in again.values.items() if name != "apart"})
        drawn = [np.array([n * weight, product / weight]) for weight, product in (built.expect(theta), built.expect(again))]
        error = 1.645 * np.sqrt([normal_variance(each) for each in drawn[1]]) + 1e-9 * np.abs(drawn[0][:, 0])
        found[release] = (np.abs(drawn[0][:, 0] - np.array(truth)) <= error).mean(axis=1)
    count_share, mean_share = found.mean(axis=0)
    return float(count_share), float(mean_share)


@pytest.mark.parametrize("epsilon", ["0.1", "1"])
@pytest.mark.parametrize("apart", [1.0, 5.0])
def test_intervals_hold_at_least_nine_of_ten_figures_of_the_file(epsilon: str, apart: float) -> None:
    """Weights of the last field are `apart` times those of the first. Control: errors of the cells' noise alone hold fewer.

    150 releases. All counts share one common weight: a share of .90 has a standard error of at most .025. So .85 is passed
    by chance in 2 % of runs at the most if the true share is .90.
    """
    counts, means = held(epsilon, apart, 150)
    assert counts >= 0.85
    assert means >= 0.85
    assert held(epsilon, apart, 30, whole=False)[0] < 0.85


def test_errors_stay_positive_where_totals_are_met_by_factors() -> None:
    """Control: without totals, noise takes mean weights below 0, and mean outcomes beyond their bounds."""
    theta = Draws(
        {
            "sums": np.array([[[4e8, 1e8], [6e8, 1e8]]]),
            "asked": np.array([[1e7, 0.0, 0.0]]),
            "used": np.array([[2.0, 1.0]]),
        }
    )
    inside = []
    for more in ("", "rake: [{by: [field], totals: {arts: 1000, law: 2000}}]\n"):
        built = model(JOB + more)
        weight, product = built.expect(built.noised_again(theta, 0, 500, np.random.default_rng(3)))
        mean = product / weight
        inside.append((weight.min() > 0, mean.min() >= -50 - 1e-9, mean.max() <= 150 + 1e-9))
    assert inside == [(False,) * 3, (True,) * 3]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("  weight: {bounds: [0.5, 200], outside: clip}\n", "", "needs public bounds of the weight"),
        ("[0.5, 200], outside: clip", "[0.5, 200]", "state outside: clip"),
        ("survey: {weight: weight}\n", "", "names no weight"),
        ("weight_regularisation}", "weight_regularisation, towards: 201}", "outside of the weight's public bounds"),
        ("weight_regularisation}", "weight_regularisation, regularisation: 1.5}", "a number of at most 1"),
        ("outcome: pay", "synthetic_sets: 2\noutcome: pay", "releases one table"),
        ("outcome: pay", "model: {family: lognormal}\noutcome: pay", "fits no likelihood"),
    ],
)
def test_what_it_cannot_do_is_refused_before_spending(old: str, new: str, told: str) -> None:
    assert old in JOB
    with pytest.raises(JobError, match=told):
        parse_job(JOB.replace(old, new, 1))


@pytest.mark.parametrize("records", [3, 60])
def test_few_records_and_constant_columns_have_a_release(records: int, tmp_path: Path) -> None:
    """Weights above the bound, one value a column, a level without a record: finite figures of all that has records.

    A mean may be withheld, with limits, because noise may hide its count."""
    rows = pd.DataFrame({"field": ["arts"] * records, "pay": [10.0] * records, "weight": [300.0] * records})
    table, used = released(tmp_path, rows)
    there = table[table["field"] != "law"]
    assert np.isfinite(there[there["statistic"] == "count"]["estimate"]).all()
    assert np.isfinite(there[["lower", "upper"]]).all(axis=None)
    assert 0.5 <= used["common"] <= 200.0
