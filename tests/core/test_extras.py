"""The main install suffices for the main example, and a command that needs an extra names it before it begins."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest

from dpdist.core.errors import EXTRAS, MissingExtra, install, require
from dpdist.models.numerics import tiles

ROOT = Path(__file__).parents[2]
STATED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUNDLES = {"all", "docs", "test"}
"""Extras that bring others, or that development alone needs."""
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({hidden!r}))
sys.argv = ["dpdist", *{line!r}]
from dpdist.cli.main import main
main()
"""


def canonical(requirement: str) -> str:
    return re.split(r"[\[<>=;\s]", requirement)[0].lower().replace("_", "-")


def dpdist(folder: Path, hidden: list[str], *line: str) -> subprocess.CompletedProcess[str]:
    """A command in a process that has none of the hidden modules."""
    text = WITHOUT.format(hidden=hidden, line=line)
    return subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=240)


def test_every_extra_brings_the_modules_that_are_looked_for() -> None:
    """And the main install brings none of them. Modules of the same distribution count as one."""
    extras = STATED["optional-dependencies"]
    assert set(EXTRAS.values()) == set(extras) - BUNDLES
    assert "dpdist[" + ",".join(sorted(set(EXTRAS.values()) - {"testing"})) + "]" in extras["all"]
    main, there = {canonical(one) for one in STATED["dependencies"]}, packages_distributions()
    for module, extra in EXTRAS.items():
        brought = {canonical(one) for one in extras[extra]}
        distributions = {name.lower().replace("_", "-") for name in there.get(module, [module])}
        assert brought & distributions, f"{extra} does not bring {module}"
        assert not main & distributions, f"the main install brings {module}"


def test_the_oldest_versions_that_are_tested_are_the_oldest_that_are_allowed() -> None:
    lines = (ROOT / "tests" / "constraints" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    tested = {canonical(name): version for name, version in (line.split("==") for line in lines if "==" in line)}
    extras = [one for name in EXTRAS.values() for one in STATED["optional-dependencies"][name] if name != "testing"]
    allowed = {canonical(one): re.findall(r">=([\d.]+)", one)[0] for one in (*STATED["dependencies"], *extras)}
    assert tested == allowed


@pytest.mark.long
def test_the_main_example_needs_no_extra(tmp_path: Path) -> None:
    ended = dpdist(tmp_path, [*EXTRAS], "run", "doctorates", "--workspace", "release")
    assert ended.returncode == 0, ended.stderr
    ended = dpdist(tmp_path, [*EXTRAS], "report", "release", "--confidential")
    assert "VERDICT" in ended.stdout


@pytest.mark.parametrize(
    ("hidden", "line"),
    [
        ("obstore", ["run", "doctorates", "--workspace", "s3://bucket/made"]),
        ("matplotlib", ["study", "modips_normal", "--out", "made"]),
    ],
)
def test_a_command_names_the_extra_that_it_needs(hidden: str, line: list[str], tmp_path: Path) -> None:
    ended = dpdist(tmp_path, [hidden], *line)
    assert ended.returncode == 2
    words = " ".join(ended.stderr.split())
    assert hidden in words
    assert install(hidden) in words
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "made" / "confidential").exists()


def test_what_is_installed_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require("numba", "a test")
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingExtra, match=r"a test needs numba.*\n.*dpdist\[compiled\]"):
        require("numba", "a test")


@pytest.mark.parametrize(("records", "draws"), [(1, 1), (257, 3), (1000, 100), (5, 200_000)])
def test_extremes_are_the_same_with_numba_and_without(records: int, draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the rounding for which bounds are widened. Control: a draw that is left out is noticed."""
    rng = np.random.default_rng(records)
    features, table = rng.normal(size=(6, records)), rng.normal(size=(6, draws))
    features[0] = 1.0
    compiled = tiles.extremes(features, table)
    monkeypatch.setattr(tiles, "_scanner", lambda: tiles._multiply)
    size = np.abs(features).T @ np.abs(table).max(axis=1)
    for one, other in zip(compiled, tiles.extremes(features, table), strict=True):
        assert (np.abs(one - other) <= tiles.ROUNDING * size).all()
    last = tiles.extremes(features, table[:, :1])
    assert draws == 1 or any(
        (np.abs(one - other) > tiles.ROUNDING * size).any() for one, other in zip(compiled, last, strict=True)
    )
