"""Quality rules: flags follow from published errors, rare cells are not printed, and the long files keep every figure."""

from __future__ import annotations

import csv
import json
import shutil
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
from dpdist.publish.printed_tables import rate

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
def flagged(job: str, plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("runs") / "ws"
    shutil.copytree(plain, workspace)
    dpdist.publish(workspace, job=parse_job(job + RULES))
    return workspace


def test_flags_are_those_of_a_hand_made_table() -> None:
    said = Quality.model_validate(
        {"cv": {"caution": 0.15, "unreliable": 0.3}, "margin": {"mean": {"caution": 1, "unreliable": 2}}, "minimum": 50}
    )
    values = np.array([[100.0, 10.0, 40.0, 10.0], [60.0, -10.0, 60.0, np.nan]])
    errors = np.array([[15.0, 0.1, 8.0, 0.1], [30.0, 4.0, np.nan, np.nan]])
    margins = np.array([[24.7, 1.5, 13.2, 0.2], [49.3, 0.5, np.nan, np.nan]])
    found = rate(said, ["count", "mean", "count", "mean"], values, errors, margins)
    assert found.flags.tolist() == [
        ["reliable", "caution", "caution", "reliable"],
        ["unreliable", "unreliable", "", ""],
    ]
    assert found.printed.tolist() == [[True, True, False, False], [True, True, True, True]]
    hidden = rate(said.model_copy(update={"hide_unreliable": True}), ["count", "mean"] * 2, values, errors, margins)
    assert hidden.printed.tolist() == [[True, True, False, False], [False, False, True, True]]


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
