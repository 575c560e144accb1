"""Kill -9 of the driver or of workers, at seeded random moments of a release over 100 strata: the same command ends it with
the bytes of an undisturbed run, and no finished stratum is touched again."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest
from campaign import (
    Run,
    Stamp,
    Survey,
    begun_strata,
    finished_strata,
    inventory,
    public_bytes,
    run,
    strata_done,
    survivors,
)

from dpdist.core.progress import silent
from dpdist.job.loading import load_job
from dpdist.planning.making import make_plan

pytestmark = pytest.mark.long

STRATA = 100
SEED = 20_260_103


class Disturbed(NamedTuple):
    """What became of a release that was killed and started again until it ended."""

    kills: int
    starts: int
    begun_again: int
    """Strata that a kill caught unfinished."""
    finished_again: int
    """Files of finished strata that were written again."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    return Survey(tmp_path_factory.mktemp("many"), (60,) * STRATA, draws=200)


@pytest.fixture(scope="module")
def killed_on_serial(many: Survey, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Disturbed]:
    workspace = tmp_path_factory.mktemp("killed") / "serial"
    return workspace, kill_drivers(many.job(), workspace, moments(2, 1))


@pytest.fixture(scope="module")
def undisturbed(many: Survey, killed_on_serial: tuple[Path, Disturbed]) -> Path:
    """The release that was killed, replayed in peace."""
    workspace = killed_on_serial[0].with_name("peace")
    ended = run(many.job(), workspace, "--replay", killed_on_serial[0] / "confidential")
    assert ended.code == 0, ended.text
    return workspace


def moments(kills: int, seed: int) -> list[tuple[int, float]]:
    """Random moments in order: that many strata are finished, and a little time has passed."""
    rng = np.random.default_rng([SEED, seed])
    done = np.sort(rng.integers(0, STRATA - 20, kills)).tolist()
    return list(zip(done, rng.uniform(0.0, 0.05, kills).tolist(), strict=True))


def rewritten(before: dict[str, Stamp], workspace: Path) -> int:
    after = finished_strata(workspace)
    return sum(after.get(name) != stamp for name, stamp in before.items())


def kill_drivers(job: Path, workspace: Path, at: Iterable[tuple[int, float]], *more: object) -> Disturbed:
    """The same command again and again; its driver is killed at each of the moments."""
    kills = starts = begun = again = 0
    standing: dict[str, Stamp] = {}
    for done, moment in at:
        started = Run(job, workspace, *more)
        starts += 1
        assert started.until(lambda done=done: (workspace / "confidential").exists() and strata_done(workspace) >= done)
        time.sleep(moment)  # not to wait for anything: the moment is a random one
        assert started.kill() == [], "processes outlive their driver"
        kills += 1
        again += rewritten(standing, workspace)
        begun += len(begun_strata(workspace))
        standing = finished_strata(workspace)
        assert not (workspace / "public").exists()
    ended = run(job, workspace, *more)
    assert ended.code == 0, ended.text
    return Disturbed(kills, starts + 1, begun, again + rewritten(standing, workspace))


def kill_workers(job: Path, workspace: Path, at: Iterable[tuple[int, float]], seed: int | None, *more: object) -> Disturbed:
    """One command; at each of the moments a worker is killed: the busiest, or with a seed a random one."""
    kills = begun = again = 0
    rng = np.random.default_rng(seed)
    standing: dict[str, Stamp] = {}
    started = Run(job, workspace, *more)
    for done, moment in at:
        assert started.until(lambda done=done: strata_done(workspace) >= done and bool(started.workers()))
        time.sleep(moment)  # not to wait for anything: the moment is a random one
        workers = sorted(started.workers(), key=worked)
        victim = workers[-1] if seed is None else workers[int(rng.integers(len(workers)))]
        victim.kill()
        assert survivors([victim]) == []
        kills += 1
        again += rewritten(standing, workspace)
        begun += len(begun_strata(workspace))
        standing = finished_strata(workspace)
    family = started.family()
    ended = started.end()
    assert ended.code == 0, ended.text
    assert survivors(family) == []
    return Disturbed(kills, 1, begun, again + rewritten(standing, workspace))


def worked(process: psutil.Process) -> float:
    """Processor time that a process has used."""
    try:
        return float(process.cpu_times().user)
    except psutil.NoSuchProcess:
        return 0.0


def test_strata_too_small_to_matter_by_their_records_are_still_shared_among_workers(tmp_path: Path) -> None:
    """A task ends in about half a second, however little each of its strata has to do: 900 take more than a second."""
    survey, strata = Survey(tmp_path, (6,) * 900, draws=200), 900
    bins = make_plan(load_job(survey.job()), None, silent).layout.bins(2)
    assert sorted(stratum for task in bins for stratum in task) == list(range(strata))
    assert max(map(len, bins)) <= strata / 2


def test_a_driver_killed_twice_on_serial_ends_with_the_bytes_of_an_undisturbed_run(
    killed_on_serial: tuple[Path, Disturbed], undisturbed: Path
) -> None:
    workspace, said = killed_on_serial
    assert public_bytes(workspace) == public_bytes(undisturbed)
    assert (said.kills, said.finished_again) == (2, 0)
    assert said.begun_again <= said.kills, "a serial run has one stratum in hand"


def test_a_driver_killed_twice_on_two_workers_ends_with_those_bytes_and_leaves_no_worker(
    many: Survey, undisturbed: Path, tmp_path: Path
) -> None:
    job = many.job("dask", workers=2)
    said = kill_drivers(job, tmp_path / "killed", moments(2, 2), "--replay", undisturbed / "confidential")
    assert public_bytes(tmp_path / "killed") == public_bytes(undisturbed)
    assert (said.kills, said.finished_again) == (2, 0)
    assert said.begun_again <= 2 * said.kills, "a worker has one stratum in hand"


@pytest.mark.slow
def test_three_killed_workers_cost_the_strata_in_hand_and_no_restart(
    many: Survey, undisturbed: Path, tmp_path: Path
) -> None:
    job = many.job("dask", workers=2)
    said = kill_workers(job, tmp_path / "killed", moments(3, 3), None, "--replay", undisturbed / "confidential")
    assert public_bytes(tmp_path / "killed") == public_bytes(undisturbed)
    assert (said.kills, said.starts, said.finished_again) == (3, 1, 0)


def test_nothing_of_the_killed_runs_is_left_over(killed_on_serial: tuple[Path, Disturbed], undisturbed: Path) -> None:
    assert inventory(killed_on_serial[0]) == inventory(undisturbed)


@pytest.mark.slow
def test_ten_killed_drivers_and_twenty_killed_workers_on_one_two_and_four_workers(
    many: Survey, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    replay = ("--replay", undisturbed / "confidential")
    for workers in (1, 2, 4):
        job = many.job("dask", workers=workers)
        drivers, hit = tmp_path / f"drivers-{workers}", tmp_path / f"workers-{workers}"
        said = kill_drivers(job, drivers, moments(10, 10 + workers), *replay)
        rows.append((workers, "driver", *said, public_bytes(drivers) == public_bytes(undisturbed)))
        said = kill_workers(job, hit, moments(20, 20 + workers), 30 + workers, *replay)
        rows.append((workers, "worker", *said, public_bytes(hit) == public_bytes(undisturbed)))
    names = ("workers", "killed", "kills", "starts", "begun again", "finished again", "identical")
    with capsys.disabled():
        print()
        for row in (names, *rows):
            print("".join(f"{value!s:>16}" for value in row))
    assert [row[-1] for row in rows] == [True] * 6
    assert [row[2] for row in rows] == [10, 20] * 3
    assert {row[5] for row in rows} == {0}
