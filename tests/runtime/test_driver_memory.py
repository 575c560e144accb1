"""A driver that memory ends is started again once; the second time the start says what it needs, with exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dpdist.core.errors import TaskError
from dpdist.runtime import driver_memory
from dpdist.runtime.driver_memory import FILE, remembered_memory
from dpdist.storage.workspace import Workspace

DRIVER = """
import os, signal, sys
from pathlib import Path
from dpdist.runtime import driver_memory
from dpdist.storage.workspace import Workspace

limit, ends = int(sys.argv[2]), sys.argv[3]
driver_memory._limit, driver_memory._INTERVAL = lambda: limit, 0.02
with driver_memory.remembered_memory(Workspace(Path(sys.argv[1]))):
    held = bytearray(b"x") * (100 * 2**20)
    driver_memory.threading.Event().wait(0.3)
    if ends == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""
LARGE = 2**40


def driver(folder: Path, limit: int, ends: str = "killed") -> tuple[int, str]:
    line = [sys.executable, "-c", DRIVER, str(folder), str(limit), ends]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "confidential").mkdir()
    return tmp_path


def test_a_driver_that_memory_has_ended_twice_is_refused_with_what_it_needs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 256 * 2**20
    assert [driver(folder, limit)[0] for _ in range(2)] == [-9, -9]
    monkeypatch.setattr(driver_memory, "_limit", lambda: limit)
    with pytest.raises(TaskError, match="the driver needs 256 MiB or more") as told, remembered_memory(Workspace(folder)):
        raise AssertionError("it was started")
    assert told.value.exit_code == 2
    assert "cluster manifests" in told.value.remedy
    assert not (folder / "confidential" / FILE).exists(), "who starts it again on purpose is not refused at once"


@pytest.mark.parametrize(
    ("limits", "ends"), [pytest.param((LARGE,) * 4, "killed", marks=pytest.mark.long), ((2**28, 2**28, 2**29), "killed")]
)
def test_other_deaths_and_other_limits_are_no_reason(folder: Path, limits: tuple[int, ...], ends: str) -> None:
    """Kills far from the limit, at any number; and a limit that was raised since."""
    for limit in limits:
        assert driver(folder, limit, ends)[0] == -9


def test_a_driver_that_ends_leaves_nothing(folder: Path) -> None:
    assert driver(folder, 2**28, "well")[0] == 0
    assert list((folder / "confidential").iterdir()) == []
