"""A job that wants approval: nothing is public before somebody has approved it under a key, and reasons are kept."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke, succeed
from public_files import files_of
from small_release import LAPLACE_JOB as JOB, survey
from typer.testing import Result

import dpdist
import dpdist.release
from dpdist.core.errors import JobError, WorkspaceError
from dpdist.core.files import publishing
from dpdist.core.minisign import PublicKey
from dpdist.core.public_files import UNFIT
from dpdist.storage.workspace import Workspace

HOLDING = True
"""Verdicts decide on releases: see conftest."""

WANTED = JOB + "approval: required\n"


def written(folder: Path) -> Path:
    """A job that wants approval, its input, and two people's keys."""
    survey(300).to_parquet(folder / "survey.parquet")
    (folder / "job.yaml").write_text(WANTED)
    for name in ("head", "other"):
        invoke("keygen", f"{folder}/{name}")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the job has run."""
    place = written(tmp_path_factory.mktemp("finished"))
    run(place)
    return place


@pytest.fixture
def waiting(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, whose release waits for approval."""
    return Path(shutil.copytree(finished, tmp_path / "waiting"))


def run(folder: Path, *more: str) -> Result:
    return invoke("run", f"{folder}/job.yaml", "-w", f"{folder}/ws", "--input", f"{folder}/survey.parquet", *more)


def approve(folder: Path, *more: str) -> Result:
    return invoke("approve", f"{folder}/ws", *more)


def decisions(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "ws" / "confidential" / "decisions.json").read_text())
    return found


def test_a_run_ends_in_hold(folder: Path) -> None:
    done = run(folder, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output.splitlines()[-1]) == {"event": "held", "held": f"{folder}/ws/held"}
    assert not (folder / "ws" / "public").exists()
    with pytest.raises(WorkspaceError, match="its release is held"):
        dpdist.open_release(folder / "ws")
    assert invoke("verify", f"{folder}/ws/held").output.startswith(f"{UNFIT}: This release is on hold")
    asked = invoke("verify", f"{folder}/ws")
    assert asked.exit_code != 0
    assert "its release is held" in asked.output
    assert "/held" in asked.output
    assert invoke("sign", f"{folder}/ws/held", "--key", f"{folder}/head").exit_code == 1
    shown = dpdist.report(folder / "ws", confidential=True)
    assert "This release is on hold" in shown
    assert "CONFIDENTIAL VERDICT" in shown, "who approves has something to look at"


@pytest.fixture
def umask() -> Iterator[None]:
    """The usual one, whatever whoever runs this has."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> set[tuple[bool, str]]:
    """Of a folder and all below: whether it is a folder, and its mode."""
    return {(path.is_dir(), f"{stat.S_IMODE(path.stat().st_mode):o}") for path in (folder, *folder.rglob("*"))}


@pytest.mark.usefixtures("umask")
def test_nobody_else_reads_what_is_held_and_everybody_what_was_approved(folder: Path) -> None:
    run(folder)
    assert modes(folder / "ws" / "held") == {(True, "700"), (False, "600")}
    approve(folder, "--key", f"{folder}/head", "--reason", "fine")
    assert modes(folder / "ws" / "public") == {(True, "755"), (False, "644")}
    invoke("publish", f"{folder}/ws")
    assert modes(folder / "ws" / "public") == {(True, "755"), (False, "644")}


def test_control_a_job_that_wants_none_is_public_at_once(folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB)
    assert run(folder).exit_code == 0
    assert (folder / "ws" / "public" / "manifest.json").exists()
    assert not (folder / "ws" / "held").exists()
    assert "approval" not in dpdist.open_release(folder / "ws").statement
    assert approve(folder, "--key", f"{folder}/head", "--reason", "fine").exit_code == 2


def test_what_is_approved_is_what_was_held_and_signed(waiting: Path) -> None:
    held = files_of(waiting / "ws" / "held")
    done = approve(waiting, "--key", f"{waiting}/head", "--reason", "intervals hold, no cell is far off")
    assert (done.exit_code, f"published: {waiting}/ws/public" in done.output) == (0, True), done.output
    now = files_of(waiting / "ws" / "public")
    assert now.pop("manifest.json.minisig")
    assert now == held
    assert not (waiting / "ws" / "held").exists()
    succeed("verify", f"{waiting}/ws", "--key", f"{waiting}/head.pub")
    assert invoke("verify", f"{waiting}/ws", "--key", f"{waiting}/other.pub").exit_code == 1
    (said,) = decisions(waiting)
    assert (said["decision"], said["reason"]) == ("approved", "intervals hold, no cell is far off")
    assert "ε does not cover this" in dpdist.open_release(waiting / "ws").statement["approval"]
    again = files_of(waiting / "ws" / "public")
    assert run(waiting).exit_code == 0
    assert files_of(waiting / "ws" / "public") == again, "the same command, once more, holds nothing back"


def public_key(folder: Path, name: str) -> str:
    return (folder / f"{name}.pub").read_text().splitlines()[1]


def test_a_job_that_lists_keys_is_approved_under_one_of_them_alone(folder: Path) -> None:
    """Also by a decision that was written by hand; statement and page name the keys."""
    listed = f"approval: {{required: true, keys: [{public_key(folder, 'head')}]}}\n"
    (folder / "job.yaml").write_text(JOB + listed)
    run(folder)
    done = approve(folder, "--key", f"{folder}/other", "--reason", "fine")
    assert (done.exit_code, "does not list the key" in done.output) == (2, True), done.output
    assert not (folder / "ws" / "confidential" / "decisions.json").exists()
    by_hand = {"decision": "approved", "reason": "fine", "date": "2026-01-01", "key": public_key(folder, "other")}
    held = json.loads((folder / "ws" / "held" / "manifest.json").read_text())["release"]
    path = folder / "ws" / "confidential" / "decisions.json"
    path.write_text(json.dumps([by_hand | {"release": held, "signature": "none"}]))
    assert run(folder).exit_code == 2
    assert not (folder / "ws" / "public").exists()
    path.unlink()
    assert approve(folder, "--key", f"{folder}/head", "--reason", "fine").exit_code == 0
    name = PublicKey.parse(public_key(folder, "head")).name
    said = dpdist.open_release(folder / "ws").statement["approval"]
    assert said.endswith(f"The approval must be signed with one of these keys: {name}.")
    assert name in (folder / "ws" / "public" / "index.html").read_text()


def test_verify_wants_the_signature_of_a_listed_key(folder: Path) -> None:
    """Without being told a key. Control: a job without a list is whole unsigned."""
    keys = ", ".join(public_key(folder, name) for name in ("head", "other"))
    (folder / "job.yaml").write_text(JOB + f"approval: {{required: true, keys: [{keys}]}}\n")
    run(folder)
    approve(folder, "--key", f"{folder}/other", "--reason", "fine")
    public = folder / "ws" / "public"
    succeed("verify", f"{public}")
    invoke("keygen", f"{folder}/third")
    done = invoke("sign", f"{public}", "--key", f"{folder}/third")
    assert (done.exit_code, "is not one of them" in done.output) == (1, True), done.output
    (public / "manifest.json.minisig").unlink()
    assert invoke("verify", f"{public}").output.startswith("manifest.json.minisig: signed by none of the keys")


def test_without_a_list_statement_and_page_say_that_any_key_will_do(waiting: Path) -> None:
    assert approve(waiting, "--key", f"{waiting}/other", "--reason", "fine").exit_code == 0
    anybody = "The job lists no keys, so the approval may be signed with any key."
    assert dpdist.open_release(waiting / "ws").statement["approval"].endswith(anybody)
    assert anybody in (waiting / "ws" / "public" / "index.html").read_text()
    assert dpdist.parse_job(WANTED).public["approval"] == "required", "what was published before reads and resumes"
    assert "RW" not in (waiting / "ws" / "public" / "released" / "job.json").read_text()


@pytest.mark.parametrize("keys", ["[RWQ]", "[head.pub]", '["untrusted comment: a key"]', "RWQ", "[1]"])
def test_what_is_no_public_key_is_refused_by_the_job(keys: str) -> None:
    with pytest.raises(JobError, match="approval"):
        dpdist.parse_job(JOB + f"approval: {{required: true, keys: {keys}}}\n")


def test_nobody_else_is_at_what_is_held_while_it_is_published(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal in between would leave public what was refused."""
    asked = []

    def other(space: Workspace) -> bool:
        asked.append(space.held_release)
        with pytest.raises(WorkspaceError, match="another command is publishing it"), publishing(space.held_release):
            pass
        return False

    monkeypatch.setattr(dpdist.release, "publish_approved", other)
    assert run(folder).exit_code == 0
    succeed("publish", f"{folder}/ws")
    assert asked == 2 * [folder / "ws" / "held"]


def test_what_is_refused_stays_unpublished_whatever_is_run(waiting: Path) -> None:
    done = approve(waiting, "--refuse", "--reason", "two cells are far off")
    assert (done.exit_code, "until somebody approves it" in " ".join(done.output.split())) == (0, True), done.output
    for command in (("publish", f"{waiting}/ws"), ("run", f"{waiting}/job.yaml", "-w", f"{waiting}/ws")):
        invoke(*command, *(["--input", f"{waiting}/survey.parquet"] if command[0] == "run" else []))
        assert not (waiting / "ws" / "public").exists(), command
    assert [said["decision"] for said in decisions(waiting)] == ["refused"]
    assert approve(waiting, "--key", f"{waiting}/head", "--reason", "the cells were looked into").exit_code == 0
    assert [said["decision"] for said in decisions(waiting)] == ["refused", "approved"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--reason", "fine"), 2),
        (("--reason", "fine", "--refuse", "--key", "head"), 2),
        (("--reason", " ", "--key", "head"), 2),
        (("--key", "head"), 2),
    ],
)
def test_nobody_approves_without_a_key_and_a_reason(waiting: Path, more: tuple[str, ...], code: int) -> None:
    done = approve(waiting, *(f"{waiting}/{part}" if part == "head" else part for part in more))
    assert (done.exit_code, (waiting / "ws" / "public").exists()) == (code, False), done.output


def test_what_is_changed_after_it_was_approved_is_held_again(waiting: Path) -> None:
    """Other labels make another release, which nobody has approved; the approved one stays public meanwhile."""
    approve(waiting, "--key", f"{waiting}/head", "--reason", "fine")
    before = files_of(waiting / "ws" / "public")
    (waiting / "labels.yaml").write_text(WANTED + "presentation: {title: Salaries}\n")
    done = invoke("publish", f"{waiting}/ws", "--job", f"{waiting}/labels.yaml")
    assert (done.exit_code, done.output.startswith("Held")) == (0, True), done.output
    assert files_of(waiting / "ws" / "public") == before
    assert approve(waiting, "--key", f"{waiting}/head", "--reason", "labels alone").exit_code == 0
    assert files_of(waiting / "ws" / "public") != before


def test_a_held_release_that_was_changed_is_not_approved(waiting: Path) -> None:
    (waiting / "ws" / "held" / "tables" / "counts.csv").write_text("forged")
    assert approve(waiting, "--key", f"{waiting}/head", "--reason", "fine").exit_code == 1
    assert not (waiting / "ws" / "public").exists()


def test_hold_is_not_left_by_leaving_the_key_out(waiting: Path) -> None:
    """Another job has another workspace, and another budget; a replay's draws are nobody's to approve."""
    (waiting / "job.yaml").write_text(JOB)
    assert run(waiting).exit_code == 2
    assert invoke("publish", f"{waiting}/ws", "--job", f"{waiting}/job.yaml").exit_code == 2
    assert not (waiting / "ws" / "public").exists()
    (waiting / "job.yaml").write_text(WANTED)
    command = ["run", f"{waiting}/job.yaml", "-w", f"{waiting}/replay", "--input", f"{waiting}/survey.parquet"]
    succeed(*command, "--replay", f"{waiting}/ws/confidential")
    done = invoke("approve", f"{waiting}/replay", "--key", f"{waiting}/head", "--reason", "fine")
    assert (done.exit_code, "another run's draws" in done.output) == (2, True)
