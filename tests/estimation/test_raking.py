"""Raking: totals met, variances those of R's `survey` (survey/golden), a release's tables and records raked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from edited_text import edited

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.core.records import TOTAL, Crosstab, cross
from dpdist.estimation.estimators import (
    STATISTICS,
    Margin,
    NotMet,
    Stage,
    counts_and_means,
    factors,
    raked,
    raked_counts_and_means,
    record_sums,
)
from dpdist.job.loading import find_job

GOLDEN = pd.read_csv(Path(__file__).parents[1] / "survey" / "golden" / "golden.csv", dtype={"domain": str})


def small() -> tuple[Crosstab, np.ndarray, np.ndarray, np.ndarray]:
    i = np.arange(120)
    table = np.column_stack([i % 5, (i * 7) % 3, (i * 11) % 4, (i * 3) % 7])
    distinct, row = np.unique(table, axis=0, return_inverse=True)
    levels = {"h": tuple(range(5)), "d": tuple(range(3)), "e": tuple(range(4)), "g": tuple(range(7))}
    codes = {name: distinct[:, k].astype(np.int32) for k, name in enumerate(levels)}
    crosstab = Crosstab(codes, levels, np.bincount(row.ravel()), (), ("h",))
    return crosstab, row.ravel().astype(np.int32), ((i * 37) % 101) / 7 + 1, 1 + ((i * 13) % 17) / 3


MARGINS = {"d": [150.0, 140.0, 130.0], "e": [90.0, 110.0, 100.0, 120.0]}


def margins(crosstab: Crosstab) -> list[Margin]:
    return [Margin(cross(crosstab, [name], False).membership, np.array(totals)) for name, totals in MARGINS.items()]


def test_raked_counts_and_means_have_the_errors_of_r() -> None:
    crosstab, row, y, w = small()
    cells = cross(crosstab, ["g"], margins=True)
    sums, rake = record_sums(row, w, y, len(crosstab)), margins(crosstab)
    stage = Stage.of(np.bincount(crosstab.design_stratum, weights=crosstab.count))
    found = dict(zip(STATISTICS, raked_counts_and_means(sums, crosstab, cells, rake, stage), strict=True))
    for name, estimate in found.items():
        golden = GOLDEN[(GOLDEN["case"] == "raked") & (GOLDEN["statistic"] == name)].set_index("domain")
        order = [label for (label,) in cells.labels]
        np.testing.assert_allclose(estimate.value, golden.loc[order, "value"], rtol=1e-9)
        expected = golden.loc[order, "se"].to_numpy()
        expected = np.where(expected < 1e-6, 0.0, expected)
        np.testing.assert_allclose(np.sqrt(estimate.variance), expected, rtol=1e-9, atol=1e-8)
    unraked = counts_and_means(raked(sums, factors(sums.a, rake)), crosstab, cells, stage)
    assert np.sqrt(unraked[0].variance[-1]) > 1.0, "control: without residuals the fixed total would vary"


def test_factors_meet_every_total_for_many_sets_of_weights_at_once() -> None:
    crosstab, row, _, w = small()
    rng = np.random.default_rng(3)
    weights = record_sums(row, w, w, len(crosstab)).a * rng.uniform(0.5, 2.0, (6, len(crosstab)))
    rake = margins(crosstab)
    scaled = weights * factors(weights, rake)
    for margin in rake:
        np.testing.assert_allclose((margin.membership @ scaled.T).T, np.tile(margin.totals, (6, 1)), rtol=1e-9)


def test_totals_that_a_sample_cannot_reach_are_told() -> None:
    """Two cells on the diagonal: both margins fix the same two weights, to different totals."""
    codes = {name: np.array([0, 1], dtype=np.int32) for name in ("a", "b")}
    crosstab = Crosstab(codes, {"a": (0, 1), "b": (0, 1)}, np.array([3, 3]), (), ())
    rake = [
        Margin(cross(crosstab, [name], False).membership, np.array(t)) for name, t in (("a", [1.0, 2.0]), ("b", [2.0, 1.0]))
    ]
    with pytest.raises(NotMet):
        factors(np.ones(2), rake)


def crossed(*totals: tuple[float, float]) -> list[Margin]:
    """Margins of the four cells of two columns of two levels."""
    levels = {"a": (0, 1), "b": (0, 1)}
    codes = {"a": np.array([0, 0, 1, 1], dtype=np.int32), "b": np.array([0, 1, 0, 1], dtype=np.int32)}
    crosstab = Crosstab(codes, levels, np.full(4, 5), (), ())
    return [Margin(cross(crosstab, [n], False).membership, np.array(t)) for n, t in zip("ab", totals, strict=True)]


@pytest.mark.parametrize("apart", [1.0, 1e3, 1e5, 1e8])
def test_totals_that_one_set_of_weights_meets_all_weights_meet(apart: float) -> None:
    """Sizes are checked before anything is spent, and weights are raked after it: so these must not fail where those did
    not. Weights of rows that hardly overlap took proportional fitting over 10,000 rounds."""
    margins = crossed((3.0, 5.0), (4.0, 4.0))
    factors(np.full(4, 5.0), margins)
    weights = np.array([[apart, 1.0, 1.0, apart], [1.0, apart, apart, 2.0]])
    found = weights * factors(weights, margins)
    for margin in margins:
        np.testing.assert_allclose((margin.membership @ found.T).T, np.tile(margin.totals, (2, 1)), rtol=1e-9)
    odds, own = (x[:, 0] * x[:, 3] / (x[:, 1] * x[:, 2]) for x in (found, weights))
    np.testing.assert_allclose(odds, own, rtol=1e-6)


FIELDS = {
    "biology": 27000.0,
    "computing": 3000.0,
    "mathematics": 5000.0,
    "physical_sciences": 17000.0,
    "psychology": 14000.0,
    "social_sciences": 12500.0,
    "engineering": 18000.0,
    "health": 3500.0,
}


def job(rake: str, **edits: str) -> str:
    text = find_job("doctorates").read_text(encoding="utf-8")
    text = text.replace("executor: dask, workers: 2", "executor: serial").replace("draws: 1000", "draws: 200")
    text = text.replace("sample: 10000", "sample: 2000").replace("strata: [field]\noutcome", "strata: []\noutcome")
    text = text.replace("predictors: [sex]", "predictors: [field, sex]")
    text = text.replace("{mean: salary}]", "{mean: salary}, {total: salary}]")
    text = edited(text, *edits.items())
    return text + f"record: {{log_lik: never}}\nrake:\n{rake}"


TOTALS = "".join(f"      {name}: {total}\n" for name, total in FIELDS.items())
BY_FIELD = f"  - by: [field]\n    totals:\n{TOTALS}"
BY_SEX = "  - by: [sex]\n    totals: {male: 60000, female: 40000}\n"


@pytest.mark.parametrize(
    "edits", [{}, {"synthesis: fbs": "synthesis: fbs, synthetic_weights: expected"}], ids=["drawn", "expected"]
)
def test_a_release_is_raked_in_tables_and_in_records(tmp_path: Path, edits: dict[str, str]) -> None:
    public = dpdist.run(dpdist.parse_job(job(BY_FIELD + BY_SEX, **edits)), tmp_path / "ws")
    table = pd.read_parquet(public / "tables" / "salaries.parquet")
    counts = table[table["statistic"] == "count"]
    for estimator in ("parameters", "records"):
        mine = counts[counts["estimator"] == estimator].set_index(["field", "sex"])
        for name, total in FIELDS.items():
            assert mine.loc[(name, TOTAL), "estimate"] == pytest.approx(total, rel=1e-6)
            assert mine.loc[(name, TOTAL), "standard_error"] < 1e-3 * total
        assert mine.loc[(TOTAL, "male"), "estimate"] == pytest.approx(60000, rel=1e-6)
        assert mine.loc[("biology", "male"), "standard_error"] > 50
    by_name = table.set_index(["estimator", "statistic", "field", "sex"])["estimate"].sort_index()
    for estimator in ("parameters", "records"):
        product = by_name[estimator, "count"] * by_name[estimator, "mean"]
        np.testing.assert_allclose(by_name[estimator, "total"], product, rtol=0.02)
    found = pd.read_parquet(tmp_path / "ws" / "confidential" / "evaluation" / "salaries.parquet").set_index("statistic")
    for column in ("direct", "truth"):
        product = found.loc["count", column].to_numpy() * found.loc["mean", column].to_numpy()
        np.testing.assert_allclose(found.loc["total", column], product, rtol=1e-12)
    assert (found.loc["total", "laplace"] != found.loc["total", "direct"]).all()
    for k in range(1, 4):
        records = pq.read_table(public / "synthetic" / f"set-{k}.parquet").to_pandas()
        sums = records.groupby("field", observed=True)["weight"].sum()
        np.testing.assert_allclose(sums[list(FIELDS)], list(FIELDS.values()), rtol=1e-6)


def refusal(rake: str, **edits: str) -> str:
    with pytest.raises((JobError, DataError)) as refused:
        dpdist.validate(dpdist.parse_job(job(rake, **edits)))
    return str(refused.value)


def test_totals_that_do_not_match_the_domain_are_refused() -> None:
    said = refusal(BY_FIELD.replace("health", "healt"))
    assert "'healt' is not a combination of levels of field" in said
    assert "did you mean 'health'?" in said
    said = refusal(BY_FIELD.replace("      health: 3500.0\n", ""))
    assert "1 of 8 combinations have no total, the first 'health'" in said
    said = refusal(BY_FIELD + BY_SEX.replace("60000", "50000"))
    assert "the totals sum to 90000, those of field to 100000" in said
    assert "a number above 0" in refusal(BY_FIELD.replace("3500.0", "0"))
    assert "column 'age' is not declared" in refusal("  - {by: [age], totals: {young: 1}}\n")
    nobody = {"levels: [male, female]": "levels: [male, female, other]"}
    said = refusal("  - by: [sex]\n    totals: {male: 60000, female: 39000, other: 1000}\n", **nobody)
    assert "rake sex: totals for cells without a sample record (other)" in said
