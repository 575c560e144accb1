"""Progress as events; who listens (a bar, JSON lines, nobody) is the caller's choice. Events carry counts, never data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple


class Event(NamedTuple):
    """`done` of `total` units (total None: unknown) of a stage; a note is a finished sentence."""

    kind: Literal["begin", "advance", "end", "note"]
    stage: str
    done: int = 0
    total: int | None = None
    note: str = ""


Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Nobody listens."""


@contextmanager
def stage(listener: Listener, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Announce a stage; yields a function that advances it."""
    done = 0

    def advance(units: int = 1) -> None:
        nonlocal done
        done += units
        listener(Event("advance", name, done, total))

    listener(Event("begin", name, 0, total))
    yield advance
    listener(Event("end", name, done, total))
