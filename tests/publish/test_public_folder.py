"""The public folder: on the disk before the old one goes, as its manifest says or not shown, never behind a link; and what
stands beside it below confidential/ is its owner's alone."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import invoke, succeed
from public_files import public_files
from small_release import JOB, survey

import dpdist
from dpdist.core import files
from dpdist.core.errors import WorkspaceError
from dpdist.job import Job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("input")
    survey().head(400).to_parquet(folder / "survey.parquet")
    return dpdist.parse_job(JOB.replace("survey: {", f"input: {{path: {folder}/survey.parquet}}\nsurvey: {{"))


@pytest.fixture(scope="module")
def published(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("published") / "ws"
    dpdist.run(job, workspace)
    return workspace


@pytest.fixture
def workspace(published: Path, tmp_path: Path) -> Path:
    shutil.copytree(published, tmp_path / "ws")
    return tmp_path / "ws"


# A power cut may take whatever was not synced since it was written, and undo the renames in any folder that was not.


class Disk:
    """What of a workspace would outlive a power cut, at every rename and removal of a folder."""

    def __init__(self) -> None:
        self.safe: dict[int, int] = {}
        """By inode, when it was written that is on the disk."""
        self.at_risk: list[str] = []

    def synced(self, descriptor: int) -> None:
        said = os.fstat(descriptor)
        self.safe[said.st_ino] = said.st_mtime_ns

    def look(self, moment: str, *trees: Path) -> None:
        """Note what of the trees is not on the disk now."""
        for path in (path for tree in trees for path in [tree, *tree.rglob("*")]):
            said = path.stat()
            if self.safe.get(said.st_ino) != said.st_mtime_ns:
                self.at_risk.append(f"{moment}: {path.name}")


@contextmanager
def watched(patch: pytest.MonkeyPatch, public: Path) -> Iterator[Disk]:
    disk, fsync, rename, remove = Disk(), os.fsync, Path.rename, shutil.rmtree

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        disk.synced(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        if public in (path, Path(target)):
            disk.look("rename", public.with_name(".public.new") if path == public else path)
        return rename(path, target)

    def removed(path: Path, *said: object, **more: object) -> None:
        if Path(path).name == ".public.old":
            disk.look("removal", public)
            told = public.parent.stat()
            if disk.safe.get(told.st_ino) != told.st_mtime_ns:
                disk.at_risk.append("removal: the swap itself")
        remove(path, *said, **more)

    with patch.context() as inner:
        inner.setattr(os, "fsync", synced)
        inner.setattr(Path, "rename", renamed)
        inner.setattr(shutil, "rmtree", removed)
        yield disk


PUBLISHING: dict[str, Callable[[Job, Path], object]] = {
    "publish": lambda job, workspace: dpdist.publish(workspace),
    "run": lambda job, workspace: dpdist.run(job, workspace),
}


@pytest.mark.parametrize("verb", PUBLISHING)
def test_the_old_folder_goes_when_the_new_one_is_on_the_disk(
    job: Job, workspace: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and folder of it before the swap, the swap itself before the removal."""
    with watched(monkeypatch, workspace / "public") as disk:
        PUBLISHING[verb](job, workspace)
    assert disk.at_risk == []
    assert not (workspace / ".public.old").exists()


@pytest.mark.parametrize("left_out", ["synced", "sync_folder"])
def test_without_either_sync_a_power_cut_would_take_a_release(
    job: Job, workspace: Path, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(files, left_out, lambda folder: None)
    with watched(monkeypatch, workspace / "public") as disk:
        dpdist.publish(workspace)
    if left_out == "synced":
        assert "rename: counts.parquet" in disk.at_risk
    else:
        assert disk.at_risk == ["removal: the swap itself"]


def edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"1", b"9", 1))


CHANGED = ["statement.json", "tables/counts.parquet", "tables/counts.csv", "released/set-1.json"]


@pytest.mark.parametrize("change", [edited, Path.unlink], ids=["edited", "missing"])
@pytest.mark.parametrize("name", CHANGED)
def test_a_public_file_that_is_not_the_manifests_is_said_and_nothing_is_shown(
    workspace: Path, name: str, change: Callable[[Path], None]
) -> None:
    """Control: the folder as it was is shown."""
    succeed("report", workspace)
    change(workspace / "public" / name)
    told = invoke("report", workspace)
    assert (told.exit_code, told.stdout) == (1, "")
    found = "no such file" if change is Path.unlink else "it is not the file that manifest.json lists"
    assert f"{name}: {found}" in told.stderr


def test_a_table_that_the_manifest_does_not_name_is_said(workspace: Path) -> None:
    tables = workspace / "public" / "tables"
    shutil.copy(tables / "counts.parquet", tables / "other.parquet")
    told = invoke("report", workspace)
    assert (told.exit_code, told.stdout) == (1, "")
    assert "tables/other.parquet: manifest.json does not list it" in told.stderr


def test_several_changes_are_counted_and_a_run_makes_them_good(job: Job, workspace: Path) -> None:
    before = public_files(workspace)
    for name in CHANGED:
        edited(workspace / "public" / name)
    with pytest.raises(WorkspaceError, match="and 3 more files differ from the manifest"):
        dpdist.report(workspace)
    dpdist.run(job, workspace)
    assert public_files(workspace) == before


MANIFESTS = {None: "no such file", "{": "not valid JSON", "[]": "a JSON list", '{"files": 1}': "no list of files"}


@pytest.mark.parametrize(("manifest", "found"), MANIFESTS.items())
def test_a_folder_without_a_whole_manifest_is_not_shown(workspace: Path, manifest: str | None, found: str) -> None:
    path = workspace / "public" / "manifest.json"
    path.unlink() if manifest is None else path.write_text(manifest)
    with pytest.raises(WorkspaceError, match=rf"manifest\.json: {found}"):
        dpdist.report(workspace)


@pytest.mark.parametrize("name", ["public", ".public.new", ".public.old"])
@pytest.mark.parametrize("verb", ["run", "publish", "report"])
def test_a_link_in_the_place_of_the_public_folder_is_refused_by_name(
    job: Job, published: Path, workspace: Path, tmp_path: Path, name: str, verb: str
) -> None:
    """Before any work, and what it leads to is left alone. Control: without the link the same command ends."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(workspace / "public", elsewhere)
    if name == "public":
        (workspace / "public").rename(workspace / "kept")
    (workspace / name).symlink_to(elsewhere)
    verbs = PUBLISHING | {"report": lambda job, workspace: dpdist.report(workspace)}
    with pytest.raises(WorkspaceError, match=f"{name}: it is a link(?s:.*)remove the link") as told:
        verbs[verb](job, workspace)
    assert told.value.exit_code == 2
    assert {path.name for path in elsewhere.iterdir()} == {path.name for path in (published / "public").iterdir()}
    (workspace / name).unlink()
    if name == "public":
        (workspace / "kept").rename(workspace / "public")
    verbs[verb](job, workspace)
    assert public_files(workspace) == public_files(published)


@contextmanager
def umask(mode: int) -> Iterator[None]:
    before = os.umask(mode)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("executor", ["serial", pytest.param("dask", marks=pytest.mark.long)])
def test_what_is_confidential_is_the_owners_alone_whatever_the_umask(job: Job, tmp_path: Path, executor: str) -> None:
    """Modes 0700 and 0600 below confidential/, made by the driver or by workers. Control: public files follow the umask."""
    runtime = job.runtime.model_copy(update={"executor": executor, "workers": 1})
    with umask(0):
        dpdist.run(job.model_copy(update={"runtime": runtime}), tmp_path / "ws")
    confidential = tmp_path / "ws" / "confidential"
    paths = [confidential, *confidential.rglob("*")]
    assert {path.relative_to(confidential).as_posix() for path in paths if path.stat().st_mode & 0o077} == set()
    assert len(paths) > 10
    made = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "ws" / "public").rglob("*")}
    assert set(made.values()) == {0o777, 0o666}
    with umask(0o077):
        dpdist.publish(tmp_path / "ws")
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700, 0o600}
