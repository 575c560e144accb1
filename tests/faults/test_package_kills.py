"""Kill -9 of drivers and workers at random moments of a package of many cells: the same bytes as of a run in peace."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from campaign import Run, inventory, public_bytes, run, survivors
from sized_package import sets_of_columns, sized_job

pytestmark = pytest.mark.slow

KILLS = 60
OF_WORKERS = 20
"""Number of these kills that hit a worker and not the driver."""
SEED = 33


def test_sixty_kills_of_a_package_of_1275_cells_end_with_the_bytes_of_a_run_in_peace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Moments are uniform over the time of a run in peace. Where a run ends before its kill, another release begins.

    The run in peace has no workers, and the others have two. A run with a worker killed goes on. Control: without the
    peaceful run's noise to replay, the bytes are others.
    """
    tables, peace = sets_of_columns(4, 11), tmp_path / "peace"
    began = time.monotonic()
    assert run(sized_job(tmp_path, (4,) * 4, tables, 6000), peace, "--quiet").code == 0
    took, replay = time.monotonic() - began, ("--replay", peace / "confidential")
    job = sized_job(tmp_path, (4,) * 4, tables, 6000, runtime={"executor": "dask", "workers": 2})
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
            moment = time.monotonic() + rng.uniform(0.0, took)
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
            ended = started.end()
            assert ended.code == 0, ended.text
            checked(workspace)
    if driver_dies:
        ended = run(job, workspace, *replay)
        assert ended.code == 0, ended.text
        checked(workspace)
    with capsys.disabled():
        whole = time.monotonic() - began
        print(f"\n{KILLS} kills, {starts} starts, {len(releases)} releases, {whole:.0f} s; a run in peace {took:.0f} s")
    assert len(releases) >= 1
    other = tmp_path / "other noise"
    assert run(job, other).code == 0
    assert public_bytes(other) != wanted
