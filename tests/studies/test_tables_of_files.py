"""Studies of tables whose population is a public file: truth, samples, refusals; and the application of [T] on NSCG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from dpdist.core.errors import StudyError
from dpdist.core.records import TOTAL
from dpdist.studies.kinds import load_study
from dpdist.studies.kinds.tables import TablesStudy, surveyed, tabulate, units_of
from dpdist.studies.run import run

FILE = {"path": "people.parquet", "field": "area", "sex": "gender", "salary": "pay"}
LEVELS = {"fields": ["a", "b", "c"], "sexes": ["f", "m"]}


def people(n: int = 8000) -> pd.DataFrame:
    """A twentieth have no pay, and as many a pay of 0."""
    rng = np.random.default_rng(1)
    area, gender = rng.choice(list("abc"), n, p=[0.5, 0.3, 0.2]), rng.choice(["f", "m"], n)
    pay = np.round(np.exp(10.5 + 0.3 * (area == "c") + 0.5 * rng.standard_normal(n)), -2)
    pay[: n // 20], pay[n // 20 : n // 10] = np.nan, 0.0
    return pd.DataFrame({"area": pd.Categorical(area), "gender": gender, "pay": pay})


def study_of(folder: Path, edit: dict[str, Any] | None = None, **case: Any) -> TablesStudy:
    said = load_study("nscg_tables").model_dump(mode="json") | {"draws": 100, "runtime": {"executor": "serial"}}
    told = {"name": "people", "sample": 1500, "weight_bound": 60, "file": FILE | LEVELS | (edit or {})} | case
    return TablesStudy.model_validate(said | {"cases": [told], "data": str(folder)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("files")
    people().to_parquet(found / "people.parquet")
    return found


def test_the_truth_is_the_file_s_and_weights_are_inverse_probabilities(folder: Path) -> None:
    """Σw estimates the number of records, and cells hold it within four standard errors; salaries sampled are higher."""
    study, whole = study_of(folder), people().query("pay > 0")
    survey = surveyed(study, study.cases[0], study.key_of("people", 1))
    known = dict(zip(survey.cells.labels, zip(*survey.truth.values(), strict=True), strict=True))
    for (area, gender), own in whole.groupby(["area", "gender"], observed=True)["pay"]:
        assert known[area, gender][:2] == pytest.approx((len(own), own.mean()))
    assert known[TOTAL, TOTAL][:2] == pytest.approx((len(whole), whole["pay"].mean()))
    w, y = survey.records.weight, survey.records.outcome
    assert len(w) == 1500
    assert w.sum() == pytest.approx(len(whole), abs=4.0 * np.sqrt((w**2).sum()))
    off = (w * y).sum() / w.sum() - whole["pay"].mean()
    assert (
        abs(off) < 4.0 * np.sqrt((w**2 * (y - whole["pay"].mean()) ** 2).sum()) / w.sum() < y.mean() - whole["pay"].mean()
    )


def test_margins_hold_the_population_of_cells_without_a_sampled_record(folder: Path, tmp_path: Path) -> None:
    rare = pd.DataFrame({"area": ["d"], "gender": ["f"], "pay": [1.0]})
    pd.concat([people().astype({"area": str}), rare]).to_parquet(tmp_path / "people.parquet")
    study = study_of(tmp_path, {"fields": ["a", "b", "c", "d"]})
    survey, before = (surveyed(each, each.cases[0], each.key_of("people", 1)) for each in (study, study_of(folder)))
    assert (survey.crosstab.codes["field"] < 3).all(), "the sample has no record of d"
    count, less = (dict(zip(each.cells.labels, each.truth["count"], strict=True)) for each in (survey, before))
    assert count["d", TOTAL] == count["d", "f"] == 1
    assert count[TOTAL, "f"] == less[TOTAL, "f"] + 1


def test_replicates_have_samples_of_their_own_from_one_population(folder: Path) -> None:
    study = study_of(folder)
    one, again, other = (surveyed(study, study.cases[0], study.key_of("people", k)) for k in (1, 1, 2))
    assert np.array_equal(one.records.outcome, again.records.outcome)
    assert not np.array_equal(one.records.outcome, other.records.outcome)
    np.testing.assert_array_equal(one.truth["mean"], other.truth["mean"])


def test_every_arm_has_errors_in_every_cell(folder: Path) -> None:
    study = study_of(folder)
    rows = tabulate(study, study.cases[0], 1).results
    cells = {each.measure for each in rows if each.measure.startswith("mean error ")}
    assert len(cells) == 4 * 3, "three fields, two sexes, and margins"
    assert {each.mechanism for each in rows if each.measure in cells} == set(study.labels)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"path": "none.parquet"}, "no file none.parquet"),
        ({"fields": ["a", "b"]}, "level c of area"),
        ({"salary": "wage"}, "no column wage in people.parquet"),
    ],
)
def test_a_file_that_is_not_as_said_is_refused(folder: Path, edit: dict[str, Any], told: str) -> None:
    study = study_of(folder, edit)
    assert study.cases[0].file is not None
    with pytest.raises(StudyError, match=told):
        units_of(study, study.cases[0].file, study.key_of("people"))


@pytest.mark.parametrize("case", [{"population": 1000}, {"file": None}])
def test_a_case_has_one_population(folder: Path, case: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="give either population or file"):
        study_of(folder, **case)


@pytest.mark.slow
@pytest.mark.real_data
def test_the_application_runs_on_the_real_file(data: Path, tmp_path: Path) -> None:
    """Two samples of full size. Bounds hold half of ε; without weights they do not. The truth is the file's.

    Control: means of the records without weights are off by far more than direct ones.
    """
    study = load_study("nscg_tables").model_copy(update={"runtime": load_study("doctorate_tables").runtime})
    assert isinstance(study, TablesStudy)
    run(study, tmp_path / "out", replicates=2, data=data)
    bounds = pd.read_parquet(tmp_path / "out" / "parts" / "nscg-records.parquet")
    for arm in study.mechanisms:
        own = bounds[bounds.mechanism == arm.label].groupby("column")["value"].max()
        assert own["weighted_record_bound"] <= 1.8 + 1e-9 < own["unweighted_record_bound"]
    survey = surveyed(study.with_data(str(data)), study.cases[0], study.key_of("nscg", 1))  # type: ignore[attr-defined]
    whole = survey.cells.labels.index((TOTAL, TOTAL))
    assert survey.truth["count"][whole] == 70_897
    w, y = survey.records.weight, survey.records.outcome
    error = np.sqrt((w**2 * (y - survey.truth["mean"][whole]) ** 2).sum()) / w.sum()
    assert abs((w * y).sum() / w.sum() - survey.truth["mean"][whole]) < 4.0 * error
    assert abs(y.mean() - survey.truth["mean"][whole]) > 20.0 * error
