"""The late twin: a worker that was cut off, whose task another has done, and that then goes on writing. What is stored is
never replaced, and a run that resumes takes what has its checksum."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign import (
    Kept,
    Server,
    Stamp,
    Survey,
    arguments,
    finished_strata,
    public_bytes,
    stamps,
    strata_done,
    wait_until,
)

from dpdist.runtime import tasks
from dpdist.runtime.tasks import JobFit, open_fit
from dpdist.storage.byproducts import StratumStore
from dpdist.storage.workspace import Workspace

STRATUM = 1


def begun_fit(finished: Path, folder: Path) -> JobFit:
    """The fit of a copy of a workspace in which one stratum is not done yet."""
    shutil.copytree(finished, folder)
    space = Workspace(folder)
    fit = open_fit(space, space.read_key(), "strata")
    (space.completions / f"{space.part('strata', STRATUM).name}.json").unlink()
    shutil.rmtree(space.part("strata", STRATUM))
    return fit


def everything(fit: JobFit) -> dict[str, Stamp]:
    """Stamps of every file of the confidential folder, temporary ones included."""
    folder = fit.space.confidential
    return {name: stamp for name, stamp in stamps(folder, "**/*").items() if (folder / name).is_file()}


def meet(monkeypatch: pytest.MonkeyPatch, at: int, other: Callable[[], None], fence: bool = True) -> list[int]:
    """Before its `at`-th write a task is held up until another has done all of its own; returns the writes counted."""
    refuse, counted = StratumStore.refuse_late, [0]

    def held(store: StratumStore) -> None:
        counted[0] += 1
        if counted[0] == at:
            other()
        if fence:
            refuse(store)

    monkeypatch.setattr(StratumStore, "refuse_late", held)
    return counted


def writes_of(fit: JobFit, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patch:
        counted = meet(patch, 0, lambda: None)
        assert tasks.protect_unfinished(fit, [STRATUM]) == [tasks.Outcome(STRATUM, None)]
    return counted[0]


def test_a_twin_that_comes_late_at_any_of_its_writes_leaves_everything_as_the_other_stored_it(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = writes_of(begun_fit(undisturbed, tmp_path / "counted"), monkeypatch)
    assert writes >= 5, "control: draws, bounds, tensor, release and mark are all guarded"
    for at in range(1, writes + 1):
        fit, stored = begun_fit(undisturbed, tmp_path / f"at-{at}"), dict[str, Stamp]()

        def other(fit: JobFit = fit, stored: dict[str, Stamp] = stored) -> None:
            assert tasks.protect_small(fit, STRATUM).failure is None
            stored |= everything(fit)

        with monkeypatch.context() as patch:
            meet(patch, at, other)
            assert tasks.protect_unfinished(fit, [STRATUM]) == [tasks.Outcome(STRATUM, None)]
        assert stored, f"control: the other finished while the twin was about to write for the {at}-th time"
        assert everything(fit) == stored, f"late at write {at}"
        assert fit.finished([STRATUM])


def test_without_the_guard_a_late_twin_replaces_files_with_their_own_bytes(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above; and what is left where two write in the same moment: whole files, the same bytes."""
    fit, stored = begun_fit(undisturbed, tmp_path / "work"), dict[str, Stamp]()

    def other() -> None:
        assert tasks.protect_small(fit, STRATUM).failure is None
        stored.update(everything(fit))

    meet(monkeypatch, 1, other, fence=False)
    assert tasks.protect_unfinished(fit, [STRATUM]) == [tasks.Outcome(STRATUM, None)]
    again = everything(fit)
    assert sum(again[name] != stamp for name, stamp in stored.items()) >= 5
    assert set(again) == set(stored)
    assert fit.finished([STRATUM]), "the checksums of the first still hold"


def test_a_watch_of_finished_strata_tells_other_bytes_from_the_same_bytes_written_again(
    undisturbed: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed, work := tmp_path / "work")
    kept, part = Kept(work), "parts/strata-000000/stratum.json"
    kept.look()
    kept.look()
    assert (kept.changed, kept.again) == (set(), set())
    for name, change in ((part, ""), ("parts/strata-000001/stratum.json", " ")):
        path = work / "confidential" / name
        written = path.with_suffix(".new")
        written.write_text(path.read_text() + change)
        written.replace(path)
    (work / "confidential" / "marks" / "strata-000002.json").unlink()
    kept.look()
    assert kept.again == {part}
    assert kept.changed >= {"parts/strata-000001/stratum.json", "marks/strata-000002.json"}


def test_a_resumed_run_takes_what_has_its_checksum_and_makes_the_rest_again(
    few: Survey, undisturbed: Path, dpdist: Server, tmp_path: Path
) -> None:
    """As where a twin on another type of machine left other bytes: they are not taken, and nothing else is touched."""
    work = tmp_path / "work"
    shutil.copytree(undisturbed, work)
    damaged = work / "confidential" / "parts" / "strata-000001" / "stratum.json"
    damaged.write_text(damaged.read_text().replace("1", "2", 1))
    (work / "confidential" / "marks" / "gathered.json").unlink()
    before = finished_strata(work)
    assert dpdist(*arguments(few.job(), work)).code == 0
    after = finished_strata(work)
    assert {name.split("/")[1].removesuffix(".json") for name in before if after[name] != before[name]} == {"strata-000001"}
    assert public_bytes(work) == public_bytes(undisturbed)


TWIN = """
import sys, time
from pathlib import Path

from dpdist.runtime.tasks import open_fit
from dpdist.runtime.tasks import ProtectBin
from dpdist.storage.byproducts import StratumStore
from dpdist.storage.workspace import Workspace

workspace, here = Path(sys.argv[1]), Path(sys.argv[2])
space, close = Workspace(workspace), StratumStore.close


def late(store, described):
    if store.stratum == 7:
        (here / "ready").touch()
        while not (here / "go").exists():
            time.sleep(0.01)
    close(store, described)


StratumStore.close = late
fit = open_fit(space, space.read_key(), "strata")
assert all(outcome.failure is None for outcome in ProtectBin(fit.address, 1)(0))
"""


@pytest.mark.long
def test_a_worker_that_wakes_after_the_release_has_ended_writes_nothing(dpdist: Server, tmp_path: Path) -> None:
    """A process of its own with a task in hand, held up in the middle of a stratum until others have done it all."""
    survey, work = Survey(tmp_path, (30,) * 20, draws=100), tmp_path / "work"
    assert dpdist(*arguments(survey.job(), tmp_path / "peace"), same_keys=True).code == 0
    replay = ("--replay", tmp_path / "peace" / "confidential")
    assert dpdist(*arguments(survey.job(), work, *replay), die_at="marks/.strata-000003").code == -9
    assert strata_done(work) == 3
    with subprocess.Popen([sys.executable, "-c", TWIN, str(work), str(tmp_path)]) as twin:
        wait_until(lambda: (tmp_path / "ready").exists() or twin.poll() is not None)
        assert strata_done(work) == 7, "control: it stands in the middle of its task"
        assert dpdist(*arguments(survey.job(), work, *replay)).code == 0
        stored = stamps(work, "**/*")
        (tmp_path / "go").touch()
        assert twin.wait(timeout=60) == 0
    assert stamps(work, "**/*") == stored
    assert strata_done(work) == 20
    assert public_bytes(work) == public_bytes(tmp_path / "peace")
