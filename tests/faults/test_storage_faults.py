"""Full disks, folders that cannot be written, damaged files: a clear error or the same bytes, never other bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from campaign import Ended, Server, Survey, arguments, inventory, public_bytes, run
from small_release import LAPLACE_JOB as JOB, survey

import dpdist
from dpdist.core.errors import WorkspaceError
from dpdist.core.progress import Event

KIB = 1024


class Disk:
    """A disk of a given size: a small tmpfs, or where mounting is not allowed a limit on the size of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.mounted = False
        self.file_limit: int | None = None

    def resize(self, kib: int | None) -> None:
        options = f"size={kib or 512 * KIB}k"
        if self.mounted:
            _mount("-o", f"remount,{options}", self.folder)
        else:
            self.mounted = _mount("-t", "tmpfs", "-o", options, "tmpfs", self.folder)
        self.file_limit = None if self.mounted or kib is None else kib * KIB // 8

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", self.folder], check=True)


def _mount(*arguments: object) -> bool:
    if shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.close()


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """One stratum, more of records than of anything else."""
    return Survey(tmp_path_factory.mktemp("long"), (30_000,), draws=100, log_lik="never")


UNLIKE = ("log", "lock", "replay", "report.html")


def by_products(workspace: Path) -> dict[str, bytes]:
    """Every confidential file of a workspace but the log, the lock, the marks of a replay, and the page that has times.

    The record of identity.json is a replay's, too: it holds that file's checksum.
    """
    confidential = workspace / "confidential"
    files = (path for path in confidential.rglob("*") if path.is_file() and path.name not in UNLIKE)
    found = {path.relative_to(confidential).as_posix(): path.read_bytes() for path in files}
    identity = json.loads(found["identity.json"])
    identity.pop("mark", None)
    assert found.pop("marks/identity.json")
    return found | {"identity.json": json.dumps(identity).encode()}


def differing(workspace: Path, other: Path) -> set[str]:
    """Files in which two workspaces differ."""
    here, there = by_products(workspace) | public_bytes(workspace), by_products(other) | public_bytes(other)
    return {name for name in here.keys() | there.keys() if here.get(name) != there.get(name)}


@pytest.mark.parametrize("kib", [4, 160, 400, 560])
def test_a_full_disk_is_said_so_and_with_space_the_same_command_ends_the_run(
    few: Survey, undisturbed: Path, disk: Disk, dpdist: Server, kib: int
) -> None:
    """Whatever is being written when the space is used up: records, stores, by-products, the public folder."""
    command = arguments(few.job(), disk.folder / "work", "--replay", undisturbed / "confidential")
    disk.resize(kib)
    ended = dpdist(*command, file_limit=disk.file_limit)
    assert (ended.code, ended.clear) == (1, True), ended
    assert "No space left on device" in ended.text or "File too large" in ended.text
    assert "the same command resumes" in ended.text
    assert not (disk.folder / "work" / "public").exists()
    disk.resize(None)
    assert dpdist(*command).code == 0
    assert differing(disk.folder / "work", undisturbed) == set()


@pytest.mark.parametrize("kib", [800, 2400])
def test_a_disk_that_the_records_fill_is_said_so(long: Survey, disk: Disk, dpdist: Server, kib: int) -> None:
    disk.resize(kib)
    ended = dpdist(*arguments(long.job(), disk.folder / "work"), file_limit=disk.file_limit)
    assert (ended.code, ended.clear) == (1, True), ended
    disk.resize(None)
    assert dpdist(*arguments(long.job(), disk.folder / "work")).code == 0


@pytest.mark.parametrize("limit", [2_000, 30_000])
def test_a_limit_on_the_size_of_files_is_said_so_and_without_it_the_same_command_ends_the_run(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server, limit: int
) -> None:
    command = arguments(few.job(), tmp_path / "work", "--replay", undisturbed / "confidential")
    ended = dpdist(*command, file_limit=limit)
    assert (ended.code, ended.clear) == (1, True), ended
    assert "File too large" in ended.text
    assert dpdist(*command).code == 0
    assert differing(tmp_path / "work", undisturbed) == set()


@pytest.mark.slow
def test_workers_on_a_full_disk_tell_the_driver(few: Survey, undisturbed: Path, disk: Disk, dpdist: Server) -> None:
    disk.resize(320)
    replay = ("--replay", undisturbed / "confidential")
    ended = limited(disk, few.job("dask", workers=2), disk.folder / "work", *replay)
    assert (ended.code, ended.clear) == (1, True), ended
    assert "No space left on device" in ended.text or "File too large" in ended.text
    disk.resize(None)
    assert dpdist(*arguments(few.job(), disk.folder / "work", *replay)).code == 0
    runtime = {"job.json", "marks/records.json"}
    assert differing(disk.folder / "work", undisturbed) <= runtime


def limited(disk: Disk, job: Path, workspace: Path, *more: object) -> Ended:
    """A run whose processes are all under the disk's limit."""
    if disk.file_limit is None:
        return run(job, workspace, *more)
    import resource

    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (disk.file_limit, hard))
    try:
        return run(job, workspace, *more)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_a_file_in_place_of_the_workspace_is_said_so(few: Survey, tmp_path: Path, dpdist: Server) -> None:
    for place in (tmp_path / "file", tmp_path / "other" / "confidential"):
        place.parent.mkdir(exist_ok=True)
        place.write_text("mine")
        workspace = place if place.name == "file" else place.parent
        ended = dpdist(*arguments(few.job(), workspace))
        assert ended.code in (1, 2)
        assert ended.clear, ended
        assert str(workspace) in ended.text
        assert place.read_text() == "mine"


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder that cannot be written: mounted read-only, or where mounting is not allowed by its mode."""
    if _mount("--bind", folder, folder):
        try:
            assert _mount("-o", "remount,bind,ro", folder)
            yield
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
        return
    assert os.geteuid() != 0, "a root that may not mount cannot be kept from writing"
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o500)
    try:
        yield
    finally:
        for path in folders:
            path.chmod(0o700)


@pytest.mark.long
@pytest.mark.parametrize("begun", ["new", "half done", "done"])
def test_a_read_only_folder_is_said_so_and_nothing_is_lost(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server, begun: str
) -> None:
    command = arguments(few.job(), tmp_path / "work", "--replay", undisturbed / "confidential")
    (tmp_path / "work").mkdir()
    if begun != "new":
        dpdist(*command, die_at="strata-000002" if begun == "half done" else None)
    before = inventory(tmp_path / "work")
    with read_only(tmp_path / "work"):
        ended = dpdist(*command)
        again = dpdist("publish", tmp_path / "work", "--quiet")
    assert (ended.code, ended.clear) == (1, True), ended
    assert "cannot be written" in ended.text or "Read-only" in ended.text
    assert begun != "new" or f"user {os.getuid()}" in ended.text, "a pod's user is nowhere else to be seen"
    assert again.code == 1
    assert again.clear, again
    assert inventory(tmp_path / "work") == before
    assert dpdist(*command).code == 0
    assert differing(tmp_path / "work", undisturbed) == set()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def tampered(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x15
    path.write_bytes(content)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00 no such thing \x93")


def of_another_kind(path: Path) -> None:
    path.write_text("[1, 2, 3]\n")


def gone(path: Path) -> None:
    path.unlink()


def damages(name: str) -> list[Callable[[Path], None]]:
    """Ways to damage a file; those that decide what is done are damaged in ways of their own."""
    deciding = any(part in name for part in ("key", "identity", "marks", "seed", "job", "promise"))
    return [truncated, tampered, *([garbage, of_another_kind] if deciding else []), gone]


def wrong_after_damage(
    name: str, base: Path, whole: Path, folder: Path, dpdist: Server, command: Callable[[Path], Ended], remade_only: bool
) -> list[str]:
    """Damage one file of copies of a workspace in every way, and run: what is wrong with what comes of it."""
    wrong = []
    for damage in damages(name):
        workspace = folder / damage.__name__
        shutil.copytree(base, workspace)
        kept = (workspace / name).read_bytes()
        damage(workspace / name)
        ended = command(workspace)
        said = f"{name} {damage.__name__}"
        if ended.code == 0:
            found = sorted(differing(workspace, whole))
            if found:
                wrong.append(f"{said}: silently other bytes: {found[:3]}")
        elif not ended.clear or ended.code not in (1, 2) or remade_only:
            wrong.append(f"{said}: {ended.code} {ended.text[:200]}")
        else:
            (workspace / name).write_bytes(kept)
            if command(workspace).code != 0 or differing(workspace, whole):
                wrong.append(f"{said}: mended, it does not resume")
        shutil.rmtree(workspace)
    return wrong


REMADE = [
    "confidential/job.json",
    "confidential/records/records.arrow",
    "confidential/records/frame.parquet",
    "confidential/marks/records.json",
    "confidential/marks/stores-strata-2.json",
    "confidential/marks/strata-000000.json",
    "confidential/marks/gathered.json",
    "confidential/parts/strata-000000/stratum.json",
    "confidential/parts/strata-000000/bounds-00000.arrow",
    "confidential/log_lik.zarr/log_lik/zarr.json",
    "confidential/log_lik.zarr/draw/c/0",
    "confidential/log_lik.zarr/log_lik/c.0.0.0",
    "confidential/log_lik.zarr/log_lik/c.0.0.1",
    "confidential/log_lik.zarr/record/c.1",
    "confidential/posterior.zarr/posterior/coefficients/zarr.json",
    "confidential/posterior.zarr/posterior/coefficients/c.0.0.0.0.0",
    "confidential/posterior.zarr/unweighted/covariance/c.0.0.0.0.0",
    "confidential/bounds.parquet",
    "confidential/strata.parquet",
    "public/released/set-1.json",
    "public/manifest.json",
]


@pytest.mark.parametrize("name", REMADE)
@pytest.mark.long
def test_a_damaged_file_is_made_again_to_the_same_bytes(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server, name: str
) -> None:
    """Each kind of file that a finished run leaves; of the chunks the first is full, the second partly filled."""

    def command(workspace: Path) -> Ended:
        return dpdist(*arguments(few.job(), workspace))

    assert wrong_after_damage(name, undisturbed, undisturbed, tmp_path, dpdist, command, remade_only=True) == []


@pytest.mark.parametrize("name", ["confidential/key", "confidential/identity.json"])
@pytest.mark.parametrize("begun", ["half done", "done"])
@pytest.mark.long
def test_a_damaged_key_or_identity_is_refused_and_restored_it_resumes(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server, name: str, begun: str
) -> None:
    """Another key would mix two releases in one; an empty one would be known to everybody."""
    base = undisturbed
    if begun == "half done":
        base = tmp_path / "half"
        dpdist(*arguments(few.job(), base, "--replay", undisturbed / "confidential"), die_at="marks/.strata-000002")

    def command(workspace: Path) -> Ended:
        return dpdist(*arguments(few.job(), workspace))

    assert wrong_after_damage(name, base, undisturbed, tmp_path, dpdist, command, remade_only=False) == []


HALF_DONE = [
    "records/records.arrow",
    "marks/stores-strata-2.json",
    "marks/strata-000000.json",
    "parts/strata-000001/bounds-00000.arrow",
    "log_lik.zarr/log_lik/zarr.json",
    "log_lik.zarr/log_lik/c.0.0.2",
    "log_lik.zarr/record/c.2",
    "posterior.zarr/weighting/covariance/zarr.json",
    "posterior.zarr/posterior/coefficients/c.0.0.1.0.0",
]


@pytest.mark.parametrize("name", HALF_DONE)
@pytest.mark.long
def test_a_file_that_is_damaged_while_a_run_is_interrupted_is_made_again(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server, name: str
) -> None:
    """The run died before the mark of the second stratum, whose files all stand."""
    command = lambda workspace: dpdist(*arguments(few.job(), workspace))  # noqa: E731
    more = ("--replay", undisturbed / "confidential")
    assert dpdist(*arguments(few.job(), tmp_path / "half", *more), die_at="marks/.strata-000001").code == -9
    assert (
        wrong_after_damage(
            f"confidential/{name}", tmp_path / "half", undisturbed, tmp_path, dpdist, command, remade_only=True
        )
        == []
    )


SMALL_BLOCKS = {"TENSOR_BYTES": 2**17, "SPAN_VALUES": 2**14}
"""Blocks of 128 records and spans of one block: a stratum of 400 records is a giant of four spans."""


@pytest.fixture(scope="module")
def giant(tmp_path_factory: pytest.TempPathFactory, dpdist: Server) -> tuple[Survey, Path, Path]:
    """A giant stratum released in peace, and one that died in its fifth round, two of its spans done."""
    folder = tmp_path_factory.mktemp("giants")
    survey = Survey(folder, (400, 40), draws=100)
    peace, half = folder / "peace", folder / "half"
    assert dpdist(*arguments(survey.job(), peace), constants=SMALL_BLOCKS, same_keys=True).code == 0
    more = ("--replay", peace / "confidential")
    ended = dpdist(*arguments(survey.job(), half, *more), constants=SMALL_BLOCKS, die_at=".004-00002")
    assert ended.code == -9
    return survey, peace, half


@pytest.fixture(scope="module")
def all_but_marked(giant: tuple[Survey, Path, Path], dpdist: Server) -> Path:
    """The giant stratum, dead when all its rounds were done and only its mark was missing."""
    survey, peace, half = giant
    workspace, more = half.with_name("unmarked"), ("--replay", peace / "confidential")
    ended = dpdist(*arguments(survey.job(), workspace, *more), constants=SMALL_BLOCKS, die_at="marks/.strata-000000")
    assert ended.code == -9
    return workspace


@pytest.mark.parametrize(
    "name", ["parts/strata-000000/bounds-00002.arrow", "log_lik.zarr/log_lik/c.0.0.2", "log_lik.zarr/record/zarr.json"]
)
@pytest.mark.long
def test_a_journal_does_not_vouch_for_by_products_that_were_damaged_since(
    giant: tuple[Survey, Path, Path], all_but_marked: Path, tmp_path: Path, dpdist: Server, name: str
) -> None:
    survey, peace, _ = giant

    def command(workspace: Path) -> Ended:
        return dpdist(*arguments(survey.job(), workspace), constants=SMALL_BLOCKS)

    assert wrong_after_damage(f"confidential/{name}", all_but_marked, peace, tmp_path, dpdist, command, True) == []


IN_JOURNAL = {
    "total": "002.npz",
    "carry": "003-00002-carry.npy",
    "result": "003-00002.npz",
    "carry in hand": "004-00001-carry.npy",
    "result in hand": "004-00001.npz",
    "request": "004.request",
}


@pytest.mark.parametrize("kind", IN_JOURNAL)
@pytest.mark.long
def test_a_damaged_journal_costs_rounds_but_gives_the_same_bytes(
    giant: tuple[Survey, Path, Path], tmp_path: Path, dpdist: Server, kind: str
) -> None:
    survey, peace, half = giant
    journal = half / "confidential" / "journal" / "strata-000000"
    name = (journal / IN_JOURNAL[kind]).relative_to(half).as_posix()

    def command(workspace: Path) -> Ended:
        return dpdist(*arguments(survey.job(), workspace), constants=SMALL_BLOCKS)

    assert wrong_after_damage(name, half, peace, tmp_path, dpdist, command, remade_only=True) == []


@pytest.mark.parametrize("name", ["job.json", "promise.json", "frame.parquet", "set-1.json", "seed"])
@pytest.mark.long
def test_a_damaged_release_is_not_published_again(undisturbed: Path, tmp_path: Path, dpdist: Server, name: str) -> None:
    """`dpdist publish` has nothing else to go by: it refuses and leaves the folder as it is."""
    wrong, workspace = [], tmp_path / "work"
    shutil.copytree(undisturbed / "public", workspace / "public")
    path = workspace / "public" / "released" / name
    kept = path.read_bytes()
    for damage in damages(name):
        damage(path)
        before = public_bytes(workspace)
        ended = dpdist("publish", workspace, "--quiet")
        if ended.code not in (1, 2) or not ended.clear or public_bytes(workspace) != before:
            wrong.append(f"{damage.__name__}: {ended}")
        path.write_bytes(kept)
    assert wrong == []
    assert dpdist("publish", workspace, "--quiet").code == 0
    assert public_bytes(workspace) == public_bytes(undisturbed)


@pytest.mark.parametrize("name", ["key", "identity.json"])
def test_a_replay_of_a_damaged_run_is_refused(
    few: Survey, undisturbed: Path, tmp_path: Path, dpdist: Server, name: str
) -> None:
    wrong = []
    for damage in damages(name):
        folder = tmp_path / damage.__name__
        shutil.copytree(undisturbed / "confidential", folder / "confidential")
        damage(folder / "confidential" / name)
        ended = dpdist(*arguments(few.job(), folder / "again", "--replay", folder / "confidential"))
        if ended.code not in (1, 2) or not ended.clear or (folder / "again" / "public").exists():
            wrong.append(f"{damage.__name__}: {ended}")
    assert wrong == []


@pytest.mark.parametrize("stage", ["store records", "protect", "standard errors", "tables", "evaluate"])
def test_a_workspace_that_is_removed_in_the_middle_of_a_run_is_said_to_be(stage: str, tmp_path: Path) -> None:
    def remove(event: Event) -> None:
        if (event.kind, event.stage) == ("begin", stage):
            shutil.rmtree(tmp_path / "work")

    with pytest.raises(WorkspaceError, match="it was removed, or moved, while the command was using it"):
        dpdist.run(JOB, input=survey(), workspace=tmp_path / "work", listener=remove)


def test_a_workspace_that_is_removed_while_it_is_published_again_is_said_to_be(tmp_path: Path) -> None:
    dpdist.run(JOB, input=survey(), workspace=tmp_path / "work")

    def remove(event: Event) -> None:
        if (event.kind, event.stage) == ("begin", "tables"):
            shutil.rmtree(tmp_path / "work")

    with pytest.raises(WorkspaceError, match="it was removed"):
        dpdist.publish(tmp_path / "work", listener=remove)


def test_control_another_fault_of_a_run_keeps_its_name(tmp_path: Path) -> None:
    def spoil(event: Event) -> None:
        if (event.kind, event.stage) == ("begin", "protect"):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        dpdist.run(JOB, input=survey(), workspace=tmp_path / "work", listener=spoil)
