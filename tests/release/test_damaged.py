"""A flipped bit in any confidential file: it is made again, or refused by name with a remedy, and never used."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import invoke
from small_release import LAPLACE_JOB as JOB, survey

import dpdist
from dpdist.audit.auditing import bound_from_outside
from dpdist.core.errors import DpdistError, WorkspaceError
from dpdist.job import Job
from dpdist.ledger.book import Ledger
from dpdist.storage.workspace import MADE_AGAIN

NOT_CHECKED = {"lock", "log"}
"""Files that nothing is read from: an empty one, and text for the custodian."""
NEVER_MADE_AGAIN = re.compile(r"key|identity\.json|ledger\.json|noise/.*|marks/(noise-.*|identity\.json)")
"""Files that no run can make again: what was drawn, what it was for, and the charge."""


@pytest.fixture(scope="module")
def charged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Job]:
    """A finished run with a ledger."""
    folder = tmp_path_factory.mktemp("charged")
    survey(200).to_parquet(folder / "survey.parquet")
    url = f"sqlite:///{folder}/ledger.db"
    Ledger(url).begin()
    text = JOB.replace("survey: {", f"input: {{path: {folder}/survey.parquet}}\nledger: {{url: '{url}'}}\nsurvey: {{")
    job = dpdist.parse_job(text)
    dpdist.run(job, folder / "ws")
    return folder / "ws", job


@pytest.fixture
def workspace(charged: tuple[Path, Job]) -> Iterator[Path]:
    """The finished run; it is put back after the test, under its own name, which the ledger has."""
    kept = charged[0].with_name("kept")
    shutil.copytree(charged[0], kept)
    yield charged[0]
    shutil.rmtree(charged[0])
    kept.rename(charged[0])


def names(workspace: Path) -> list[str]:
    folder = workspace / "confidential"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def flips(path: Path, number: int) -> Iterator[bytes]:
    """Flips one bit at places spread over the file, one after another; yields the whole content, and puts it back."""
    good = path.read_bytes()
    for at in sorted({len(good) * k // number for k in range(number)} | {len(good) - 1}):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        yield good
    path.write_bytes(good)


def public_bytes(workspace: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted((workspace / "public").rglob("*")) if path.is_file()}


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_a_run_that_resumes_makes_a_damaged_file_again_or_refuses_it_by_name(
    every: int, charged: tuple[Path, Job], workspace: Path
) -> None:
    """The first and the last byte of every fifth confidential file in turn (of every one in the long tests); what is
    public stays the same."""
    before, refused = public_bytes(workspace), list[str]()
    checked = [name for name in names(workspace) if name not in NOT_CHECKED][::every]
    for name in checked:
        path = workspace / "confidential" / name
        for good in flips(path, 1):
            try:
                dpdist.run(charged[1], workspace)
            except DpdistError as error:
                refused.append(f"{name}, exit code {error.exit_code}")
            else:
                assert path.read_bytes() == good, f"{name} was taken as it is"
    assert list(dict.fromkeys(refused)) == [f"{name}, exit code 2" for name in checked if NEVER_MADE_AGAIN.fullmatch(name)]
    assert len(checked) > 15 / every
    assert public_bytes(workspace) == before


@pytest.mark.parametrize("pattern", ["noise/*.npz", "marks/noise-*.json", "identity.json", "marks/identity.json", "key"])
def test_damage_to_what_no_run_makes_again_is_named_wherever_it_is(
    pattern: str, charged: tuple[Path, Job], workspace: Path
) -> None:
    for path in sorted((workspace / "confidential").glob(pattern)):
        for _ in flips(path, 12):
            with pytest.raises(WorkspaceError, match="remedy") as refused:
                dpdist.run(charged[1], workspace)
            named = path.name.removeprefix("noise-").removesuffix(path.suffix)
            assert named in str(refused.value) or "it belongs to another " in str(refused.value)
    dpdist.run(charged[1], workspace)  # control


@pytest.mark.parametrize(("name", "remedy"), [("key", "restore it from a copy"), ("job.json", MADE_AGAIN)])
def test_publish_names_a_damaged_key_or_job_before_it_publishes(
    name: str, remedy: str, charged: tuple[Path, Job], workspace: Path
) -> None:
    before = public_bytes(workspace)
    for _ in flips(workspace / "confidential" / name, 9):
        with pytest.raises(WorkspaceError, match=f"confidential/{name} (?s:.)*remedy:  {remedy}"):
            dpdist.publish(workspace)
        done = invoke("publish", workspace)
        assert (done.exit_code, f"confidential/{name}" in done.output) == (2, True), done.output
    assert public_bytes(workspace) == before
    dpdist.publish(workspace)  # control


Reading = Callable[[Path], object]
READINGS: dict[str, Reading] = {
    "open_evaluation": lambda workspace: dpdist.open_evaluation(workspace)["counts"],
    "report": lambda workspace: _reported(workspace),
}


def _reported(workspace: Path) -> None:
    done = invoke("report", workspace, "--confidential")
    if done.exit_code == 2:
        raise WorkspaceError(str(workspace), done.output, "")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("reading", READINGS)
def test_no_damaged_evaluation_is_read(reading: str, charged: tuple[Path, Job], workspace: Path) -> None:
    for _ in flips(workspace / "confidential" / "evaluation" / "counts.parquet", 23):
        with pytest.raises(
            WorkspaceError,
            match=r"evaluation/counts.parquet .*(?s:.)*run the same `dpdist run` command again: it makes the file again",
        ):
            READINGS[reading](workspace)
    READINGS[reading](workspace)  # control


def test_an_evaluation_that_was_damaged_is_made_again(charged: tuple[Path, Job], workspace: Path) -> None:
    path = workspace / "confidential" / "evaluation" / "counts.parquet"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    dpdist.run(charged[1], workspace)
    assert path.read_bytes() == good
    assert len(dpdist.open_evaluation(workspace)["counts"])


@pytest.mark.parametrize("name", ["key", "strata.parquet", "records/records.arrow", "records/frame.parquet", "job.json"])
def test_an_audit_refuses_damaged_files_by_name(name: str, workspace: Path) -> None:
    for _ in flips(workspace / "confidential" / name, 3):
        with pytest.raises(WorkspaceError, match=f"confidential/{name} "):
            bound_from_outside(workspace, 100)
