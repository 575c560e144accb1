"""Scripts of a checkout run its code, also where another dpdist is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
IMPORTS = """
import json, os, runpy, sys, traceback
import distributed, matplotlib.figure, opendp.prelude, pandas, pydantic, pyarrow.parquet, scipy.stats, yaml
for script in sys.argv[1:]:
    listen, tell = os.pipe()
    if not os.fork():
        sys.path[0] = os.path.dirname(script)
        said = ""
        try:
            runpy.run_path(script, run_name="imports")
        except BaseException:
            said = traceback.format_exc()
        where = getattr(sys.modules.get("dpdist"), "__file__", "no dpdist")
        os.write(tell, json.dumps([script, where, said]).encode())
        os._exit(0)
    os.close(tell)
    print(os.fdopen(listen).read())
    os.wait()
"""
"""Of every script the imports, as `python SCRIPT` makes them, where its dpdist lies, and what was raised: each in a process
of its own, which begins with what many of them import from elsewhere.
"""


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


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """By script: its dpdist, and an error. A folder with another dpdist is found before what is installed here."""
    installed = tmp_path_factory.mktemp("installed")
    (installed / "dpdist").mkdir()
    (installed / "dpdist" / "__init__.py").write_text('raise ImportError("another dpdist")', encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", IMPORTS, *(str(ROOT / name) for name in SCRIPTS)]
    done = subprocess.run(command, env=environment, cwd=installed, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {Path(script).relative_to(ROOT).as_posix(): (where, said) for script, where, said in lines}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_the_package_beside_it(name: str, imported: dict[str, tuple[str, str]]) -> None:
    where, said = imported[name]
    assert "another dpdist" not in said
    assert name not in NAMED or where == HERE


def test_the_scripts_that_pages_name_are_there() -> None:
    assert set(SCRIPTS) >= NAMED
