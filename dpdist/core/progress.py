"""Progress events: counts, never data. All stages send them; `cli` listens. Secret numbers of records are hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol

from dpdist.core.cautions import Caution

NOTHING: Mapping[str, int | str] = {}


class Event(NamedTuple):
    """Reports that `done` of `total` units of a stage are finished; `total` is None if it is unknown.

    `share` is the share of the stage's projected work that is done, where units differ; of a `part` event it is that of the
    running unit. A `note` is a whole sentence. With `always`, quiet commands show it too. A `task` is one finished task:
    `seconds` is its time, and `unit` names its strata or blocks. A `work` event names the task that was submitted the
    longest ago. A `retry` counts tasks that were submitted again. An `alive` event shows that the run waits for tasks.
    `lost` counts a worker that died, with the task that `unit` names. An `again` event states that the workspace had its
    release before this run, and `held` that the release waits for a decision. A note on a `caution` also has its parts.
    """

    kind: Literal["begin", "advance", "part", "end", "note", "task", "work", "retry", "alive", "lost", "again", "held"]
    stage: str
    done: int = 0
    total: int | None = None
    note: str = ""
    unit: Mapping[str, int | str] = NOTHING
    seconds: float = 0.0
    always: bool = False
    share: float | None = None
    caution: Caution | None = None

    @property
    def sentence(self) -> str:
        """The event as a sentence, if it is one or can be said in one."""
        if self.kind == "lost":
            return f"A worker died{' in ' + unit_label(self.unit) if self.unit else ''}. Another worker repeats its task."
        if self.kind == "retry":
            many = "s were" if self.done > 1 else " was"
            return f"{self.done:,} task{many} submitted again, because the link to the scheduler, or a result, was lost."
        return self.note


SHOWN = ("begin", "advance", "part", "end", "note", "again", "lost", "retry")
"""Kinds of events that are shown to a person who waits."""


def unit_label(unit: Mapping[str, int | str]) -> str:
    """A task in words: its kind, and its strata or blocks. Which strata take the proper prior is not said."""
    if unit.get("fit") == "proper":
        return str(unit.get("task", "a task"))
    rest = ", ".join(f"{name} {value}" for name, value in unit.items() if name != "task")
    return f"{unit.get('task', 'a task')}{f' ({rest})' if rest else ''}"


def seconds_left(seconds: float, share: float) -> float | None:
    """Seconds that are left of a stage after `seconds`, of which this share of the work is done; None before any is."""
    return seconds * (1.0 - share) / share if 0.0 < share < 1.0 else None


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

    Events of stages in `PUBLIC_TOTALS` are passed on, without shares of work, which follow from sizes. Of other stages only
    begin and end are, without their totals. Of retries and lost workers, only their occurrence is passed on. `alive`
    events are always passed on.
    """

    reported: dict[str, int] = {}

    def hear(event: Event) -> None:
        if event.kind == "advance" and event.done == reported.get(event.stage):
            return  # no unit was finished, and the number of such events would reveal the number of blocks
        if event.kind in ("alive", "again") or event.stage in PUBLIC_TOTALS:
            reported[event.stage] = event.done
            listener(event if event.kind == "part" else event._replace(share=None))
        elif event.kind in ("retry", "lost"):
            listener(event._replace(done=1, unit=NOTHING))
        elif event.kind in ("begin", "end"):
            listener(event._replace(done=0, total=None))

    return hear


class Advance(Protocol):
    """Reports that units of a stage are finished, and how much of its projected work they were."""

    def __call__(self, units: int = 1, work_done: float = 0.0, /) -> None: ...


@contextmanager
def stage(listener: Listener, name: str, total: int | None, work: float = 0.0) -> Iterator[Advance]:
    """Announces a stage, and yields a function that reports finished units.

    `work` is the projected work of the units to do, in any unit of measure; 0 where units are alike. Within the block,
    `part` reports how much of a unit is done.
    """
    done, finished, most = 0, 0.0, 0.0

    def advance(units: int = 1, work_done: float = 0.0) -> None:
        nonlocal done, finished, most
        done, finished, most = done + units, finished + work_done, 0.0
        listener(Event("advance", name, done, total, share=min(1.0, finished / work) if work else None))

    def report(share: float) -> None:
        nonlocal most
        if share > most:  # work that is repeated shows nothing new
            most = share
            listener(Event("part", name, done, total, share=share))

    listener(Event("begin", name, 0, total))
    with reporting_parts(report):
        yield advance
    listener(Event("end", name, done, total))


_report: list[Callable[[float], None]] = []


@contextmanager
def reporting_parts(report: Callable[[float], None]) -> Iterator[None]:
    """Within the block, passes on what `part` reports in this process."""
    _report.append(report)
    try:
        yield
    finally:
        _report.remove(report)


def part(share: float) -> None:
    """Reports that this share of the running unit of work is done. It must not follow from a secret number of records."""
    if _report:
        _report[-1](share)


@contextmanager
def within(low: float, high: float) -> Iterator[None]:
    """The block is the work between two shares of the running unit: what it reports is moved between them."""
    if not _report:
        yield
        return
    outer = _report[-1]
    with reporting_parts(lambda share: outer(low + (high - low) * share)):
        yield
    outer(high)
