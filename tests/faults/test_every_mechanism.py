"""A small release under every mechanism: the same bytes on a cluster, and after it was killed and begun again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import Server, arguments, inventory, public_bytes
from cluster import Cluster
from small_jobs import EXACT, cases, reach, rooted
from small_runs import write_inputs

from dpdist.mechanisms.registry import MECHANISMS


def _first_of(name: str) -> str:
    """The first small job of a mechanism that needs no Markov chain."""
    return next(case for case, fate in reach().items() if case.startswith(f"{name}-") and fate == EXACT)


JOBS = [*(_first_of(name) for name in MECHANISMS), "sanitized-gaussian", "reference_tables-refreshed"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all jobs."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    made.start_scheduler()
    for name in ("worker-1", "worker-2"):
        made.start_worker(name)
    yield made
    made.close()


@pytest.mark.parametrize("case", JOBS)
@pytest.mark.long
def test_a_release_has_the_same_bytes_on_a_cluster_and_after_a_death(
    case: str, inputs: Path, cluster: Cluster, dpdist: Server, tmp_path: Path
) -> None:
    """Noise is drawn once, by the undisturbed run: the others replay it, and would end if they asked for other noise.

    The death is before one of all changes to the file system, another part of the way for each job.
    """
    job, peace = tmp_path / "job.yaml", tmp_path / "peace"
    job.write_text(json.dumps(rooted(cases()[case], inputs)), encoding="utf-8")
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
