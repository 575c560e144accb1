"""Help texts fit a screen; a run says first what it released, and last what to do next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from command_line import invoke, succeed

from dpdist.cli.main import app

LINES = 24
GROUP = typer.main.get_command(app)
VERBS = [()] + [
    (name, *further)
    for name, verb in GROUP.commands.items()
    for further in [(), *((sub,) for sub in getattr(verb, "commands", ()))]
]


def shown(*verb: str) -> list[str]:
    text = succeed(*verb, "--help", env={"COLUMNS": "80"})
    return text.splitlines()


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_fits_a_screen(verb: tuple[str, ...]) -> None:
    assert len(shown(*verb)) <= LINES


def test_no_verb_is_described_by_half_a_sentence() -> None:
    """Control: all verbs are listed, and no others."""
    lines = shown()
    assert not [line for line in lines[1:] if line.endswith("...")]
    commands = lines[lines.index("Commands:") + 1 :]
    named = {name for line in commands for name in re.findall(r"[a-z]+", line.strip().split("  ")[0])}
    assert named == set(GROUP.commands)


def test_a_run_begins_with_what_it_released_and_ends_with_what_to_do_next(tmp_path: Path) -> None:
    """Control: a quiet run says nothing."""
    told = ["run", "doctorates_sanitized", "--workspace", str(tmp_path / "ws")]
    lines = invoke(*told).stdout.strip().splitlines()
    assert lines[0].startswith("Released doctorates ")
    assert "1 table and" in lines[0]
    assert lines[-1].startswith("Next: ")
    assert invoke(*told, "--quiet").stdout == ""
