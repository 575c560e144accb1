"""Weighted marginals: how pairs are chosen; tables that agree; records; refusals."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import coded_survey
import numpy as np
import pandas as pd
import pytest
from coded_survey import COLUMNS, KEY, asked_of, job_text, quiet, records, released, survey

from dpdist.core.errors import JobError
from dpdist.core.records import UNIT, Floats, Ints
from dpdist.estimation.donors import CELL
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.marginals.fitting import fit, onto_simplex
from dpdist.mechanisms.marginals.query import TableSums, choose_tree, scores
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.studies.kinds.one_stratum import model_of

NAMED = ", marginals: [[sex, degree], [degree, kids]]"


def text(said: str = NAMED, **other: object) -> str:
    return job_text("marginals", said, means=("degree", "kids"), **other)


def job(said: str = NAMED, **other: object) -> Job:
    return parse_job(text(said, **other))


@pytest.mark.parametrize("weighted", [True, False])
def test_the_sum_of_weights_varies_as_much_as_it_can(weighted: bool) -> None:
    """Σw of n records with mean m < U varies most where weights are 0 or U: its relative variance is (1 - m/U)/(n m/U).
    Control: without weights it does not vary."""
    people = records(survey(4, 500).outcomes, np.full(500, 20.0 if weighted else 1.0))
    said = job() if weighted else parse_job(text(survey="").replace("  weight: {bounds: [1, 50], outside: clip}\n", ""))
    model, theta = released(said, people, quiet)
    total = model.resampled(theta, 500, 3_000, np.random.default_rng(1))["margins"][:, : model.sizes[0]].sum(axis=1)
    expected = np.sqrt((1.0 - 20.0 / 50.0) / 200.0) if weighted else 0.0
    assert (total / total.mean()).std() == pytest.approx(expected, rel=0.06, abs=1e-9)


def weighted_table(codes: Ints, weight: Floats, columns: tuple[int, int], shape: tuple[int, int]) -> Floats:
    cell = codes[:, columns[0]] * shape[1] + codes[:, columns[1]]
    return np.bincount(cell, weights=weight, minlength=shape[0] * shape[1]).reshape(shape)


def test_without_noise_the_tables_are_the_files() -> None:
    own = survey(1)
    model, theta = released(job(), own, quiet)
    tree, codes = model.fitted(theta), model.codes_of(own)
    for key in ((0, 1), (1, 2)):
        wanted = weighted_table(codes, own.weight, key, model.shape(key))  # type: ignore[arg-type]
        np.testing.assert_allclose(tree.tables[key], wanted, rtol=2e-5, atol=1e-4 * wanted.sum() * 1e-3)
    assert tree.total == pytest.approx(own.weight.sum(), rel=1e-5)


def test_without_noise_the_pairs_that_depend_are_chosen() -> None:
    """Sex and children depend only through the degree: the tree is the file's own."""
    model, theta = released(job(said=""), survey(2), quiet)
    assert model.keys_of(theta) == ((0,), (1,), (2,), (0, 1), (1, 2))


def test_a_choice_takes_the_largest_noisy_score_that_makes_no_loop() -> None:
    """Control for the sort of the result: noise alone decides where it is large."""
    own = survey(2)
    model = model_of(job(said=""), len(own))
    exact = TableSums(model.measuring(model.candidates)).sums(own)
    margins = list(model.fitted(released(job(said=""), own, quiet)[1]).margins)
    lifted = np.array([0.0, 1e15, 0.0])
    rounds = choose_tree(model, margins, exact, count(1))
    first = next(rounds)
    second = rounds.send(first.under(lifted))
    assert (first.noise.size, second.noise.size) == (3, 2)
    with pytest.raises(StopIteration) as done:
        rounds.send(second.under(np.zeros(2)))
    assert (0, 2) in done.value.value


def test_a_pair_whose_cells_noise_would_drown_scores_below_a_small_one() -> None:
    """A column of 300 levels depends on sex; its 600 noisy cells are worth less than six of sex and degree."""
    said = job(said="", kids=299, outcome="kids, sex, degree")
    own = survey(2, 400)
    model = model_of(said, 400)
    shuffled = records(np.column_stack([own.outcomes[:, 2] * 60, own.outcomes[:, 0], own.outcomes[:, 1]]), own.weight)
    exact = TableSums(model.measuring(model.candidates)).sums(shuffled)
    margins = [np.full(size, 400.0 / size) for size in model.sizes]
    found = dict(zip(model.candidates, scores(model, margins, exact), strict=True))
    assert found[1, 2] > found[0, 1]


def test_tables_agree_with_each_other_whatever_the_noise() -> None:
    rng = np.random.default_rng(0)
    tables = {
        (0, 1): rng.laplace(5.0, 30.0, (2, 3)),
        (1, 2): rng.laplace(2.0, 30.0, (3, 4)),
        (3,): rng.laplace(9.0, 30.0, 5),
    }
    tree = fit((2, 3, 4, 5), tables, dict.fromkeys(tables, 30.0), (1.0, 1e6))
    assert min(table.min() for table in (*tree.tables.values(), *tree.margins)) >= 0.0
    for key, table in tree.tables.items():
        np.testing.assert_allclose(table.sum(axis=1), tree.margins[key[0]], atol=1e-9 * tree.total)
        np.testing.assert_allclose(table.sum(axis=0), tree.margins[key[1]], atol=1e-9 * tree.total)
    assert {round(float(margin.sum() / tree.total), 12) for margin in tree.margins} == {1.0}


def test_the_simplex_is_met_at_its_nearest_point() -> None:
    """By the conditions of Karush, Kuhn and Tucker: entries above 0 are shifted by one constant, others by no more."""
    rng = np.random.default_rng(1)
    values, total = rng.normal(0.0, 3.0, (50, 7)), rng.uniform(0.5, 20.0, 50)
    found = onto_simplex(values, total)
    np.testing.assert_allclose(found.sum(axis=1), total)
    shift = values - found
    for row, kept in zip(shift, found > 0.0, strict=True):
        assert np.ptp(row[kept]) < 1e-9
        assert (row[~kept] <= row[kept][0] + 1e-9).all()


@pytest.mark.parametrize("n", [1, 2, 37, 1000])
def test_records_have_the_total_of_the_tables_and_weights_of_at_least_0(n: int) -> None:
    model, theta = released(job(said="", epsilon="1"), survey(5))
    tree = model.fitted(theta)
    codes, weight = model.draw_codes(theta, n, np.random.default_rng(n))
    assert codes.min() >= 0
    assert (codes.max(axis=0) < model.sizes).all()
    assert weight.min() >= 0.0
    assert weight.sum() == pytest.approx(tree.total, rel=1e-12)


def test_records_agree_with_the_tables() -> None:
    """Every released table is the records' own, as far as its cells have a record. Control: equal weights are not."""
    model, theta = released(job(said="", epsilon="4"), survey(6))
    tree = model.fitted(theta)
    codes, weight = model.draw_codes(theta, 4000, np.random.default_rng(0))
    for key, wanted in tree.tables.items():
        shape = model.shape(key)
        found, equal = (weighted_table(codes, w, key, shape) for w in (weight, np.full(4000, tree.total / 4000)))  # type: ignore[arg-type]
        assert np.abs(found - wanted).max() < 1e-6 * tree.total
        assert np.abs(equal - wanted).max() > 1e-6 * tree.total


def test_columns_that_no_pair_joins_are_independent_in_the_records() -> None:
    said = job(said=", marginals: [[sex, degree], [kids]]")
    model, theta = released(said, survey(7), quiet)
    codes, weight = model.draw_codes(theta, 4000, np.random.default_rng(1))
    table = weighted_table(codes, weight, (1, 2), (3, 4)) / weight.sum()
    apart = np.abs(table - np.outer(table.sum(axis=1), table.sum(axis=0))).sum()
    own = survey(7)
    held = weighted_table(model.codes_of(own), own.weight, (1, 2), (3, 4)) / own.weight.sum()
    assert apart < 0.04 < np.abs(held - np.outer(held.sum(axis=1), held.sum(axis=0))).sum()


def test_a_constant_column_and_one_record_are_released() -> None:
    for own in (records(np.tile([1, 2, 0], (30, 1)), np.ones(30)), records([[0, 3, 3]], [50.0])):
        model, theta = released(job(said="", adjacency="substitution"), own)
        values, weight = model.simulate(theta, np.zeros(len(own), np.int32), KEY.generator("x"))
        assert values.shape == (len(own), 3)
        assert np.isfinite(weight).all()
        low, high = len(own) * 1.0, len(own) * 50.0
        assert low - 1e-9 <= weight.sum() <= high + 1e-9


# A release


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marginals")
    return coded_survey.release(job(said="", epsilon="3"), survey(8), folder) / "public"


def test_marginals_tables_and_records_say_the_same(release: Path) -> None:
    told, held = pd.read_parquet(release / "marginals.parquet"), pd.read_parquet(release / "synthetic" / "set-1.parquet")
    table = pd.read_parquet(release / "tables" / "one.parquet").set_index(["statistic", "variable", "estimator"])
    degree = told[told["marginal"] == "degree"]
    mean = float((degree[CELL + "degree"].astype(float) * degree["count"]).sum() / degree["count"].sum())
    assert table.loc["mean", "degree", "parameters"]["estimate"].item() == pytest.approx(mean, rel=1e-9)
    of_records = np.average(held["degree"], weights=held["weight"])
    assert of_records == pytest.approx(mean, abs=1e-3)
    assert set(held.columns) == {*COLUMNS, "weight"}
    assert len(held) == 4000


def test_measurements_are_the_released_sums(release: Path) -> None:
    measured = pd.read_parquet(release / "measurements.parquet")
    said = json.loads((release / "released" / "set-1.json").read_text())["strata"]["all"]["marginals"]
    sums = np.concatenate([each["sums"] for each in said]) / UNIT
    np.testing.assert_array_equal(measured["value"], sums)
    singles, pairs = (measured[measured["table"].str.contains(" x ") == pair] for pair in (False, True))
    assert set(singles["scale"]) == {3.0 / 1.0}
    assert set(pairs["scale"]) == {2.0 / 1.0}
    assert set(singles["sensitivity"]) == {3.0}
    assert set(measured["law"]) == {"discrete_laplace"}


def test_errors_cover_the_truth(release: Path) -> None:
    """Errors are no less than the sample's and the noise's: most intervals hold the file's own counts."""
    told, own = pd.read_parquet(release / "marginals.parquet"), survey(8)
    degree = told[told["marginal"] == "degree"]
    exact = np.bincount(own.outcomes[:, 1].astype(int) - 1, weights=own.weight)
    assert ((degree["lower"].to_numpy() <= exact) & (exact <= degree["upper"].to_numpy())).sum() >= 2


def test_the_custodian_has_the_utility_of_the_records_and_the_public_has_not(release: Path) -> None:
    """Control: every level's share as the other file has it is far off."""
    found = json.loads((release.parent / "confidential" / "microdata.json").read_text())
    assert 0.0 < found["weighted total_variation_1"] < found["weighted total_variation_3"] < 0.05
    assert found["weighted k_marginal_score"] == pytest.approx(1000 * (1 - found["weighted total_variation_3"]))
    assert 0.0 < found["weighted pmse"] < 0.005
    assert 0.0 <= found["weighted regression_overlap"] <= 1.0
    assert not list(release.rglob("microdata.json"))


# Refusals


WRONG: dict[str, tuple[str, str]] = {
    "no marginal has column 'kids'": (", marginals: [[sex, degree]]", ""),
    "'race' is not among the columns": (", marginals: [[sex, race], [kids, degree]]", ""),
    "not one column, or two different ones": (", marginals: [[sex, degree, kids]]", ""),
    "'sex' is already listed": (", marginals: [[sex], [sex], [degree, kids]]", ""),
    "are already connected through other marginals": (", marginals: [[sex, degree], [degree, kids], [sex, kids]]", ""),
}


@pytest.mark.parametrize("found", WRONG)
def test_marginals_that_make_no_tree_are_refused(found: str) -> None:
    with pytest.raises(JobError, match=r"mechanism\.marginals") as told:
        job(said=WRONG[found][0])
    assert found in str(told.value)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"kids": 10_000}, "10,001 levels"),
        ({"kids": 10**300, "said": ", sums: [{of: kids}]"}, "levels, each with a noisy count"),  # none is listed
        ({"outside": "error"}, "must not refuse a file because of a weight outside its bounds"),
        ({"adjacency": "add_remove"}, "publishes stratum sizes"),
        ({"adjacency": "substitution, exchange: anywhere"}, "publishes exact sample counts"),
    ],
)
def test_what_has_no_guarantee_or_no_list_of_levels_is_refused(other: dict[str, Any], found: str) -> None:
    with pytest.raises(JobError) as told:
        job(**other)
    assert found in str(told.value)


def test_ten_thousand_levels_are_measured_alone() -> None:
    """A table of 30,000 cells is small enough, a pair of two such columns is never a candidate."""
    model = model_of(job(said="", kids=9_999), 200)
    assert model.candidates == ((0, 1), (0, 2), (1, 2))
    said = text(said="").replace("bounds: [1, 3]", "bounds: [1, 100]")
    assert model_of(parse_job(said.replace("bounds: [0, 3]", "bounds: [0, 9999]")), 200).candidates == ((0, 1), (0, 2))


def of_columns(*columns: str) -> Job:
    """No tables are named."""
    return parse_job(text(said="", outcome=", ".join(columns)).replace("[count, {mean: degree}, {mean: kids}]", "[count]"))


def test_nothing_is_spent_on_a_choice_that_is_none() -> None:
    """Two columns have one pair: half of ε is for their own tables, half for the pair's. Control: three have a choice."""
    requests = asked_of(of_columns("sex", "degree"))
    assert [request.size for request in requests] == [5, 6]
    assert [request.scale for request in requests] == [4 * UNIT, 2 * UNIT], "ε/2 over two tables, ε/2 over one"
    three = asked_of(job(said=""))
    assert [request.size for request in three] == [9, 3, 2, *[request.size for request in three[3:]]]
    assert three[0].scale == 9 * UNIT


def test_pairs_that_make_no_loop_are_all_measured() -> None:
    """Three columns of which one pair is too large: the other two are the tree, whatever noise would say."""
    said = text(said="").replace("bounds: [1, 3]", "bounds: [1, 100]").replace("bounds: [0, 3]", "bounds: [0, 9999]")
    requests = asked_of(parse_job(said))
    assert [request.size for request in requests] == [2 + 100 + 10_000, 200 + 20_000]
    assert [request.scale for request in requests] == [6 * UNIT, 4 * UNIT]


def test_a_job_with_no_pair_that_may_be_chosen_is_refused() -> None:
    """100 x 10,000 cells are too many to be chosen, and a pair that is named may have them."""
    said = text(said="", outcome="degree, kids").replace("bounds: [1, 3]", "bounds: [1, 100]")
    said = said.replace("bounds: [0, 3]", "bounds: [0, 9999]")
    with pytest.raises(JobError, match="no pair of columns has at most 100,000 cells") as told:
        parse_job(said)
    assert "marginals: [[degree], [kids]]" in str(told.value)
    parse_job(said.replace("marginals}", "marginals, marginals: [[degree], [kids]]}"))


@pytest.mark.parametrize(
    ("columns", "said"), [(COLUMNS[:2], "without a choice"), (COLUMNS, "A third of ε"), (COLUMNS[2:], "names")]
)
def test_statements_say_how_epsilon_is_shared(columns: tuple[str, ...], said: str) -> None:
    assert said in " ".join(MECHANISMS["marginals"].promise(of_columns(*columns)).assumptions)
