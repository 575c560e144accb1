"""Every kind of study keeps one contract: settings, one replicate, facts, captions; a new one is a line in a registry."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, get_args

import pytest

from dpdist.core.errors import StudyError
from dpdist.job import Frozen
from dpdist.studies import kinds
from dpdist.studies.kinds import KINDS, load_study, parse_study
from dpdist.studies.run import run
from dpdist.studies.settings import Caption, Fact, Replicate, Result, Study

PACKAGE = Path(kinds.__file__).parents[1]
SHIPPED = [
    path for path in sorted((Path(__file__).parents[2] / "jobs" / "studies").glob("*.yaml")) if path.stem != "papers"
]


class Purse(Frozen):
    name: str


class Coins(Study):
    heads = ("Label", "What it is")
    captions: ClassVar = {"heads": Caption("heads of ten", "How many of ten throws.")}
    kind: str = "coins"
    cases: tuple[Purse, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return ("coin",)

    @property
    def all_measures(self) -> tuple[str, ...]:
        return ("heads",)

    def replicate(self, case: int, number: int) -> Replicate:
        return Replicate([Result("coin", "", "heads", 5.0 + number)])

    def facts(self) -> list[Fact]:
        return [("Data", ["ten throws of a coin that is not fair at all"])]

    def arms(self) -> list[tuple[str, ...]]:
        return [("coin", "a coin")]


def problems(name: str, study: Study) -> Iterator[str]:
    """What a kind lacks, with one study of it."""
    if get_args(type(study).model_fields["kind"].annotation) != (name,):
        yield f"{name}: its settings are not those of 'kind: {name}'"
    for measure in study.all_measures:
        caption = study.captions.get(measure)
        if caption is None or not caption.title or not caption.reading:
            yield f"{name}: {measure} has no caption"
    if any(not lines or not all(lines) for _, lines in study.facts()):
        yield f"{name}: a fact says nothing"
    if any(len(row) != len(study.heads) for row in study.arms()):
        yield f"{name}: its arms do not fill the columns {study.heads}"
    if not {row[0] for row in study.arms()} <= set(study.labels):
        yield f"{name}: its table of arms names what no result has"
    if not study.made_of:
        yield f"{name}: the page does not say what its data are"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_study_is_of_a_kind_that_keeps_the_contract(path: Path) -> None:
    study = load_study(path)
    assert study.study == path.stem
    assert list(problems(study.kind, study)) == []


def test_every_kind_has_a_shipped_study() -> None:
    assert {load_study(path).kind for path in SHIPPED} == set(KINDS)


def test_no_code_of_studies_asks_of_which_kind_a_study_is() -> None:
    """No `isinstance` over kinds, and no module outside a kind's own names its settings."""
    settings = {kind.__name__ for kind in KINDS.values()}
    for path in PACKAGE.glob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Name)}
        assert not names & settings, path.name
    ladders = [
        path.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "isinstance"
        and settings & set(ast.unparse(node).split())
    ]
    assert ladders == []


def test_an_unknown_kind_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(StudyError) as refused:
        parse_study("kind: table\nstudy: new\ntitle: New\nseed: 1\nreplicates: 1\ncases: []\n")
    (problem,) = (each for each in refused.value.problems if each.where == "kind")
    assert "table" in problem.fault
    assert all(name in problem.allowed for name in KINDS)
    assert "'tables'" in problem.remedy


def test_a_new_kind_is_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind made here, registered by one entry, is read, run, resumed and shown by code that never heard of it."""

    monkeypatch.setattr(kinds, "KINDS", {**KINDS, "coins": Coins})
    study = parse_study(
        "kind: coins\nstudy: coins\ntitle: Coins\nseed: 1\nreplicates: 3\ncases: [{name: one}]\n"
        "limits: [{title: Few heads, measures: [heads], at_most: 20}]\nruntime: {executor: serial}\n"
    )
    folder = run(study, tmp_path / "out")
    page = (folder / "index.html").read_text("utf-8")
    for words in ("a coin that is not fair", "heads of ten", "How many of ten throws.", "Met in 1 of 1 results."):
        assert words in page
    assert (folder / "summary.csv").read_text("utf-8").splitlines()[1].split(",")[3:] == ["7", "1", "3"]
