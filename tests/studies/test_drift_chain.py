"""Chains of releases of a survey whose shape drifts: a short one here, the shipped study marked slow. Noise is keyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpdist.core.errors import StudyError
from dpdist.job.loading import find_shipped
from dpdist.studies.file import load_study, parse_study
from dpdist.studies.kinds.chains import ChainStudy, in_period, late
from dpdist.studies.run import run

CASE = {"name": "shape", "population": 30_000, "sample": 3000, "periods": 3, "growth": 0.05, "sd": 0.6, "noise_sd": 0.7}
ARMS = [{"label": "never"}, {"label": "every", "refresh": 1}]


def small(**changes: Any) -> ChainStudy:
    study = load_study("drift_chain")
    assert isinstance(study, ChainStudy)
    figures = [{"kind": "by_period", "measure": "count_median", "title": "Counts"}]
    said = study.model_dump(mode="json") | {
        "cases": [CASE],
        "mechanisms": ARMS,
        "figures": figures,
        "limits": [],
        "replicates": 1,
    }
    return ChainStudy.model_validate(said | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(small(), tmp_path_factory.mktemp("chain") / "out")


def summary(folder: Path, case: str = "") -> pd.Series:
    found = pd.read_csv(folder / "summary.csv")
    found = found[found["case"] == case] if case else found
    return found.set_index(["mechanism", "measure"])["mean"]


def test_a_refresh_takes_out_what_drift_of_shape_adds_up_to(folder: Path) -> None:
    """Keyed: one chain of three periods. Control: without drift of shape no such error is there to take out."""
    found = summary(folder)
    assert found["never", "count_late_median"] > 2.0 * found["every", "count_late_median"]
    assert found["never", "count_late_coverage"] < found["every", "count_late_coverage"]
    assert found["never", in_period("count_median", 3)] > found["never", in_period("count_median", 1)]


def test_errors_of_counts_are_told_in_both_scales(folder: Path) -> None:
    """Cells of a field and a sex are no design strata: their sizes vary by chance in the errors as designed, and not given
    them."""
    found = summary(folder)
    for label in ("never", "every", "laplace_composed"):
        assert found[label, "count_given_median"] > found[label, "count_median"]
        assert found[label, late("count_given_max")] > 0


def test_both_chains_cost_the_same(folder: Path) -> None:
    found = summary(folder)
    assert found["never", "chain_epsilon"] == found["every", "chain_epsilon"] == 3.0


def test_measures_of_a_chain_are_means_of_its_periods(folder: Path) -> None:
    found = summary(folder)
    for label in ("never", "laplace_composed", "direct"):
        each = [found[label, in_period("mean_max", period)] for period in (1, 2, 3)]
        assert found[label, "mean_max"] == pytest.approx(np.mean(each), rel=1e-9)
        assert found[label, late("mean_max")] == pytest.approx(each[-1], rel=1e-9)


def test_a_study_resumes_to_the_same_results(folder: Path) -> None:
    lost = folder / "parts" / "shape-00001.parquet"
    before = lost.read_bytes()
    lost.unlink()
    run(small(), folder)
    assert lost.read_bytes() == before
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "noise_sd 0.4 → 0.7" in page
    assert "every release spends 30 % of its ε on histograms" in page
    assert "Nothing here comes from a respondent" in page
    assert "src=" not in page


def test_a_chain_that_is_one_file_after_the_other_carries_no_shape() -> None:
    """`renewed` arms are fixed on the file of the period before."""
    arm = small(mechanisms=[{"label": "files", "renewed": True}]).mechanisms[0]
    assert arm.histogram(4, "1") == {}
    assert small().mechanisms[1].histogram(4, "1/2") == {"histogram": {"epsilon": "0.15"}}


def test_periods_change_by_as_much_each_and_end_where_the_case_says() -> None:
    case = small().cases[0]
    assert [case.survey(t)["sd"] for t in range(4)] == pytest.approx([0.4, 0.4 + 0.2 / 3, 0.4 + 0.4 / 3, 0.6])
    assert case.survey(3)["growth"] == pytest.approx(1.05**3 - 1.0)
    assert case.survey(3)["population"] == round(30_000 * 1.05**3)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("refresh: 4", "refresh: 4, share: 1", "a share, below 1"),
        ("renewed: true", "renewed: true, refresh: 2", "nothing to refresh"),
        ("label: never", "label: direct", "'direct' stands twice"),
        ("law: top_coded", "law: cauchy", "'cauchy' is not known"),
    ],
)
def test_a_wrong_study_of_chains_is_refused(old: str, new: str, told: str) -> None:
    text = find_shipped("drift_chain", "studies", StudyError).read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(StudyError, match=told):
        parse_study(text.replace(old, new, 1))


@pytest.mark.slow
def test_over_sixteen_periods_a_refresh_every_fourth_keeps_counts_and_coverage(tmp_path: Path) -> None:
    """The shipped study, one replicate. Controls: unrefreshed, the error grows; without drift of shape it costs little."""
    run(load_study("drift_chain"), tmp_path / "out", replicates=1)
    shape, coded, scale = (summary(tmp_path / "out", case) for case in ("shape", "coded", "scale"))
    assert shape["every_4th", "count_late_median"] < 0.6 * shape["never", "count_late_median"]
    assert shape["never", "count_late_coverage"] < 0.5 < 0.75 < shape["every_4th", "count_late_coverage"]
    assert coded["every_4th", "mean_late_median"] < 0.7 * coded["never", "mean_late_median"]
    assert scale["every_4th", "count_median"] < 1.5 * scale["never", "count_median"]
