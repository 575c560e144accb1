"""Verbs that answer print one JSON document on standard output under `--json`, whatever they answer; the rest says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from command_line import invoke, succeed
from small_release import LAPLACE_JOB as JOB, survey

from dpdist.cli.main import app

ANSWERS = {
    "validate JOB --input FILE": 0,
    "validate JOB --input FILE --quiet": 0,
    "validate JOB --input nowhere.parquet": 2,
    "plan JOB --input FILE": 0,
    "plan JOB --input FILE --for-error 0.5 --public EARLIER": 0,
    "plan JOB --input FILE --for-error 0": 2,
    "status WORK": 0,
    "status nowhere": 2,
    "verify WORK": 0,
    "verify CHANGED": 1,
    "verify nowhere": 1,
    "diff WORK WORK": 0,
    "diff WORK OTHER": 1,
    "diff WORK nowhere": 2,
    "series WORK OTHER --out SERIES": 0,
    "series WORK WORK --out SERIES": 2,
    "ledger show LEDGER": 0,
    "ledger check LEDGER": 0,
    "ledger check SECOND WORK": 1,
    "ledger export LEDGER": 0,
    "ledger show --ledger nowhere.sqlite": 2,
}
"""Verbs that answer, each with a result, an error and, where a check can find a fault, with that; and the exit codes."""
EVENTS = {"run", "publish", "study", "audit", "calibrate", "rehearse"}
"""Verbs that make something print an event a line instead, the last of which says how they ended."""
SERVICES = {"cluster scheduler", "cluster worker"}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("answers")
    survey(300).to_parquet(folder / "survey.parquet")
    survey(500).to_parquet(folder / "earlier.parquet")
    for name in ("ledger", "second"):
        succeed("ledger", "init", "--ledger", f"{folder}/{name}.sqlite")
    words = dict[str, str]()
    for name, period in (("WORK", "2021"), ("OTHER", "2022"), ("CHANGED", "2023")):
        job = JOB.replace('"2021"', f'"{period}"') + "publish: always\n"
        job += f'ledger: {{url: {folder}/ledger.sqlite, per_period: "12"}}\n' if name == "WORK" else ""
        (folder / f"{name}.yaml").write_text(job, encoding="utf-8")
        words[name] = f"{folder}/{name}"
        succeed("run", f"{folder}/{name}.yaml", "-w", words[name], "--input", f"{folder}/survey.parquet")
    with (folder / "CHANGED" / "public" / "tables" / "counts.csv").open("a") as file:
        file.write("more\n")
    words |= {"JOB": f"{folder}/WORK.yaml", "FILE": f"{folder}/survey.parquet"}
    words |= {"EARLIER": f"{folder}/earlier.parquet", "SERIES": f"{folder}/series"}
    return words | {"LEDGER": f"--ledger {folder}/ledger.sqlite", "SECOND": f"--ledger {folder}/second.sqlite"}


@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_is_one_document(command: str, places: dict[str, str]) -> None:
    words = " ".join(places.get(word, word) for word in command.split()).split()
    done = invoke(*words, "--json")
    assert done.exit_code == ANSWERS[command], done.output
    document: Any = json.loads(done.stdout)
    failed = {"event": "failed", "exit_code": done.exit_code}
    assert (document == failed) == (done.exit_code == 2)


def test_progress_of_an_answer_stands_on_standard_error(places: dict[str, str]) -> None:
    done = invoke("plan", places["JOB"], "--input", places["FILE"], "--json")
    assert {"begin", "end"} <= {json.loads(line)["event"] for line in done.stderr.splitlines()}


def test_control_a_verb_that_makes_something_prints_events(places: dict[str, str], tmp_path: Path) -> None:
    done = invoke("run", places["JOB"], "-w", str(tmp_path / "ws"), "--input", places["FILE"], "--json")
    assert next(json.loads(line)["event"] for line in done.stdout.splitlines()) == "begin"
    with pytest.raises(json.JSONDecodeError):
        json.loads(done.stdout)


def _with_json(group: Any, above: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group) or hasattr(command, "commands"):
            yield from _with_json(command, f"{above}{name} ")
        elif any("--json" in option.opts for option in command.params):
            yield above + name


def test_every_verb_with_json_is_one_that_answers_or_that_prints_events() -> None:
    asked = {next(verb for verb in _verbs() if command.startswith(verb)) for command in ANSWERS}
    assert {*_verbs()} == asked | EVENTS | SERVICES


def _verbs() -> list[str]:
    return sorted(_with_json(typer.main.get_command(app)), key=len, reverse=True)
