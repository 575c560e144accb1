"""Quality rules: flags follow from published errors, rare cells are not printed, and the long files keep every figure."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest
from public_files import public_files
from small_release import JOB, survey

import dpdist
from dpdist.job.loading import parse_job
from dpdist.job.presentation import Quality
from dpdist.publish.printed_tables import LARGE_CV, rate

FEW_RECORDS = True
RULES = """
presentation:
  quality:
    cv: {caution: 0.05, unreliable: 0.1}
    margin: {mean: {caution: 1, unreliable: 100000000}}
    minimum: 4000
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("input")
    survey().to_parquet(folder / "survey.parquet")
    return JOB.replace("survey: {", f"input: {{path: {folder}/survey.parquet}}\nsurvey: {{")


@pytest.fixture(scope="module")
def plain(job: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("runs") / "ws"
    dpdist.run(parse_job(job), workspace)
    return workspace


@pytest.fixture(scope="module")
def noisy(
    job: str, tmp_path_factory: pytest.TempPathFactory, noise_of: Callable[[str], AbstractContextManager[None]]
) -> Path:
    workspace = tmp_path_factory.mktemp("runs") / "ws"
    little = job.replace('epsilon: "3"', 'epsilon: "0.1"') + "withhold_above: null\n"
    with noise_of("flags"):
        dpdist.run(parse_job(little), workspace)
    return workspace


@pytest.fixture(scope="module")
def flagged(job: str, plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("runs") / "ws"
    shutil.copytree(plain, workspace)
    dpdist.publish(workspace, job=parse_job(job + RULES))
    return workspace


NONE_FAR = np.zeros((2, 4), dtype=bool)


def test_flags_are_those_of_a_hand_made_table() -> None:
    said = Quality.model_validate(
        {"cv": {"caution": 0.15, "unreliable": 0.3}, "margin": {"mean": {"caution": 1, "unreliable": 2}}, "minimum": 50}
    )
    values = np.array([[100.0, 10.0, 40.0, 10.0], [60.0, -10.0, 60.0, np.nan]])
    errors = np.array([[15.0, 0.1, 8.0, 0.1], [30.0, 4.0, np.nan, np.nan]])
    margins = np.array([[24.7, 1.5, 13.2, 0.2], [49.3, 0.5, np.nan, np.nan]])
    found = rate(said, ["count", "mean", "count", "mean"], values, errors, margins, NONE_FAR)
    assert found.flags.tolist() == [
        ["reliable", "caution", "caution", "reliable"],
        ["unreliable", "unreliable", "", ""],
    ]
    assert found.printed.tolist() == [[True, True, False, False], [True, True, True, True]]
    hidden = rate(
        said.model_copy(update={"hide_unreliable": True}), ["count", "mean"] * 2, values, errors, margins, NONE_FAR
    )
    assert hidden.printed.tolist() == [[True, True, False, False], [False, False, True, True]]


def test_large_errors_are_flagged_without_rules_and_figures_that_may_be_far_off_always() -> None:
    """A standard error of 34 % of the figure. Controls: one of 10 %; a job whose own rules flag figures."""
    values, errors = np.array([[2355.0, 9000.0, np.nan]]), np.array([[801.0, 900.0, np.nan]])
    rules, far = Quality.model_validate({"cv": {"caution": 0.5, "unreliable": 0.6}}), np.array([[False, True, False]])
    for said, flags in ((Quality(), ["caution", "", ""]), (rules, ["reliable", "reliable", ""])):
        of = said, ["count"] * 3, values, errors, errors
        assert rate(*of, far & False).flags.tolist() == [flags]
        assert rate(*of, far).flags.tolist() == [[flags[0], "caution", flags[2]]]


def test_every_printed_form_has_the_flags_of_a_job_without_rules(noisy: Path, plain: Path) -> None:
    """Control: a release of small errors has no flags, and no column of them."""
    public = noisy / "public"
    table = pd.read_parquet(public / "tables" / "counts.parquet").query("estimator == 'parameters'")
    number = int((table["standard_error"] > LARGE_CV * table["estimate"].abs()).sum())
    assert 0 < number < len(table)
    wide = pd.read_csv(public / "tables" / "counts.wide.csv")
    sheet = openpyxl.load_workbook(public / "tables.xlsx")["Table 1"]
    cells = [cell.value for row in sheet.iter_rows() for cell in row]
    html = (public / "index.html").read_text(encoding="utf-8")
    note = "A figure is flagged caution if its standard error is above 30 % of the figure."
    flagged = int((wide == "caution").to_numpy().sum())
    assert flagged >= number, "others may be far off"
    assert cells.count("caution") == flagged
    assert html.count('<span class="flag caution">') == flagged
    assert note in html
    assert note in cells
    assert "flag" not in (plain / "public" / "tables" / "counts.wide.csv").read_text(encoding="utf-8")


def test_printed_flags_follow_from_published_errors(flagged: Path) -> None:
    table = pd.read_parquet(flagged / "public" / "tables" / "counts.parquet").query("estimator == 'parameters'")
    wide = pd.read_csv(flagged / "public" / "tables" / "counts.wide.csv", index_col=0)
    counts = table.query("statistic == 'count'").set_index(["field", "sex"])["estimate"]
    assert {True, False} == set(counts < 4000)
    seen = set()
    for row in table.itertuples():
        head = f"{row.sex}: " + ("Count" if row.statistic == "count" else "Mean of salary")
        cv = row.standard_error / row.estimate
        flag = "unreliable" if cv > 0.1 else "caution" if cv > 0.05 or row.statistic == "mean" else "reliable"
        assert wide.loc[row.field, f"{head}, flag"] == flag
        assert (str(wide.loc[row.field, head]) == "..") == (counts[row.field, row.sex] < 4000)
        seen.add(flag)
    assert len(seen) >= 2


def test_rules_change_no_figure_of_the_long_files(plain: Path, flagged: Path) -> None:
    before, after = public_files(plain), public_files(flagged)
    same = [name for name in before if name.endswith(".parquet") or name == "tables/counts.csv"]
    assert len(same) >= 5
    assert [name for name in same if before[name] != after[name]] == []
    assert before["tables/counts.wide.csv"] != after["tables/counts.wide.csv"]


def test_workbook_page_and_codebook_tell_the_rules_and_the_flags(flagged: Path) -> None:
    public = flagged / "public"
    sheet = openpyxl.load_workbook(public / "tables.xlsx")["Table 1"]
    texts = [str(cell.value) for row in sheet.iter_rows() for cell in row]
    rule = (
        "A figure is flagged “caution” if its coefficient of variation is above 5 %, and “unreliable” if it is above 10 %."
    )
    assert rule in texts
    assert "Figures of cells with a published count below 4,000 are not printed." in texts
    assert {"caution", "flag", ".."} <= set(texts)
    html = (public / "index.html").read_text(encoding="utf-8")
    assert rule in html
    with (public / "tables" / "counts.wide.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    cautions = [row[k - 2] for row in rows for k, cell in enumerate(row) if cell == "caution"]
    assert html.count('<span class="flag caution">') == len([value for value in cautions if value != ".."])
    said = json.loads((public / "codebook.json").read_text(encoding="utf-8"))
    (wide,) = [each for each in said["tables"] if each["url"].endswith(".wide.csv")]
    assert [column["titles"] for column in wide["tableSchema"]["columns"]] == rows[0]
