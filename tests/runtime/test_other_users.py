"""Another user of the machine, while a local cluster works: no code, no word and no page from any of its ports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

from dpdist.job import Runtime
from dpdist.runtime.dask_executor import Dask
from dpdist.runtime.executors import executor

pytestmark = pytest.mark.other_users
INTRUDER = Path(__file__).with_name("intruder.py")


@pytest.fixture
def guarded_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text("the custodian's")
    return file


def intruder(file: Path, address: str) -> dict[str, Any]:
    """What it found at the ports of this process and its children, the scheduler's first."""
    scheduler = int(address.rpartition(":")[2])
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    links = [link for process in family for link in process.net_connections("inet") if link.status == psutil.CONN_LISTEN]
    ports = {link.laddr.port for link in links} - {scheduler}
    command = [sys.executable, str(INTRUDER), str(file), str(scheduler), *map(str, sorted(ports))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_no_port_of_a_local_cluster_serves_another_user(guarded_file: Path) -> None:
    with executor(Runtime(executor="dask", workers=1)) as workers:
        assert isinstance(workers, Dask)
        assert workers.client.run_on_scheduler(guarded_file.read_text) == "the custodian's", "control: the run itself may"
        found = intruder(guarded_file, workers.client.scheduler.address)
    assert found == {"plain": None, "other_certificate": None, "greeted": [], "pages": []}


def _outside(process: psutil.Process) -> str:
    """Environment and command line; nothing of a process that has ended, as compilers beside the tests do."""
    try:
        return str(process.environ()) + str(process.cmdline())
    except (psutil.Error, ProcessLookupError):
        return ""


def test_the_key_of_a_local_cluster_is_in_no_file_environment_or_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with executor(Runtime(executor="dask", workers=1)) as workers:
        assert list(workers.map(abs, [-3])) == [3]
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        told = list(filter(None, map(_outside, family)))
        assert len(told) > 1, "this process and its workers"
        told += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(family) > 1
    assert not any("PRIVATE KEY" in text for text in told)


@pytest.mark.long
def test_control_a_plain_cluster_gives_another_user_the_custodians_files(guarded_file: Path) -> None:
    with LocalCluster(1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster, Client(cluster) as client:
        found = intruder(guarded_file, client.scheduler.address)
    assert found["plain"] == "the custodian's"
    assert found["greeted"]
    assert found["pages"]
