"""A held release that somebody opens is called held."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpdist
from dpdist.core.errors import WorkspaceError


@pytest.mark.parametrize(("folder", "told"), [("held", "dpdist approve"), ("elsewhere", "finished run")])
def test_a_held_workspace_has_its_own_refusal(folder: str, told: str, tmp_path: Path) -> None:
    """Control: a folder without a run."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(WorkspaceError, match=told):
        dpdist.open_release(tmp_path)
