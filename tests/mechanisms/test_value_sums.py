"""Sums of values beside weighted marginals: agreement; errors; refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import coded_survey
import numpy as np
import pandas as pd
import pytest
from coded_survey import KEY, job_text, quiet, records, released, survey
from public_files import statement_of
from scipy.stats import binom

from dpdist.confidential.records import Records
from dpdist.core.errors import JobError
from dpdist.core.records import UNIT, Floats
from dpdist.engine.protocol import noise_of
from dpdist.estimation.donors import CELL
from dpdist.estimation.estimators import NORMAL_90
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.marginals.coded_tables import means_of
from dpdist.mechanisms.marginals.fitting import ValueSums, fit, positions, tilt
from dpdist.mechanisms.marginals.post import Marginals
from dpdist.models.protocol import Draws

PAIRS = "marginals: [[sex, degree], [degree, kids]]"
SUMS = f", {PAIRS}, sums: [{{of: kids}}, {{of: kids, by: degree}}]"


def job(said: str = SUMS, **other: object) -> Job:
    return parse_job(job_text("marginals", said, means=("degree", "kids"), **other))


# Agreement


def means_by(own: Records, weight: Floats) -> tuple[float, Floats]:
    """The mean of kids, and by degree."""
    degree, kids = own.outcomes[:, 1].astype(int) - 1, own.outcomes[:, 2]
    by = np.bincount(degree, weights=weight * kids) / np.bincount(degree, weights=weight)
    return float(np.average(kids, weights=weight)), by


@pytest.mark.parametrize("said", [SUMS, ", sums: [{of: kids}]", ", select: adaptive, sums: [{of: kids}]"])
def test_without_noise_tables_are_the_files(said: str) -> None:
    own = survey(1)
    model, theta = released(job(said=said), own, quiet)
    fitted = model.fitted(theta)
    exact = np.bincount(own.outcomes[:, 2].astype(int), weights=own.weight)
    np.testing.assert_allclose(fitted.margins[2], exact, rtol=2e-5)
    found = means_of(model, theta, model.value_sums(theta)[0])
    np.testing.assert_allclose(found.mean, means_by(own, own.weight)[0], rtol=1e-5)


def test_records_have_the_sums_as_far_as_the_counts_do_not_say_otherwise() -> None:
    """Where counts have much more noise than sums, records have the released sums. Control: counts alone are far off."""
    rng, u = np.random.default_rng(2), positions(range(40))
    exact = rng.poisson(30.0, (3, 40)) * np.linspace(2.0, 0.0, 40)
    noisy = {(0, 1): exact + rng.laplace(0.0, 60.0, exact.shape)}
    scales, ends = {(0, 1): 60.0}, (1.0, 1e9)
    sums = [ValueSums(1, 0, u, (exact @ u)[None], 1e-3)]
    found, counts = (fit((3, 40), noisy, scales, ends, each) for each in (sums, ()))
    off = [np.abs(each.tables[0, 1] @ u - exact @ u).max() / exact.sum() for each in (found, counts)]
    assert off[0] < 1e-3 < 0.02 < off[1]
    for axis, margin in enumerate(found.margins):
        np.testing.assert_allclose(found.tables[0, 1].sum(axis=1 - axis), margin, atol=1e-9 * found.total)
    assert found.margins[1] @ u == pytest.approx(float((exact @ u).sum()), abs=1e-3 * exact.sum())


@pytest.mark.parametrize("mean", [-1.0, -0.999, -0.3, 0.0, 0.8, 1.0])
def test_a_tilted_table_has_its_sum_and_total_and_the_shape_of_a_tilt(mean: float) -> None:
    """By its definition: logarithms of the change are a straight line over positions. Sums beyond reach are put near it."""
    rng, u = np.random.default_rng(3), positions(range(30))
    counts = rng.gamma(1.0, 5.0, (2, 30))
    found = tilt(counts, u, mean * counts.sum(axis=1))
    np.testing.assert_allclose(found.sum(axis=1), counts.sum(axis=1))
    np.testing.assert_allclose(found @ u / found.sum(axis=1), mean, atol=2e-6)
    if abs(mean) < 0.9:
        line = np.log(found / counts)
        np.testing.assert_allclose(np.diff(line, 2, axis=1), 0.0, atol=1e-6)
    empty = np.zeros((1, 30))
    assert np.array_equal(tilt(empty, u, np.zeros(1)), empty)


@pytest.mark.parametrize("seed", range(3))
def test_a_pair_that_cannot_have_its_sums_keeps_its_margins(seed: int) -> None:
    """All of the first row at the top and little there: sums that no table with these margins has."""
    u, rng = positions(range(20)), np.random.default_rng(seed)
    exact = np.concatenate([rng.uniform(1.0, 50.0, (2, 19)), np.ones((2, 1))], axis=1)
    tables = {(0,): exact.sum(axis=1), (1,): exact.sum(axis=0), (0, 1): exact + rng.laplace(0.0, 40.0, exact.shape)}
    sums = [ValueSums(1, 0, u, np.array([[1.0, -1.0]]) * exact.sum(axis=1), 1e-9)]
    found = fit((2, 20), tables, {(0,): 1e-6, (1,): 1e-6, (0, 1): 40.0}, (1.0, 1e9), sums)
    for axis, margin in enumerate(found.margins):
        np.testing.assert_allclose(found.tables[0, 1].sum(axis=1 - axis), margin, atol=1e-6 * found.total)
    assert np.abs(found.tables[0, 1] @ u - sums[0].values[0]).max() > 0.1 * found.total


def test_a_row_whose_noisy_counts_are_few_has_its_margin_and_its_sum() -> None:
    """A row of 50 with noisy counts of 9, and another with 77: a table has both rows' counts and measured sums."""
    u, exact, noisy = positions(range(20)), np.zeros((2, 20)), np.zeros((2, 20))
    exact[0, 1:3], exact[1, 3:13] = (45.0, 5.0), 5.0
    noisy[0, 1:4], noisy[1, 1:12] = 3.0, 7.0
    tables, scales = (
        {(0,): exact.sum(axis=1), (1,): exact.sum(axis=0), (0, 1): noisy},
        {(0,): 1e-6, (1,): 1e-6, (0, 1): 30.0},
    )
    found = fit((2, 20), tables, scales, (1.0, 1e9), [ValueSums(1, 0, u, (exact @ u)[None], 1e-6)])
    np.testing.assert_allclose(found.tables[0, 1].sum(axis=1), exact.sum(axis=1), atol=0.05)
    np.testing.assert_allclose(found.tables[0, 1] @ u, exact @ u, atol=0.1)


# Errors


RELEASES, FALSE_ALARM = 200, 1e-4


@pytest.fixture(scope="module")
def noisy() -> list[tuple[Marginals, Draws]]:
    """Releases of one file under other noise, which is large beside sampling."""
    said, own = job(epsilon="1/4"), survey(11, 2000)
    return [released(said, own, noise_of(KEY.child(f"errors {replicate}"))) for replicate in range(RELEASES)]


@pytest.mark.long
def test_errors_of_means_hold_their_noise(noisy: list[tuple[Marginals, Draws]]) -> None:
    """Errors without sampling; at least .85 of 90 % intervals hold. False alarm: 1e-4 a figure. Control: half the error."""
    overall, by = means_by(survey(11, 2000), survey(11, 2000).weight)
    exact, held, half = np.array([overall, *by]), list[Any](), list[Any]()
    for model, theta in noisy:
        found = [means_of(model, theta, each, effect=0.0) for each in model.value_sums(theta)]
        off = np.abs(np.concatenate([each.mean for each in found]) - exact)
        error = np.concatenate([each.error for each in found])
        held.append(off <= NORMAL_90 * error)
        half.append(off <= NORMAL_90 * error / 2.0)
    least = binom.ppf(FALSE_ALARM, RELEASES, 0.85) / RELEASES
    assert (np.mean(held, axis=0) >= least).all()
    assert (np.mean(half, axis=0) < least).all()


def test_means_of_many_levels_by_another_column_are_held_and_not_too_wide() -> None:
    """301 levels, 20,000 records, errors without sampling: at least .85 of 90 % intervals hold over 30 releases.

    Errors are at most twice the spread over releases. False alarm of coverage: 1e-4 a figure. Control: a quarter of
    the error.
    """
    rng, size = np.random.default_rng(0), 20_000
    sex = rng.integers(0, 2, size)
    degree = 1 + rng.binomial(2, 0.3 + 0.4 * sex)
    kids = rng.poisson(3 + 10 * degree)
    own = records(np.column_stack([sex, degree, kids]), np.clip(rng.gamma(2.0, 8.0, size), 1, 50))
    overall, by = means_by(own, own.weight)
    said, exact = job(kids=300), np.array([overall, *by])
    means, errors = list[Floats](), list[Floats]()
    for replicate in range(30):
        model, theta = released(said, own, noise_of(KEY.child(f"many {replicate}")))
        found = [means_of(model, theta, each, effect=0.0) for each in model.value_sums(theta)]
        means.append(np.concatenate([each.mean for each in found]))
        errors.append(np.concatenate([each.error for each in found]))
    off, least = np.abs(np.array(means) - exact), binom.ppf(FALSE_ALARM, 30, 0.85) / 30
    assert (np.mean(off <= NORMAL_90 * np.array(errors), axis=0) >= least).all()
    assert (np.mean(off <= NORMAL_90 * np.array(errors) / 4.0, axis=0) < least).all()
    assert (np.mean(errors, axis=0) <= 2.0 * np.std(means, axis=0)).all()


@pytest.mark.long
def test_errors_of_tables_hold_the_noise_of_sums(noisy: list[tuple[Marginals, Draws]]) -> None:
    """Means of kids under other noise on the fitted tables spread as releases do. Control: counts alone spread more."""

    def mean(model: Marginals, theta: Draws) -> Floats:
        margin = model.margins(theta)[2]
        return np.asarray(margin @ np.array(model.levels[2]) / margin.sum(axis=1))

    told = np.concatenate([mean(*each) for each in noisy]).std()
    model, theta = noisy[0]
    again = mean(model, model.noised_again(theta, 2000, 400, np.random.default_rng(1))).std()
    without = Draws({name: values for name, values in theta.values.items() if name != "values"})
    counts = mean(model, model.noised_again(without, 2000, 400, np.random.default_rng(1))).std()
    assert again == pytest.approx(told, rel=0.25)
    assert counts > 1.4 * told


def test_means_of_many_levels_are_nearer_with_their_sum_at_the_same_epsilon() -> None:
    """A column of 201 levels, most of them empty: its mean errs less than half. Control: that of two levels does."""
    rng = np.random.default_rng(5)
    own = records(
        np.column_stack([rng.integers(0, 2, 3000), rng.integers(1, 4, 3000), rng.poisson(40, 3000)]), np.ones(3000)
    )
    exact, ratio = own.outcomes.mean(axis=0), {}
    for column, name in ((2, "kids"), (0, "sex")):
        off = dict[str, list[float]]()
        for asked in ("", f", sums: [{{of: {name}}}]"):
            for replicate in range(12):
                model, theta = released(job(said=asked, kids=200), own, noise_of(KEY.child(f"gain {replicate}")))
                margin = model.fitted(theta).margins[column]
                mean = float(margin @ np.array(model.levels[column]) / margin.sum())
                off.setdefault(asked, []).append((mean - exact[column]) ** 2)
        ratio[name] = np.sqrt(np.divide(*[np.mean(each) for each in reversed(off.values())]))
    assert ratio["kids"] < 0.5 < 0.7 < ratio["sex"]


# A release


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coded_survey.release(job(epsilon="3"), survey(8), tmp_path_factory.mktemp("sums")) / "public"


def test_sums_tables_and_records_say_the_same(release: Path) -> None:
    told, held = pd.read_parquet(release / "sums.parquet"), pd.read_parquet(release / "synthetic" / "set-1.parquet")
    table = pd.read_parquet(release / "tables" / "one.parquet").set_index(["statistic", "variable", "estimator"])
    overall = told[told[CELL + "degree"].isna()].iloc[0]
    assert overall["mean"] == pytest.approx(table.loc["mean", "kids", "parameters"]["estimate"].item(), rel=1e-9)
    for _, row in told[told[CELL + "degree"].notna()].iterrows():
        own = held[held["degree"] == float(row[CELL + "degree"])]
        assert np.average(own["kids"], weights=own["weight"]) == pytest.approx(row["mean"], abs=2e-3)
        assert (own["kids"] * own["weight"]).sum() == pytest.approx(row["sum"], rel=1e-2)
        assert row["lower"] < row["mean"] < row["upper"]


def test_measurements_and_statement_have_the_sums(release: Path) -> None:
    measured = pd.read_parquet(release / "measurements.parquet")
    said = json.loads((release / "released" / "set-1.json").read_text())["strata"]["all"]["values"]
    own = measured[measured["statistic"] == "vu"]
    np.testing.assert_allclose(own["value"], np.concatenate([each["sums"] for each in said]) / UNIT, rtol=1e-12)
    assert list(own["table"]) == ["kids", *["kids by degree"] * 3]
    assert (set(own["scale"]), set(own["centre"]), set(own["half_width"])) == ({4.0 / 3.0}, {1.5}, {1.5})
    statement = statement_of(release)
    told = (
        " ".join(statement["promise"]["assumptions"])
        if "promise" in statement
        else json.dumps(statement, ensure_ascii=False)
    )
    assert "kids over all records; kids by degree" in told
    assert "1/2 of ε, and they have discrete Laplace noise with scale 1.33333 units" in told


WRONG = {
    "'race' is not among the columns": f", {PAIRS}, sums: [{{of: race}}]",
    "this sum is already listed": f", {PAIRS}, sums: [{{of: kids}}, {{of: kids}}]",
    "the pair of 'sex' and 'kids' is not named": f", {PAIRS}, sums: [{{of: kids, by: sex}}]",
    "the pair of 'degree' and 'kids' is not named": ", sums: [{of: kids, by: degree}]",
    "'kids' by its own levels": ", marginals: [[sex, degree], [degree], [kids]], sums: [{of: kids, by: kids}]",
}


@pytest.mark.parametrize("found", WRONG)
def test_sums_that_no_table_could_have_are_refused(found: str) -> None:
    with pytest.raises(JobError, match=r"mechanism\.sums") as told:
        job(said=WRONG[found])
    assert found in str(told.value)


@pytest.mark.parametrize(
    ("codes", "found"),
    [("{f: 1, m: 1}", "has one level, so it contains no"), ("{f: 0, m: 1.0e-12, x: 1}", "of its range apart")],
)
def test_levels_that_sums_cannot_tell_apart_are_refused(codes: str, found: str) -> None:
    text = job_text("marginals", ", sums: [{of: sex}]", ("kids",))
    with pytest.raises(JobError, match=found):
        parse_job(text.replace("{f: 0, m: 1}", codes))


def test_a_reference_beside_sums_is_refused() -> None:
    with pytest.raises(JobError, match="sums would not include the estimate for weights beyond the bound"):
        parse_job(job_text("marginals", SUMS, ("kids",)) + "reference: {path: a.parquet, provenance: a public file}\n")
