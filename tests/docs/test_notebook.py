"""The notebook runs from its first cell to its last, and ends with a plot; its prose is as short as the pages'."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT

NOTEBOOK = ROOT / "docs" / "tutorials" / "from-file-to-plot.ipynb"


def cells(kind: str) -> list[str]:
    said = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(each["source"]) for each in said["cells"] if each["cell_type"] == kind]


def run(texts: list[str]) -> dict[str, Any]:
    """In order, in the present folder, with warnings as errors."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, text in enumerate(texts, start=1):
            exec(compile(text, f"cell {number}", "exec"), names)
    return names


def test_the_notebook_goes_from_file_to_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(cells("code"))
    assert (tmp_path / "incomes.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert len(names["means"]) == 8
    assert (names["means"]["lower"] < names["means"]["upper"]).all()
    assert names["release"].statement["guarantee"] == "strict"


def test_no_output_is_kept_in_the_notebook() -> None:
    """Every run draws anew."""
    said = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert [each["outputs"] for each in said["cells"] if each["cell_type"] == "code"] == [[]] * len(cells("code"))
