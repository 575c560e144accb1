"""Differences between two periods: equal to figures by hand, refused where no error is known, and as wide as they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import invoke
from scipy import stats
from small_release import JOB, survey

import dpdist
from dpdist.core.errors import AnalysisError
from dpdist.mechanisms.tables import cells
from dpdist.publish.differences import Pair, changes, compared_periods, period_differences, satterthwaite

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
    with pytest.raises(AnalysisError, match="both releases are for small 2021"):
        period_differences(releases[0], releases[0])
    bare = release(tmp_path, "bare", LOCAL.replace('"2021"', '"2020"'), 3)
    with pytest.raises(AnalysisError, match="'laplace' does not give them") as refused:
        period_differences(bare, releases[0])
    assert "tables" in str(refused.value)
    assert "tables" in str(refused.value)
    other = release(tmp_path, "other", JOB.replace('"2021"', '"2019"').replace("by: [field, sex]", "by: [field]"), 4)
    with pytest.raises(AnalysisError, match="no table in common"):
        period_differences(other, releases[0])


def test_diff_writes_them_as_csv(releases: tuple[dpdist.Release, dpdist.Release], tmp_path: Path) -> None:
    done = invoke("diff", *releases, "--out", tmp_path / "changes")
    assert done.exit_code == 1, done.output  # as always where releases differ
    written = pd.read_csv(tmp_path / "changes" / "counts.csv")
    (rows,) = period_differences(*releases).values()
    assert np.allclose(written["standard_error"], rows["standard_error"], rtol=1e-12)
    refused = invoke("diff", releases[0], releases[0], "--out", tmp_path / "none")
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
Two = tuple[dpdist.Release, dpdist.Release]
OF_ONE_REFERENCE, OF_A_CHAIN, OF_ANOTHER = "of one reference", "of a chain", "of another reference"


def pair(folder: Path, kind: str, epsilon: str, rng: np.random.Generator, growth: float = 1.0, known: int = 400) -> Two:
    """Releases of two periods, between which pay and weights grow, after a reference of so many records."""
    folder.mkdir(exist_ok=True)
    files = ["reference.parquet", "other.parquet"]
    for name in files:
        people(rng, 1.0, known).to_parquet(folder / name)
    text = CHAIN.replace('epsilon: "2"', f'epsilon: "{epsilon}"')
    first = text.replace("REFERENCE", str(folder / files[0]))
    one = dpdist.run(dpdist.parse_job(first), folder / "one", people(rng, 1.0))
    second = text.replace("REFERENCE", str(folder / files[kind == OF_ANOTHER])).replace("2020", "2021")
    if kind == OF_A_CHAIN:
        second = second.replace(f"{{path: {folder / files[0]}, provenance: simulated}}", f"{{release: {one}}}")
    return one, dpdist.run(dpdist.parse_job(second), folder / "two", people(rng, growth))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(OF_ONE_REFERENCE, marks=pytest.mark.long), OF_A_CHAIN, pytest.param(OF_ANOTHER, marks=pytest.mark.long)],
)
def test_changes_know_what_errors_both_releases_take_from_their_reference(kind: str, tmp_path: Path) -> None:
    """At ε = .2, where the reference decides much. Control: releases of two references have independent errors.

    Errors that both share lower the error of a change, and drift that noise hides raises it.
    """
    one, two = pair(tmp_path, kind, "0.2", np.random.default_rng(3))
    tables, notes = compared_periods(one, two)
    (rows,) = tables.values()
    apart = np.hypot(*(release.tables["pay"]["standard_error"].to_numpy() for release in (one, two)))
    independent = (
        "the errors of the 2020 and 2021 estimates are treated as independent, because their reference records differ"
    )
    assert notes == [independent] * (kind == OF_ANOTHER)
    if kind == OF_ANOTHER:
        assert dpdist.series((one, two)).notes == notes
        done = invoke("diff", one, two, "--out", tmp_path / "changes")
        assert f"note: {independent}" in " ".join(done.output.split())
        assert (rows["correlation"] == 0.0).all()
        assert rows["standard_error"].to_numpy() == pytest.approx(apart, rel=1e-12)
        return
    other = compared_periods(*pair(tmp_path / "other", kind, "0.2", np.random.default_rng(4)))[0]["pay"]
    assert pd.concat([rows, other])["correlation"].between(0.02, 0.98).mean() >= 0.9
    assert np.abs(rows["standard_error"].to_numpy() / apart - 1.0).mean() > 0.05
    again = period_differences(two, one)["pay"]
    assert again["standard_error"].to_numpy() == pytest.approx(rows["standard_error"].to_numpy(), rel=0.25), "other draws"


def test_relative_changes_and_marks_of_significance_follow_from_the_figures() -> None:
    """By hand, and by draws of correlated figures. A change is significant where its interval leaves out 0."""
    value, variance, infinite = Pair(*np.array([[100.0], [120.0]])), Pair(*np.array([[16.0], [36.0]])), np.array([np.inf])
    found = changes(value, variance, Pair(infinite, infinite), np.array([12.0]))
    assert found["standard_error"] == pytest.approx(np.sqrt(16.0 + 36.0 - 24.0))
    assert (found["relative"], found["correlation"]) == (pytest.approx(0.2), pytest.approx(0.5))
    law = np.random.default_rng(0).multivariate_normal([100.0, 120.0], [[16.0, 12.0], [12.0, 36.0]], 200_000)
    assert found["relative_error"] == pytest.approx((law[:, 1] / law[:, 0]).std(), rel=0.02)
    assert found["significant"].tolist() == [True]
    nothing = changes(
        Pair(np.array([0.0, -1.0]), np.ones(2)), Pair(np.ones(2), np.ones(2)), Pair(infinite, infinite), np.zeros(2)
    )
    assert np.isnan(nothing["relative"]).all()
    assert np.isnan(nothing["relative_error"]).all()
    assert nothing["significant"].tolist() == [False, False]


def test_no_relative_change_is_stated_of_a_figure_that_is_mostly_error() -> None:
    """Its interval excluded 0 where that of the change did not: -72 % ± 44 beside -.0154 ± .0214. Control: an
    earlier figure with half of that error.
    """
    infinite = np.full(2, np.inf)
    found = changes(
        Pair(np.array([0.0213, 0.0213]), np.full(2, 0.0059)),
        Pair(np.array([0.0121**2, 0.006**2]), np.full(2, 0.0048**2)),
        Pair(infinite, infinite),
        np.zeros(2),
    )
    assert np.isnan(found["relative"]).tolist() == np.isnan(found["relative_error"]).tolist() == [True, False]
    assert found["significant"].tolist() == [False, True]
    assert (found["relative"] + 1.645 * found["relative_error"] < 0.0).tolist() == [False, True]


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
@pytest.mark.parametrize(("kind", "epsilon"), [(OF_ONE_REFERENCE, "0.1"), (OF_ONE_REFERENCE, "0.5"), (OF_A_CHAIN, "0.3")])
def test_intervals_of_changes_cover_a_change_that_noise_hides(
    kind: str, epsilon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 pairs of 4 cells whose pay and weights grow by 6 %: counts and means within at least .8 of nominal .9 intervals.
    Were cells of a pair one figure, fewer would be covered by chance in 1 of 500 studies.

    Control: at ε = .1 both estimates follow their reference. Errors with typical drift alone then cover less than half of
    the changes of means.
    """
    rng, growth = np.random.default_rng(8), 1.06
    covered = {(name, typical): list[bool]() for name in ("count", "mean") for typical in (False, True)}
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        one, two = pair(folder, kind, epsilon, rng, growth)
        for typical in (False, True):
            with monkeypatch.context() as patched:
                if typical:
                    patched.setattr(cells, "mean_square_drift", lambda posterior, observed: posterior.prior.drift[-1])
                rows = period_differences(one, two)["pay"]
            rows = rows.query("estimator == 'parameters' and field != 'Total' and sex != 'Total'")
            for statistic, own in rows.groupby("statistic"):
                cell = own["field"].map({"arts": 0, "law": 2}).to_numpy() + own["sex"].map({"f": 0, "m": 1}).to_numpy()
                truth = {
                    "count": (growth - 1.0) * 1500 * SHARES[cell] * np.exp(4.0 + 0.125),
                    "mean": (growth - 1.0) * np.exp(10.5 + 0.1 * cell + 0.125),
                }[str(statistic)]
                covered[str(statistic), typical] += list((own["lower"] <= truth) & (truth <= own["upper"]))
    coverage = {key: float(np.mean(each)) for key, each in covered.items()}
    print(coverage)
    assert min(coverage[name, False] for name in ("count", "mean")) >= 0.8, coverage
    if epsilon == "0.1":
        assert coverage["mean", True] < 0.5, coverage
