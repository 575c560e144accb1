"""Completion marks: done means that every file is there, whole."""

from __future__ import annotations

from pathlib import Path

from dpdist.storage.completion import finished, mark


def test_a_unit_is_finished_only_with_its_mark_and_all_its_files(tmp_path: Path):
    (tmp_path / "marks").mkdir()
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_text("content")
    assert not finished(tmp_path / "marks", "unit", tmp_path)
    mark(tmp_path / "marks", "unit", files, tmp_path)
    assert finished(tmp_path / "marks", "unit", tmp_path)
    files[0].write_text("contenT")
    assert not finished(tmp_path / "marks", "unit", tmp_path)
    files[0].write_text("content")
    files[1].unlink()
    assert not finished(tmp_path / "marks", "unit", tmp_path)


def test_a_half_written_mark_does_not_count(tmp_path: Path):
    (tmp_path / "marks").mkdir()
    mark(tmp_path / "marks", "unit", [], tmp_path)
    path = tmp_path / "marks" / "unit.json"
    path.write_text('{"a": "12')
    assert not finished(tmp_path / "marks", "unit", tmp_path)
