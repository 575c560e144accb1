"""What is done to a release in pods; every fault says what it has hit, or nothing where there was nothing to hit."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from nodes import CGROUPS, Cluster
from pods import Release

Fault = Callable[[Release, random.Random], str]


def processes(cluster: Cluster, uid: str) -> Iterator[tuple[int, str]]:
    """Processes of a pod, by its node's control groups, and their command lines."""
    for root in (CGROUPS / "pids").glob(f"dpk-*/**/pod{uid}"):
        for file in root.rglob("cgroup.procs"):
            for pid in file.read_text().split():
                with suppress(OSError):
                    yield int(pid), Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode()


def _killed(release: Release, rng: random.Random, role: str, word: str) -> str:
    """SIGKILL to a process of one of a role's pods."""
    running = [pod for pod in release.pods(role) if pod["metadata"]["name"] in release.running(role)]
    found = [pid for pod in running for pid, line in processes(release.cluster, pod["metadata"]["uid"]) if word in line]
    if not found:
        return ""
    pid = rng.choice(found)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return f"process {word} of a {role}"
    return ""


def _deleted(release: Release, rng: random.Random, role: str, *said: str) -> str:
    names = release.running(role)
    if not names:
        return ""
    release.kubectl("delete", "pod", rng.choice(names), "--wait=false", *said, check=False)
    return f"{role} pod deleted{' at once' if said else ''}"


def worker_process(release: Release, rng: random.Random) -> str:
    return _killed(release, rng, "worker", "spawn_main")


def worker_container(release: Release, rng: random.Random) -> str:
    return _killed(release, rng, "worker", "cluster worker")


def worker_pod(release: Release, rng: random.Random) -> str:
    return _deleted(release, rng, "worker", *rng.choice([(), ("--grace-period=0", "--force")]))


def scheduler_pod(release: Release, rng: random.Random) -> str:
    return _deleted(release, rng, "scheduler", "--grace-period=1")


def driver_pod(release: Release, rng: random.Random) -> str:
    return _deleted(release, rng, "driver", "--grace-period=1")


def driver_process(release: Release, rng: random.Random) -> str:
    return _killed(release, rng, "driver", "dpdist run")


def drained_node(release: Release, rng: random.Random) -> str:
    """A node gives up its pods, as before maintenance, and takes pods again."""
    node = rng.choice(release.cluster.nodes)
    release.cluster.kubectl("cordon", node)
    said = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--grace-period=2", "--timeout=40s")
    release.cluster.kubectl("drain", node, *said, check=False)
    release.cluster.kubectl("uncordon", node)
    return f"{node} drained"


def crashed_node(release: Release, rng: random.Random) -> str:
    """A node's processes and those of its pods end at once, and the node starts again."""
    node = rng.choice(release.cluster.nodes)
    release.cluster.stop_node(node)
    release.cluster.start_node(node)
    return f"{node} crashed"


PLAN: Mapping[Fault, int] = {
    worker_process: 30,
    worker_container: 8,
    worker_pod: 12,
    scheduler_pod: 4,
    driver_pod: 2,
    driver_process: 2,
    drained_node: 4,
    crashed_node: 2,
}
"""How often each is done: 64 in all."""


def schedule(rng: random.Random) -> list[Fault]:
    """The plan in a random order."""
    order = [fault for fault, times in PLAN.items() for _ in range(times)]
    rng.shuffle(order)
    return order
