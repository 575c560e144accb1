"""The command line, invoked in this process."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner, Result

from dpdist.cli.main import app


def invoke(*words: object, **options: Any) -> Result:
    """What `dpdist` under these words prints, and its exit code. Options are those of the runner, such as `input`."""
    return CliRunner().invoke(app, list(map(str, words)), **options)


def succeed(*words: object, **options: Any) -> str:
    """The output of a command, which must end with exit code 0."""
    ended = invoke(*words, **options)
    assert ended.exit_code == 0, ended.output
    return ended.output
