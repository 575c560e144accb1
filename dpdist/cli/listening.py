"""Chooses how a command shows its progress: bars, JSON lines, or sentences."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dpdist.cli.console import err
from dpdist.core.progress import SHOWN, Event, Listener


class _JsonLines:
    """Prints events as JSON lines on standard output."""

    def __enter__(self) -> Listener:
        def say(event: Event) -> None:
            if event.kind not in SHOWN:
                return
            said: dict[str, Any] = {"event": event.kind, "stage": event.stage, "done": event.done, "total": event.total}
            if event.note:
                said["note"] = event.note
            print(json.dumps(said), flush=True)

        return say

    def __exit__(self, *_: object) -> None:
        return None


class _Notes:
    """Prints only the notes of a run, which are whole sentences, on standard error; if quiet, those for `always` alone."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet

    def __enter__(self) -> Listener:
        def say(event: Event) -> None:
            if event.note and (event.always or not self._quiet):
                err.print(event.note, markup=False)

        return say

    def __exit__(self, *_: object) -> None:
        return None


class _Bars:
    """Shows a progress bar per stage on standard error, with counts and the time left."""

    def __enter__(self) -> Listener:
        self._progress = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=err,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()
        return self._say

    def _say(self, event: Event) -> None:
        if event.kind not in SHOWN:
            return
        if event.note:
            self._progress.console.print(event.note, markup=False)
            return
        if event.stage not in self._tasks or event.kind == "begin":
            self._tasks[event.stage] = self._progress.add_task(event.stage, total=event.total)
        total = event.done if event.kind == "end" else event.total
        self._progress.update(self._tasks[event.stage], completed=event.done, total=total)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def listening(quiet: bool, as_json: bool) -> _JsonLines | _Notes | _Bars:
    if as_json:
        return _JsonLines()
    if quiet:
        return _Notes(quiet)
    return _Bars() if sys.stderr.isatty() else _Notes()
