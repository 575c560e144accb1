"""A cluster of real processes: the commands that containers run, each with its own log."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dpdist.runtime.tls import make_certificates


def free_port(host: str = "127.0.0.1") -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


class Cluster:
    """Scheduler and workers of one port; each may be killed and started again. `inside(role)` is a command's beginning."""

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", inside: Callable[[str], Sequence[str]] = lambda role: ()
    ) -> None:
        self.folder, self.host, self.port, self._inside = folder, host, free_port(), inside
        self.http = free_port()
        make_certificates(folder / "certificates", days=1)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        return f"tls://{self.host}:{self.port}"

    def tls(self, role: str) -> Path:
        return self.folder / "certificates" / role

    @property
    def driver(self) -> tuple[str, ...]:
        """What the driver's command line says in addition."""
        return "--scheduler", self.address, "--tls", str(self.tls("driver"))

    def start_scheduler(self) -> None:
        http = f"127.0.0.1:{self.http}"
        self._start(
            "scheduler", "--tls", self.tls("scheduler"), "--host", self.host, "--port", self.port, "--http", http, "--json"
        )

    def start_worker(self, name: str, host: str = "127.0.0.1") -> None:
        self._start(name, self.address, "--tls", self.tls("worker"), "--memory", "2GiB", "--host", host)

    def _start(self, name: str, *more: object) -> None:
        verb = "scheduler" if name == "scheduler" else "worker"
        line = [*self._inside(name), sys.executable, "-m", "dpdist", "cluster", verb, *map(str, more)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=os.environ
            )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
