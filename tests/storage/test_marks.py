"""Completion marks: done means that every file is there, whole."""

from __future__ import annotations

from pathlib import Path

from dpdist.storage.store import mark_unit, unit_finished, withdraw


def test_a_unit_is_finished_only_with_its_mark_and_all_its_files(tmp_path: Path):
    (tmp_path / "marks").mkdir()
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_text("content")
    assert not unit_finished(tmp_path / "marks", "unit", tmp_path)
    mark_unit(tmp_path / "marks", "unit", files, tmp_path)
    assert unit_finished(tmp_path / "marks", "unit", tmp_path)
    files[0].write_text("contenT")
    assert not unit_finished(tmp_path / "marks", "unit", tmp_path)
    files[0].write_text("content")
    files[1].unlink()
    assert not unit_finished(tmp_path / "marks", "unit", tmp_path)


def test_a_half_written_mark_does_not_count(tmp_path: Path):
    (tmp_path / "marks").mkdir()
    mark_unit(tmp_path / "marks", "unit", [], tmp_path)
    path = tmp_path / "marks" / "unit.json"
    path.write_text('{"a": "12')
    assert not unit_finished(tmp_path / "marks", "unit", tmp_path)


def test_a_mark_is_withdrawn_from_damaged_files_and_not_from_those_that_another_has_finished_meanwhile(tmp_path: Path):
    """A worker of a driver that was lost may finish a unit after the next driver has found it unfinished."""
    (tmp_path / "marks").mkdir()
    file, own = tmp_path / "a", tmp_path / "marks" / "unit.json"
    file.write_text("content")
    mark_unit(tmp_path / "marks", "unit", [file], tmp_path)
    withdraw(tmp_path / "marks", "unit", tmp_path)
    assert own.exists()
    file.write_text("contenT")
    withdraw(tmp_path / "marks", "unit", tmp_path)
    assert not own.exists()
    withdraw(tmp_path / "marks", "unit", tmp_path)
