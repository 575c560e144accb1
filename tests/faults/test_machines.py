"""A release on a cluster of network namespaces, its containers as deploy/ describes them, while machines die."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from campaign import Server, Survey, arguments, public_bytes, strata_done, wait_until
from machines import USER, Containers, Machines

from dpdist.runtime.certificates import make_certificates

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
from manifest_checks import Pod, pods
from rendering import DEPLOY, render

pytestmark = pytest.mark.namespaces


class Release:
    """The overlay `release` for a survey: a scheduler, workers and a driver on machines of their own, one shared folder."""

    def __init__(self, folder: Path, survey: Survey, workers: int) -> None:
        self.folder, self.survey = folder, survey
        self.workers = [f"worker-{k}" for k in range(1, workers + 1)]
        self.pods: dict[str, Pod] = {pod.component: pod for pod in pods(render(DEPLOY / "overlays" / "release"))}
        self.shared, self.volumes = folder / "shared", folder / "volumes"
        for name in ("shared", "volumes/job", "volumes/ledger"):
            (folder / name).mkdir(parents=True)
        shutil.copy(survey.job("dask"), self.volumes / "job" / "job.yaml")
        make_certificates(self.volumes / "certificates", days=1)
        for path in (self.shared, *self.volumes.rglob("*")):
            os.chown(path, USER, USER)
        self.machines = Machines(["scheduler", "driver", *self.workers])
        self.containers = Containers(folder, self.machines, {"dpdist-scheduler": "scheduler"})
        self.drivers = self.injected = 0

    def limit_storage(self, size: str) -> None:
        """The shared folder on a file system of its own."""
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", self.shared], check=True)
        os.chown(self.shared, USER, USER)

    @property
    def workspace(self) -> Path:
        return self.shared / "release"

    def start(self, machine: str) -> None:
        role = machine.partition("-")[0]
        spec = json.loads(json.dumps(self.pods[role].spec))
        if role == "driver":
            self.drivers += 1
            (container,) = spec["containers"]
            args = container["args"]
            args[1:2] = [args[1], "--input", f"/input/{self.survey.input().name}"]
        places = {"tls": self.volumes / "certificates" / role, "job": self.volumes / "job", "input": self.survey.folder}
        self.containers.start(machine, spec, {**places, "ledger": self.volumes / "ledger", "workspace": self.shared})

    def running(self, machine: str) -> bool:
        return self.containers.processes[machine].poll() is None

    def tend(self) -> int | None:
        """What Kubernetes does: start again what has ended; the driver until it ends well. Its exit code then."""
        for machine in ("scheduler", *self.workers):
            if machine not in self.containers.processes or not self.running(machine):
                self.start(machine)
        code = self.containers.processes["driver"].poll() if "driver" in self.containers.processes else 1
        if code is not None and code not in (0, 2, 3):
            assert self.drivers <= 20, self.containers.log("driver")
            self.start("driver")
            return None
        return code

    def until_done(self, patience: float) -> int:
        deadline = time.monotonic() + patience
        while (code := self.tend()) is None:
            if time.monotonic() > deadline:
                raise AssertionError("the release did not end\n" + self.containers.log("driver")[-2000:])
            time.sleep(0.1)
        return code

    def processes_of(self, machine: str) -> list[psutil.Process]:
        """The worker processes of a machine, those under the nanny."""
        try:
            family = psutil.Process(self.containers.processes[machine].pid).children(recursive=True)
        except (psutil.NoSuchProcess, KeyError):
            return []
        return [p for p in family if "spawn_main" in " ".join(p.cmdline())]

    def close(self) -> None:
        self.containers.close()
        self.machines.close()
        if self.shared.is_mount():
            subprocess.run(["umount", "--lazy", self.shared], check=True)


def serial(release: Release, dpdist: Server, tmp_path: Path) -> Path:
    """The same release in one process, from the same key."""
    more = ("--replay", release.workspace / "confidential", "--input", release.survey.input())
    ended = dpdist(*arguments(release.survey.job(), tmp_path / "serial", *more))
    assert ended.code == 0, ended.text
    return tmp_path / "serial"


def readable(survey: Survey) -> Survey:
    """The input may be read by the pods' user."""
    survey.input().chmod(0o644)
    return survey


@pytest.mark.slow
def test_a_small_cluster_survives_a_killed_worker_a_restarted_scheduler_and_a_cut_link(
    dpdist: Server, tmp_path: Path
) -> None:
    survey = readable(Survey(_open(tmp_path / "survey"), (30,) * 130, draws=100, log_lik="never"))
    release = Release(_open(tmp_path / "cluster"), survey, workers=2)
    try:
        for machine in ("scheduler", *release.workers, "driver"):
            release.start(machine)
        assert_confined(release)
        wait_until(lambda: strata_done(release.workspace) >= 5 or not release.running("driver"))
        assert release.running("driver"), release.containers.log("driver")
        (victim, *_) = release.processes_of("worker-1")
        victim.kill()
        release.machines.cut("worker-2")
        release.containers.kill("scheduler")
        assert strata_done(release.workspace) < 130, "control: there was work left"
        release.start("scheduler")
        time.sleep(2)  # the time that the link is cut
        release.machines.join("worker-2")
        assert release.until_done(120) == 0, release.containers.log("driver")
        assert public_bytes(release.workspace) == public_bytes(serial(release, dpdist, tmp_path))
        status = json.loads((release.workspace / "status.json").read_text())
        assert (status["state"], status["stages"]["protect"]["done"]) == ("finished", 130)
        assert status["retries"] > 0, "control: the driver lost the scheduler"
        assert {"begin", "task", "summary"} <= {event["event"] for event in release.containers.events("driver")}
    finally:
        release.close()
    assert namespaces_left() == []


def _open(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o755)
    return folder


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


class Fault(NamedTuple):
    """What is done to a release, step by step; each step gives the seconds until the next."""

    name: str
    steps: Callable[[Release, random.Random], Iterator[float]]


def killed_workers(release: Release, rng: random.Random) -> Iterator[float]:
    while True:
        machine = rng.choice(release.workers)
        if rng.random() < 0.3 and machine in release.containers.processes:
            release.containers.kill(machine)
            release.injected += 1
            yield rng.uniform(3, 6)
            continue
        for process in release.processes_of(machine):
            process.kill()
            release.injected += 1
        yield rng.uniform(3, 6)


def restarted_scheduler(release: Release, rng: random.Random) -> Iterator[float]:
    for _ in range(2):
        release.containers.kill("scheduler")
        release.injected += 1
        yield rng.uniform(12, 18)


def cut_link(release: Release, rng: random.Random) -> Iterator[float]:
    machine = rng.choice(release.workers)
    release.machines.cut(machine)
    release.injected += 1
    yield 60.0
    release.machines.join(machine)


def killed_driver(release: Release, rng: random.Random) -> Iterator[float]:
    for _ in range(3):
        release.containers.kill("driver")
        release.injected += 1
        yield rng.uniform(10, 15)


def full_disk(release: Release, rng: random.Random) -> Iterator[float]:
    filler = release.shared / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                file.write(b"x" * 2**16)
                file.flush()
        except OSError:
            release.injected += 1
            yield 10.0
    filler.unlink()


CAMPAIGN = [
    Fault(steps.__name__, steps) for steps in (killed_workers, restarted_scheduler, cut_link, killed_driver, full_disk)
]
STRATA = 1000


@pytest.mark.slow
@pytest.mark.parametrize("fault", CAMPAIGN, ids=lambda fault: fault.name)
def test_a_release_of_a_thousand_strata_ends_with_the_serial_bytes(
    fault: Fault, dpdist: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The campaign: `python -m pytest -m slow tests/faults/test_machines.py`; a line a fault on the screen."""
    survey = readable(Survey(_open(tmp_path / "survey"), (60,) * STRATA, draws=200, log_lik="never"))
    release, rng = Release(_open(tmp_path / "cluster"), survey, workers=4), random.Random(fault.name)
    try:
        release.limit_storage("400m")
        for machine in ("scheduler", *release.workers, "driver"):
            release.start(machine)
        wait_until(lambda: strata_done(release.workspace) >= 20 or not release.running("driver"))
        began, next_step, steps, done = time.monotonic(), 0.0, fault.steps(release, rng), strata_done(release.workspace)
        assert done < STRATA, "control: there was work left"
        while (code := release.tend()) is None:
            assert time.monotonic() - began < 900, release.containers.log("driver")[-2000:]
            if time.monotonic() >= next_step and (left := next(steps, None)) is not None:
                next_step = time.monotonic() + left
            time.sleep(0.1)
        seconds = time.monotonic() - began
        for machine in release.workers:
            release.machines.join(machine)
        assert code == 0, release.containers.log("driver")
        same = public_bytes(release.workspace) == public_bytes(serial(release, dpdist, tmp_path))
        said = json.loads((release.workspace / "status.json").read_text())
        with capsys.disabled():
            facts = {
                "injected": release.injected,
                "drivers": release.drivers,
                "tasks": said["tasks"],
                "again": said["retries"],
            }
            print(f"\n{fault.name}: {facts}, {seconds:.0f} s after {done} strata, identical {same}")
        assert same
        assert release.injected > 0
    finally:
        release.close()
