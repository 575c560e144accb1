"""What people open: workbook, printed CSV, records for Stata and SPSS, codebook. All hold the published figures."""

from __future__ import annotations

import csv
import json
import shutil
import time
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyarrow.parquet as pq
import pyreadstat
import pytest
from public_files import public_files, statement_of
from small_release import JOB, decimals_of, survey

import dpdist
from dpdist.job.loading import parse_job
from dpdist.job.presentation import TableText
from dpdist.publish.printed_tables import printed_table
from dpdist.publish.writers.workbook import _number_of_lines, _width

LEVELS = ["=SUM(A1)", "قانون", "-5 to 0"]
PRESENTATION = """
presentation:
  title: Salaries of graduates
  source: Survey of graduates, 2021
  responsible: Agency
  language: en-GB
  formats: [csv, dta, sav]
  decimals: {count: -1}
  columns:
    field: {label: Field of degree, levels: {"=SUM(A1)": "=SUM(A1) et 法律", "-5 to 0": "@5 to 0"}}
    salary: {label: Annual salary, unit: US dollars}
  tables:
    counts: {title: Graduates and their mean salary, notes: [Figures are for 2021.]}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    people = survey()
    people["field"] = people["field"].map({"arts": LEVELS[0], "law": LEVELS[1]})
    people.loc[:120, "field"] = LEVELS[2]
    people.to_parquet(folder / "survey.parquet")
    text = JOB.replace("[arts, law]", json.dumps(LEVELS, ensure_ascii=False))
    text = text.replace("survey: {", f"input: {{path: {folder}/survey.parquet}}\nsurvey: {{")
    dpdist.run(parse_job(text + PRESENTATION), folder / "ws")
    return folder / "ws"


@pytest.fixture(scope="module")
def public(workspace: Path) -> Path:
    return workspace / "public"


@pytest.fixture(scope="module")
def shown(public: Path) -> pd.DataFrame:
    """The published estimates that are printed, one row a cell."""
    table = pd.read_parquet(public / "tables" / "counts.parquet").query("estimator == 'parameters'")
    return table.pivot_table(index=["field", "sex"], columns="statistic", values=["estimate", "standard_error"])


CODES = {"=SUM(A1)": "=SUM(A1) et 法律", "-5 to 0": "@5 to 0"}


def cells_of(sheet: openpyxl.worksheet.worksheet.Worksheet) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Figures and margins of error of a sheet by the labels of their row, group and column."""
    found, group = {}, ""
    for column in range(2, sheet.max_column + 1, 2):
        group = sheet.cell(4, column).value or group
        for row in range(6, 6 + len(LEVELS) + 1):
            place = (sheet.cell(row, 1).value, group, sheet.cell(5, column).value)
            found[place] = (sheet.cell(row, column).value, sheet.cell(row, column + 1).value)
    return found


def test_the_workbook_holds_the_published_figures_rounded_with_margins_of_error(public: Path, shown: pd.DataFrame) -> None:
    book = openpyxl.load_workbook(public / "tables.xlsx")
    assert book.sheetnames == ["Cover", "Table 1", "Privacy"]
    found = cells_of(book["Table 1"])
    assert len(found) == 4 * 3 * 2
    for (field, sex), row in shown.iterrows():
        field = CODES.get(field, field)
        count, margin = found[field, sex, "Count"]
        assert count == pytest.approx(row["estimate", "count"], abs=5.01)
        assert count % 10 == 0
        assert margin == pytest.approx(1.6448536 * row["standard_error", "count"], abs=5.01)
        mean, margin = found[field, sex, "Mean of Annual salary (US dollars)"]
        decimals = decimals_of(shown["standard_error", "mean"])
        assert mean == round(row["estimate", "mean"], decimals)
        assert margin == round(1.6448536269514722 * row["standard_error", "mean"], decimals)


def test_the_workbook_is_for_print_and_says_whose_it_is(public: Path) -> None:
    book = openpyxl.load_workbook(public / "tables.xlsx")
    sheet, said = book["Table 1"], statement_of(public)
    assert sheet.freeze_panes == "B6"
    assert sheet["B6"].number_format == "#,##0"
    assert sheet["A1"].value == "Table 1. Graduates and their mean salary"
    texts = [cell.value for page in book for row in page.iter_rows() for cell in row if isinstance(cell.value, str)]
    assert {"Figures are for 2021.", "Source: Survey of graduates, 2021.", "Agency"} <= set(texts)
    assert texts.count(said["guarantee_in_words"]) == 2
    assert set(said["not_protected"]) <= set(texts)


def test_columns_of_labels_have_room_for_wide_characters() -> None:
    """An East Asian character is as wide as two Latin ones, in a column's width and in lines of a wrapped text."""
    assert (_width("法律"), _width("law"), _width("قانون")) == (4, 3, 5)
    assert [_number_of_lines(letter * 44, 44) for letter in "a法"] == [1, 2]


def test_long_labels_have_rows_of_their_height_and_a_cover_links_by_names_of_sheets(
    workspace: Path, tmp_path: Path
) -> None:
    """Programs that compute no heights cut such heads, and some do not wrap a link. Control: short labels have low rows."""
    heights = {}
    for label in ("Field of degree", "Field of the highest degree with environmental and agricultural sciences " * 3):
        shutil.copytree(workspace, tmp_path / label[:22])
        text = JOB.replace("[arts, law]", json.dumps(LEVELS, ensure_ascii=False))
        text += PRESENTATION.replace("Field of degree", label).replace("title: Graduates and", f"title: {label} and")
        book = openpyxl.load_workbook(dpdist.publish(tmp_path / label[:22], job=parse_job(text)) / "tables.xlsx")
        cover = {row[0].value: row[1] for row in book["Cover"].iter_rows()}
        row = cover["Table 1"].row
        assert book["Cover"].cell(row, 1).hyperlink.location == "'Table 1'!A1"
        assert cover["Table 1"].alignment.wrap_text
        heights[label[:22]] = (book["Table 1"].row_dimensions[5].height, book["Cover"].row_dimensions[row].height)
    assert heights == {"Field of degree": (60, None), "Field of the highest d": (90, 45)}


def test_no_cell_of_a_workbook_is_a_formula_and_no_text_of_a_csv_begins_as_one(public: Path) -> None:
    book = openpyxl.load_workbook(public / "tables.xlsx")
    kinds = {cell.data_type for page in book for row in page.iter_rows() for cell in row}
    assert kinds == {"s", "n"}
    for path in public.rglob("*.csv"):
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        texts = {text for row in rows for text in row}
        assert not [text for text in texts if text[:1] in "=@+" and text], path
        assert not [text for text in texts if text[:1] == "-" and not text[1:].replace(".", "").isdigit()], path
    assert "'-5 to 0" in (public / "synthetic" / "set-1.csv").read_text(encoding="utf-8")


def test_the_printed_csv_has_one_row_a_level_and_the_figures_of_the_workbook(public: Path) -> None:
    wide = pd.read_csv(public / "tables" / "counts.wide.csv", index_col=0)
    found = cells_of(openpyxl.load_workbook(public / "tables.xlsx")["Table 1"])
    assert list(wide.index) == ["'=SUM(A1) et 法律", "قانون", "'@5 to 0", "Total"]
    for (field, sex, head), (value, margin) in found.items():
        row = wide.loc[f"'{field}" if field[0] in "=@" else field]
        assert (row[f"{sex}: {head}"], row[f"{sex}: {head}, ±"]) == (value, margin)


def test_records_are_the_same_in_every_format_and_have_labels(public: Path) -> None:
    records = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    plain = pd.read_csv(public / "synthetic" / "set-1.csv")
    assert np.array_equal(plain[["salary", "weight"]], records[["salary", "weight"]])
    assert list(plain["field"].str.removeprefix("'")) == list(records["field"].astype(str))
    for path, read in (("set-1.dta", pyreadstat.read_dta), ("set-1.sav", pyreadstat.read_sav)):
        frame, meta = read(str(public / "synthetic" / path))
        assert np.array_equal(frame[["salary", "weight"]], records[["salary", "weight"]])
        codes = records["field"].astype(str).map({level: place for place, level in enumerate(LEVELS, start=1)})
        assert np.array_equal(frame["field"], codes)
        assert meta.column_names_to_labels["salary"] == "Annual salary (US dollars)"
        assert meta.variable_value_labels["field"] == {1: "=SUM(A1) et 法律", 2: "قانون", 3: "@5 to 0"}


def test_the_codebook_describes_every_csv_file_and_finds_a_wrong_level(public: Path, tmp_path: Path) -> None:
    said = json.loads((public / "codebook.json").read_text(encoding="utf-8"))
    files = {path.relative_to(public).as_posix() for path in public.rglob("*.csv")}
    assert {table["url"] for table in said["tables"]} == files
    assert sound(public)
    shutil.copytree(public, tmp_path / "public")
    path = tmp_path / "public" / "tables" / "counts.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("قانون", "medicine"), encoding="utf-8")
    assert not sound(tmp_path / "public")


def sound(public: Path) -> bool:
    """True if the CSV files are as the codebook says, for a reader of CSV on the Web; every row is read."""
    from csvw import TableGroup  # takes long, for few tests

    group = TableGroup.from_file(public / "codebook.json")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(public)
            return all(list(table.iterdicts(strict=True)) for table in group.tables)
    except ValueError:
        return False


def test_the_codebook_names_levels_and_their_codes(public: Path) -> None:
    said = json.loads((public / "codebook.json").read_text(encoding="utf-8"))
    (field,) = [column for column in said["notes"] if column["column"] == "field"]
    assert (field["label"], field["variable"]) == ("Field of degree", "field")
    assert field["levels"][0] == {"level": "=SUM(A1)", "label": "=SUM(A1) et 法律", "code": 1}


def test_publishing_again_another_day_gives_the_same_bytes(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, later = public_files(workspace), time.time() + 1e7
    monkeypatch.setattr(time, "time", lambda: later)
    dpdist.publish(workspace)
    assert public_files(workspace) == before


def test_levels_that_are_numbers_are_their_own_codes_and_odd_names_are_mended(tmp_path: Path) -> None:
    people = survey().rename(columns={"field": "if", "sex": "3 sex?"})
    people["if"] = people["if"].map({"arts": 110, "law": 120})
    people.to_parquet(tmp_path / "survey.parquet")
    text = JOB.replace("  field: {levels: [arts, law]}", "  if: {levels: [110, 120]}").replace("  sex:", '  "3 sex?":')
    text = text.replace("[field, sex]", '[if, "3 sex?"]').replace("[field]", "[if]")
    job = parse_job(text + "presentation: {formats: [csv, dta, sav], columns: {if: {levels: {110: Arts}}}}")
    synthetic = Path(dpdist.run(job, tmp_path / "ws", input=tmp_path / "survey.parquet")) / "synthetic"
    records = pd.read_parquet(synthetic / "set-1.parquet")
    for frame, meta in (
        pyreadstat.read_dta(str(synthetic / "set-1.dta")),
        pyreadstat.read_sav(str(synthetic / "set-1.sav")),
    ):
        assert list(frame.columns) == ["if_2", "v_3_sex_", "salary", "weight"]
        assert np.array_equal(frame["if_2"], records["if"].astype(int))
        assert meta.variable_value_labels["if_2"] == {110: "Arts", 120: "120"}
    assert list(pd.read_csv(synthetic / "set-1.csv").columns) == ["if", "3 sex?", "salary", "weight"]


def test_the_column_of_the_fewest_levels_stands_across_unless_the_job_names_one(public: Path, workspace: Path) -> None:
    job = parse_job((workspace / "public" / "released" / "job.json").read_text(encoding="utf-8"))
    table = pq.read_table(public / "tables" / "counts.parquet")
    (said,) = job.tables
    assert printed_table(job, said, table, {}).across == "sex"
    across = job.presentation.model_copy(update={"tables": {"counts": TableText(across="field")}})
    turned = printed_table(job.model_copy(update={"presentation": across}), said, table, {})
    assert (turned.across, turned.rows) == ("Field of degree", (("f",), ("m",), ("Total",)))
    plain = printed_table(job, said, table, {})
    assert plain.values[1, 2] == turned.values[1, 2]  # the second field's men's count, in both
    assert turned.columns[2].group == plain.rows[1][0]
