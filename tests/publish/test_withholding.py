"""Figures that say nothing are withheld, by a rule of released quantities alone, and every form of a table says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pytest
from markupsafe import escape
from public_files import statement_of
from small_release import JOB, survey

import dpdist
from dpdist.core.cautions import Caution
from dpdist.core.errors import JobError
from dpdist.job.loading import parse_job
from dpdist.opening.verifying import problems
from dpdist.publish.withholding import BECAUSE, rule as rule_in_words, with_withheld, without_empty_figures

FEW_RECORDS = True
BY_FIELD = JOB.replace("strata: [field]\n", "").replace("by: [field, sex]", "by: [field]")
LEVELS = ("arts", "law", "Total")


def published(text: str, figures: dict[str, list[tuple[float, float]]]) -> pd.DataFrame:
    """A table by field with these estimates and standard errors by statistic, after the rule of the job."""
    job = parse_job(text)
    (spec,) = job.tables
    rows = [
        {"field": level, "statistic": statistic.label, "variable": statistic.about, "estimator": estimator}
        | {"estimate": value, "standard_error": error, "df": np.inf, "lower": value - error, "upper": value + error}
        | {"suppressed": False}
        for k, level in enumerate(LEVELS)
        for statistic in spec.statistics
        for estimator in ("parameters", "records")
        for value, error in [figures[statistic.text][k]]
    ]
    table = without_empty_figures(job, spec, pa.Table.from_pylist(rows))
    made = table.to_pandas()
    assert len(made) == len(rows)
    return made


def withheld(made: pd.DataFrame) -> list[tuple[str, str]]:
    blank = made[made["estimate"].isna()]
    assert (blank.groupby(["statistic", "field"])["estimator"].nunique() == 2).all()
    return list(dict.fromkeys(zip(blank["statistic"], blank["field"], strict=True)))


FIGURES = {
    "count": [(3.0, 9.0), (900.0, 880.0), (903.0, 1000.0)],
    "mean of salary": [(50.0, 40.0), (-60.0, 70.0), (np.nan, np.nan)],
}
"""A count near 0 of a small cell, two large ones, one of which says nothing; means, one without an estimate before."""


def test_a_figure_is_withheld_where_its_error_is_above_its_size_and_the_median_size() -> None:
    made = published(BY_FIELD, FIGURES)
    assert set(withheld(made)) == {("count", "Total"), ("mean", "law"), ("mean", "Total")}
    blank = made[made[BECAUSE].notna()]
    assert set(zip(blank["statistic"], blank["field"], strict=True)) == {("count", "Total"), ("mean", "law")}
    assert set(blank[BECAUSE]) == {"the standard error is larger than the figure"}
    assert blank["suppressed"].all()
    assert blank[["estimate", "standard_error", "df"]].isna().all(axis=None)
    assert blank[["lower", "upper"]].notna().all(axis=None)


def test_another_limit_withholds_others_and_none_withholds_nothing() -> None:
    """Controls: without a limit the table is as it was, and has no column of reasons."""
    assert ("count", "law") in withheld(published(BY_FIELD + "withhold_above: 0.5\n", FIGURES))
    whole = published(BY_FIELD + "withhold_above: null\n", FIGURES)
    assert withheld(whole) == [("mean", "Total")]
    assert BECAUSE not in whole
    assert withheld(published(BY_FIELD + "withhold_above: 2\n", FIGURES)) == [("mean", "Total")]


def test_a_share_is_as_large_as_its_complement_and_a_difference_goes_with_its_figures() -> None:
    statistics = "[{share: field}, {mean: salary}, {difference: {mean: salary}, from: {field: arts}}]"
    text = BY_FIELD.replace("[count, {mean: salary}]", statistics)
    text = text.replace("{name: tables}", "{name: tables}\nreference: {path: x.csv}")
    near_nothing = [(np.nan, np.nan), (1.0, 30.0), (0.5, 20.0)]
    shares = [(0.02, 0.3), (0.5, 0.51), (1.0, 0.0)]
    plain = {"share across field": shares, "difference of mean of salary from field arts": near_nothing}
    made = published(text, plain | {"mean of salary": [(50.0, 10.0), (51.0, 20.0), (50.5, 15.0)]})
    assert withheld(made) == [("difference of mean from field arts", "arts"), ("share across field", "law")]
    empty = published(text, plain | {"mean of salary": [(50.0, 90.0), (51.0, 20.0), (50.5, 15.0)]})
    gone = empty[empty["statistic"].str.startswith("difference") & (empty["field"] != "arts")]
    assert gone[BECAUSE].notna().all()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (9.0, "1 of 6 figures is withheld, because its standard error is larger than"),
        (90.0, "2 of 6 figures are withheld, because their standard errors are larger than"),
    ],
)
def test_a_caution_counts_withheld_figures_and_gives_readers_no_advice_for_the_custodian(error: float, said: str) -> None:
    """The custodian's remedy comes from the catalogue."""
    means = [(50.0, 90.0), (60.0, error), (55.0, 40.0)]
    rows = published(BY_FIELD, {"count": [(900.0, 9.0)] * 3, "mean of salary": means})
    published_rows = pa.Table.from_pandas(rows, preserve_index=False)
    (caution,) = with_withheld(parse_job(BY_FIELD), lambda _: published_rows, {"cautions": []})["cautions"]
    assert caution == f"counts: {said} the figure."
    assert Caution.stated(caution).code == "withheld"
    assert str(Caution.coded("withheld", caution)).startswith(f"{caution} Use coarser cells")


@pytest.mark.parametrize("limit", ["-1", "0", ".inf", "true", "much"])
def test_a_limit_that_is_none_is_refused_with_its_line(limit: str) -> None:
    with pytest.raises(JobError, match=r"withhold_above: .* \(line \d+\)\n +allowed: .*(a number|finite)"):
        parse_job(JOB + f"withhold_above: {limit}\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, noise_of: Callable[[str], AbstractContextManager[None]]) -> Path:
    """The public folder of a release whose noise drowns some figures."""
    space, rows = tmp_path_factory.mktemp("runs"), survey()
    rows.to_parquet(space / "survey.parquet")
    text = JOB.replace('"3"', '"0.02"') + "presentation: {sdmx: {agency: AGENCY}}\nwithhold_above: 0.4\n"
    with noise_of("withheld4"):
        dpdist.run(parse_job(text), space / "ws", input=space / "survey.parquet")
    return space / "ws" / "public"


def printed_notes(folder: Path) -> list[str]:
    sheet = openpyxl.load_workbook(folder / "tables.xlsx")["Table 1"]
    return [str(cell.value) for row in sheet.iter_rows() for cell in row]


def test_every_form_of_a_table_says_which_figures_are_withheld_and_why(folder: Path) -> None:
    csv = pd.read_csv(folder / "tables" / "counts.csv")
    blank = csv[csv[BECAUSE].notna()]
    shown = blank[blank["estimator"] == "parameters"]
    assert 0 < len(shown) < (csv["estimator"] == "parameters").sum()
    assert blank["estimate"].isna().all()
    statement = statement_of(folder)
    assert statement["withheld"]["figures"] == len(shown)
    by_statistic = statement["withheld"]["tables"]["counts"]
    assert sum(by_statistic.values()) == len(shown)
    assert any("withheld, because" in caution for caution in statement["cautions"])
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["withheld"] == {"above": 0.4, "figures": len(shown)}
    observed = pd.read_csv(folder / "sdmx" / "counts.csv")
    assert (observed["OBS_STATUS"] == "Q").sum() == len(shown)
    assert observed.loc[observed["OBS_STATUS"] == "Q", "OBS_VALUE"].isna().all()
    (rule,) = [text for text in printed_notes(folder) if text.startswith("A figure is withheld if")]
    assert "larger than 0.4 times both the figure and the table's median figure of that statistic" in rule
    assert rule == rule_in_words(1.0).replace("larger than both", "larger than 0.4 times both")
    assert statement["withheld"]["in_words"].startswith(f"{rule} ")
    assert str(escape(rule)) in (folder / "index.html").read_text(encoding="utf-8")
    assert "withheld_because" in (folder / "codebook.json").read_text(encoding="utf-8")


def test_the_records_stay_and_the_folder_is_verified(folder: Path) -> None:
    assert not list(problems(folder))
    assert len(pd.read_parquet(folder / "synthetic" / "set-1.parquet")) == len(survey())
