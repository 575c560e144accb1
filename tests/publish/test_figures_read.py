"""Large figures that people read end where their errors do: on the page and on the terminal, and in no file of data."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from small_release import JOB

from dpdist.job.loading import parse_job
from dpdist.publish.printed_tables import (
    LARGE_UNITS,
    ONES,
    PrintedTable,
    TableColumn,
    Unit,
    at_decimals,
    decimals_read,
    figure_text,
    in_large_units,
)
from dpdist.publish.writers.page import shown_table

BILLIONS, MILLIONS = LARGE_UNITS
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
        columns=(TableColumn("", "Total", COUNT, 0),),
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


def test_a_large_total_on_the_page_has_the_digits_that_its_margin_supports() -> None:
    """The first column was printed as 1,113 ± 25.403 and the like, in the column's own decimals."""
    assert read([1_112_792_534_109.0, 2_345_678_901.0], [25_403_123_456.0, 12_345_678.0]) == [
        ("1,113", "25"),
        ("2.346", "0.012"),
    ]
    assert read([112_792_534.0, 4_345_678.0], [5_403_123.0, 234_567.0]) == [("112.8", "5.4"), ("4.35", "0.23")]


def test_a_figure_below_a_million_or_without_an_error_is_printed_as_before() -> None:
    """One small figure keeps the column in ones; its neighbour of seven digits is rounded all the same."""
    assert read([12_345_678.0, 123_456.0], [123_456.0, 23_456.0]) == [("12,350,000", "120,000"), ("123,456", "23,456")]
    assert read([12_345_678.0, 2_345_678.0], [np.nan, np.nan]) == [("12.35", ""), ("2.35", "")]
    assert read([0.0, 12_345_678.0], [0.0, 0.0]) == [("0.00", "0.00"), ("12.35", "0.00")]


@pytest.mark.parametrize(
    ("value", "error", "unit", "texts"),
    [
        (1_112_792_534_109.0, 15_443_625_732.0, BILLIONS, ("1,113", "15")),
        (30_123_456.0, 9_960.0, MILLIONS, ("30.123", "0.010")),
        (30_123_456.0, 0.25, ONES, ("30,123,456", "0")),
        (999_999.0, 1_234.0, ONES, ("999,999", "1,234")),
        (2_345_678.0, 4e9, ONES, ("2,000,000", "4,000,000,000")),
    ],
)
def test_the_place_is_that_of_the_errors_second_digit(
    value: float, error: float, unit: Unit, texts: tuple[str, str]
) -> None:
    decimals = decimals_read(np.array([value]), np.array([error]), 0, unit)
    assert tuple(figure_text(each / unit.size, int(decimals[0]), ",") for each in (value, error)) == texts
    (rounded,) = at_decimals(np.array([value]) / unit.size, decimals)
    assert figure_text(float(rounded), int(decimals[0]), ",") == texts[0]


def test_files_of_data_have_figures_as_they_are() -> None:
    """The printed form, which the workbook and the printed CSV show, is not changed by what the page shows."""
    made = table_of([112_792_534.0], [5_403_123.0])
    read_of = in_large_units(made)
    assert read_of.decimals is not None
    assert made.decimals is None
    assert made.values.tolist() == [[112_792_534.0]]
    small = np.array([1e-9])
    assert at_decimals(small, decimals_read(small, small, sys.float_info.dig)).tolist() == [1e-9]
