"""Nothing that is shown can drive a terminal, and no cell of a CSV file is a formula."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest
from command_line import invoke
from hypothesis import given, strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpdist.cli.console import Escaping
from dpdist.core.errors import control, escape
from dpdist.publish.folder import for_spreadsheets

ATTACK = "\x1b[2J\x1b]0;owned\x9b31m"


def shown(console: type[Console]) -> str:
    screen = io.StringIO()
    table = Table(title=Text(f"title {ATTACK}"))
    table.add_column(Text(ATTACK))
    table.add_row(Text(f"cell {ATTACK}"))
    for thing in (f"plain {ATTACK}", table):
        console(file=screen, width=200, no_color=True).print(thing)
    return screen.getvalue()


def test_what_is_printed_has_no_control_character() -> None:
    assert "\x1b" in shown(Console)
    assert not {each for each in shown(Escaping) if unicodedata.category(each) == "Cc"} - {"\n"}
    assert r"\x1b[2J" in shown(Escaping)


@given(st.text())
def test_an_escaped_text_has_none_left_and_a_plain_one_stays(text: str) -> None:
    once = escape(text)
    assert control(once.replace("\n", "").replace("\t", "")) is None
    assert escape(once) == once
    assert once == text or any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in text)


@pytest.mark.parametrize("text", ["Orléans", "北京", "עברית", "نص", "a\u00a0b", "né(e)", "🙂"])
def test_letters_of_any_language_are_no_control_characters(text: str) -> None:
    assert (control(text), escape(text)) == (None, text)


def test_an_error_that_quotes_a_job_drives_no_terminal(tmp_path: Path) -> None:
    (tmp_path / f"job{ATTACK}.yaml").write_text('dataset: "x\\e[2J"', encoding="utf-8")
    done = invoke("validate", tmp_path / f"job{ATTACK}.yaml")
    assert done.exit_code == 2
    assert "\x1b" not in done.output
    assert "\x9b" not in done.output


def test_a_path_that_is_too_long_is_not_called_a_disk(tmp_path: Path) -> None:
    done = invoke("run", "doctorates", "--quiet", "--workspace", tmp_path / ("x" * 300))
    assert done.exit_code == 1
    assert "ile name too long" in done.output
    assert "free or repair it" not in done.output


FORMULAS = ["=HYPERLINK(1)", "@SUM(A1)", "+1-1", "-2+3+cmd|' /C calc'!A0", "-9 not asked", "＝1"]
PLAIN = ["-1", "+65", "-1.5", "a=b", "20-29", "Total", None, ""]


def test_a_text_that_a_spreadsheet_would_run_has_an_apostrophe_and_nothing_else_changes() -> None:
    numbers = [-1.0] * (len(FORMULAS) + len(PLAIN))
    table = pa.table({"=level": pa.array([*FORMULAS, *PLAIN]), "estimate": numbers})
    made = for_spreadsheets(table)
    assert made.column_names == ["'=level", "estimate"]
    assert made.column(0).to_pylist() == [*(f"'{text}" for text in FORMULAS), *PLAIN]
    assert made.column("estimate").to_pylist() == numbers
