"""Every column that an evaluation writes is described in the reference, and every description is of a written column."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pandas as pd
import pytest

import dpdist
from dpdist.job import Comparator
from dpdist.job.loading import find_job, parse_job
from dpdist.quality.errors import HOW, TABLES

OWN_TABLE = "{name: incomes, by: [field, sex], statistics: [count, {mean: salary}, {median: salary}]}"


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Columns of the evaluation of a small release with every comparator, and with a statistic that none of them has."""
    text = find_job("doctorates_sanitized").read_text(encoding="utf-8").replace("sample: 10000", "sample: 1500")
    text = text.replace("reference_only, fbs, fbp]", "laplace_consistent, reference_only, fbs, fbp]")
    text = text.replace("{name: salaries, by: [field, sex], margins: true, statistics: [count, {mean: salary}]}", OWN_TABLE)
    assert all(how in text for how in get_args(Comparator))
    workspace = tmp_path_factory.mktemp("columns") / "ws"
    dpdist.run(parse_job(text), workspace)
    found: pd.DataFrame = dpdist.open_evaluation(workspace)["incomes"]
    return [name for name in found.columns if name not in ("field", "sex")]


def entry(column: str) -> str | None:
    """The name under which TABLES describes a column of a table's evaluation; None if it does not."""
    names = [column, *(column.replace(how, HOW, 1) for how in sorted(get_args(Comparator), key=len, reverse=True))]
    return next((name for name in names if name in TABLES), None)


def test_every_column_of_an_evaluation_is_described(columns: list[str]) -> None:
    assert [name for name in columns if entry(name) is None] == []
    assert {entry(name) for name in columns} == set(TABLES), "a description of no column"


def test_the_reference_lists_the_columns_as_they_are_named() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "workspace.md").read_text(encoding="utf-8")
    named = {name for line in re.findall(r"^- (`.*?`): ", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)}
    assert set(TABLES) - named == set()
