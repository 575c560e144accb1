"""The public side never names a confidential type, not even in annotations, which the import contract does not read."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import dpdist

PACKAGE = Path(dpdist.__file__).parent
NAME = "The public side never names confidential types"
PUBLIC_HALVES = [path for name in ("post", "sensitivity", "words") for path in PACKAGE.glob(f"mechanisms/*/{name}.py")] + [
    PACKAGE / "mechanisms" / name
    for name in (
        "marginals/coded_tables.py",
        "tables/synthetic.py",
    )
]
"""What a mechanism's public half consists of."""


def confidential(text: str) -> Iterator[str]:
    """Modules of `dpdist.confidential` that a module's text imports, for types alone too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (module for module in modules if module.startswith("dpdist.confidential"))


def test_no_public_file_names_a_confidential_type() -> None:
    files = [*PACKAGE.glob("publish/**/*.py"), *PACKAGE.glob("cli/*.py"), *PUBLIC_HALVES]
    assert len(files) > 40
    naming = {path.name: names for path in files if (names := list(confidential(path.read_text(encoding="utf-8"))))}
    assert naming == {}


def test_the_contract_of_imports_says_the_same() -> None:
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    contract = next(one for one in settings["contracts"] if one["name"] == NAME)
    assert {"dpdist.publish", "dpdist.mechanisms.*.post", "dpdist.cli"} <= set(contract["source_modules"])
    assert contract["forbidden_modules"] == ["dpdist.confidential"]
    assert "ignore_imports" not in contract
