"""The page on architecture against the package: its table of folders, its arrow of imports, its folders of tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NOT_ROOMS = {"__init__.py", "__main__.py"}
BESIDE = {"stan/", "jobs/", "deploy/", "docs/", "tests/", "r/", "experiments/"}
"""Folders of the checkout that the table has in its last row."""


def rooms() -> set[str]:
    """Folders and loose modules of the package, as the table writes them."""
    return entries(ROOT / "dpdist") - NOT_ROOMS


def entries(folder: Path) -> set[str]:
    folders = {
        f"{path.name}/"
        for path in folder.iterdir()
        if path.is_dir() and any(path.rglob("*.*")) and not path.name.startswith((".", "_"))
    }
    return folders | {path.name for path in folder.glob("*.py")}


def in_table(page: str) -> set[str]:
    """The first cells of the table under Layout."""
    _, _, layout = page.partition("## Layout")
    rows = re.findall(r"^\| (`[^|]*) \|", layout.partition("\nImports point one way")[0], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def arrow(page: str) -> list[set[str]]:
    """Layers in the sentence on imports, each a set of names."""
    sentence = re.search(r"Imports point one way: (.*?)\.\n", page, re.DOTALL)
    assert sentence is not None
    return [set(layer.strip().split(", ")) for layer in re.split(r"\s*→\s*", sentence[1])]


def layers() -> list[set[str]]:
    """Layers of the contract that import-linter checks."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    contract = next(one for one in settings["contracts"] if one["name"] == "Imports point one way")
    found = [{name.removeprefix("dpdist.") for name in layer.split(" | ")} for layer in contract["layers"]]
    return [layer for layer in found if layer != {"__main__"}]


def test_the_table_has_every_room_of_the_package_and_no_other() -> None:
    assert in_table(PAGE) - BESIDE == rooms()
    assert in_table(PAGE) >= BESIDE
    assert {f"{path.name}/" for path in ROOT.iterdir() if path.is_dir()} >= BESIDE


def test_the_arrow_is_the_contract_s() -> None:
    assert arrow(PAGE) == layers()
    assert {name.partition(".py")[0].rstrip("/") for name in rooms()} == set().union(*layers())


def test_the_folders_of_tests_are_those_that_the_page_names() -> None:
    sentence = re.search(r"Other folders: (.*?)\.\n", PAGE, re.DOTALL)
    assert sentence is not None
    others = set(re.findall(r"`([^`]+)`", sentence[1]))
    assert {name for name in entries(ROOT / "tests") if name.endswith("/")} - rooms() == others
