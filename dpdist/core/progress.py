"""Progress events: counts, never data. All stages send them; `cli` listens. Secret numbers of records are hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple

NOTHING: Mapping[str, int | str] = {}


class Event(NamedTuple):
    """Reports that `done` of `total` units of a stage are finished; `total` is None if it is unknown.

    A `note` is a whole sentence. With `always`, quiet commands show it too. A `task` is one finished task: `seconds` is its
    time, and `unit` names its strata or blocks. A `retry` counts tasks that were submitted again. An `alive` event shows
    that the run waits for tasks. `lost` counts a worker that died, with the task that `unit` names. An `again` event
    states that the workspace had its release before this run, and `held` that the release waits for a decision.
    """

    kind: Literal["begin", "advance", "end", "note", "task", "retry", "alive", "lost", "again", "held"]
    stage: str
    done: int = 0
    total: int | None = None
    note: str = ""
    unit: Mapping[str, int | str] = NOTHING
    seconds: float = 0.0
    always: bool = False


SHOWN = ("begin", "advance", "end", "note", "again")
"""Kinds of events that are shown to a person who waits."""


Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """A listener that ignores all events."""


PUBLIC_TOTALS = frozenset(
    {
        *(
            "check reference",
            "predict errors",
            "fit to reference",
            "store reference",
            "reference",
            "protect",
            "tables",
            "synthetic records",
            "audit",
            "check files",
        ),
        *("standard errors", "fit comparators", "evaluate", "ledger"),
    }
)
"""Stages whose number of units is public even where the number of records is secret.

Their units are tables, levels, or records of a reference.
"""


def without_sizes(listener: Listener) -> Listener:
    """Returns a listener that passes on only what reveals nothing about the number of records.

    Events of stages in `PUBLIC_TOTALS` are passed on. Of other stages only begin and end are, without their totals. Of
    retries, only their occurrence is passed on. `alive` events are always passed on.
    """

    reported: dict[str, int] = {}

    def hear(event: Event) -> None:
        if event.kind == "advance" and event.done == reported.get(event.stage):
            return  # no unit was finished, and the number of such events would reveal the number of blocks
        if event.kind in ("alive", "again") or event.stage in PUBLIC_TOTALS:
            reported[event.stage] = event.done
            listener(event)
        elif event.kind == "retry":
            listener(event._replace(done=1))
        elif event.kind in ("begin", "end"):
            listener(event._replace(done=0, total=None))

    return hear


@contextmanager
def stage(listener: Listener, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Announces a stage, and yields a function that reports finished units."""
    done = 0

    def advance(units: int = 1) -> None:
        nonlocal done
        done += units
        listener(Event("advance", name, done, total))

    listener(Event("begin", name, 0, total))
    yield advance
    listener(Event("end", name, done, total))
