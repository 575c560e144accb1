"""The shipped study of strict tables with a reference: RMSE over the direct estimate's on the engine that releases run.

Median over 27 cells at ε = 1 under a drift of 3 %. At R = 10 a median has a Monte Carlo error of at most .06: limits of
1.5 and 1.15 are missed by chance less than once in a thousand studies. Replicates are keyed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpdist.core.errors import StudyError
from dpdist.job.loading import find_shipped
from dpdist.studies.file import load_study, parse_study
from dpdist.studies.kinds.strict_tables import StrictTablesStudy
from dpdist.studies.kinds.table_errors import ratios
from dpdist.studies.run import run

pytestmark = pytest.mark.long

LIMITS = {"n1000_3": 1.5, "n10355_3": 1.15}


def small(*cases: str, **changes: Any) -> StrictTablesStudy:
    study = load_study("strict_survey")
    assert isinstance(study, StrictTablesStudy)
    said = study.model_dump(mode="json") | {
        "cases": [case.model_dump(mode="json") for case in study.cases if case.name in cases],
        "mechanisms": [{"label": name, "mechanism": name} for name in ("sanitized_statistics", "reference_tables")],
        "epsilons": ["0.02", "1"],
        "figures": [],
        "limits": [],
        "beside": [],
    }
    return StrictTablesStudy.model_validate(said | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(small(*LIMITS), tmp_path_factory.mktemp("strict") / "out", replicates=10)


@pytest.fixture(scope="module")
def medians(folder: Path) -> pd.Series:
    found = pd.read_csv(folder / "ratios.csv", dtype={"epsilon": str})
    return found.groupby(["case", "mechanism", "epsilon", "measure"])["value"].median()


@pytest.mark.parametrize("case", LIMITS)
@pytest.mark.parametrize("statistic", ["count", "mean"])
def test_sanitized_statistics_are_near_the_direct_estimates(medians: pd.Series, case: str, statistic: str) -> None:
    assert medians[case, "sanitized_statistics", "1", f"{statistic}_ratio_direct"] <= LIMITS[case]


@pytest.mark.parametrize("statistic", ["count", "mean"])
def test_the_limit_would_be_missed_without_the_current_file_and_under_fifty_times_the_noise(
    medians: pd.Series, statistic: str
) -> None:
    """Negative controls, n = 10,355: the reference alone, and ε = .02."""
    for mechanism, epsilon in (("reference_only", "1"), ("sanitized_statistics", "0.02")):
        assert medians["n10355_3", mechanism, epsilon, f"{statistic}_ratio_direct"] > LIMITS["n10355_3"]


def test_composed_noise_costs_several_times_as_much(medians: pd.Series) -> None:
    for statistic in ("count", "mean"):
        own, other = (
            medians["n1000_3", m, "1", f"{statistic}_ratio_direct"] for m in ("sanitized_statistics", "laplace_composed")
        )
        assert other > 3.0 * own


def test_reference_tables_are_near_the_direct_estimates_in_small_cells_too(folder: Path) -> None:
    """Over 27 cells, the finest of 6 records and more at n = 1,000; noise is of fixed keys. Control: ε = .02."""
    found = pd.read_csv(folder / "ratios.csv", dtype={"epsilon": str})
    found = found[(found["mechanism"] == "reference_tables") & found["measure"].str.endswith("ratio_direct")]
    cells = found.groupby(["case", "epsilon", "measure"])["value"]
    for statistic in ("count", "mean"):
        for case in LIMITS:
            assert cells.median()[case, "1", f"{statistic}_ratio_direct"] < 1.15
            assert cells.max()[case, "1", f"{statistic}_ratio_direct"] < 2.5
        assert cells.median()["n10355_3", "0.02", f"{statistic}_ratio_direct"] > 1.15, "control"


def test_intervals_cover_nearly_what_they_say(folder: Path) -> None:
    """27 cells that move together × 10 files: a share's standard deviation is at most .04."""
    found = pd.read_csv(folder / "summary.csv").set_index(["case", "mechanism", "epsilon", "measure"])["mean"]
    for case in LIMITS:
        for statistic in ("count", "mean"):
            for mechanism in ("sanitized_statistics", "reference_tables"):
                assert 0.78 < found[case, mechanism, 1.0, f"{statistic}_coverage"] <= 1.0


def test_a_study_resumes_to_the_same_results(folder: Path) -> None:
    lost = folder / "parts" / "n1000_3-00002.parquet"
    before = lost.read_bytes()
    lost.unlink()
    run(small(*LIMITS), folder, replicates=10)
    assert lost.read_bytes() == before
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "sanitized_statistics" in page
    assert "src=" not in page


def test_ratios_and_biases_are_those_of_the_loops() -> None:
    study = small("n1000_3", replicates=2)
    errors = {("direct", 1): 0.1, ("direct", 2): -0.3, ("sanitized_statistics", 1): 0.2, ("sanitized_statistics", 2): 0.4}
    rows = [
        {"case": "n1000_3", "mechanism": m, "epsilon": "1", "replicate": r, "measure": f"{s} error a / b", "value": v}
        for (m, r), v in errors.items()
        for s in ("count", "mean")
    ]
    found = ratios(study, pd.DataFrame(rows)).groupby(["mechanism", "measure"])["value"].median()
    unit = (0.1 / 2) ** 0.5
    assert found["sanitized_statistics", "count_ratio_direct"] == pytest.approx((0.2 / 2) ** 0.5 / unit)
    assert found["sanitized_statistics", "count_bias_direct"] == pytest.approx(0.3 / unit)
    assert found["direct", "mean_bias_direct"] == pytest.approx(0.1 / unit)


def test_a_case_may_have_fewer_replicates() -> None:
    study = small("n1000_3", "n100000_3")
    assert [study.replicates_of(k) for k in range(2)] == [50, 10]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("law: top_coded", "law: cauchy", "'cauchy' is not known"),
        ("mechanism: reference_tables}", "mechanism: reference_tables, synthesis: fbp}", "leave synthesis out"),
        ("label: reference_tables", "label: direct", "'direct' stands twice"),
        ("mechanism: sanitized_statistics}", "mechanism: laplace}", "laplace"),
    ],
)
def test_a_wrong_study_of_strict_tables_is_refused(old: str, new: str, told: str) -> None:
    text = find_shipped("strict_survey", "studies", StudyError).read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(StudyError, match=told):
        parse_study(text.replace(old, new, 1))
