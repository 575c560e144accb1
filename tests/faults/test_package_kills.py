"""Kill -9 of drivers and workers at random moments of runs of many cells: the same bytes as of a run in peace."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from campaign import Run, inventory, public_bytes, run, stamps, strata_done, survivors
from sized_package import sets_of_columns, sized_job

from dpdist.mechanisms.tables.residual_prior import MOST_TERMS

KILLS = 60
OF_WORKERS = 20
"""Number of these kills that hit a worker and not the driver."""
SEED = 33
LONGEST = 80.0
"""Longest time, in seconds, from a start or a kill to the next kill: more than any stage takes."""
PATIENCE = 900.0
"""Seconds after which a large package's run counts as never ending."""
PEACE = "--set", "runtime.executor=serial"


def cells_1275(folder: Path) -> Path:
    """Tables of 1,275 cells of 6,000 records."""
    workers = {"executor": "dask", "workers": 2}
    return sized_job(folder, (4,) * 4, sets_of_columns(4, 11), 6000, runtime=workers)


def cells_of_many_sums(folder: Path) -> Path:
    """Two tables of 3,306 cells of 12,000 records, whose sums are too many for dense matrices."""
    workers = {"executor": "dask", "workers": 2}
    return sized_job(folder, (56, 58), [["c0", "c1"], ["c0"]], 12_000, runtime=workers)


def ten_tables_of_300000(folder: Path) -> Path:
    """Ten tables of 300,000 simulated people in 51 states."""
    script = Path(__file__).parents[1] / "studies" / "simulated_acs.py"
    subprocess.run([sys.executable, script, folder, "--records", "300000", "--workers", "2"], check=True)
    return folder / "job.json"


@pytest.mark.slow
@pytest.mark.parametrize("package", [cells_1275, cells_of_many_sums, ten_tables_of_300000])
def test_sixty_kills_of_a_package_end_with_the_bytes_of_a_run_in_peace(
    package: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Moments are uniform over the time of a run in peace, or over `LONGEST`. Where a run ends before its kill, another
    release begins.

    The run in peace has no workers, and the others have two. A run with a worker killed goes on. Control: without the
    peaceful run's noise to replay, the bytes are others.
    """
    job, peace = package(tmp_path), tmp_path / "peace"
    began = time.monotonic()
    assert run(job, peace, *PEACE, patience=PATIENCE).code == 0
    took, replay = time.monotonic() - began, ("--replay", peace / "confidential")
    rng = np.random.default_rng(SEED)
    hits = rng.permutation(np.arange(KILLS) < OF_WORKERS).tolist()
    releases, starts, wanted = list[Path](), 0, public_bytes(peace)

    def checked(workspace: Path) -> None:
        assert public_bytes(workspace) == wanted
        assert inventory(workspace) == inventory(peace)
        releases.append(workspace)

    while hits:
        workspace = tmp_path / f"killed-{len(releases)}"
        started, starts = Run(job, workspace, *replay), starts + 1
        driver_dies = False
        while hits and not driver_dies:
            moment = time.monotonic() + rng.uniform(0.0, min(took, LONGEST))
            if not started.until(lambda moment=moment: time.monotonic() >= moment):
                break
            if of_worker := hits[-1]:
                workers = started.workers()
                if not workers:
                    continue
                victim = workers[int(rng.integers(len(workers)))]
                victim.kill()
                assert survivors([victim]) == []
            else:
                driver_dies = True
                assert started.kill() == [], "processes outlive their driver"
            assert hits.pop() == of_worker
        if not driver_dies:
            ended = started.end(PATIENCE)
            assert ended.code == 0, ended.text
            checked(workspace)
    if driver_dies:
        ended = run(job, workspace, *replay, patience=PATIENCE)
        assert ended.code == 0, ended.text
        checked(workspace)
    with capsys.disabled():
        whole = time.monotonic() - began
        print(f"\n{KILLS} kills, {starts} starts, {len(releases)} releases, {whole:.0f} s; a run in peace {took:.0f} s")
    assert len(releases) >= 1
    other = tmp_path / "other noise"
    assert run(job, other, patience=PATIENCE).code == 0
    assert public_bytes(other) != wanted


@pytest.mark.long
def test_a_package_too_large_for_dense_matrices_is_killed_twice_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Killed once its noise is drawn, and once it is released and not yet published; resumed on two workers.

    Controls: work was left each time, the noise was not drawn again, and the package is over the limit of sums.
    """
    job, peace = cells_of_many_sums(tmp_path), tmp_path / "peace"
    assert run(job, peace, *PEACE).code == 0
    assert len(pd.read_parquet(peace / "public" / "measurements.parquet")) > MOST_TERMS
    killed_twice(job, peace, tmp_path / "killed")


@pytest.mark.long
def test_strata_of_tables_are_killed_twice_and_end_with_the_same_bytes(tmp_path: Path) -> None:
    """Three strata, each with noise in two rounds. Control: without the peaceful run's noise the bytes are others."""
    keys = {"mechanism": {"name": "tables"}, "strata": ["c2"], "runtime": {"executor": "dask", "workers": 2}}
    job = sized_job(tmp_path, (4, 5, 3), [["c0", "c1"], ["c1", "c2"]], 6_000, 2, **keys)
    assert run(job, tmp_path / "peace", *PEACE).code == 0
    killed_twice(job, tmp_path / "peace", tmp_path / "killed")
    assert run(job, tmp_path / "other noise", *PEACE).code == 0
    assert public_bytes(tmp_path / "other noise") != public_bytes(tmp_path / "peace")


def killed_twice(job: Path, peace: Path, workspace: Path) -> None:
    """Kills a run once its noise is drawn, and once it is released and not yet published, and resumes it to the end."""
    replay = "--replay", peace / "confidential"
    started = Run(job, workspace, *replay)
    assert started.until(lambda: bool(stamps(workspace / "confidential", "marks/noise-*.json")))
    assert started.kill() == []
    assert strata_done(workspace) == 0
    drawn = stamps(workspace / "confidential", "noise/[!.]*")
    started = Run(job, workspace, *replay)
    assert started.until(lambda: (workspace / "confidential" / "marks" / "gathered.json").exists())
    assert started.kill() == []
    assert not (workspace / "public" / "statement.json").exists()
    ended = run(job, workspace, *replay)
    assert ended.code == 0, ended.text
    assert drawn.items() <= stamps(workspace / "confidential", "noise/[!.]*").items()
    assert public_bytes(workspace) == public_bytes(peace)
    assert inventory(workspace) == inventory(peace)
