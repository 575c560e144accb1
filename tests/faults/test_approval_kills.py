"""An approval that is killed anywhere: nothing half-published is ever named public, and the same command ends it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from campaign import Server
from small_release import LAPLACE_JOB as JOB, survey

from dpdist.core.minisign import PublicKey
from dpdist.core.public_files import UNFIT
from dpdist.opening.verifying import problems

REASON = ("--reason", "intervals hold")


@pytest.fixture(scope="module")
def held(dpdist: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace that was approved once, with another release in hold: labels were changed since."""
    folder = tmp_path_factory.mktemp("held")
    survey(300).to_parquet(folder / "survey.parquet")
    text = JOB.replace("survey: {", f"input: {{path: {folder}/survey.parquet}}\nsurvey: {{") + "approval: required\n"
    (folder / "job.yaml").write_text(text)
    (folder / "labels.yaml").write_text(text + "presentation: {title: Salaries}\n")
    for command in (
        ("keygen", folder / "head"),
        ("run", folder / "job.yaml", "-w", folder / "ws", "--quiet"),
        ("approve", folder / "ws", "--key", folder / "head", *REASON),
        ("publish", folder / "ws", "--job", folder / "labels.yaml"),
    ):
        ended = dpdist(*command)
        assert ended.code == 0, ended.text
    assert (folder / "ws" / "held" / UNFIT).exists()
    return folder


def release(folder: Path) -> str:
    return str(json.loads((folder / "manifest.json").read_text())["release"])


def wrong(space: Path, key: PublicKey, releases: list[str]) -> list[str]:
    """What must not be: a public folder that is not whole, signed, and one of the two releases; no hold on what is held."""
    public, waiting = space / "public", space / "held"
    found = [f"public: {line}" for line in problems(public, key)] if public.exists() else []
    found += (
        ["public: a release that nobody made"] if not found and public.exists() and release(public) not in releases else []
    )
    marked = (waiting / UNFIT).exists() or not (waiting / "manifest.json").exists()
    return found + ([] if marked else ["held: not marked as held"])


def ended_by_the_same_command(
    dpdist: Server, held: Path, folder: Path, die_at: int | str, first: bool
) -> tuple[bool, list[str]]:
    """Whether the approval was killed before this change, and what was wrong then or after the same command."""
    shutil.copytree(held / "ws", space := folder / "ws")
    key = PublicKey.parse((held / "head.pub").read_text())
    if first:
        shutil.rmtree(space / "public")
    releases = [release(held / "ws" / name) for name in ("public", "held")]
    command = ("approve", space, "--key", held / "head", *REASON)
    killed = dpdist(*command, die_at=die_at).code == -9
    found = wrong(space, key, releases)
    again = dpdist(*command)
    found += [again.text] if again.code != 0 else []
    found += wrong(space, key, releases[1:])
    found += [f"left: {path.name}" for path in space.iterdir() if path.name in ("held", ".public.old", ".public.new")]
    said = json.loads((space / "confidential" / "decisions.json").read_text())
    found += [] if [each["decision"] for each in said] == ["approved"] * 2 else ["decided more than once"]
    shutil.rmtree(space)
    return killed, [f"before change {die_at}: {line}" for line in found]


def campaign(dpdist: Server, held: Path, folder: Path, places: range, first: bool) -> tuple[int, list[str]]:
    kills, found = 0, list[str]()
    for place in places:
        killed, lines = ended_by_the_same_command(dpdist, held, folder, place, first)
        kills, found = kills + killed, found + lines
        if not killed:
            break
    return kills, found


@pytest.mark.parametrize("at", [".public.new", ".public.old", "held/manifest.json", "held", "decisions.json"])
def test_killed_at_each_stage_of_an_approval(dpdist: Server, held: Path, tmp_path: Path, at: str) -> None:
    killed, found = ended_by_the_same_command(dpdist, held, tmp_path, at, first=False)
    assert (killed, found) == (True, [])


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False], ids=["nothing public before", "another release public"])
def test_killed_before_every_change_to_the_file_system(dpdist: Server, held: Path, tmp_path: Path, first: bool) -> None:
    kills, found = campaign(dpdist, held, tmp_path, range(1, 1000), first)
    assert found == []
    assert kills >= 30


def test_control_a_folder_that_lacks_a_file_is_found_out(held: Path, tmp_path: Path) -> None:
    shutil.copytree(held / "ws", tmp_path / "ws")
    key = PublicKey.parse((held / "head.pub").read_text())
    releases = [release(tmp_path / "ws" / "public")]
    assert wrong(tmp_path / "ws", key, releases) == []
    (tmp_path / "ws" / "public" / "statement.json").unlink()
    (tmp_path / "ws" / "held" / UNFIT).unlink()
    assert wrong(tmp_path / "ws", key, releases) == ["public: statement.json: no such file", "held: not marked as held"]
