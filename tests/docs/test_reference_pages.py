"""The reference names what a release has: fields of its statement, files of its public folder, verbs, mechanisms."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import small_release
import typer
from pages import ROOT

from dpdist import parse_job, run
from dpdist.cli.main import app
from dpdist.mechanisms.registry import MECHANISMS

REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The public folder of a small strict release."""
    folder = tmp_path_factory.mktemp("reference")
    small_release.survey().to_parquet(folder / "survey.parquet")
    return Path(run(parse_job(small_release.JOB), folder / "workspace", folder / "survey.parquet"))


def named(page: str, names: set[str]) -> set[str]:
    """The names that do not stand on a page as code."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return {name for name in names if f"`{name}`" not in text}


def test_every_field_of_a_statement_is_described(public: Path) -> None:
    """Control: one that is not there is found."""
    fields = set(json.loads((public / "statement.json").read_text(encoding="utf-8")))
    assert named("statement.md", fields) == set()
    assert named("statement.md", {"guaranty"}) == {"guaranty"}


def test_every_public_file_is_described(public: Path) -> None:
    """Names of tables and numbers of sets stand for any; what lies in released/ has a table of its own."""
    found = {path.relative_to(public).as_posix() for path in public.rglob("*") if path.is_file()}
    shapes = {name.replace("tables/counts.", "tables/<name>.").replace("set-1.", "set-<k>.") for name in found}
    assert named("workspace.md", {shape.removeprefix("released/") for shape in shapes}) == set()


def test_every_verb_stands_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    verbs = set(typer.main.get_command(app).commands)
    assert {verb for verb in verbs if f"dpdist {verb}" not in text} == set()


def test_generated_parts_name_every_mechanism_and_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import generated

    try:
        generated.write(tmp_path)
    finally:
        sys.modules.pop("generated", None)
    mechanisms = (tmp_path / "mechanisms.md").read_text(encoding="utf-8")
    assert [name for name in MECHANISMS if f"`{name}`" not in mechanisms] == []
    verbs = (tmp_path / "cli.md").read_text(encoding="utf-8")
    assert "## `dpdist run`" in verbs
    assert "## `dpdist cluster certs`" in verbs
    assert "## The keys of a job" in (tmp_path / "job-file.md").read_text(encoding="utf-8")


def test_every_section_of_methods_that_the_code_names_is_there() -> None:
    """Control: a section that is not."""
    sections = set(re.findall(r"^##+ §(\w+)", (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), re.MULTILINE))
    files = [path for folder in ("dpdist", "stan", "jobs", "tests") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".stan", ".yaml")]
    named = {found for text in texts for found in re.findall(r"METHODS §(\d+[a-z]?)\b", text)}
    assert len(named) > 8
    assert named - sections == set()
    assert "99" not in sections
