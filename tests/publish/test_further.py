"""Further statistics of published tables are those of the released parameters, and of the records, computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from simulated_doctorates import simulated

import dpdist
from dpdist.core.errors import JobError
from dpdist.publish.released import ReleasedObject, read_released

STATISTICS = """
      - count
      - {mean: salary}
      - {ratio: [salary, hours]}
      - {median: salary}
      - {quantile: hours, at: 0.9}
      - {proportion: salary, above: 60000}
      - {share: sex}
      - {share: [field, sex]}
      - {difference: {mean: salary}, from: {sex: male}}
      - {difference: {median: salary}, from: {field: biology}}
      - {difference: count, from: {sex: male}}
"""
JOB = (
    simulated(30000, 1200, 12)
    + """\
  hours: {bounds: [0, 168], outside: clip}
survey: {weight: weight, design_strata: [field]}
outcome: [salary, hours]
model: {family: lognormal, predictors: [field, sex]}
mechanism: {name: weighted, weights: fixed_point}
budget: {epsilon: "8"}
synthetic_sets: 2
sampler: {draws: 300}
runtime: {executor: serial}
tables:
  - name: pay
    by: [field, sex]
    statistics:STATISTICS
""".replace("STATISTICS", STATISTICS)
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("further") / "ws"
    dpdist.run(dpdist.parse_job(JOB), folder)
    return folder


@pytest.fixture(scope="module")
def release(workspace: Path) -> ReleasedObject:
    return read_released(workspace / "public" / "released")


@pytest.fixture(scope="module")
def table(workspace: Path) -> pd.DataFrame:
    return pd.read_parquet(workspace / "public" / "tables" / "pay.parquet")


def figure(table: pd.DataFrame, statistic: str, estimator: str, field: str, sex: str, variable: str | None = None) -> Any:
    rows = table[(table["statistic"] == statistic) & (table["estimator"] == estimator)]
    rows = rows[(rows["field"] == field) & (rows["sex"] == sex)]
    rows = rows if variable is None else rows[rows["variable"] == variable]
    assert len(rows) == 1
    return rows.iloc[0]


def laws(release: ReleasedObject, field: str, sex: str) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Mean and covariance of (log salary, log hours, log weight) in a base cell, by set, and the cell's sample records."""
    row = [
        k
        for k in range(len(release.crosstab))
        if all(
            release.crosstab.levels[name][release.crosstab.codes[name][k]] == level
            for name, level in (("field", field), ("sex", sex))
        )
    ]
    assert len(row) == 1
    model, found = release.model(0), []
    for k in range(len(release.sets)):
        theta = release.theta(model, 0, k)
        mean = model._means(theta)[0, model.design.pattern[row[0]]]
        found.append((mean, theta["covariance"][0], float(release.crosstab.count[row[0]])))
    return found


CELLS = [("biology", "male"), ("health", "female")]


@pytest.mark.parametrize(("field", "sex"), CELLS)
def test_a_median_is_that_of_the_released_law_weighted_to_the_population(
    release: ReleasedObject, table: pd.DataFrame, field: str, sex: str
) -> None:
    by_hand = np.mean([np.exp(mean[0] + cov[0, 2]) for mean, cov, _ in laws(release, field, sex)])
    assert figure(table, "median", "parameters", field, sex)["estimate"] == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize(("field", "sex"), CELLS)
def test_a_quantile_and_a_proportion_are_those_of_the_released_law(
    release: ReleasedObject, table: pd.DataFrame, field: str, sex: str
) -> None:
    each = laws(release, field, sex)
    hours = [np.exp(m[1] + c[1, 2] + norm.ppf(0.9) * np.sqrt(c[1, 1])) for m, c, _ in each]
    above = [norm.sf((np.log(60000) - m[0] - c[0, 2]) / np.sqrt(c[0, 0])) for m, c, _ in each]
    found = figure(table, "quantile 0.9", "parameters", field, sex)["estimate"]
    assert found == pytest.approx(np.mean(np.minimum(hours, 168)), rel=1e-9)
    assert figure(table, "proportion above 60000", "parameters", field, sex)["estimate"] == pytest.approx(np.mean(above))


def test_a_ratio_is_that_of_the_expected_totals(release: ReleasedObject, table: pd.DataFrame) -> None:
    """Bounds far off: E(wy) = exp(μ_y + μ_w + Σ.../2)."""
    ratios = []
    for mean, cov, _ in laws(release, "biology", "male"):
        top, below = (np.exp(mean[j] + mean[2] + (cov[j, j] + 2 * cov[j, 2] + cov[2, 2]) / 2) for j in (0, 1))
        ratios.append(top / below)
    found = figure(table, "ratio", "parameters", "biology", "male", "salary / hours")["estimate"]
    assert found == pytest.approx(np.mean(ratios), rel=1e-3)


@pytest.mark.parametrize("estimator", ["parameters", "records"])
def test_shares_and_differences_follow_from_the_tables_own_figures(table: pd.DataFrame, estimator: str) -> None:
    def count(field: str, sex: str) -> float:
        return float(figure(table, "count", estimator, field, sex)["estimate"])

    share = figure(table, "share across sex", estimator, "health", "male")["estimate"]
    assert share == pytest.approx(count("health", "male") / count("health", "Total"), rel=5e-3)
    of_all = figure(table, "share across field, sex", estimator, "health", "male")["estimate"]
    assert of_all == pytest.approx(count("health", "male") / count("Total", "Total"), rel=5e-3)
    means = [figure(table, "mean", estimator, "health", sex)["estimate"] for sex in ("female", "male")]
    found = figure(table, "difference of mean from sex male", estimator, "health", "female")
    assert found["estimate"] == pytest.approx(means[0] - means[1], rel=1e-9)
    assert figure(table, "difference of mean from sex male", estimator, "health", "male")["suppressed"]
    assert figure(table, "share across sex", estimator, "health", "Total")["estimate"] == pytest.approx(1.0)


def test_figures_of_records_are_those_of_the_published_records(workspace: Path, table: pd.DataFrame) -> None:
    medians, ratios, above = [], [], []
    for k in (1, 2):
        records = pd.read_parquet(workspace / "public" / "synthetic" / f"set-{k}.parquet")
        own = records[records["field"] == "health"].sort_values("salary")
        reached = own["weight"].cumsum() / own["weight"].sum()
        medians.append(own["salary"][reached >= 0.5].iloc[0])
        ratios.append((own["weight"] * own["salary"]).sum() / (own["weight"] * own["hours"]).sum())
        above.append(own["weight"][own["salary"] > 60000].sum() / own["weight"].sum())
    for statistic, values in (("median", medians), ("ratio", ratios), ("proportion above 60000", above)):
        found = figure(table, statistic, "records", "health", "Total")["estimate"]
        assert found == pytest.approx(np.mean(values), rel=1e-9), statistic


def test_a_difference_from_a_margin_that_holds_the_cell_has_less_error_than_apart(table: pd.DataFrame) -> None:
    """Total less men: both hold the men. With covariance the error is far below the root of both variances."""
    both = [figure(table, "count", "parameters", "health", sex)["standard_error"] for sex in ("Total", "male")]
    found = figure(table, "difference of count from sex male", "parameters", "health", "Total")
    women = figure(table, "count", "parameters", "health", "female")
    assert found["estimate"] == pytest.approx(women["estimate"], rel=1e-9)
    assert found["standard_error"] == pytest.approx(women["standard_error"], rel=1e-6)
    assert found["standard_error"] < 0.9 * np.hypot(*both)


def test_limits_hold_the_estimate_and_every_figure_has_an_error(table: pd.DataFrame) -> None:
    known = table[table["estimate"].notna()]
    assert known["standard_error"].notna().all()
    inside = known[known["statistic"].str.startswith(("share", "proportion"))]
    assert inside["lower"].min() >= 0
    assert inside["upper"].max() <= 1


def test_the_evaluation_has_direct_estimates_of_them(workspace: Path) -> None:
    """In a cell of few records the interval of the share below a median leaves 0 to 1: R has no error there, either."""
    rows = pd.read_parquet(workspace / "confidential" / "evaluation" / "pay.parquet")
    medians = rows[rows["statistic"] == "median"]
    assert medians["direct"].notna().all()
    small = medians["direct_se"].isna()
    assert medians.loc[small, "records"].tolist() == [5]
    assert (medians.loc[~small, "direct_se"] > 0).all()
    assert (medians.loc[~small, "synthetic_error_in_se"] < 6).all()


def test_they_are_printed_with_heads_that_say_what_they_are(workspace: Path) -> None:
    heads = (workspace / "public" / "tables" / "pay.wide.csv").read_text(encoding="utf-8").splitlines()[0]
    for text in (
        "Ratio of salary to hours",
        "Quantile 0.9 of hours",
        "Share across field, sex",
        "Difference from sex male",
    ):
        assert text in heads


@pytest.mark.parametrize(
    ("mechanism", "statistic", "allowed"),
    [
        ("laplace", "{share: sex}", "tables"),
        ("laplace_composed", "{difference: count, from: {sex: male}}", "tables"),
    ],
)
def test_a_mechanism_that_cannot_give_one_refuses_it_and_names_those_that_can(
    mechanism: str, statistic: str, allowed: str
) -> None:
    text = JOB[: JOB.index("tables:")] + f"tables:\n  - {{name: pay, by: [field, sex], statistics: [{statistic}]}}\n"
    text = text.replace("{name: weighted, weights: fixed_point}", f"{{name: {mechanism}}}").replace(
        "model: {family: lognormal, predictors: [field, sex]}\n", ""
    )
    with pytest.raises(JobError) as refused:
        dpdist.parse_job(text.replace("[salary, hours]", "salary"))
    own = [each for each in refused.value.problems if each.where.startswith("tables.0.statistics.0")]
    assert own
    assert mechanism in own[0].fault
    assert allowed in own[0].allowed
    assert mechanism not in own[0].allowed.split(", ")


def test_intervals_end_where_a_figure_cannot_go(tmp_path: Path) -> None:
    """One of ten agreed: the interval of the ratio went below 0. Control: its standard error."""
    text = """
dataset: yes
period: "2021"
columns:
  field: {levels: [arts, law]}
  asked: {bounds: [0, 1], whole: true, outside: clip}
  agreed: {bounds: [0, 1], whole: true, outside: clip}
outcome: [asked, agreed]
mechanism: {name: tables}
budget: {epsilon: "1000"}
withhold_above: null
tables:
  - name: t
    by: [field]
    statistics: [count, {ratio: [agreed, asked]}]
publish: always
runtime: {executor: serial}
"""
    field = np.repeat(["arts", "law"], 20)
    agreed = np.tile([0, 1, *[0] * 18], 2)
    people = pd.DataFrame({"field": field, "asked": np.tile([0, 1], 20), "agreed": agreed})
    release = dpdist.run(dpdist.parse_job(text), tmp_path / "ws", people)
    ratios = release.tables["t"].query("estimator == 'parameters' and statistic == 'ratio'")
    assert (ratios["lower"] >= 0.0).all()
    assert (ratios["estimate"] - 1.645 * ratios["standard_error"] < 0.0).any(), "control"
