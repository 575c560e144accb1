"""A release on a cluster of network namespaces, its containers as deploy/ describes them, while machines die."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from campaign import Server, Survey, finished_strata, public_bytes, strata_done, wait_until
from cluster_campaign import HEADS, Row, run_campaign, table
from deployed import Release, deployed, opened, serial_release
from disturbances import DISTURBANCES
from machines import USER

pytestmark = pytest.mark.namespaces

SOON = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s"}
"""A connection that hears nothing is given up in the shortest time that Dask allows, instead of half a minute."""
STRATA = 64


@pytest.mark.long
def test_a_small_cluster_survives_a_killed_worker_a_cut_link_and_a_killed_driver(dpdist: Server, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    survey = Survey(opened(tmp_path / "survey"), (1500,) * STRATA, draws=1000, log_lik="never")
    serial, _ = serial_release(survey, dpdist, tmp_path / "serial")
    with deployed(opened(tmp_path / "cluster"), survey, workers=2, env=SOON, serial=serial) as release:
        release.start_all()
        assert_confined(release)
        wait_until(lambda: (strata_done(release.workspace) >= 5 and busy(release)) or not release.running("driver"))
        assert release.running("driver"), release.containers.log("driver")
        (victim, *_) = release.processes_of("worker-1")
        victim.kill()
        release.machines.cut("worker-2")
        release.containers.kill("driver")
        assert strata_done(release.workspace) < STRATA, "control: there was work left"
        standing = finished_strata(release.workspace)
        for _ in release.tended(120):
            pass
        assert public_bytes(release.workspace) == public_bytes(serial)
        assert release.lost() == 0
        after = finished_strata(release.workspace)
        assert {name: after[name] for name in standing} == standing, "what was stored is not touched again"
        assert release.drivers == 2
        assert len(release.executions()) > 2
        assert release.cut_short() > 0, "control: a task was cut short, and what it left was made by another"
        status = json.loads((release.workspace / "status.json").read_text())
        assert (status["state"], status["starts"], status["stages"]["protect"]["done"]) == ("finished", 2, STRATA)
        lost = "Closing Nanny at"  # a worker that still waits for its scheduler's silence ends with 0
        wait_until(lambda: lost in release.containers.log("worker-2") or not release.running("worker-2"))
        assert release.running("worker-2"), "it looks for the scheduler"
        release.containers.processes["worker-2"].terminate()
        release.containers.processes["worker-2"].wait(timeout=10)
        assert not release.running("worker-2"), "and ends when it is told to"
        assert {"begin", "task", "summary"} <= {event["event"] for event in release.containers.events("driver")}
    assert namespaces_left() == []


def busy(release: Release) -> bool:
    """True while the first worker is in the middle of a task."""
    events = [event.get("event") for event in release.containers.events("worker-1")]
    return events.count("begin") > events.count("end")


def assert_confined(release: Release) -> None:
    """The containers run as their own user, without capabilities, on a root that cannot be written."""
    machine = "scheduler"
    wait_until(lambda: "Scheduler at" in release.containers.log(machine) or not release.running(machine))
    assert release.running(machine), release.containers.log(machine)
    pid = release.containers.processes[machine].pid
    said = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    assert set(said["Uid"].split()) == {str(USER)}
    assert (int(said["CapEff"], 16), int(said["CapBnd"], 16), said["NoNewPrivs"]) == (0, 0, "1")
    mounts = [line.split() for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
    root = [options.split(",") for _, place, _, options, *_ in mounts if place == "/"]
    assert "ro" in root[-1]


def namespaces_left() -> list[str]:
    said = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if line.startswith(f"dpd{os.getpid()}-")]


def test_the_table_of_a_campaign_says_what_was_not_survived() -> None:
    good = Row("killed_workers", 41, 41, 0, 32, 40, 2, 1, 90.0, 0.25, 1.5, True)
    said = table([good, good._replace(survived=0, lost=3, identical=False)]).splitlines()
    assert said[0].count("|") == len(HEADS) + 1
    assert said[2] == "| killed_workers | 41 | 41 | 0 | 32 | 40 | 2 | 1 | 90.0 | +25% | 1.50× | yes |"
    assert said[3].endswith("| NO |")


@pytest.mark.slow
def test_a_thousand_strata_end_with_the_serial_bytes_under_every_kind_of_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python tests/faults/cluster_campaign.py --out FOLDER` is the same, with the table kept."""
    tmp_path.chmod(0o755)
    with capsys.disabled():
        rows = run_campaign(tmp_path, 1000, 4, list(DISTURBANCES))
        print("\n" + table(rows))
    assert all(row.identical and row.lost == 0 and row.survived == row.injected for row in rows)
    assert all(row.injected > 0 for row in rows[1:])
    assert rows[0].twice == 0
