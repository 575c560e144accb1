"""What a job releases is what it released: every mechanism × adjacency × family, variants of keys, shipped jobs; studies.

A release's statement names the noise that was drawn.

Everywhere: texts, names, integers and guarantees exactly, and decimal numbers within what their conditioning allows
(golden_runs.py). Bytes: under the plain instruction set alone (`python tests/golden/plain.py -m pytest tests/golden`).
A change that is meant is recorded anew: `python tests/golden/record.py`, and the files that differ are named in the change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import plain
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden_runs import (
    GOLDENS,
    KNOWN_TO,
    Content,
    Record,
    content_of,
    differences,
    other_libraries,
    precision,
    read_golden,
    record_of,
    released,
)
from golden_studies import STUDIES, studied
from named_draws import Drawn
from public_files import statement_of
from small_jobs import EXACT, cases, reach

from dpdist.core.public_files import UNFIT
from dpdist.job import SPECS
from dpdist.opening.verifying import problems
from dpdist.publish import folder
from dpdist.testing.mechanisms import problems_of_noise, single, survey

CASES = cases()
VERIFIED = {job["mechanism"]["name"]: name for name, job in CASES.items()}.values()
"""A job of each mechanism whose release is verified everywhere; all are under the plain instruction set."""


@pytest.mark.parametrize("name", CASES)
def test_a_job_releases_what_is_recorded(name: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page and workbook, which are not recorded, are written where the release is verified."""
    verified = plain.in_force() or name in VERIFIED
    if not verified:
        for writer in ("write_page", "write_workbook"):
            monkeypatch.setattr(folder, writer, lambda path, *_: path.touch())
    drawn = list[Drawn]()
    found = released(name, CASES[name], inputs, tmp_path / "work", drawn)
    assert differences(read_golden(name), found, precision(name)) == []
    laws = {noise.law for noise in drawn}
    said = statement_of(tmp_path / "work")
    assert bool(laws) == SPECS[CASES[name]["mechanism"]["name"]].adds_noise
    assert problems_of_noise(name, said, laws) == []
    assert (said["mechanism"].get("noise", "laplace") == "gaussian") == ("gaussian" in laws)
    if not verified:
        return
    public = tmp_path / "work" / "public"
    assert [line for line in problems(public) if not line.startswith(UNFIT)] == []


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_finds_what_is_recorded(name: str, tmp_path: Path) -> None:
    assert differences(read_golden(name), studied(name, tmp_path, tmp_path / "out")) == []


def test_the_same_names_make_a_job_and_the_same_keys_refuse_it() -> None:
    """Control: some are jobs, some need a Markov chain, and most are refused."""
    recorded = json.loads((Path(__file__).parent / "reach.json").read_text(encoding="utf-8"))
    assert reach() == recorded
    assert {fate.partition(":")[0] for fate in recorded.values()} == {EXACT, "stan", "refused"}


def test_a_record_stands_for_every_job_and_for_no_other() -> None:
    assert {path.stem for path in GOLDENS.glob("*.json")} == set(CASES) | set(STUDIES)


def test_bytes_are_compared_with_the_libraries_that_recorded_them() -> None:
    """Other versions may give other bytes: pip install -r tests/golden/libraries.txt."""
    assert not plain.in_force() or other_libraries() == []


def _elsewhere(old: Path, new: Path) -> list[str]:
    """Differences of a file from the record of another, on any processor."""
    return differences({"file": record_of(content_of(old))}, {"file": content_of(new)}, in_bytes=False)


def _written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _column(folder: Path, values: Any) -> Path:
    path = folder / "column.parquet"
    pq.write_table(pa.table({"bound": values}), path)
    return path


OTHER_TEXT = ["file: other text"]
CELLS = {"cells": [1.5, 2.5e-3, 0], "mean": 61234.5, "records": 1_000_000_000, "text": "a mean of 61234.5 of 30 cells"}
STRUCT = {"total": 0.3, "cells": [[0.5, 2e9]]}


def in_text(old: Any, new: Any, folder: Path) -> list[str]:
    if isinstance(old, str):
        return _elsewhere(_written(folder, "old.csv", old), _written(folder, "new.csv", new))
    return _elsewhere(_written(folder, "old.json", json.dumps(old)), _written(folder, "new.json", json.dumps(new)))


def in_column(old: Any, new: Any, folder: Path) -> list[str]:
    record = record_of(content_of(_column(folder, old)))
    return differences({"file": record}, {"file": content_of(_column(folder, new))}, in_bytes=False)


BOUND = ["file: other numbers in bound, 1 to 2 of 2"]
COMPARED: list[tuple[Any, Any, Any, list[str]]] = [
    (in_text, CELLS, CELLS | {"mean": 61234.500000001}, []),
    (in_text, CELLS, CELLS | {"mean": -61234.5}, ["file: other numbers in mean, 1 to 1 of 1"]),
    (in_text, CELLS, CELLS | {"cells": [1.5, 2.500003e-3, 0]}, ["file: other numbers in cells, 1 to 2 of 2"]),
    (in_text, CELLS, CELLS | {"mean": None}, OTHER_TEXT),
    (in_text, CELLS, CELLS | {"median": 1.5}, OTHER_TEXT),
    (in_text, CELLS, CELLS | {"text": "a mean of 61234.5 of 31 cells"}, OTHER_TEXT),
    (in_text, CELLS, CELLS | {"text": "a mean of 61234.6 of 30 cells"}, ["file: other numbers in text, 1 to 1 of 1"]),
    (in_text, CELLS, CELLS | {"records": 1_000_000_001}, OTHER_TEXT),
    (in_text, "cell,mean\nf,6.5\nm,7.5\n", "cell,mean\nf,7.5\nm,6.5\n", ["file: other numbers in column 2, 1 to 2 of 2"]),
    (in_column, [1_000_000_000], [1_000_000_001], OTHER_TEXT),
    (in_column, [0.0, 1778.7], [4.5e-16, 1778.7], []),
    (in_column, [0.0, 1778.7], [1e-8, 1778.7], BOUND),
    (in_column, [0.0, 0.0], [0.0, 1e-9], BOUND),
    (in_column, [STRUCT], [STRUCT | {"total": 0.1 + 0.2}], []),
    (in_column, [STRUCT], [STRUCT | {"cells": [[0.50001, 2e9]]}], ["file: other numbers in cells[0], 1 to 1 of 1"]),
]
"""How two files are compared, both of them, and what is found: a number or an integer that moved, numbers that changed
places, and no last digits. A difference that cancels counts by the size of its column, as a ratio that is 0 under one
kernel and 4.5e-16 under another in the study fbs_fbp_laplace.
"""


@pytest.mark.parametrize(("compared", "old", "new", "found"), COMPARED)
def test_a_comparison_sees_what_moved_and_no_last_digits(
    compared: Any, old: Any, new: Any, found: list[str], tmp_path: Path
) -> None:
    assert compared(old, new, tmp_path) == found


LARGE = np.exp(np.random.default_rng(1).normal(0.0, 2.0, 20_000))
"""Numbers of a file with a row a record."""


@pytest.mark.parametrize("place", [0, 7_000, 19_999, int(LARGE.argmax())])
def test_a_relative_change_of_a_millionth_in_one_number_of_many_is_seen(tmp_path: Path, place: int) -> None:
    """Also where every number has an error on another processor: a tenth of what is allowed, all in one direction."""
    numbers = LARGE * (1.0 + KNOWN_TO / 10.0)
    old = record_of(content_of(_column(tmp_path, LARGE)))
    assert differences({"file": old}, {"file": content_of(_column(tmp_path, numbers))}, in_bytes=False) == []
    numbers[place] *= 1.0 + 1e-6
    first = place // 32 * 32
    found = differences({"file": old}, {"file": content_of(_column(tmp_path, numbers))}, in_bytes=False)
    assert found == [f"file: other numbers in bound, {first + 1} to {first + 32} of 20000"]


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_figures_known_to_half_their_digits_are_the_same_everywhere(tmp_path: Path, direction: float) -> None:
    """Every number off by 0.9 √ε of its size at once, as another kernel's fit. Control: by three times √ε."""
    old = record_of(content_of(_column(tmp_path, LARGE)))
    for times, same in ((0.9, True), (3.0, False)):
        found = content_of(_column(tmp_path, LARGE * (1.0 + direction * times * KNOWN_TO)))
        assert (differences({"file": old}, {"file": found}, in_bytes=False) == []) is same


def test_bytes_count_under_the_plain_instruction_set_and_nowhere_else() -> None:
    """Last digits; files that came and went are named everywhere."""
    old, new = (Content(content, "text", {"a": [0.5]}) for content in (b"0.5", b"0.50"))
    record = {"a": record_of(old)}
    assert differences(record, {"b": old}) == ["a: no longer written", "b: written now"]
    assert differences(record, {"a": new}, in_bytes=False) == []
    assert differences(record, {"a": new}, in_bytes=True) == ["a: other bytes"]
    assert differences(record, {"a": new}) == (["a: other bytes"] if plain.in_force() else [])
    assert differences(record, {"a": old}, in_bytes=True) == []


def test_the_bytes_of_a_text_leave_out_day_and_no_digit(tmp_path: Path) -> None:
    found = list[Record]()
    for date, value in (("2026-01-01", 0.3), ("2026-01-02", 0.3), ("2026-01-02", 0.1 + 0.2)):
        path = _written(tmp_path, "statement.json", json.dumps({"date": date, "mean": value}))
        found.append(record_of(content_of(path)))
    assert found[0] == found[1]
    assert found[1].bytes != found[2].bytes
    assert found[1].text == found[2].text


def test_the_survey_of_the_jobs_has_the_same_bytes_on_every_processor() -> None:
    """Numbers of single precision: a last digit more or less, which a processor may give, is rounded away."""
    frame = survey(1)
    for name in ("salary", "weight", "share"):
        values = frame[name].to_numpy()
        for side in (0.0, np.inf):
            np.testing.assert_array_equal(single(np.nextafter(values, side)), values)
