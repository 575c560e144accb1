"""Every command that is interrupted says what the same command does then, and no more than is true of it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import typer

from dpdist.cli import console
from dpdist.cli.main import app

RESUME = {"run", "publish", "approve", "study", "rehearse"}
BEGIN_ANEW = {"validate", "plan", "calibrate", "audit"}
"""Long commands that keep nothing. All others are done in seconds, or serve until they are ended."""
ARGUMENTS = {
    "init": "survey.parquet --out job.yaml",
    "rehearse": "job.yaml --out out",
    "verify": "work",
    "sign": "work --key key",
    "keygen": "key",
    "diff": "a b",
    "series": "a b --out c",
    "approve": "work --reason checked",
    "validate": "job.yaml",
    "plan": "job.yaml",
    "run": "job.yaml -w work",
    "publish": "work",
    "report": "work",
    "status": "work",
    "audit": "work",
    "calibrate": "job.yaml --reference file --out out",
    "study": "study.yaml --out out",
    "show": "doctorates",
    "explain": "salaries",
    "schema": "",
    "cluster certs": "folder",
    "cluster scheduler": "--tls folder",
    "cluster worker": "tls://127.0.0.1:8786 --tls folder",
    "cluster size": "job.yaml",
    "cluster manifests": "job.yaml --namespace one --image image",
    "ledger init": "--ledger sqlite:///ledger.db",
    "ledger show": "--ledger sqlite:///ledger.db",
    "ledger check": "--ledger sqlite:///ledger.db",
    "ledger export": "--ledger sqlite:///ledger.db",
    "stan build": "",
    "stan doctor": "",
}


def verbs(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, verb in group.commands.items():
        if hasattr(verb, "commands"):
            yield from verbs(verb, f"{before}{name} ")
        else:
            yield f"{before}{name}", verb


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return typer.main.get_command(app)


def message_of(group: Any, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        group([*name.split(), *ARGUMENTS[name].split()], prog_name="dpdist")
    printed = capsys.readouterr()
    assert (end.value.code, printed.out) == (130, ""), printed
    return printed.err


def test_arguments_are_stated_for_every_verb(group: Any) -> None:
    assert {name for name, _ in verbs(group)} == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_interrupted_verb_says_what_is_true_of_it(
    name: str, group: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in its work, which begins with the second block that watches for Ctrl-C; the first is round all verbs."""
    blocks = iter([console.as_interrupt, interrupt])

    def watched(exempt: tuple[type[Exception], ...] = ()) -> AbstractContextManager[None]:
        block: AbstractContextManager[None] = next(blocks)(exempt)
        return block

    monkeypatch.setattr(console, "as_interrupt", watched)
    afterwards = (
        "; the same command resumes"
        if name in RESUME
        else "; the same command starts again from the beginning"
        if name in BEGIN_ANEW
        else ""
    )
    assert message_of(group, name, capsys) == f"Interrupted{afterwards}.\n"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_verb_that_is_interrupted_while_it_imports_says_that_it_has_not_begun(
    name: str, group: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    verb = dict(verbs(group))[name]
    verb.callback = functools.wraps(verb.callback)(interrupt)
    assert message_of(group, name, capsys) == "Interrupted before it began.\n"
