"""Defines a contradiction between keys of a job, and helpers that several checks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dpdist.job.view import JobView

Path = tuple[str | int, ...]


class Contradiction(NamedTuple):
    """Keys of a job that do not go together: the path of the one to change, what is wrong, how to mend it."""

    where: Path
    found: str
    remedy: str
    allowed: str = ""
    """What may stand there, where the remedy does not say it already."""


def declared(job: JobView) -> tuple[str, ...]:
    """Returns the outcomes that are columns of the file."""
    return tuple(name for name in job.outcomes if name in job.columns)


def listed(values: Sequence[object], most: int = 8) -> str:
    """Formats the first values of a public list."""
    return ", ".join(map(str, values[:most])) + (", …" if len(values) > most else "")
