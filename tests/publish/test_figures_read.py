"""Figures that people read end where errors of their column do: on page, workbook, printed CSV and terminal alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest
from small_release import LAPLACE_JOB as JOB, survey

import dpdist
from dpdist.job.loading import parse_job
from dpdist.publish.printed_tables import PrintedTable, TableColumn, decimals_of
from dpdist.publish.writers.page import shown_table

COUNT = parse_job(JOB).tables[0].statistics[0]


def table_of(values: list[float], margins: list[float]) -> PrintedTable:
    figures, errors = np.array([values]).T, np.array([margins]).T
    limits = {"lower": figures - errors, "upper": figures + errors}
    return PrintedTable(
        name="t",
        title="t",
        stub=("cell",),
        rows=tuple((str(k),) for k in range(len(values))),
        across=None,
        columns=(TableColumn("", "Total", COUNT, decimals_of(figures, errors, whole=True)),),
        values=figures,
        margins=errors,
        flags=np.full(figures.shape, ""),
        estimator="parameters",
        notes=(),
        **limits,
    )


def read(values: list[float], margins: list[float]) -> list[tuple[str, str]]:
    """Figures and margins as the page prints them."""
    shown = shown_table(table_of(values, margins))
    return [(cell.text, cell.margin) for row in shown.rows for cell in row.cells]


def test_figures_of_a_column_end_at_the_second_digit_of_its_smallest_error() -> None:
    """Figures of a million and more were rounded one by one: 1,230,000 ± 130,000 stood next to 135,017 ± 15,490."""
    assert read([1_229_147.0, 135_017.0], [128_469.0, 15_490.0]) == [("1,229,000", "128,000"), ("135,000", "15,000")]
    assert read([1_112_792_534_109.0, 2_345_678_901.0], [25_403_123_456.0, 12_345_678.0]) == [
        ("1,112.793", "25.403"),
        ("2.346", "0.012"),
    ]
    assert read([112_792_534.0, 4_345_678.0], [5_403_123.0, 234_567.0]) == [("112.79", "5.40"), ("4.35", "0.23")]


def test_one_small_figure_keeps_a_column_in_ones_and_so_do_errors_of_many_digits() -> None:
    """Of a unit, figures have three decimals at most. Control: one more digit of the error."""
    assert read([12_345_678.0, 123_456.0], [123_456.0, 23_456.0]) == [("12,346,000", "123,000"), ("123,000", "23,000")]
    assert read([30_123_456.0], [9_960.0]) == [("30.123", "0.010")]
    assert read([30_123_456.0], [9_940.0]) == [("30,123,500", "9,900")]


@pytest.mark.parametrize(
    ("values", "errors", "whole", "decimals"),
    [
        ([0.0432, 0.95], [0.0012, 0.02], False, 4),
        ([58_123.4, 900.0], [np.nan, np.nan], False, 0),
        ([58_123.4, 900.0], [250.0, np.nan], False, -1),
        ([58.1234], [0.000012], False, 2),
        ([30_123.0, 0.0], [250.0, 0.0], True, -1),
        ([30_123.0, 20.0], [250.0, 0.0], True, 0),
        ([30_123.0], [0.25], True, 0),
        ([0.0], [0.0], False, 0),
        ([1e-9], [1e-9], False, 6),
    ],
)
def test_a_column_has_the_decimals_that_its_errors_support(
    values: list[float], errors: list[float], whole: bool, decimals: int
) -> None:
    """At most as many as its largest figure needs for four digits. A figure without any error keeps all of its digits; an
    empty cell says nothing of a column.
    """
    assert decimals_of(np.array(values), np.array(errors), whole=whole) == decimals


def test_page_workbook_and_printed_csv_show_one_figure(tmp_path: Path) -> None:
    """A count of 1,229,147 was 1,230,000 on the page, and 1,229,147 in the workbook."""
    people = survey(2000)
    people["weight"] *= 0.99
    dpdist.run(parse_job(JOB.replace('epsilon: "3"', 'epsilon: "0.3"') + "publish: always\n"), tmp_path / "ws", people)
    public = tmp_path / "ws" / "public"
    csv = (public / "tables" / "counts.wide.csv").read_text(encoding="utf-8").splitlines()[1:]
    sheet = openpyxl.load_workbook(public / "tables.xlsx")["Table 1"]
    html = (public / "index.html").read_text(encoding="utf-8").replace(",", "")
    figures = [text for line in csv for text in line.split(",")[1:] if text not in ("", "..", "caution")]
    numbers = {cell.value for row in sheet.iter_rows() for cell in row if isinstance(cell.value, int | float)}
    assert {float(text) for text in figures} == {float(number) for number in numbers}
    assert [text for text in figures if f"{text}<" not in html] == []
    counts = pd.read_parquet(public / "tables" / "counts.parquet").query("statistic == 'count'")["estimate"]
    assert not (counts % 10.0 == 0.0).all(), "control"
    assert all(float(line.split(",")[1]) % 10.0 == 0.0 for line in csv)
