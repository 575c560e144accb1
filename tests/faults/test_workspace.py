"""One owner at a time, one job and one input for good; Ctrl-C ends a run and leaves no process."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from campaign import Run, Server, Survey, arguments, inventory, public_bytes, strata_done, survivors
from filelock import FileLock


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """Forty strata: a few seconds of work."""
    return Survey(tmp_path_factory.mktemp("several"), (60,) * 40, draws=200)


@pytest.fixture(scope="module")
def peace(several: Survey, dpdist: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("peace") / "several"
    assert dpdist(*arguments(several.job(), workspace)).code == 0
    return workspace


@pytest.mark.long
def test_a_second_run_on_a_workspace_is_refused_and_the_first_goes_on_unharmed(
    several: Survey, peace: Path, tmp_path: Path, dpdist: Server
) -> None:
    workspace, replay = tmp_path / "shared", ("--replay", peace / "confidential")
    first = Run(several.job(), workspace, *replay)
    assert first.until(lambda: strata_done(workspace) > 0)
    first.process.send_signal(signal.SIGSTOP)
    before = inventory(workspace)
    second = dpdist(*arguments(several.job(), workspace, *replay))
    assert (second.code, second.clear) == (1, True)
    assert "another run is using it" in second.text
    assert "wait for that run to end" in second.text
    assert inventory(workspace) == before
    first.process.send_signal(signal.SIGCONT)
    ended = first.end()
    assert ended.code == 0, ended.text
    assert public_bytes(workspace) == public_bytes(peace)


def test_a_publication_is_refused_while_another_goes_on(undisturbed: Path, tmp_path: Path, dpdist: Server) -> None:
    shutil.copytree(undisturbed, tmp_path / "shared")
    with FileLock(tmp_path / "shared" / ".public.lock"):
        ended = dpdist("publish", tmp_path / "shared", "--quiet")
    assert (ended.code, ended.clear) == (1, True)
    assert "another command" in ended.text
    assert public_bytes(tmp_path / "shared") == public_bytes(undisturbed)


def test_another_job_is_refused_with_the_keys_that_differ(few: Survey, undisturbed: Path, dpdist: Server) -> None:
    before = inventory(undisturbed), public_bytes(undisturbed)
    other = Survey(few.folder, few.sizes, draws=150, epsilon="9.9")
    ended = dpdist(*arguments(other.job(), undisturbed))
    assert (ended.code, ended.clear) == (2, True)
    assert "another job" in ended.text
    for said in ("budget.epsilon", "10.8", "9.9", "sampler.draws", "100", "150"):
        assert said in ended.text
    assert (inventory(undisturbed), public_bytes(undisturbed)) == before


def test_other_input_is_refused_as_other_input(few: Survey, undisturbed: Path, dpdist: Server) -> None:
    before = inventory(undisturbed), public_bytes(undisturbed)
    ended = dpdist(*arguments(few.job(), undisturbed, "--input", few.input(seed=2)))
    assert (ended.code, ended.clear) == (2, True)
    assert "another input" in ended.text
    assert "another job" not in ended.text
    assert (inventory(undisturbed), public_bytes(undisturbed)) == before


def test_the_same_content_under_another_path_is_the_same_input(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server
) -> None:
    shutil.copytree(undisturbed, tmp_path / "copy")
    moved = shutil.copy(few.input(), tmp_path / "moved.parquet")
    assert dpdist(*arguments(few.job(), tmp_path / "copy", "--input", moved)).code == 0
    assert public_bytes(tmp_path / "copy") == public_bytes(undisturbed)


@pytest.mark.parametrize(
    ("executor", "where", "moment"),
    [
        ("serial", "driver", "protect"),
        ("serial", "group", "publish"),
        ("dask", "group", "workers start"),
        ("dask", "group", "protect"),
    ],
)
@pytest.mark.long
def test_ctrl_c_ends_a_run_in_seconds_leaves_no_process_and_the_same_command_resumes(
    several: Survey, peace: Path, tmp_path: Path, dpdist: Server, executor: str, where: str, moment: str
) -> None:
    """A terminal interrupts the whole group of processes; `kill -INT` the driver alone."""
    workspace, replay = tmp_path / "interrupted", ("--replay", peace / "confidential")
    started = Run(several.job(executor, workers=2), workspace, *replay)
    come = {
        "workers start": lambda: len(started.workers()) == 2,
        "protect": lambda: strata_done(workspace) > 2,
        "publish": lambda: (workspace / ".public.new").exists(),
    }
    assert started.until(come[moment])
    family = started.family()
    before = time.monotonic()
    {"driver": os.kill, "group": os.killpg}[where](started.process.pid, signal.SIGINT)
    ended = started.end()
    assert time.monotonic() - before < 30
    assert ended.code == 130, ended.text
    assert "Interrupted; the same command resumes." in ended.text
    assert "Traceback" not in ended.text
    assert survivors(family) == []
    assert not (workspace / "public").exists()
    assert dpdist(*arguments(several.job(), workspace, *replay)).code == 0
    assert public_bytes(workspace) == public_bytes(peace)
