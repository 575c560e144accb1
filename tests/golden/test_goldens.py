"""What a job releases is what it released: every mechanism × adjacency × family, variants of keys, shipped jobs; studies.

A change that is meant is recorded anew: `python tests/golden/record.py`, and the files that differ are named in the change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden_runs import GOLDENS, Golden, Kept, differences, kept, read_golden, released
from golden_studies import STUDIES, studied
from pages import sentences, words
from small_jobs import EXACT, cases, reach
from small_runs import write_inputs

from dpdist.core.public_files import UNFIT
from dpdist.opening.verifying import problems
from dpdist.testing.small import single, survey

CASES = cases()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_job_releases_what_is_recorded(name: str, inputs: Path, tmp_path: Path) -> None:
    assert differences(read_golden(name), released(name, CASES[name], inputs, tmp_path / "work")) == []
    public = tmp_path / "work" / "public"
    assert [line for line in problems(public) if not line.startswith(UNFIT)] == []
    assert unreadable(json.loads((public / "statement.json").read_text(encoding="utf-8"))) == []


def unreadable(statement: dict[str, Any]) -> list[str]:
    """Sentences of a statement over 35 words, and its mean length where that is over 18."""
    every = [each for text in _texts(statement) for each in sentences(text)]
    lengths = [len(words(each)) for each in every]
    far = [each for each, length in zip(every, lengths, strict=True) if length > 35]
    return far if mean(lengths) <= 18 else [*far, f"{mean(lengths):.1f} words in the mean"]


def _texts(said: Any) -> Iterator[str]:
    """Texts of more than three words, wherever they stand."""
    if isinstance(said, str) and len(words(said)) > 3:
        yield said
    elif isinstance(said, dict | list):
        for each in said.values() if isinstance(said, dict) else said:
            yield from _texts(each)


def test_a_statement_of_long_sentences_is_found() -> None:
    """Control: one of 36 words; a mean of 20."""
    assert unreadable({"a": ["It holds for all.", "word " * 35 + "end."]}) == [
        "word " * 35 + "end.",
        "20.0 words in the mean",
    ]


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


def _changed(path: Path, old: str, new: str) -> list[str]:
    """What the comparison finds when a text in a file is replaced."""
    before, text = kept(path), path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return elsewhere({path.name: before}, {path.name: kept(path)})


def elsewhere(old: dict[str, Kept], new: dict[str, Kept]) -> list[str]:
    """Differences of a record from a run on another processor."""
    return differences(Golden("one", old), Golden("another", new))


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ('"mean": 61234.500000001', []),
        ('"mean": 61234.51', ["table.json: other numbers"]),
        ('"mean": -61234.5', ["table.json: other numbers"]),
        ('"mean": null', ["table.json: other text"]),
        ('"median": 61234.5', ["table.json: other text"]),
        ('"mean": 61235', ["table.json: other text"]),
    ],
)
def test_a_comparison_sees_a_number_that_moved_and_no_last_digits(tmp_path: Path, new: str, found: list[str]) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"cells": [1.5, 2.5e-3, 0], "mean": 61234.5}), encoding="utf-8")
    assert _changed(path, '"mean": 61234.5', new) == found


def test_a_comparison_of_many_numbers_sees_one_that_moved_and_not_the_last_digits_of_all(tmp_path: Path) -> None:
    """A relative change of 1e-6 in one of 20,000; a last digit more or less in each."""
    path, numbers = tmp_path / "bounds.parquet", np.exp(np.random.default_rng(1).normal(0.0, 5.0, 20_000))
    one = numbers.copy()
    one[7_000] *= 1.0 + 1e-6
    all_of_them = np.nextafter(numbers, np.random.default_rng(2).choice([0.0, np.inf], len(numbers)))
    found = list[Kept]()
    for values in (numbers, all_of_them, one):
        pq.write_table(pa.table({"bound": values}), path)
        found.append(kept(path))
    right, last, moved = ({path.name: each} for each in found)
    assert elsewhere(right, last) == []
    assert right != last
    assert elsewhere(right, moved) == ["bounds.parquet: other numbers"]


def test_numbers_within_a_column_of_records_are_numbers(tmp_path: Path) -> None:
    """Last digits are no text. Control: another number, another name."""
    path, found = tmp_path / "strata.parquet", list[Kept]()
    for said in ({"total": 0.3}, {"total": 0.1 + 0.2}, {"total": 0.31}, {"sum": 0.3}):
        pq.write_table(pa.table({"diagnostics": [said]}), path)
        found.append(kept(path))
    right, last, moved, named = ({path.name: each} for each in found)
    assert elsewhere(right, last) == []
    assert elsewhere(right, moved) == ["strata.parquet: other numbers"]
    assert elsewhere(right, named) == ["strata.parquet: other text"]


def test_a_comparison_sees_numbers_that_changed_places(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("cell,mean\nf,61000.5\nm,61001.5\n", encoding="utf-8")
    assert _changed(path, "f,61000.5\nm,61001.5", "f,61001.5\nm,61000.5") == ["table.csv: other numbers"]


@pytest.mark.parametrize("found", [{"records": 1_000_000_001}, {"records": 1_000_000_000.0}, {"text": "of 31 cells"}])
def test_a_comparison_sees_an_integer_that_moved_by_one(tmp_path: Path, found: dict[str, Any]) -> None:
    """In a text, where a sum of numbers' logarithms would not see it, and in a column."""
    path, whole = tmp_path / "table.json", {"records": 1_000_000_000, "text": "of 30 cells"}
    path.write_text(json.dumps(whole), encoding="utf-8")
    before = kept(path)
    path.write_text(json.dumps(whole | found), encoding="utf-8")
    assert elsewhere({path.name: before}, {path.name: kept(path)}) == ["table.json: other text"]
    column, records = tmp_path / "table.parquet", list[Kept]()
    for count in (1_000_000_000, 1_000_000_001):
        pq.write_table(pa.table({"records": [count]}), column)
        records.append(kept(column))
    old, new = ({column.name: one} for one in records)
    assert elsewhere(old, new) == ["table.parquet: other text"]


def test_a_comparison_names_files_that_came_and_went_and_other_bytes_on_one_processor() -> None:
    """Last digits count where the processor is the record's, and nowhere else."""
    one = Kept("1", "2", 3, 4.0)
    assert elsewhere({"a": one}, {"b": one}) == ["a: no longer written", "b: written now"]
    assert elsewhere({"a": one}, {"a": one._replace(bytes="0")}) == []
    same = Golden("one", {"a": one}), Golden("one", {"a": one._replace(bytes="0")})
    assert differences(*same) == ["a: other bytes"]


def test_the_bytes_of_a_text_leave_out_day_and_no_digit(tmp_path: Path) -> None:
    path, found = tmp_path / "statement.json", list[Kept]()
    for date, value in (("2026-01-01", 0.3), ("2026-01-02", 0.3), ("2026-01-02", 0.1 + 0.2)):
        path.write_text(json.dumps({"date": date, "mean": value}), encoding="utf-8")
        found.append(kept(path))
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
