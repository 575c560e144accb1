"""Kills of driver, workers and scheduler while many strata are published: the same bytes, charged once."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from campaign import Run, Survey, public_bytes, run
from cluster import Cluster

from dpdist.ledger.book import Ledger
from dpdist.runtime.sharing import FOLDER

STRATA, KILLS, AT_ONCE = 300, 21, 3
"""Strata of the release; kills, of which a release meets three at most."""
SEED = 48


@pytest.mark.slow
def test_kills_while_batches_are_published_leave_the_same_bytes_and_one_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workspace whose strata are protected is published by an external cluster, under 21 kills at random moments.

    Control: each kill falls into publication, whose folder of tasks is there, and nothing is published before.
    """
    ledger = Ledger(str(tmp_path / "ledger.sqlite"))
    ledger.begin()
    monkeypatch.setenv("DPDIST_LEDGER", ledger.name)
    survey = Survey(tmp_path, (40,) * STRATA, draws=100, log_lik="never", epsilon="10.8")
    workspace, base = tmp_path / "run", tmp_path / "base"
    begun = workspace / "confidential" / FOLDER
    job, rng, killed = survey.job("dask", workers=2), random.Random(SEED), Counter[str]()
    victims = (["driver", "one", "two", "scheduler"] * KILLS)[:KILLS]
    rng.shuffle(victims)
    started = Run(job, workspace)
    assert started.until(lambda: any(begun.glob("*/work")))
    assert started.kill() == []
    assert not (workspace / "public").exists()
    shutil.copytree(workspace, base)
    assert run(survey.job(), workspace).code == 0
    peace = public_bytes(workspace)
    cluster = Cluster(tmp_path)
    try:
        for name in ("scheduler", "one", "two"):
            start(cluster, name)
        for _ in range(2 * KILLS):
            if not victims:
                break
            shutil.rmtree(workspace)
            shutil.copytree(base, workspace)
            shutil.rmtree(begun)
            left = min(AT_ONCE, len(victims))
            for _ in range(2 * AT_ONCE):
                for name in {"scheduler", "one", "two"} - {n for n, p in cluster.processes.items() if p.poll() is None}:
                    start(cluster, name)
                one = Run(job, workspace, *cluster.driver)
                while left and one.until(lambda: any(begun.glob("*/work"))):
                    assert not (workspace / "public" / "manifest.json").exists()
                    pause(one, rng.uniform(0.0, 2.0))
                    if one.process.poll() is not None or not begun.exists():
                        break
                    killed[victim := victims.pop()] += 1
                    left -= 1
                    if victim == "driver":
                        one.process.kill()
                    else:
                        cluster.kill(victim)
                        start(cluster, victim)
                    if victim in ("driver", "scheduler"):
                        break
                ended = one.end()
                if ended.code == 0:
                    break
            else:
                raise AssertionError(ended.text)
            assert public_bytes(workspace) == peace
        print(f"kills: {dict(killed)}")
    finally:
        cluster.close()
    assert sum(killed.values()) == KILLS
    entries = [entry.kind for entry in ledger.entries()]
    assert entries[1:] == ["reserve", "settle", "release"]


def start(cluster: Cluster, name: str) -> None:
    cluster.processes.pop(name, None)
    cluster.start_scheduler() if name == "scheduler" else cluster.start_worker(name)


def pause(one: Run, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and one.process.poll() is None:
        time.sleep(0.01)
