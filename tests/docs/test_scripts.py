"""Scripts of a checkout run its code, also where another dpdist is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
IMPORTS = """
import runpy, sys
sys.path[0] = sys.argv[2]
runpy.run_path(sys.argv[1], run_name="imports")
print(getattr(sys.modules.get("dpdist"), "__file__", "no dpdist"))
"""
"""The imports of a script, as `python SCRIPT` makes them, and where its dpdist lies."""


SCRIPTS = [
    path.relative_to(ROOT).as_posix()
    for folder in ("docs", "experiments", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.name.startswith("test_") and 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
]
"""Files that do something when they are run."""
NAMED = {"docs/generated.py", "tests/golden/record.py"}
"""Scripts that pages name; they import it in any case."""
HERE = str(ROOT / "dpdist" / "__init__.py")


def dpdist_of(script: Path, installed: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", IMPORTS, str(script), str(script.parent)]
    return subprocess.run(command, env=environment, cwd=installed, capture_output=True, text=True)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with another dpdist, which is found before what is installed here."""
    (tmp_path / "dpdist").mkdir()
    (tmp_path / "dpdist" / "__init__.py").write_text('raise ImportError("another dpdist")', encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_the_package_beside_it(name: str, installed: Path) -> None:
    found = dpdist_of(ROOT / name, installed)
    assert "another dpdist" not in found.stderr
    assert name not in NAMED or found.stdout.strip() == HERE


def test_the_scripts_that_pages_name_are_there() -> None:
    assert set(SCRIPTS) >= NAMED
