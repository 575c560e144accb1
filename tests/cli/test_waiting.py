"""Whoever waits for a command sees within seconds what it does, how far it is and how long it takes."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import invoke
from sized_package import sets_of_columns, sized_job
from small_release import JOB, survey

import dpdist
from dpdist.audit.auditing import bound_from_outside
from dpdist.cli.listening import FIRST, _JsonLines, _Lines, _State, line_of
from dpdist.core.progress import Event, Listener, part, reporting_parts, stage, within, without_sizes

ROWS = 1_500_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated file that takes seconds to check, and a job."""
    folder = tmp_path_factory.mktemp("large")
    rng, rows = np.random.default_rng(1), np.arange(ROWS)
    frame = pd.DataFrame({"field": np.where(rows % 3 == 0, "arts", "law"), "sex": np.where(rows % 2 == 0, "f", "m")})
    frame = frame.assign(salary=rng.uniform(1e4, 1e5, ROWS), weight=rng.uniform(1.0, 60.0, ROWS))
    frame.to_parquet(folder / "survey.parquet")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    return folder


def test_validate_says_what_it_does_before_its_work_ends(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come from a twentieth of a second on, in place of a second. Control: before an hour there is none."""
    for first, shown in ((0.05, True), (3600.0, False)):
        monkeypatch.setattr(_Lines.__init__, "__defaults__", (first, 10.0))
        done = invoke("validate", large / "job.yaml", "--input", large / "survey.parquet")
        assert "The job is valid" in done.output
        assert bool(re.search(r" \d+ s elapsed.*The job is valid", done.output, re.DOTALL)) == shown, done.output


def test_events_of_validate_say_how_far_it_is(large: Path) -> None:
    done = invoke("validate", large / "job.yaml", "--input", large / "survey.parquet", "--json")
    assert json.loads(done.stdout)["valid"] is True
    events = [event for line in done.stderr.splitlines() if (event := json.loads(line))["event"] != "alive"]
    assert (events[0]["event"], events[0]["stage"], events[0]["total"]) == ("begin", "check records", ROWS)
    steps = [event["done"] for event in events if event["event"] == "advance"]
    assert steps == sorted(steps)
    assert len(steps) > 10
    assert steps[-1] == ROWS


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said = list[str]()
    monkeypatch.setattr(_Lines, "say", lambda self, state: said.append(line_of(state)))
    return said


def waited(condition: object, most: float = 20.0) -> None:
    """Waits until a condition holds, as long as a loaded machine may need."""
    until = time.monotonic() + most
    while not condition() and time.monotonic() < until:  # type: ignore[operator]
        time.sleep(0.01)


def test_a_long_step_without_events_is_no_silence(lines: list[str]) -> None:
    with _Lines(first=0.01, interval=0.01) as listener:
        waited(lambda: lines)
        assert lines[0].startswith("start: 0 s elapsed")
        with stage(listener, "fit", 4) as tick:
            tick(1)
            lines.clear()
            waited(lambda: len(lines) > 2)
            assert lines[-1].startswith("fit: 1 of 4 done, 0 s elapsed")
        lines.clear()
        waited(lambda: len(lines) > 2)
    assert lines[-1].startswith("working: 0 s elapsed"), "a stage that has ended is not named"
    assert not any(thread.name == "progress" for thread in threading.enumerate()), "nothing is left running"


@pytest.mark.parametrize(("interval", "most"), [(60.0, 1), pytest.param(0.01, None, id="control")])
def test_a_slow_start_is_said_once_an_interval_and_its_first_stage_soon(
    lines: list[str], interval: float, most: int | None
) -> None:
    """While modules were imported on a busy machine, `start` came every second."""
    with _Lines(first=0.01, interval=interval) as listener:
        waited(lambda: len(lines) > 3, 0.3 if most is not None else 20.0)
        assert len(lines) == most if most is not None else len(lines) > 3
        with stage(listener, "fit", 4):
            waited(lambda: lines[-1].startswith("fit"))
            assert lines[-1].startswith("fit: 0 of 4")


def test_a_command_that_is_short_says_nothing(lines: list[str]) -> None:
    with _Lines(first=60.0) as listener, stage(listener, "fit", 1) as tick:
        tick(1)
    assert lines == []
    assert FIRST <= 1.0


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ValueError("I/O operation on closed file")])
def test_nobody_who_reads_is_no_error_of_the_thread_that_says_progress(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: _Lines, state: object) -> None:
        raise error

    died = list[object]()
    monkeypatch.setattr(threading, "excepthook", died.append)
    monkeypatch.setattr(_Lines, "say", fail)
    with _Lines(first=0.01, interval=0.01):
        waited(lambda: not any(thread.name == "progress" for thread in threading.enumerate()))
        assert not any(thread.name == "progress" for thread in threading.enumerate()), "it ends"
    assert died == []


def test_the_time_that_is_left_follows_from_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    state = _State()
    state.hear(Event("begin", "replicates", 0, 500))
    now[0] += 60.0
    state.hear(Event("advance", "replicates", 120, 500))
    assert line_of(state.figures) == "replicates: 120 of 500 done, 60 s elapsed, about 190 s left"
    state.hear(Event("begin", "calibrate", 0, None))
    now[0] += 2.0
    assert line_of(state.figures) == "calibrate: 2 s elapsed"
    state.hear(Event("advance", "calibrate", 7, None))
    assert line_of(state.figures) == "calibrate: 7 done, 2 s elapsed"


def test_progress_shows_no_secret_size(capsys: pytest.CaptureFixture[str], lines: list[str]) -> None:
    """Control: without the guard both forms show it."""
    for guarded in (True, False):
        lines.clear()
        with _Lines(first=0.01, interval=0.01) as plain, _JsonLines(sys.stdout, first=0.01, interval=0.01) as as_json:

            def hear(event: Event, plain=plain, as_json=as_json) -> None:
                plain(event)
                as_json(event)

            with stage(without_sizes(hear) if guarded else hear, "check records", 4711) as tick:
                tick(1234)
                lines.clear()
                waited(lambda: len(lines) > 3)
        shown = "\n".join(lines) + capsys.readouterr().out
        assert ("4,711" in shown or "4711" in shown or "1234" in shown) is not guarded
        assert "check records" in shown


SECRET = JOB.replace('budget: {epsilon: "3"}', 'budget: {epsilon: "3", adjacency: add_remove}').replace(
    "outcome: salary\n", "outcome: salary\npredictors: {protect: {}}\n"
)
SECRET = SECRET.replace("strata: [field]\n", "")


SUMS = JOB.replace("{name: tables}", "{name: modips, law: lognormal}").replace("bounds: [0,", "bounds: [1,")
"""The small job under a mechanism whose releases take milliseconds to draw."""
PROTECTED = '{epsilon: "3", adjacency: add_remove}\npredictors: {protect: {epsilon: "1"}}'


def referred(folder: Path) -> str:
    """An earlier file, which `tables` needs where numbers of records are secret."""
    survey(800).to_parquet(folder / "earlier.parquet")
    return f"reference: {{path: {folder}/earlier.parquet}}\n"


@pytest.mark.parametrize("what", ["validate", "audit"])
def test_no_event_of_a_job_with_secret_sizes_has_a_size(what: str, tmp_path: Path) -> None:
    survey(733).to_parquet(tmp_path / "survey.parquet")
    text = SECRET + referred(tmp_path) if what == "validate" else SUMS.replace('{epsilon: "3"}', PROTECTED)
    job, events = dpdist.parse_job(text), list[Event]()
    assert job.sizes_secret
    if what == "validate":
        dpdist.validate(job, tmp_path / "survey.parquet", events.append)
    else:
        dpdist.run(job, tmp_path / "ws", tmp_path / "survey.parquet")
        bound_from_outside(tmp_path / "ws", 200, events.append)
    assert events
    # The reference is public, and so is its number of records.
    of_file = [event for event in events if event.stage != "check reference"]
    assert not [event for event in of_file if event.done > 10 or (event.total or 0) > 10 or "733" in event.note]


def test_an_audit_announces_what_it_checks(tmp_path: Path) -> None:
    survey(200).to_parquet(tmp_path / "survey.parquet")
    dpdist.run(dpdist.parse_job(SUMS), tmp_path / "ws", tmp_path / "survey.parquet")
    done = invoke("audit", tmp_path / "ws", "--draws", "200", "--json")
    events = [event for line in done.stdout.splitlines() if (event := json.loads(line))["event"] != "alive"]
    stages = [event["stage"] for event in events if event["event"] == "begin"]
    assert stages == ["check files", "audit"]
    assert events[0]["event"] == "begin"
    assert "confidential/evaluation" in events[-1].get("tables", "") or events[-1]["event"] == "failed"


def test_the_time_that_is_left_weighs_units_by_their_projected_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stratum of 60,000 records took 6 of 10 s, and 119 of 100 the rest: 669 s were said to be left after the first."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    state = _State()
    with stage(state.hear, "protect", 120, 10.0) as tick:
        tick(0)
        now[0] += 6.0
        tick(1, 6.0)
        assert line_of(state.figures) == "protect: 1 of 120 done (60 % of the work), 6 s elapsed, about 4 s left"
        now[0] += 2.0
        tick(59, 2.0)
        assert line_of(state.figures) == "protect: 60 of 120 done (80 % of the work), 8 s elapsed, about 2 s left"


def test_a_run_with_one_large_stratum_foresees_its_time(tmp_path: Path) -> None:
    """Its share of the projected work counts, and not its number of one in 61 (control)."""
    sizes = [60_000, *([100] * 60)]
    rng, levels = np.random.default_rng(2), [f"s{k:02}" for k in range(len(sizes))]
    frame = pd.DataFrame({"field": np.repeat(levels, sizes)})
    frame = frame.assign(salary=rng.lognormal(11.0, 0.4, len(frame)), weight=rng.uniform(5.0, 50.0, len(frame)))
    frame.to_parquet(tmp_path / "survey.parquet")
    seen = list[tuple[float, Event]]()
    dpdist.run(LARGE_STRATUM.format(levels=levels), tmp_path / "work", tmp_path / "survey.parquet", listener=noted(seen))
    events = [(when, event) for when, event in seen if event.stage == "protect"]
    first = next(event for _, event in events if event.done and event.share)
    assert first.share is not None
    assert 0.2 < first.share < 0.9
    assert first.share > 10 * first.done / len(sizes)


def noted(seen: list[tuple[float, Event]]) -> Listener:
    return lambda event: seen.append((time.monotonic(), event))


LARGE_STRATUM = """
dataset: large_stratum
period: "2021"
columns:
  field: {{levels: {levels}}}
  salary: {{bounds: [0, 1000000]}}
survey: {{weight: weight}}
strata: [field]
outcome: salary
model: {{family: lognormal}}
mechanism: {{name: weighted}}
budget: {{epsilon: "10.8"}}
sampler: {{name: exact, draws: 1000}}
synthetic_sets: 1
record: {{log_lik: never}}
tables:
  - {{name: salaries, by: [field], statistics: [count]}}
runtime: {{executor: serial}}
"""


def test_a_part_of_the_running_unit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    state = _State()
    with stage(state.hear, "reference", 1):
        state.hear(Event("work", "", unit={"task": "LearnOne", "key": 0}))
        assert line_of(state.figures) == "reference: 0 of 1 done, 0 s elapsed; now LearnOne (key 0), for 0 s"
        now[0] += 30.0
        part(0.25)
        said = "reference: 0 of 1 done (25 % of the work), 30 s elapsed, about 90 s left; now LearnOne (key 0), for 30 s"
        assert line_of(state.figures) == said
    part(0.5)
    assert line_of(state.figures) == "working: 0 s elapsed", "outside of a stage, a part is nobody's"


def test_shares_of_work_and_tasks_are_not_shown_where_sizes_are_secret() -> None:
    heard = list[Event]()
    with stage(without_sizes(heard.append), "protect", 2, 7.0) as tick:
        tick(1, 6.5)
        part(0.5)
    listener = without_sizes(heard.append)
    listener(Event("work", "", unit={"task": "VisitPart", "block": 64}))
    listener(Event("lost", "", unit={"task": "VisitPart", "block": 64}))
    assert [(event.kind, event.share) for event in heard] == [
        ("begin", None),
        ("advance", None),
        ("part", 0.5),
        ("end", None),
        ("lost", None),
    ]
    assert all(not event.unit for event in heard)
    assert heard[-1].sentence == "A worker died. Another worker repeats its task."


def test_steps_within_a_part_of_the_work_add_up_to_it() -> None:
    heard = list[float]()
    with reporting_parts(lambda share: heard.append(round(share, 3))):
        with within(0.0, 0.5):
            part(0.5)
        with within(0.5, 1.0):
            for number in range(2):
                with within(number / 2, (number + 1) / 2):
                    part(0.5)
    assert heard == [0.25, 0.5, 0.625, 0.75, 0.875, 1.0, 1.0]
    with within(0.0, 0.5):
        part(1.0)
    assert len(heard) == 7, "without a listener, nothing is reported"
    with suppress(ZeroDivisionError), reporting_parts(heard.append), within(0.0, 0.5):
        raise ZeroDivisionError
    heard.clear()
    part(0.5)
    assert heard == [], "an error in a loop leaves no listener"


def test_the_long_stages_of_a_package_show_how_far_they_are(tmp_path: Path) -> None:
    """`protect` is a task, in which `tables` learns from the reference, and `standard errors` is one unit of the driver: 0
    of 1 was all of it.
    """
    heard = list[Event]()
    job = sized_job(tmp_path, (3,) * 4, sets_of_columns(4, 8), 3000, runtime={"executor": "serial"})
    dpdist.run(job, tmp_path / "work", listener=heard.append)
    for name in ("protect", "standard errors"):
        shares = [event.share for event in heard if (event.kind, event.stage) == ("part", name) and event.share is not None]
        assert any(0.0 < share < 1.0 for share in shares), name
        assert shares == sorted(shares)
