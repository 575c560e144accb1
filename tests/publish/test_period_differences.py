"""Differences between two periods: equal to figures by hand, refused where no error is known, and as wide as they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from small_release import JOB, survey
from typer.testing import CliRunner

import dpdist
from dpdist.cli.main import app
from dpdist.core.errors import AnalysisError
from dpdist.publish.differences import period_differences, satterthwaite

LOCAL = JOB.replace("strata: [field]\n", "").replace("{name: tables}", "{name: laplace}")
LOCAL = LOCAL.replace("  weight: {bounds: [1, 60], outside: clip}\n", "")


def release(folder: Path, name: str, text: str, seed: int) -> dpdist.Release:
    people = survey(1600).sample(800, random_state=seed)
    return dpdist.run(dpdist.parse_job(text), folder / name, people.reset_index(drop=True))


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[dpdist.Release, dpdist.Release]:
    folder = tmp_path_factory.mktemp("periods")
    later = JOB.replace('"2021"', '"2022"').replace("{mean: salary}", "{mean: salary}, {total: salary}")
    return release(folder, "a", JOB, 1), release(folder, "b", later, 2)


def test_they_are_the_later_figures_less_the_earlier_ones_with_errors_by_hand(
    releases: tuple[dpdist.Release, dpdist.Release],
) -> None:
    (rows,) = period_differences(*releases).values()
    keys = ["field", "sex", "statistic", "estimator"]
    before, after = (each.tables["counts"].set_index(keys) for each in releases)
    assert len(rows) == len(before) == 36, "a statistic that one release alone has is in no difference"
    for _, row in rows.iterrows():
        one, two = before.loc[tuple(row[keys])], after.loc[tuple(row[keys])]
        error = np.sqrt(one["standard_error"] ** 2 + two["standard_error"] ** 2)
        assert row["difference"] == two["estimate"] - one["estimate"]
        assert row["standard_error"] == pytest.approx(error, rel=1e-14)
        reach = stats.t.ppf(0.95, row["df"]) * error
        assert (row["lower"], row["upper"]) == pytest.approx((row["difference"] - reach, row["difference"] + reach))


def test_degrees_of_freedom_are_satterthwaites() -> None:
    error = np.array([1.0, 3.0, 1.0]), np.array([2.0, 0.0, 1.0])
    df = np.array([10.0, 7.0, np.inf]), np.array([5.0, 9.0, np.inf])
    assert satterthwaite(error, df).tolist() == pytest.approx([25.0 / (1 / 10 + 16 / 5), 7.0, np.inf])


def test_one_period_and_figures_without_errors_and_other_tables_are_refused(
    releases: tuple[dpdist.Release, dpdist.Release], tmp_path: Path
) -> None:
    with pytest.raises(AnalysisError, match="both releases are of small 2021"):
        period_differences(releases[0], releases[0])
    bare = release(tmp_path, "bare", LOCAL.replace('"2021"', '"2020"'), 3)
    with pytest.raises(AnalysisError, match="'laplace' gives none") as refused:
        period_differences(bare, releases[0])
    assert "tables" in str(refused.value)
    assert "tables" in str(refused.value)
    other = release(tmp_path, "other", JOB.replace('"2021"', '"2019"').replace("by: [field, sex]", "by: [field]"), 4)
    with pytest.raises(AnalysisError, match="no table in common"):
        period_differences(other, releases[0])


def test_diff_writes_them_as_csv(releases: tuple[dpdist.Release, dpdist.Release], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["diff", *map(str, releases), "--out", str(tmp_path / "changes")])
    assert done.exit_code == 1, done.output  # as always where releases differ
    written = pd.read_csv(tmp_path / "changes" / "counts.csv")
    (rows,) = period_differences(*releases).values()
    assert np.allclose(written["standard_error"], rows["standard_error"], rtol=1e-12)
    refused = CliRunner().invoke(app, ["diff", str(releases[0]), str(releases[0]), "--out", str(tmp_path / "none")])
    assert refused.exit_code == 2
    assert not (tmp_path / "none").exists()


CHAIN = """
dataset: pay
period: "2020"
columns:
  field: {levels: [arts, law]}
  sex: {levels: [f, m]}
  salary: {bounds: [0, 400000], outside: clip}
survey: {weight: weight}
outcome: salary
mechanism: {name: tables}
reference: {path: REFERENCE, provenance: simulated}
budget: {epsilon: "2", adjacency: substitution}
tables: [{name: pay, by: [field, sex], statistics: [count, {mean: salary}]}]
runtime: {executor: serial}
"""
SHARES = np.array([0.3, 0.2, 0.1, 0.4])
"""Of arts f, arts m, law f, law m."""


def people(rng: np.random.Generator, growth: float, n: int = 1500) -> pd.DataFrame:
    """A sample of a period in which pay is `growth` times as high, and everybody's weight too."""
    cell = rng.choice(4, n, p=SHARES)
    return pd.DataFrame(
        {
            "field": np.array(["arts", "law"])[cell // 2],
            "sex": np.array(["f", "m"])[cell % 2],
            "salary": growth * np.exp(rng.normal(10.5 + 0.1 * cell, 0.5)),
            "weight": growth * np.exp(rng.normal(4.0, 0.5, n)),
        }
    )


@pytest.mark.slow
def test_intervals_of_differences_along_a_chain_hold_the_truth_as_often_as_they_say(tmp_path: Path) -> None:
    """The later release stands on the earlier one. 200 chains of 4 cells: counts and means both within .86 and .94."""
    rng, growth, held = np.random.default_rng(8), 1.06, {"count": list[bool](), "mean": list[bool]()}
    for number in range(200):
        folder = tmp_path / str(number)
        folder.mkdir()
        people(rng, 1.0).to_parquet(folder / "reference.parquet")
        first = CHAIN.replace("REFERENCE", str(folder / "reference.parquet"))
        one = dpdist.run(dpdist.parse_job(first), folder / "one", people(rng, 1.0))
        second = CHAIN.replace("{path: REFERENCE, provenance: simulated}", f"{{release: {one}}}").replace("2020", "2021")
        two = dpdist.run(dpdist.parse_job(second), folder / "two", people(rng, growth))
        rows = period_differences(one, two)["pay"].query(
            "estimator == 'parameters' and field != 'Total' and sex != 'Total'"
        )
        for statistic, own in rows.groupby("statistic"):
            cell = own["field"].map({"arts": 0, "law": 2}).to_numpy() + own["sex"].map({"f": 0, "m": 1}).to_numpy()
            truth = {
                "count": (growth - 1.0) * 1500 * SHARES[cell] * np.exp(4.0 + 0.125),
                "mean": (growth - 1.0) * np.exp(10.5 + 0.1 * cell + 0.125),
            }[str(statistic)]
            held[str(statistic)] += list((own["lower"] <= truth) & (truth <= own["upper"]))
    coverage = {name: float(np.mean(each)) for name, each in held.items()}
    print(coverage)
    assert all(len(each) == 800 for each in held.values())
    assert all(0.86 <= each <= 0.94 for each in coverage.values()), coverage
