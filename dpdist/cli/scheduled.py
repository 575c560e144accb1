"""Runs that a schedule starts. The time of the schedule names the period, its input and its folder."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from dpdist.core.errors import DpdistError, JobError, Problem
from dpdist.core.progress import Event, Listener

Scheduled = Annotated[
    str | None,
    typer.Option(
        "--scheduled",
        envvar="DPDIST_SCHEDULED",
        help="Scheduled time, or name of its Kubernetes Job.",
    ),
]
Period = Annotated[
    str | None,
    typer.Option(
        "--period",
        help="Use the last year, quarter or month before --scheduled.",
    ),
]
_MONTHS = {"year": 12, "quarter": 3, "month": 1}
_OF_CRON_JOB = re.compile(r"[a-z].*-(\d{8,10})")
"""Name of a Job that a CronJob made: it ends with the minutes from 1970 to the time of the schedule."""
_OBJECT_NAME = re.compile(r"[a-z][a-z0-9.-]*")


def time_of(text: str) -> datetime:
    """Returns the time of a schedule, from an ISO text or from the name of a CronJob's Job.

    A Job that was made by hand has another name, and begins now. Raises `JobError`.
    """
    if (minutes := _OF_CRON_JOB.fullmatch(text)) is not None:
        return datetime.fromtimestamp(60 * int(minutes[1]), UTC)
    if _OBJECT_NAME.fullmatch(text):
        return datetime.now(UTC)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        allowed = "a time such as 2026-10-01T02:30:00Z, or the name of a Job"
        raise JobError.of("run", "--scheduled", f"'{text:.80}'", allowed, "write one of these") from None
    return time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)


def last_period(length: str, time: datetime) -> str:
    """Returns the last year (2025), quarter (2026-Q3) or month (2026-09) that ended before this time, as SDMX writes it."""
    months = _MONTHS[length]
    first = time.replace(month=(time.month - 1) // months * months + 1, day=1)
    last = first - timedelta(days=1)
    return {"year": f"{last:%Y}", "quarter": f"{last:%Y}-Q{(last.month + 2) // 3}", "month": f"{last:%Y-%m}"}[length]


def settings_of(
    job: str, settings: list[str] | None, period: str | None, scheduled: str | None, workspace: str, input: Path | None
) -> list[str] | None:
    """Adds the period that the schedule names to the job's settings. Without `period` it changes nothing.

    Raises `JobError` if every period would release the same file, or use the same folder.
    """
    if period is None:
        return settings
    from dpdist.job.loading import PERIOD, resolve
    from dpdist.job.yaml_lines import keys_of

    problems = []
    if period not in _MONTHS:
        problems.append(Problem("--period", f"'{period:.80}'", ", ".join(_MONTHS), "write one of these"))
    if PERIOD not in workspace:
        fault, allowed = "one folder for every period", f"a folder whose name has {PERIOD}"
        problems.append(Problem("--workspace", fault, allowed, f"write --workspace 'releases/{PERIOD}'"))
    path = input or keys_of(resolve(job, settings).keys.get("input")).get("path")
    if path is not None and PERIOD not in str(path):
        fault = "the same file for every period: its records would be released, and charged, again"
        remedy = f"name the file of the period, such as survey-{PERIOD}.parquet"
        problems.append(Problem("--input" if input else "input.path", fault, f"a path with {PERIOD}", remedy))
    if problems:
        raise JobError("run", problems)
    time = time_of(scheduled) if scheduled is not None else datetime.now(UTC)
    return [*(settings or ()), f'period="{last_period(period, time)}"']


class NothingReleased(DpdistError):
    """A run that a schedule started has released nothing: its workspace had its release before. Nothing was spent."""

    exit_code = 5

    def __init__(self, workspace: str, date: str, time: str):
        from dpdist.job.loading import PERIOD

        remedy = f"name a new period, its input, and a workspace with {PERIOD} in its name; or give --period quarter"
        super().__init__(
            f"nothing was released: workspace {workspace} has the release of the run of {date}, and the scheduled time is "
            f"{time} UTC\n    remedy:  {remedy}"
        )


class Heard:
    """Listens to a run for its notes, and for the date of a release that the workspace had before."""

    def __init__(self, listener: Listener) -> None:
        self._listener, self.date = listener, ""
        self.notes = set[str]()

    def hear(self, event: Event) -> None:
        if event.kind == "note":
            self.notes.add(event.note)
        if event.kind == "again":
            self.date = str(event.unit["date"])
        self._listener(event)

    def refuse(self, scheduled: str | None, workspace: str) -> None:
        """Raises `NothingReleased` if the workspace's run began before the day of the schedule, and had its release.

        A later run is the schedule's own, which is tried again after its release.
        """
        if scheduled is not None and self.date and self.date < (time := time_of(scheduled)).date().isoformat():
            raise NothingReleased(workspace, self.date, f"{time:%Y-%m-%d %H:%M}")
