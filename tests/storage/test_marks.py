"""Completion marks: done means that every file is there, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdist.storage.workspace import Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    space = Workspace(tmp_path)
    space.completions.mkdir(parents=True)
    return space


def test_a_unit_is_finished_only_with_its_mark_and_all_its_files(space: Workspace):
    files = [space.confidential / "a", space.confidential / "b"]
    for file in files:
        file.write_text("content")
    assert not space.finished("unit")
    space.mark("unit", files)
    assert space.finished("unit")
    files[0].write_text("contenT")
    assert not space.finished("unit")
    files[0].write_text("content")
    files[1].unlink()
    assert not space.finished("unit")


def test_a_half_written_mark_does_not_count(space: Workspace):
    space.mark("unit", [])
    space.completion("unit").write_text('{"a": "12')
    assert not space.finished("unit")


def test_a_mark_is_withdrawn_from_damaged_files_and_not_from_those_that_another_has_finished_meanwhile(space: Workspace):
    """A worker of a driver that was lost may finish a unit after the next driver has found it unfinished."""
    file, own = space.confidential / "a", space.completion("unit")
    file.write_text("content")
    space.mark("unit", [file])
    space.withdraw("unit")
    assert own.exists()
    file.write_text("contenT")
    space.withdraw("unit")
    assert not own.exists()
    space.withdraw("unit")
