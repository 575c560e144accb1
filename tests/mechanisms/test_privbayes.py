"""PrivBayes: what a record moves at most; how parents are chosen; tables of the network; records; refusals."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import coded_survey
import numpy as np
import pandas as pd
import pytest
from coded_survey import COLUMNS, asked_of, job_text, quiet, records, released, survey

from dpdist.confidential.records import Records
from dpdist.core.errors import JobError
from dpdist.core.records import UNIT, Floats
from dpdist.job import Adjacency, Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.marginals.query import NoisyMarginals, dependence, next_tables
from dpdist.mechanisms.marginals.sensitivity import SLACK
from dpdist.mechanisms.marginals.spec import MOST_NETWORK_CELLS
from dpdist.studies.kinds.one_stratum import model_of


def text(said: str = "", **other: object) -> str:
    return job_text("marginals", f", select: privbayes{said}", means=("sex",), **other)


def job(said: str = "", **other: object) -> Job:
    return parse_job(text(said, **other))


# What a record moves


def moving(table: Floats, cell: tuple[int, int], weight: float, other: tuple[int, int] | None = None) -> float:
    """How far the score moves, in units of v, if a record is added; or leaves another cell, in which it has weight 1."""
    one, two = UNIT * table, UNIT * table
    one[cell] += UNIT * weight
    if other is not None:
        two[other] += UNIT
    return (dependence(one) - dependence(two)) / UNIT


def test_no_record_moves_the_score_by_more_and_no_exchange_by_more_than_three() -> None:
    """Files of few records and of many, every cell, weights 0 to 1."""
    rng = np.random.default_rng(5)
    off, exchanged = 0.0, 0.0
    for _ in range(300):
        shape, most = rng.integers(2, 5, 2), 10.0 ** rng.uniform(0, 4)
        table = rng.integers(0, 2, shape) * rng.integers(0, 4, shape) * np.round(rng.random() * most)
        if not table.any():
            continue
        cells, total = list(product(range(shape[0]), range(shape[1]))), table.sum()
        for cell in cells:
            weight = rng.choice([0.25, 1.0])
            found = abs(moving(table, cell, weight))
            assert found <= 2.0 * weight * total / (total + weight) + 2.0 / UNIT
            off = max(off, found)
            other = cells[rng.integers(len(cells))]
            found = abs(moving(table, cell, weight, other))
            assert found <= 3.0
            exchanged = max(exchanged, found)
    assert off > 1.5
    assert exchanged > 1.5


@pytest.mark.parametrize(("adjacency", "told"), [("zero_out", "at most twice ε"), ("substitution", "at most ε")])
def test_a_move_between_strata_costs_more_than_an_exchange_and_the_statement_says_how_much(
    adjacency: Adjacency, told: str
) -> None:
    """Tables have 7/10 of ε, the choice 3/10. An exchange moves tables by 2 and scores by 3, a move by 2 and 4."""
    exchange, move = (Fraction(7, 10) * 2 + Fraction(3, 10) * scores / 2 for scores in (3, 4))
    assert (exchange, move) == (Fraction(185, 100), 2)
    said = job(adjacency=adjacency)
    (line,) = [line for line in NoisyMarginals().promise(said).assumptions if "moves to another cell" in line]
    assert line.endswith(f"would cost {told}.")


# The network


def test_candidates_are_the_largest_sets_of_parents_that_are_allowed() -> None:
    sizes = (2, 3, 4, 10)
    assert next_tables(sizes, [0], 2, 1000) == ((0, 1), (0, 2), (0, 3))
    assert next_tables(sizes, [0, 1], 2, 1000) == ((0, 1, 2), (0, 1, 3))
    assert next_tables(sizes, [0, 1], 1, 1000) == ((0, 2), (1, 2), (0, 3), (1, 3))
    assert next_tables(sizes, [0, 1, 2], 3, 40) == ((0, 3), (1, 3), (2, 3)), (
        "sets that are part of a larger one are not tried"
    )
    assert next_tables(sizes, [0, 1, 2], 3, 19) == ((3,),), "no parent leaves a small enough table"


def test_the_network_has_no_loop_and_every_column_once() -> None:
    said = job(said=", degree: 2", epsilon="0.1")
    for seed in range(5):
        model, theta = released(said, survey(seed, 300))
        keys = model.keys_of(theta)
        met = [key[-1] for key in keys]
        assert sorted(met) == [0, 1, 2]
        assert all(set(key[:-1]) <= set(met[:k]) for k, key in enumerate(keys))


def test_without_noise_the_parents_that_depend_are_chosen_and_tables_are_the_files() -> None:
    own = survey(2)
    model, theta = released(job(said=", degree: 1"), own, quiet)
    assert model.keys_of(theta) == ((0,), (0, 1), (1, 2)), "children depend on sex only through the degree"
    fitted, codes = model.fitted(theta), model.codes_of(own)
    for key, table in fitted.tables.items():
        wanted = np.zeros(model.shape(key))
        np.add.at(wanted, tuple(codes[:, column] for column in key), own.weight)
        np.testing.assert_allclose(table, wanted, rtol=2e-5, atol=1e-7 * wanted.sum())
    assert fitted.total == pytest.approx(own.weight.sum(), rel=1e-5)


def of_three(n: int = 4000) -> Records:
    """Kids' parity is fixed by sex and degree together, and by neither alone."""
    rng = np.random.default_rng(3)
    sex, degree = rng.integers(0, 2, n), rng.integers(1, 3, n)
    return records(np.column_stack([sex, degree, (sex + degree) % 2]), np.full(n, 50.0))


def test_two_parents_keep_what_pairs_lose() -> None:
    """Control: with one parent each, half of the records break the rule."""
    broken = {}
    for degree in (1, 2):
        model, theta = released(job(said=f", degree: {degree}", epsilon="4"), of_three())
        codes, weight = model.draw_codes(theta, 4000, np.random.default_rng(1))
        values = [np.array(levels)[codes[:, k]] for k, levels in enumerate(model.levels)]
        broken[degree] = weight[(values[0] + values[1]) % 2 != values[2]].sum() / weight.sum()
    assert broken[2] < 0.02
    assert broken[1] > 0.3


def test_tables_are_as_large_as_is_useful() -> None:
    """Usefulness 4: as many cells as leave four noise scales each, by the noisy total of the first table."""
    own = records(survey(1, 1000).outcomes, np.full(1000, 50.0))
    sizes = {}
    for epsilon in ("0.03", "0.3", "10"):
        model, theta = released(job(epsilon=epsilon), own, quiet)
        limit = 1000.0 / (4.0 * 3.0 / (0.7 * float(epsilon)))
        assert model.most_cells(1000.0) == pytest.approx(min(MOST_NETWORK_CELLS, limit))
        sizes[epsilon] = [int(np.prod(model.shape(key))) for key in model.keys_of(theta)[1:]]
        assert all(
            cells <= limit or len(key) == 1 for cells, key in zip(sizes[epsilon], model.keys_of(theta)[1:], strict=True)
        )
    assert (max(sizes["0.03"]), sizes["10"][-1]) == (4, 24)
    assert model_of(job(), 10).most_cells(-5.0) == 0.0
    assert model_of(job(said=", degree: 2"), 10).most_cells(-5.0) == MOST_NETWORK_CELLS


# Records, figures


@pytest.mark.parametrize("n", [1, 2, 37, 2000])
def test_records_have_the_margins_of_the_tables_and_weights_of_at_least_0(n: int) -> None:
    model, theta = released(job(said=", degree: 2"), survey(5))
    fitted = model.fitted(theta)
    codes, weight = model.draw_codes(theta, n, np.random.default_rng(n))
    assert codes.min() >= 0
    assert (codes.max(axis=0) < model.sizes).all()
    assert weight.min() >= 0.0
    assert weight.sum() == pytest.approx(fitted.total, rel=1e-12)
    if n == 2000:
        for column, margin in enumerate(fitted.margins):
            found = np.bincount(codes[:, column], weights=weight, minlength=len(margin))
            assert np.abs(found - margin).max() < 1e-6 * fitted.total
            assert np.abs(np.bincount(codes[:, column], minlength=len(margin)) / n - found / fitted.total).max() > 1e-6


def test_nothing_is_spent_on_a_choice_that_is_none() -> None:
    """One column, and two: all of ε is for their tables. Control: three have choices, at 3/10 of ε."""
    assert [(each.size, each.scale) for each in asked_of(job(outcome="sex"))] == [(2, UNIT)]
    two = asked_of(job(outcome="sex, degree", said=", degree: 1"))
    assert [(each.size, each.scale) for each in two] == [(2, 2 * UNIT), (6, 2 * UNIT)]
    three = asked_of(job(said=", degree: 1"))
    assert [each.size for each in three[:3]] == [2, 2, 2]
    assert three[0].scale == Fraction(30, 7) * UNIT
    assert three[1].scale == 2 * (2 + SLACK) * 2 * Fraction(10, 3) * UNIT


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coded_survey.release(job(said=", degree: 2", epsilon="2"), survey(8, 2000), tmp_path_factory.mktemp("network"))


def test_a_release_has_tables_records_and_measurements(release: Path) -> None:
    public, own = release / "public", survey(8, 2000)
    held = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    assert set(held.columns) == {*COLUMNS, "weight"}
    assert held["weight"].sum() == pytest.approx(own.weight.sum(), rel=0.1)
    measured = pd.read_parquet(public / "measurements.parquet")
    said = json.loads((public / "released" / "set-1.json").read_text())["strata"]["all"]["marginals"]
    np.testing.assert_array_equal(measured["value"], np.concatenate([each["sums"] for each in said]) / UNIT)
    np.testing.assert_allclose(measured["scale"], 3 / 1.4)
    told = pd.read_parquet(public / "marginals.parquet")
    assert len(told) == len(measured)
    sex = told[told["marginal"] == "sex"]
    exact = np.bincount(own.outcomes[:, 0].astype(int), weights=own.weight)
    assert (np.abs(sex["count"].to_numpy() - exact) < 4 * sex["standard_error"].to_numpy()).all()
    assert json.loads((release / "confidential" / "microdata.json").read_text())["weighted total_variation_2"] < 0.1


# Refusals


@pytest.mark.parametrize(
    ("said", "other", "found"),
    [
        (", degree: 4", {}, "a number of at most 3"),
        (", degree: 2, usefulness: 4", {}, "give either degree or usefulness"),
        (", choice: '1'", {}, "nothing is left for the tables"),
        (", choice: '1/2'", {"outcome": "sex, degree"}, "there is no choice of parents"),
        (", choice: '1e-6'", {"epsilon": "0.01"}, "an ε below 1e-6"),
        ("", {"sets": 2}, "releases one set of records"),
    ],
)
def test_what_has_no_guarantee_or_no_use_is_refused(said: str, other: dict[str, Any], found: str) -> None:
    with pytest.raises(JobError) as told:
        job(said, **other)
    assert found in str(told.value)


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("privbayes, selection: '1/2', degree: 2", "marginals, select: privbayes, choice: '1/2', degree: 2"),
        ("weighted_marginals, selection: adaptive", "marginals, select: adaptive"),
        ("weighted_marginals, marginals: [[sex, degree], [kids]]", "marginals, marginals: [[sex, degree], [kids]]"),
    ],
)
def test_jobs_that_name_the_former_mechanisms_are_read(former: str, now: str) -> None:
    """Also in the form in which a release states its job. Control: a former key under the present name is refused."""
    earlier, present = (parse_job(job_text(name, "", means=("sex",))) for name in (former, now))
    assert earlier == present
    stated = present.mechanism.model_dump(mode="json")
    keys = {"select": None, "choice": "selection"} if former.startswith("privbayes") else {"select": "selection"}
    stored = {keys.get(key, key): value for key, value in stated.items() if keys.get(key, key) is not None}
    given = stored | {"name": former.partition(",")[0]}
    assert Job.model_validate(present.model_dump() | {"mechanism": given}).mechanism == present.mechanism
    with pytest.raises(JobError):
        parse_job(job_text("marginals, selection: adaptive", "", means=("sex",)))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (", select: tree, marginals: [[sex, degree], [kids]]", "select: tree has no marginals"),
        (", select: given", "no tables are given"),
        (", degree: 2", "select: tree has no degree"),
        (", select: privbayes, sums: [{of: kids}]", "select: privbayes has no sums"),
    ],
)
def test_a_key_of_another_selection_is_refused(said: str, found: str) -> None:
    with pytest.raises(JobError, match=found):
        parse_job(job_text("marginals", said, means=("sex",)))


def test_columns_whose_rounds_would_compare_too_many_tables_are_refused() -> None:
    """Twenty columns with three parents; with two they are a job."""
    names = [f"c{k}" for k in range(20)]
    columns = "\n".join(f"  {name}: {{bounds: [0, 1], whole: true, outside: clip}}" for name in names)
    said = (
        text(", degree: DEGREE", outcome=", ".join(names))
        .replace("{mean: sex}", "{mean: c0}")
        .replace("  sex:", f"{columns}\n  sex:")
    )
    with pytest.raises(JobError, match="a round has 2,275 candidates"):
        parse_job(said.replace("DEGREE", "3"))
    parse_job(said.replace("DEGREE", "2"))
