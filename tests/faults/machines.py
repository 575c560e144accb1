"""Several machines on this one: a network namespace each, joined by a switch in a namespace of its own.

Containers run in them as manifests describe them: own user, read-only root, mounts, names. Nothing of it is seen outside.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dpdist

SUBNET = "10.213.77"
"""Addresses that exist inside the namespaces only."""
KERNELS = {"OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "GLIBC_TUNABLES"}
USER = 10001
MOST = 8
"""Machines at most."""


def possible() -> bool:
    """True where this process may make namespaces and mounts: root on Linux with iproute2 and util-linux."""
    tools = all(shutil.which(tool) for tool in ("ip", "unshare", "setpriv", "mount"))
    if sys.platform != "linux" or os.geteuid() != 0 or not tools:
        return False
    return subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode == 0


class Machines:
    """Named machines 10.213.77.1, .2, …; the link of each can be cut and joined again."""

    def __init__(self, names: Sequence[str]) -> None:
        assert len(names) <= MOST
        self._prefix, self.names = f"dpd{os.getpid()}", tuple(names)
        self._made: list[str] = []
        try:
            switch = self._make("switch")
            ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
            ip("-n", switch, "link", "set", "bridge0", "up")
            for k, name in enumerate(self.names, 1):
                own = self._make(name)
                ip("link", "add", f"p{k}", "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", own)
                ip("-n", switch, "link", "set", f"p{k}", "master", "bridge0", "up")
                ip("-n", own, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
                ip("-n", own, "link", "set", "eth0", "up")
                ip("-n", own, "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def _make(self, name: str) -> str:
        ip("netns", "add", self.namespace(name))
        self._made.append(self.namespace(name))
        return self.namespace(name)

    def namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def address(self, name: str) -> str:
        return f"{SUBNET}.{self.names.index(name) + 1}"

    def cut(self, name: str) -> None:
        self._link(name, "down")

    def join(self, name: str) -> None:
        self._link(name, "up")

    def _link(self, name: str, state: str) -> None:
        ip("-n", self.namespace("switch"), "link", "set", f"p{self.names.index(name) + 1}", state)

    def close(self) -> None:
        for namespace in reversed(self._made):
            subprocess.run(["ip", "netns", "delete", namespace], check=False)
        self._made.clear()


def ip(*said: str) -> None:
    subprocess.run(["ip", *said], check=True, capture_output=True)


START = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755,size=64m tmpfs {own}
umask 022
mkdir {own}/upper {own}/work {own}/root
mount -t overlay overlay -o lowerdir=/,upperdir={own}/upper,workdir={own}/work {own}/root
mount --rbind /dev {own}/root/dev
mount --rbind /proc {own}/root/proc
mount --rbind /sys {own}/root/sys
{mounts}
mount -o remount,ro {own}/root
exec chroot {own}/root setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs --bounding-set=-all \\
  env -i {env} {command}
"""


class Containers:
    """Starts a pod's container on a machine. `hosts` says which machine has a name."""

    def __init__(self, folder: Path, machines: Machines, hosts: Mapping[str, str]) -> None:
        self.folder, self.machines = folder, machines
        self._hosts = folder / "hosts"
        lines = [f"{machines.address(machine)} {name}" for name, machine in hosts.items()]
        self._hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, machine: str, spec: Mapping[str, Any], places: Mapping[str, Path]) -> None:
        """Run the one container of a pod spec; what it prints goes to MACHINE.log."""
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsUser"] == USER
        own, scratch = self.folder / f"{machine}.root", self.folder / f"{machine}.tmp"
        for path in (own, scratch):
            path.mkdir(exist_ok=True)
        os.chown(scratch, USER, USER)
        env = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "PYTHONPATH": str(_source()), "PYTHONDONTWRITEBYTECODE": "1"}
        env |= dict.fromkeys(("HOME", "MPLCONFIGDIR", "NUMBA_CACHE_DIR"), "/tmp")
        # these machines are this one: whoever runs the tests may have chosen its linear algebra's instructions
        env |= {name: os.environ[name] for name in KERNELS & os.environ.keys()}
        env |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        env |= {entry["name"]: entry["value"] for entry in container.get("env", [])}
        mounts = [f"chmod a+x {own}/root{folder}" for folder in Path(sys.base_prefix).parents]  # of the overlay alone
        mounts.append(_bind(own, scratch, "/tmp"))
        for volume in container["volumeMounts"]:
            if volume["name"] != "tmp":
                mounts.append(_bind(own, places[volume["name"]], volume["mountPath"], volume.get("readOnly", False)))
        mounts += [_bind(own, path, str(path), True) for path in {Path(sys.prefix), _source()}]
        mounts.append(f"mount --bind {shlex.quote(str(self._hosts))} {own}/root/etc/hosts")
        command = [f"{sys.prefix}/bin/python", "-m", "dpdist", *container["args"]]
        script = START.format(
            own=shlex.quote(str(own)),
            user=USER,
            mounts="\n".join(mounts),
            env=" ".join(shlex.quote(f"{k}={v}") for k, v in env.items()),
            command=shlex.join(command),
        )
        line = ["ip", "netns", "exec", self.machines.namespace(machine), "unshare", "--mount", "bash", "-c", script]
        with (self.folder / f"{machine}.log").open("ab") as log:
            self.processes[machine] = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, machine: str) -> None:
        """SIGKILL the container; what it has started ends with it."""
        process = self.processes.pop(machine)
        process.kill()
        process.wait()

    def log(self, machine: str) -> str:
        return (self.folder / f"{machine}.log").read_text()

    def events(self, machine: str) -> list[dict[str, Any]]:
        """The JSON lines that a container wrote."""
        lines = [line for line in self.log(machine).splitlines() if line.startswith("{")]
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()


def _source() -> Path:
    return Path(dpdist.__file__).parents[1]


def _bind(own: Path, source: Path, target: str, read_only: bool = False) -> str:
    place = shlex.quote(f"{own}/root{target}")
    lines = [f"mkdir -p {place}", f"mount --bind {shlex.quote(str(source))} {place}"]
    return "\n".join(lines + [f"mount -o remount,bind,ro {place}"] * read_only)
