"""A small release under every mechanism: the same bytes on a cluster, and after it was killed and begun again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from campaign import Server, arguments, inventory, public_bytes
from cluster import Cluster
from sized_package import sized_job
from small_jobs import EXACT, RECORDED, cases, reach, rooted

from dpdist.mechanisms.registry import MECHANISMS


def _first_of(name: str) -> str:
    """The first small job of a mechanism that needs no Markov chain."""
    begin = f"{RECORDED.get(name, name)}-"
    return next(case for case, fate in reach().items() if case.startswith(begin) and fate == EXACT)


MORE = ["sanitized-gaussian", "tables-release", "tables-histogram"]
"""Other ways from noise to release: Gaussian noise, and several rounds of noise."""
LEVELS = "tables, nested"
"""Tables over a hierarchy."""
LARGE = "tables, conjugate gradients"
"""12,800 sums, more than a dense matrix may have."""
SLOW = ["tables-two-outcomes", LEVELS, LARGE]
JOBS = [*(_first_of(name) for name in MECHANISMS), *MORE, *SLOW]


def _written(case: str, inputs: Path, folder: Path) -> Path:
    """The job file of a case. No verdict holds its release, because a replay is never held."""
    if case == LEVELS:
        places = {"place": ["c0", "c1"]}
        by = [["c0", "c2"], ["c1", "c2"], ["c1", "c3"]]
        return sized_job(folder, (2, 6, 2, 3), by, 600, nested=True, hierarchies=places)
    if case == LARGE:
        return sized_job(folder, (80, 80), [["c0", "c1"]], 30_000)
    job = folder / "job.json"
    job.write_text(json.dumps(rooted(cases()[case], inputs) | {"publish": "always"}), encoding="utf-8")
    return job


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in JOBS])
@pytest.mark.long
def test_a_release_has_the_same_bytes_on_a_cluster_and_after_a_death(
    case: str, inputs: Path, cluster: Cluster, dpdist: Server, tmp_path: Path
) -> None:
    """Noise is drawn once, by the undisturbed run: the others replay it, and would end if they asked for other noise.

    The death is before one of all changes to the file system, another part of the way for each job.
    """
    job, peace = _written(case, inputs, tmp_path), tmp_path / "peace"
    ended = dpdist(*arguments(job, peace), same_keys=True)
    assert ended.code == 0, ended.text
    changes, replay = dpdist.changes, ("--replay", peace / "confidential")

    ended = dpdist(*arguments(job, tmp_path / "cluster", *replay, *cluster.driver))
    assert ended.code == 0, ended.text
    assert public_bytes(tmp_path / "cluster") == public_bytes(peace)

    workspace, share = tmp_path / "killed", (1 + JOBS.index(case)) / (1 + len(JOBS))
    assert dpdist(*arguments(job, workspace, *replay), die_at=round(share * changes)).code == -9
    assert dpdist(*arguments(job, workspace, *replay)).code == 0
    assert public_bytes(workspace) == public_bytes(peace)
    assert inventory(workspace) == inventory(peace)
