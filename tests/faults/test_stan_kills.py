"""Workers killed while their Stan programs run: no process and no folder stays, the run ends with the same public bytes."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from campaign import Run, Survey, command, public_bytes, run, survivors

from dpdist.sampling.toolchain import executable

STAN = "{name: stan, chains: 2, warmup: 2000, draws: 100}"


@pytest.fixture(scope="module")
def survey(stan_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """Two strata; their program is compiled here, not within the patience of a run."""
    executable("lognormal")
    return Survey(tmp_path_factory.mktemp("stan"), (150, 60), draws=100)


def under_stan(survey: Survey, executor: str, **runtime: object) -> Path:
    """The survey's job with chains long enough to be met while they run."""
    said = survey.job(executor, **runtime)
    path = said.with_name(f"stan-{said.name}")
    path.write_text(said.read_text().replace("sampler: {draws: 100}", f"sampler: {STAN}"))
    return path


def fits(running: Run) -> list[psutil.Process]:
    """Processes of Stan programs."""
    return [process for process in running.family() if any("method=sample" in word for word in command(process))]


@pytest.mark.long
def test_a_worker_killed_during_a_fit_leaves_nothing_and_the_run_ends_with_the_same_bytes(
    survey: Survey, tmp_path: Path
) -> None:
    peace = tmp_path / "peace"
    ended = run(under_stan(survey, "serial"), peace)
    assert ended.code == 0, ended.text
    disturbed, replay = tmp_path / "disturbed", ("--replay", peace / "confidential")
    running = Run(under_stan(survey, "dask", workers=1), disturbed, *replay)
    kills = 0
    for _ in range(2):
        assert running.until(lambda: bool(fits(running)))
        caught = fits(running)
        (worker,) = running.workers()
        worker.kill()
        assert survivors(caught) == []
        kills += 1
    ended = running.end()
    assert ended.code == 0, ended.text
    assert kills == 2
    assert not list((disturbed / "confidential").glob("scratch-*"))
    assert public_bytes(disturbed) == public_bytes(peace)


@pytest.mark.slow
def test_a_driver_killed_during_a_fit_leaves_no_process_and_the_same_command_clears_its_folder(
    survey: Survey, tmp_path: Path
) -> None:
    job = under_stan(survey, "dask", workers=2)
    running = Run(job, tmp_path / "work")
    assert running.until(lambda: bool(fits(running)))
    assert running.kill() == []
    assert list((tmp_path / "work" / "confidential").glob("scratch-fits/*"))
    ended = run(job, tmp_path / "work")
    assert ended.code == 0, ended.text
    assert not list((tmp_path / "work" / "confidential").glob("scratch-*"))
