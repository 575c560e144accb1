"""Progress events for any listener (a bar, JSON lines, nobody). Events carry counts, never data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple

NOTHING: Mapping[str, int | str] = {}


class Event(NamedTuple):
    """`done` of `total` units (total None: unknown) of a stage; a note is a finished sentence.

    A `task` is one finished task of `seconds`, its `unit` says of which strata or blocks; a `retry` counts tasks submitted
    again; `alive` says that the run waits for tasks.
    """

    kind: Literal["begin", "advance", "end", "note", "task", "retry", "alive"]
    stage: str
    done: int = 0
    total: int | None = None
    note: str = ""
    unit: Mapping[str, int | str] = NOTHING
    seconds: float = 0.0


SHOWN = ("begin", "advance", "end", "note")
"""Kinds of events that a person waits for."""


Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Nobody listens."""


PUBLIC_TOTALS = frozenset(
    {
        *("check reference", "fit to reference", "store reference", "reference", "protect", "tables", "synthetic records"),
        *("standard errors", "fit comparators", "evaluate", "ledger"),
    }
)
"""Stages whose units are public where the number of records is secret: tables, levels, a reference's records."""


def without_sizes(listener: Listener) -> Listener:
    """A listener that learns nothing of how many records there are: of other stages only that they begin and end, and of
    tasks nothing, for these are cut by records."""

    reported: dict[str, int] = {}

    def hear(event: Event) -> None:
        if event.kind == "advance" and event.done == reported.get(event.stage):
            return  # of no unit: their number would tell of blocks
        if event.kind == "alive" or event.stage in PUBLIC_TOTALS:
            reported[event.stage] = event.done
            listener(event)
        elif event.kind == "retry":
            listener(event._replace(done=1))
        elif event.kind in ("begin", "end"):
            listener(event._replace(done=0, total=None))

    return hear


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
