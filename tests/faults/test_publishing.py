"""Publication of many strata by tasks: the bytes of one process, on any workers, and after kills."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import Run, Survey, inventory, public_bytes, run, survivors
from sized_package import sized_job

import dpdist
from dpdist.core.progress import Event
from dpdist.core.records import BATCH_STRATA
from dpdist.job.loading import load_job
from dpdist.runtime.sharing import FOLDER

STRATA = 2 * BATCH_STRATA + 2


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    return Survey(tmp_path_factory.mktemp("survey"), (40,) * STRATA, draws=100, log_lik="never")


@pytest.fixture(scope="module")
def peace(survey: Survey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release that one process made, undisturbed."""
    workspace = tmp_path_factory.mktemp("peace") / "run"
    assert run(survey.job(), workspace).code == 0
    return workspace


@pytest.mark.long
def test_tasks_on_two_workers_publish_the_bytes_of_one_process(survey: Survey, peace: Path, tmp_path: Path) -> None:
    """Records and standard errors are tasks of every batch, in a run and where the release is published again.

    Control: other draws are other bytes.
    """
    job, tasks = load_job(survey.job("dask", workers=2)), list[object]()

    def hear(event: Event) -> None:
        if event.kind == "task" and event.unit["task"] == "WorkPiece":
            tasks.append(event.unit["piece"])

    dpdist.run(job, tmp_path / "two", replay=peace / "confidential", listener=hear)
    assert sorted(tasks) == [0, 0, 1, 1, 2, 2]
    assert public_bytes(tmp_path / "two") == public_bytes(peace)
    tasks.clear()
    dpdist.publish(tmp_path / "two", hear, job, page=False)
    assert sorted(tasks) == [0, 0, 1, 1, 2, 2]
    assert public_bytes(tmp_path / "two") == public_bytes(peace)
    assert not (tmp_path / "two" / "confidential" / FOLDER).exists()
    dpdist.run(load_job(survey.job()), tmp_path / "other")
    assert public_bytes(tmp_path / "other") != public_bytes(peace)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["worker", "driver"])
def test_a_publication_that_is_killed_ends_with_the_same_bytes_and_draws_nothing_again(
    survey: Survey, peace: Path, tmp_path: Path, victim: str
) -> None:
    """A worker is replaced within the run; after a driver's end the same command resumes. Control: the stage was under
    way, for its tasks' files lay there and nothing was published.
    """
    job, workspace = survey.job("dask", workers=2), tmp_path / victim
    started = Run(job, workspace, "--replay", peace / "confidential")
    assert started.until(lambda: any((workspace / "confidential" / FOLDER).glob("*/work")))
    assert not (workspace / "public").exists()
    if victim == "worker":
        killed = started.workers()[0]
        killed.kill()
        assert survivors([killed]) == []
        ended = started.end()
    else:
        assert started.kill() == [], "processes outlive their driver"
        ended = run(job, workspace, "--replay", peace / "confidential")
    assert ended.code == 0, ended.text
    assert public_bytes(workspace) == public_bytes(peace)
    assert inventory(workspace) == inventory(peace)


@pytest.mark.long
def test_draws_of_many_sums_and_tables_are_shared_by_workers_and_have_the_bytes_of_one_process(tmp_path: Path) -> None:
    """A table of 3,248 cells is solved by products: its draws are blocks of right sides, and every block is a task. So is
    every table, its evaluation and its verdict.
    """
    keys = {"mechanism": {"name": "tables"}, "budget": {"epsilon": "8"}, "publish": "unless_refused"}
    job, tasks = sized_job(tmp_path, (56, 58), [["c0", "c1"], ["c0"]], 12_000, **keys), list[object]()

    def hear(event: Event) -> None:
        if event.kind == "task" and event.unit["task"] == "WorkPiece":
            tasks.append(event.unit["piece"])

    one, two = tmp_path / "one", tmp_path / "two"
    dpdist.run(load_job(job), one)
    dask = load_job(job, ["runtime.executor=dask", "runtime.workers=2"])
    dpdist.run(dask, two, replay=one / "confidential", listener=hear)
    assert len(tasks) >= 2 * 3 + 2 * 2
    folder = "public" if (one / "public").exists() else "held"
    for name in ("tables", "synthetic"):
        published = [sorted(path.read_bytes() for path in (of / name).iterdir()) for of in (one / folder, two / "public")]
        assert published[0] == published[1]
    evaluations = [
        sorted(path.read_bytes() for path in (of / "confidential" / "evaluation").iterdir()) for of in (one, two)
    ]
    assert len(evaluations[0]) == 2
    assert evaluations[0] == evaluations[1]
