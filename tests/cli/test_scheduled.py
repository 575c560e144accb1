"""Runs that a schedule starts: a new folder for every period, and no green run that has released nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from canaries import spelled, survey
from click.testing import Result
from command_line import invoke
from public_files import statement_of

from dpdist.cli.observing import read_status
from dpdist.cli.scheduled import last_period, time_of
from dpdist.core.errors import JobError

LATER = (datetime.now(UTC) + timedelta(days=3)).isoformat()
EARLIER = (datetime.now(UTC) - timedelta(days=3)).isoformat()


def run(job: Path, *arguments: object, env: dict[str, str] | None = None) -> Result:
    return invoke("run", job, *arguments, env=env)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A job, and the workspace of its finished run."""
    folder = tmp_path_factory.mktemp("released")
    job = survey(folder)
    first = run(job, "-w", folder / "work", "--quiet")
    assert (first.exit_code, first.output) == (0, "")
    return job, folder / "work"


def test_a_run_on_a_finished_workspace_says_that_it_released_nothing_new(released: tuple[Path, Path]) -> None:
    job, work = released
    today = datetime.now(UTC).date().isoformat()
    again = run(job, "-w", work, "--quiet")
    assert again.exit_code == 0
    assert again.stderr.startswith(f"Nothing new was released: this workspace already contains a release, made on {today}")
    assert "{{period}}" in again.stderr
    headline = run(job, "-w", work).stdout.partition(":")[0]
    assert headline.startswith("Already released "), "nothing that reads like a new release"
    events = [json.loads(line) for line in run(job, "-w", work, "--json").stdout.splitlines()]
    assert [event["event"] for event in events if event["event"] in ("again", "done")] == ["again", "done"]
    assert spelled(again.stderr) == []


def test_a_scheduled_run_that_released_nothing_fails(released: tuple[Path, Path]) -> None:
    job, work = released
    ended = run(job, "-w", work, "--quiet", "--scheduled", LATER)
    assert ended.exit_code == 5
    assert "nothing was released" in ended.stderr
    assert "remedy" in ended.stderr
    assert read_status(work)["state"] == "failed"
    of_a_cron_job = {"DPDIST_SCHEDULED": f"dpdist-release-{int(datetime.fromisoformat(LATER).timestamp()) // 60}"}
    assert run(job, "-w", work, "--quiet", env=of_a_cron_job).exit_code == 5


def test_control_a_scheduled_run_that_is_tried_again_after_its_own_release_ends_well(released: tuple[Path, Path]) -> None:
    job, work = released
    assert run(job, "-w", work, "--quiet", "--scheduled", EARLIER).exit_code == 0


def test_control_an_unfinished_workspace_is_finished_at_any_time(tmp_path: Path) -> None:
    ended = run(survey(tmp_path), "-w", tmp_path / "work", "--quiet", "--scheduled", LATER)
    assert (ended.exit_code, ended.output) == (0, "")


def quarterly(folder: Path, periods: Sequence[str]) -> Path:
    """A job that reads the file of its period, with the files of these periods."""
    job = survey(folder)
    keys: dict[str, Any] = yaml.safe_load(job.read_text())
    for period in periods:
        (folder / f"canaries-{period}.parquet").write_bytes((folder / "canaries.parquet").read_bytes())
    keys["input"]["path"] = "canaries-{{period}}.parquet"
    job.write_text(yaml.safe_dump(keys))
    return job


def test_a_schedule_gives_each_quarter_its_file_and_its_folder(tmp_path: Path) -> None:
    job = quarterly(tmp_path, ["2026-Q2", "2026-Q3"])
    places = ["-w", tmp_path / "{{period}}", "--period", "quarter", "--quiet"]
    july = run(job, *places, "--scheduled", "2026-07-01T02:30:00Z")
    october = run(job, *places, "--scheduled", "2026-10-01T02:30:00Z")
    assert (july.exit_code, july.output, october.exit_code, october.output) == (0, "", 0, "")
    periods = [statement_of(tmp_path / name)["period"] for name in QUARTERS]
    assert periods == list(QUARTERS)
    january = run(job, *places, "--scheduled", "2027-01-01T02:30:00Z")
    assert january.exit_code == 2
    assert "canaries-2026-Q4.parquet" in january.stderr
    assert not (tmp_path / "2026-Q4").exists()


QUARTERS = ("2026-Q2", "2026-Q3")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"path": "canaries.parquet"}, "input.path"),
        ({"folder": "work"}, "--workspace"),
        ({"length": "week"}, "--period"),
        ({"scheduled": "yesterday at noon"}, "--scheduled"),
    ],
)
def test_a_schedule_that_would_release_one_file_again_is_refused(
    tmp_path: Path, change: dict[str, str], named: str
) -> None:
    job = quarterly(tmp_path, ["2026-Q3"])
    path = ["--set", f"input.path={tmp_path / change['path']}"] if "path" in change else []
    workspace = tmp_path / change.get("folder", "{{period}}")
    times = ["--period", change.get("length", "quarter"), "--scheduled", change.get("scheduled", "2026-10-01")]
    ended = run(job, "-w", workspace, "--quiet", *path, *times)
    assert ended.exit_code == 2
    assert named in ended.stderr
    assert not (tmp_path / "2026-Q3").exists()
    assert run(job, "-w", tmp_path / "{{period}}", "--period", "quarter", "--scheduled", "2026-10-01").exit_code == 0


def test_the_jobs_own_period_names_file_and_folder(tmp_path: Path) -> None:
    job = quarterly(tmp_path, ["2020"])
    assert run(job, "-w", tmp_path / "of-{{period}}", "--quiet").exit_code == 0
    assert (tmp_path / "of-2020" / "public" / "manifest.json").is_file()
    outside = run(job, "-w", tmp_path / "of-{{period}}", "--quiet", "--set", "period=../2020")
    assert outside.exit_code == 2
    assert "{{period}}" in outside.stderr


@pytest.mark.parametrize(
    ("length", "time", "period"),
    [
        ("quarter", "2026-10-01T02:30:00Z", "2026-Q3"),
        ("quarter", "2026-12-31T23:59:59Z", "2026-Q3"),
        ("quarter", "2026-01-01T00:00:00Z", "2025-Q4"),
        ("month", "2026-01-15T00:00:00Z", "2025-12"),
        ("month", "2026-10-01T00:00:00Z", "2026-09"),
        ("year", "2026-10-01T00:00:00Z", "2025"),
    ],
)
def test_a_period_is_the_last_one_that_ended_before_the_schedule(length: str, time: str, period: str) -> None:
    assert last_period(length, datetime.fromisoformat(time)) == period


def test_a_cron_jobs_name_tells_its_time_whenever_its_pod_starts() -> None:
    assert time_of("dpdist-release-29713110") == datetime.fromtimestamp(29713110 * 60, UTC)
    assert time_of("2026-10-01T02:30:00+02:00") == datetime(2026, 10, 1, 0, 30, tzinfo=UTC)
    by_hand = time_of("release-by-hand")
    assert abs(by_hand - datetime.now(UTC)) < timedelta(minutes=1)
    with pytest.raises(JobError, match="--scheduled"):
        time_of("2026-13-01")
