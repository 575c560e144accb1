"""A release on machines of its own (network namespaces), its containers those of deploy/, tended as by Kubernetes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from campaign import Server, Survey, arguments, workers_among
from machines import USER, Containers, Machines

from dpdist.runtime.tls import make_certificates
from dpdist.storage.workspace import Workspace

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
from manifest_checks import Pod, pods
from rendering import DEPLOY, render

DRIVER_STARTS = 20
"""As the Job's backoffLimit."""
KEPT = ("key", "identity.json", "noise")
"""What a replay needs of a confidential folder."""


class Release:
    """The overlay `release` for a survey: a scheduler, workers and a driver on machines of their own, one shared folder.

    `env` is set in every container; the driver replays `serial`, a workspace of the same release, if one is given.
    """

    def __init__(
        self,
        folder: Path,
        survey: Survey,
        workers: int,
        env: Mapping[str, str] | None = None,
        serial: Path | None = None,
        size: str | None = None,
    ) -> None:
        self.folder, self.survey, self._env, self._replay = folder, survey, dict(env or {}), serial is not None
        self.workers = [f"worker-{k}" for k in range(1, workers + 1)]
        self.pods: dict[str, Pod] = {pod.component: pod for pod in pods(render(DEPLOY / "overlays" / "release"))}
        self.shared, self.volumes = folder / "shared", folder / "volumes"
        for name in ("shared", "volumes/job", "volumes/ledger", "volumes/input"):
            (folder / name).mkdir(parents=True)
        shutil.copy(survey.job("dask"), self.volumes / "job" / "job.yaml")
        shutil.copy(survey.input(), self.volumes / "input")
        if serial is not None:
            _copy_replay(serial / "confidential", self.volumes / "input" / "serial" / "confidential")
        make_certificates(self.volumes / "certificates", days=1)
        for path in (self.shared, *self.volumes.rglob("*")):
            os.chown(path, USER, USER)
        if size is not None:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", self.shared], check=True)
            os.chown(self.shared, USER, USER)
        self.machines = Machines(["scheduler", "driver", *self.workers])
        self.containers = Containers(folder, self.machines, {"dpdist-scheduler": "scheduler"})
        self.drivers = self.injected = 0

    @property
    def workspace(self) -> Path:
        return self.shared / "release"

    def start(self, *machines: str) -> None:
        for machine in machines:
            role = machine.partition("-")[0]
            spec = json.loads(json.dumps(self.pods[role].spec))
            (container,) = spec["containers"]
            container["env"] = container.get("env", []) + [
                {"name": name, "value": value} for name, value in self._env.items()
            ]
            if role == "driver":
                self.drivers += 1
                more = ["--replay", "/input/serial/confidential"] * self._replay
                container["args"][2:2] = ["--input", f"/input/{self.survey.input().name}", *more]
            places = {name: self.volumes / name for name in ("job", "input", "ledger")}
            places |= {"tls": self.volumes / "certificates" / role, "workspace": self.shared}
            self.containers.start(machine, spec, places)

    def start_all(self) -> None:
        self.start("scheduler", *self.workers, "driver")

    def running(self, machine: str) -> bool:
        return machine in self.containers.processes and self.containers.processes[machine].poll() is None

    def tend(self) -> int | None:
        """What Kubernetes does: start again what has ended; the driver until it ends well. Its exit code then."""
        self.start(*(machine for machine in ("scheduler", *self.workers) if not self.running(machine)))
        code = self.containers.processes["driver"].poll() if "driver" in self.containers.processes else 1
        if code is not None and code not in (0, 2, 3):
            assert self.drivers <= DRIVER_STARTS, self.containers.log("driver")
            self.start("driver")
            return None
        return code

    def tended(self, patience: float) -> Iterator[None]:
        """Goes on, ten times a second, until the driver has ended well."""
        deadline = time.monotonic() + patience
        while (code := self.tend()) is None:
            if time.monotonic() > deadline:
                raise AssertionError("the release did not end\n" + self.containers.log("driver")[-2000:])
            yield
            time.sleep(0.1)
        assert code == 0, self.containers.log("driver")[-2000:]

    def processes_of(self, machine: str) -> list[psutil.Process]:
        """The worker processes of a machine, those under the nanny."""
        try:
            return workers_among(psutil.Process(self.containers.processes[machine].pid).children(recursive=True))
        except (psutil.NoSuchProcess, KeyError):
            return []

    def executions(self) -> Counter[str]:
        """How often each task was begun, by the workers' logs."""
        begun = (event for machine in self.workers for event in self.containers.events(machine))
        return Counter(f"{event['task']} {event['stratum']}" for event in begun if event.get("event") == "begin")

    def cut_short(self) -> int:
        """Tasks that began and never ended, by the workers' logs (a later driver batches what they left anew)."""
        events = [event.get("event") for machine in self.workers for event in self.containers.events(machine)]
        return events.count("begin") - events.count("end")

    def strata_made(self) -> Counter[int]:
        """How often each stratum was made to its end, by the workers' logs."""
        made = (event for machine in self.workers for event in self.containers.events(machine))
        return Counter(int(event["stratum"]) for event in made if event.get("event") == "stratum")

    def lost(self) -> int:
        """Strata without a mark whose files are all whole."""
        space = Workspace(self.workspace)
        units = [space.part("strata", k).name for k in range(len(self.survey.sizes))]
        return sum(not space.finished(unit) for unit in units)

    def close(self) -> None:
        self.containers.close()
        self.machines.close()
        if self.shared.is_mount():
            subprocess.run(["umount", "--lazy", self.shared], check=True)


@contextmanager
def deployed(*said: object, **more: object) -> Iterator[Release]:
    """A release that leaves no process, mount or namespace behind."""
    release = Release(*said, **more)  # type: ignore[arg-type]
    try:
        yield release
    finally:
        release.close()


def serial_release(survey: Survey, dpdist: Server, workspace: Path) -> tuple[Path, float]:
    """The release in one process, and its seconds."""
    began = time.monotonic()
    ended = dpdist(*arguments(survey.job(), workspace), same_keys=True)
    assert ended.code == 0, ended.text
    return workspace, time.monotonic() - began


def opened(folder: Path) -> Path:
    """A new folder that the pods' user may enter."""
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    return folder


def _copy_replay(confidential: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in (confidential / name for name in KEPT):
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        elif path.exists():
            shutil.copy(path, target)
