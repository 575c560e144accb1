"""Surveys to disturb and their undisturbed releases, each made once a session."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import Server, Survey, arguments
from cluster import Cluster

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a shell's background job, and of all that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def dpdist() -> Iterator[Server]:
    """The command line, in forks of one process."""
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """Three small strata."""
    return Survey(tmp_path_factory.mktemp("few"), (150, 40, 60), draws=100)


@pytest.fixture(scope="session")
def undisturbed(few: Survey, dpdist: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of `few`, left in peace."""
    workspace = tmp_path_factory.mktemp("peace") / "few"
    ended = dpdist(*arguments(few.job(), workspace), same_keys=True)
    assert ended.code == 0, ended.text
    return workspace


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Scheduler and two workers of their own processes."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    made.start_scheduler()
    for name in ("worker-1", "worker-2"):
        made.start_worker(name)
    yield made
    made.close()
