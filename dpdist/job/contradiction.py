"""Defines a contradiction between keys of a job, with helpers that several checks use."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from dpdist.job.view import JobView

Path = tuple[str | int, ...]


class Contradiction(NamedTuple):
    """Keys of a job that do not go together: the path of the key to change, what is wrong, and how to mend it."""

    where: Path
    found: str
    remedy: str
    allowed: str = ""
    """The values that are allowed; empty if the remedy names them."""


def declared(job: JobView) -> tuple[str, ...]:
    """The outcomes that the job declares as columns."""
    return tuple(name for name in job.outcomes if name in job.columns)


def near_column(job: JobView, name: str) -> str | None:
    """The declared column whose name is nearest to an undeclared one; None if none is near. Capitals do not count."""
    names = {column.casefold(): column for column in job.columns}
    near = get_close_matches(name.casefold(), list(names), n=1)
    return names[near[0]] if near else None


def listed(values: Sequence[object], most: int = 8) -> str:
    """The first values of a public list as text."""
    return ", ".join(map(str, values[:most])) + (", …" if len(values) > most else "")
