"""Death at a chosen change to the file system, one after the other: before every open for writing, rename, removal and new
folder that a command makes, there is a moment at which it may die. The same command then ends as if nothing had happened.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign import Server, Survey, arguments, inventory, public_bytes

pytestmark = pytest.mark.long

SMALL_BLOCKS = {"TENSOR_BYTES": 2**17, "SPAN_VALUES": 2**14}
"""Blocks of 128 records and spans of one block: strata of a few hundred records are giants."""
SEED = 3_141_592

KINDS = {
    "small strata": ((150, 40, 60), {}, {}),
    "giant strata": ((400, 40, 300), {}, SMALL_BLOCKS),
    "pooled": ((20, 30, 200), {"epsilon": "2.0", "fallback": "pool"}, {}),
    "under the proper prior": ((20, 30, 200), {"epsilon": "2.0", "fallback": "proper_prior"}, {}),
}


class Release:
    """A release of some kind, undisturbed, and the ways to disturb it."""

    def __init__(self, kind: str, folder: Path, dpdist: Server) -> None:
        sizes, said, self.constants = KINDS[kind]
        self.kind, self.dpdist, self.folder = kind, dpdist, folder
        self.job = Survey(folder, sizes, draws=100, **said).job()
        self.peace = folder / "peace"
        assert self.run(self.peace, same_keys=True) == 0
        self.changes = dpdist.changes
        self.public, self.paths = public_bytes(self.peace), inventory(self.peace)

    def run(self, workspace: Path, *more: object, **how: Any) -> int:
        ended = self.dpdist(*arguments(self.job, workspace, *more), constants=self.constants, **how)
        assert ended.code in (0, -9), ended.text
        return ended.code

    def wrong_after(self, *deaths: int) -> list[str]:
        """What is wrong with a release that died at these changes, each time begun again."""
        workspace = self.folder / ("killed " + " ".join(map(str, deaths)))
        more = ("--replay", self.peace / "confidential")
        codes = [self.run(workspace, *more, die_at=death) for death in deaths]
        wrong = [] if codes[0] == -9 else [f"{deaths}: it did not die"]
        ended = self.dpdist(*arguments(self.job, workspace, *more), constants=self.constants)
        if ended.code != 0:
            return [*wrong, f"{deaths}: it does not resume: {ended.text}"]
        if public_bytes(workspace) != self.public:
            wrong.append(f"{deaths}: other public bytes")
        if inventory(workspace) != self.paths:
            wrong.append(f"{deaths}: left over or lost: {sorted(inventory(workspace) ^ self.paths)}")
        return wrong


@pytest.fixture(scope="module", params=list(KINDS))
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, dpdist: Server) -> Release:
    return Release(request.param, tmp_path_factory.mktemp("release"), dpdist)


def test_the_kinds_of_release_are_what_they_are_called(release: Release) -> None:
    marks = {path.stem for path in (release.peace / "confidential" / "marks").iterdir()}
    assert ("pooled-000000" in marks) == (release.kind == "pooled")
    assert ("proper-000000" in marks) == (release.kind == "under the proper prior")
    spans = list((release.peace / "confidential" / "parts").glob("strata-000000/bounds-00001.arrow"))
    assert bool(spans) == (release.kind == "giant strata")


def test_a_run_that_dies_at_any_change_is_ended_by_the_same_command(release: Release) -> None:
    """Here at three seeded changes, one of the first among them, and the second dies a second time."""
    rng = np.random.default_rng([SEED, release.changes])
    deaths = [int(rng.integers(1, 12)), *rng.integers(12, release.changes, 2).tolist()]
    wrong = []
    for number, death in enumerate(deaths):
        again = [int(rng.integers(1, release.changes))] if number % 2 else []
        wrong += release.wrong_after(death, *again)
    assert wrong == []


def test_a_run_that_dies_while_a_verdict_decides_is_ended_by_the_same_command(tmp_path: Path, dpdist: Server) -> None:
    """Without a replay, which is never held: at some of the last changes, among them the move to the public folder. Keys
    decide how many changes a run makes: they are the same in all."""
    survey, peace = Survey(tmp_path, (150, 40, 60), draws=100, publish="unless_refused"), tmp_path / "peace"
    assert dpdist(*arguments(survey.job(), peace), same_keys=True).code == 0
    changes, wrong, seen = dpdist.changes, [], set()
    for death in range(changes - 45, changes, 11):
        workspace = tmp_path / str(death)
        assert dpdist(*arguments(survey.job(), workspace), die_at=death, same_keys=True).code == -9
        seen.add((workspace / "held").exists())
        ended = dpdist(*arguments(survey.job(), workspace))
        if ended.code != 0 or inventory(workspace) != inventory(peace):
            wrong.append(f"{death}: {ended} {sorted(inventory(workspace) ^ inventory(peace))}")
    assert wrong == []
    assert seen == {True, False}


@pytest.mark.slow
def test_a_run_that_dies_at_a_hundred_changes_is_ended_by_the_same_command(release: Release) -> None:
    """Spread over the whole run."""
    deaths = np.unique(np.linspace(1, release.changes, 100).astype(int)).tolist()
    assert [said for death in deaths for said in release.wrong_after(death)] == []


def test_a_run_that_dies_while_it_takes_its_workspace_is_ended_by_the_same_command(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server
) -> None:
    """Without a replay: the key is drawn again as long as nothing was done with it."""
    wrong = []
    for death in range(2, 13, 2):
        workspace = tmp_path / str(death)
        assert dpdist(*arguments(few.job(), workspace), die_at=death).code == -9
        ended = dpdist(*arguments(few.job(), workspace))
        if ended.code != 0 or inventory(workspace) != inventory(undisturbed):
            wrong.append(f"{death}: {ended} {inventory(workspace) - inventory(undisturbed)}")
    assert wrong == []


def test_a_publication_that_dies_at_any_change_is_ended_by_the_same_command(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server
) -> None:
    shutil.copytree(undisturbed / "public", tmp_path / "first" / "public")
    assert dpdist("publish", tmp_path / "first", "--quiet").code == 0
    changes, paths = dpdist.changes, inventory(tmp_path / "first")
    wrong = []
    for death in range(1, changes + 1, 7):
        workspace = tmp_path / f"killed {death}"
        shutil.copytree(undisturbed / "public", workspace / "public")
        assert dpdist("publish", workspace, "--quiet", die_at=death).code == -9
        ended = dpdist("publish", workspace, "--quiet")
        if (ended.code, public_bytes(workspace), inventory(workspace)) != (0, public_bytes(undisturbed), paths):
            wrong.append(f"{death}: {ended}")
    assert wrong == []
