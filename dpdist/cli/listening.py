"""Progress of a run in the terminal, as bars, JSON lines or sentences."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from math import inf
from typing import Any, TextIO

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from dpdist.cli.caution_lines import caution_lines
from dpdist.cli.console import err
from dpdist.core.cautions import Caution
from dpdist.core.progress import SHOWN, Event, Listener, seconds_left, unit_label

FIRST, EVERY = 1.0, 10.0
"""Seconds until a running command reports its state, and between later reports."""
BETWEEN = "working"
"""The stage of a command when one stage has ended and the next has not begun."""


class _State:
    """A command's progress: the stage, its units, and seconds since both began. One thread writes it, another reads it."""

    def __init__(self) -> None:
        self._command = time.monotonic()
        self._stage: tuple[str, int, int | None, float] | None = None
        self._share: float | None = None
        """Share of the stage's projected work that is done, where its units differ."""
        self._part = 0.0
        """Share of the running unit that is done."""
        self._work: tuple[str, float] | None = None

    def hear(self, event: Event) -> None:
        if event.kind in ("begin", "advance"):
            before, continues = self._stage, event.kind == "advance"
            began = before[3] if before is not None and continues and before[0] == event.stage else time.monotonic()
            self._stage, self._part = (event.stage, event.done, event.total, began), 0.0
            self._share = event.share
        # With a projected share, a unit's part counts only if the unit is all of its stage.
        elif event.kind == "part" and event.share is not None and (event.total == 1 or self._share is None):
            self._part = event.share
        elif event.kind == "work":
            self._work = unit_label(event.unit), time.monotonic()
        elif event.kind == "end":
            self._stage, self._share, self._part, self._work = (BETWEEN, 0, None, time.monotonic()), None, 0.0, None

    @property
    def started(self) -> bool:
        """True once a stage has begun; before that, a command imports what it needs."""
        return self._stage is not None

    @property
    def figures(self) -> dict[str, Any]:
        """Stage, units and whole seconds, as a JSON event has them.

        `share` and `left` are estimates, if they can be made. `work` is the task that runs the longest.
        """
        now = time.monotonic()
        if (stage := self._stage) is None:
            return {"stage": "start", "done": 0, "total": None, "seconds": round(now - self._command)}
        name, done, total, began = stage
        state: dict[str, Any] = {"stage": name, "done": done, "total": total, "seconds": round(now - began)}
        if total is not None and done < total:
            share = (done + self._part) / total if self._share is None else max(self._share, self._part)
            if self._share is not None or self._part:
                state["share"] = round(share, 3)
            if (seconds := seconds_left(now - began, share)) is not None:
                state["left"] = round(seconds)
        if self._work is not None:
            state["work"] = f"{self._work[0]}, for {now - self._work[1]:,.0f} s"
        return state


def line_of(state: Mapping[str, Any]) -> str:
    """A state in words: what is done, how far, and how long."""
    of = "" if state["total"] is None else f" of {state['total']:,}"
    share = f" ({100 * state['share']:.0f} % of the work)" if "share" in state else ""
    far = "" if state["total"] is None and not state["done"] else f"{state['done']:,}{of} done{share}, "
    rest = f", about {state['left']:,} s left" if "left" in state else ""
    rest += f"; now {state['work']}" if "work" in state else ""
    return f"{state['stage']}: {far}{state['seconds']:,} s elapsed{rest}"


class _Periodic:
    """Listens to a command, and prints its progress after `first` seconds, then at every `interval`.

    While no stage has begun, it looks every `first` seconds, so that the first stage is soon named. A thread prints, even
    during a long step without events. A command that ends sooner prints nothing.
    """

    def __init__(self, first: float = FIRST, interval: float = EVERY) -> None:
        self._first, self._interval = first, interval

    def __enter__(self) -> Listener:
        self._state, self._ended = _State(), threading.Event()
        self._thread = threading.Thread(target=self._speak, name="progress", daemon=True)
        self._thread.start()
        return self._hear

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _hear(self, event: Event) -> None:
        self._state.hear(event)
        self.show(event)

    def _speak(self) -> None:
        pause, due = self._first, -inf
        while not self._ended.wait(pause):
            started = self._state.started
            if started or time.monotonic() >= due:
                try:
                    self.say(self._state.figures)
                except (OSError, ValueError):  # nobody reads: the pipe is broken, or the stream is closed
                    return
                due = time.monotonic() + self._interval
            pause = self._interval if started else self._first

    def show(self, event: Event) -> None:
        raise NotImplementedError

    def say(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


class _JsonLines(_Periodic):
    """Prints events as JSON lines."""

    def __init__(self, stream: TextIO, first: float = FIRST, interval: float = EVERY) -> None:
        super().__init__(first, interval)
        self._stream = stream

    def show(self, event: Event) -> None:
        if event.kind not in SHOWN:
            return
        line: dict[str, Any] = {"event": event.kind, "stage": event.stage, "done": event.done, "total": event.total}
        if event.share is not None:
            line["share"] = round(event.share, 3)
        if event.sentence:
            line["note"] = event.sentence
        self._print(line)

    def say(self, state: Mapping[str, Any]) -> None:
        self._print({"event": "alive", **state})

    def _print(self, event: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(event) + "\n")
        self._stream.flush()


class _Sentences:
    """Prints notes on standard error; cautions that follow each other take few lines, before the next event."""

    def __init__(self) -> None:
        self._cautions: list[Caution] = []

    def hear(self, event: Event) -> None:
        if event.caution is not None:
            self._cautions.append(event.caution)
            return
        self.finish()
        if event.sentence:
            err.print(event.sentence, markup=False)

    def finish(self) -> None:
        cautions, self._cautions = self._cautions, []
        for line in caution_lines(cautions, err.width):
            err.print(line, markup=False)


class _Lines(_Periodic):
    """Prints notes, which are whole sentences, and lines on the state, on standard error."""

    def __init__(self, first: float = FIRST, interval: float = EVERY) -> None:
        super().__init__(first, interval)
        self._sentences = _Sentences()

    def __exit__(self, *_: object) -> None:
        super().__exit__(*_)
        self._sentences.finish()

    def show(self, event: Event) -> None:
        self._sentences.hear(event)

    def say(self, state: Mapping[str, Any]) -> None:
        err.print(line_of(state), markup=False)


def _say_if_always(event: Event) -> None:
    """Prints the notes that are for `always`, on standard error."""
    if event.sentence and event.always:
        err.print(event.sentence, markup=False)


class _TimeLeft(ProgressColumn):
    """The time that is left of a stage, by the share of its work that is done."""

    def render(self, task: Task) -> Text:
        seconds = task.fields["state"].figures.get("left")
        return Text("-:--:--" if seconds is None else str(timedelta(seconds=seconds)), style="progress.remaining")


class _Bars:
    """Shows a progress bar per stage on standard error, with counts and the time left."""

    def __enter__(self) -> Listener:
        self._progress = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            _TimeLeft(),
            console=err,
        )
        self._tasks: dict[str, TaskID] = {}
        self._sentences = _Sentences()
        self._progress.start()
        return self._say

    def _say(self, event: Event) -> None:
        if event.kind not in SHOWN:
            return
        self._sentences.hear(event)
        if event.sentence:
            return
        if event.stage not in self._tasks or event.kind == "begin":
            self._tasks[event.stage] = self._progress.add_task(event.stage, total=event.total, state=_State())
        bar = self._progress.tasks[self._tasks[event.stage]]
        bar.fields["state"].hear(event)
        total = event.done if event.kind == "end" else event.total
        self._progress.update(bar.id, completed=event.done, total=total)

    def __exit__(self, *_: object) -> None:
        self._sentences.finish()
        self._progress.stop()


def listening(quiet: bool, as_json: bool = False, answers: bool = False) -> AbstractContextManager[Listener]:
    """Shows progress as JSON lines, as bars on a terminal, else as lines; `quiet` shows only notes marked `always`.

    JSON lines go to standard output, or to standard error beside a verb that `answers` with one document.
    """
    if as_json:
        return _JsonLines(sys.stderr if answers else sys.stdout)
    if quiet:
        return nullcontext(_say_if_always)
    return _Bars() if sys.stderr.isatty() else _Lines()
