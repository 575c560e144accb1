"""Texts that dpdist shows are as short as its pages: help of every command and option, descriptions of a job's keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import mean
from typing import Any

import click
import pytest
import typer
from pages import sentences, words

from dpdist.cli.main import app
from dpdist.job import Job

MEAN, LONGEST = 18, 35


def helps(command: click.Command, name: str = "dpdist") -> Iterator[tuple[str, str]]:
    """Every command's help and its options' help, by the command's name."""
    yield name, command.help or ""
    for each in command.params:
        yield f"{name} {each.name}", getattr(each, "help", None) or ""
    for key, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{name} {key}")


def descriptions() -> Iterator[tuple[str, str]]:
    """Every description of the job's schema, by its key; what a job writes in braces is one word."""
    schema: dict[str, Any] = Job.model_json_schema()
    for part, each in [("job", schema), *schema["$defs"].items()]:
        for key, field in each.get("properties", {}).items():
            yield f"{part}.{key}", re.sub(r"\{.*?\}+", "code", field.get("description", ""))


def long(texts: Iterator[tuple[str, str]]) -> list[str]:
    return [name for name, text in texts for each in sentences(text) if len(words(each)) > LONGEST]


@pytest.mark.parametrize("texts", [lambda: helps(typer.main.get_command(app)), descriptions], ids=["help", "schema"])
def test_texts_are_short(texts: Any) -> None:
    """At most 35 words a sentence, 18 in the mean. Control: a long one is found."""
    lengths = [len(words(each)) for _, text in texts() for each in sentences(text)]
    assert len(lengths) > 50
    assert long(texts()) == []
    assert mean(lengths) <= MEAN
    assert long(iter([("x", "word " * 36 + "end.")])) == ["x"]


def test_every_option_says_what_it_is_for() -> None:
    assert [
        name for name, text in helps(typer.main.get_command(app)) if not text.strip() and not name.endswith(" help")
    ] == []
