"""No room outside of mechanisms/ and studies/ asks whether an object is of one mechanism's or one family's class."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dpdist

PACKAGE = Path(dpdist.__file__).parent
SETTINGS = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
CONTRACT = next(one for one in SETTINGS["contracts"] if one["name"] == "A mechanism's folder is its own")
CONCRETE = re.compile(r"dpdist\.(mechanisms\.\w+\.\w+|models(?!\.(protocol|outputs|on_reference)$)(\.\w+)*)$")
"""Modules of classes that only their own mechanism or family may be asked for by name."""
INSIDE = ("mechanisms", "models", "sampling", "studies")
"""Folders that hold mechanisms and families, what draws from them, and studies of single ones."""


def questions(text: str) -> Iterator[str]:
    """Names of concrete classes that a module's text gives to `isinstance`, or to a `match` of classes."""
    if not re.search(r"from dpdist\.(mechanisms|models)", text):
        return
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and CONCRETE.match(node.module or "")]
    concrete = {alias.asname or alias.name for node in imports for alias in node.names}
    for node in ast.walk(tree):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            asked = [part for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        yield from (part.id for part in asked if isinstance(part, ast.Name) and part.id in concrete)


def counted() -> Counter[str]:
    """Number of such questions by file."""
    found = Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.parts[0] not in INSIDE:
            found[place.as_posix()] += len(list(questions(path.read_text(encoding="utf-8"))))
    return +found


def test_no_room_asks_for_one_mechanism_s_class() -> None:
    assert counted() == Counter()


def test_the_contract_covers_every_room_beside_mechanisms_and_studies() -> None:
    rooms = {f"dpdist.{path.stem}" for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    below = {
        "confidential",
        "core",
        "engine",
        "estimation",
        "job",
        "models",
        "privacy",
        "sampling",
        "survey",
    }
    """Rooms that the layers keep from importing any mechanism."""
    beside = {f"dpdist.{name}" for name in (*below, "mechanisms", "studies", "__init__", "__main__")}
    assert set(CONTRACT["source_modules"]) == rooms - beside
    assert CONTRACT["forbidden_modules"] == ["dpdist.mechanisms.*.*"]
    assert "ignore_imports" not in CONTRACT
