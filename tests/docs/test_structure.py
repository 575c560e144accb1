"""The package as its imports draw it: no circle, not even of types alone; and the core asks no name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

import dpdist

PACKAGE = Path(dpdist.__file__).parent
Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = [PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, by_name: Mapping[str, object]) -> Iterable[str]:
    """Modules of the package that a module imports: anywhere in its text, for types alone too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in by_name)
        elif isinstance(node, ast.ImportFrom) and node.module in by_name:
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in by_name else node.module for name in inner)


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package, parsed."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules().items()}


@cache
def drawn() -> Graph:
    """From every module to those that it imports."""
    return {name: set(imported(tree, trees())) - {name} for name, tree in trees().items()}


def rooms(graph: Graph) -> Graph:
    """The same between folders and loose modules of the package's top level."""
    found = Graph()
    for name, others in graph.items():
        found.setdefault(_room(name), set()).update(map(_room, others))
    return {name: others - {name} for name, others in found.items()}


def _room(name: str) -> str:
    return ".".join(name.split(".")[:2])


def circle(graph: Graph) -> list[str]:
    """The names on circles, or that lead from one to another: empty where there is no circle."""
    left = dict(graph)
    while True:
        ends = {name for name, others in left.items() if not others & left.keys()}
        starts = left.keys() - {other for others in left.values() for other in others}
        if not ends | starts:
            return sorted(left)
        left = {name: others for name, others in left.items() if name not in ends | starts}


@pytest.mark.parametrize("level", [drawn, lambda: rooms(drawn())], ids=["modules", "rooms"])
def test_no_imports_go_in_a_circle(level) -> None:
    assert circle(level()) == []


def names_asked(tree: ast.AST) -> list[int]:
    """Lines that compare a mechanism's name, or a family, with a text."""
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Compare) and _asks_a_name(node)]


def _asks_a_name(node: ast.Compare) -> bool:
    sides = [node.left, *node.comparators]
    texts = any(isinstance(each, ast.Constant) and isinstance(each.value, str) for side in sides for each in ast.walk(side))
    return texts and any(_is_name(side) for side in sides)


def _is_name(side: ast.expr) -> bool:
    if not isinstance(side, ast.Attribute):
        return False
    whose = getattr(side.value, "attr", getattr(side.value, "id", ""))
    return side.attr in ("family", "model_name") or (side.attr == "name" and whose in ("mechanism", "arm"))


def test_the_core_asks_what_a_mechanism_or_a_family_is_and_never_its_name() -> None:
    found = [
        f"{name}:{line}"
        for name, tree in trees().items()
        if not name.startswith(("dpdist.job", "dpdist.mechanisms"))
        for line in names_asked(tree)
    ]
    assert found == []
