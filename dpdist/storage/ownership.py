"""The claim of a workspace for one job, input, key and process; a replay reuses stored noise."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from dpdist.core.errors import BudgetRefused, WorkspaceError
from dpdist.core.files import WORKSPACE, private, replaced, write_json, write_text
from dpdist.core.keys import Key
from dpdist.core.public_files import MANIFEST
from dpdist.storage.noise_once import refuse_damaged_noise
from dpdist.storage.objects import LEASE, is_url
from dpdist.storage.workspace import GATHERED, IDENTITY, KEYED, REPEATED, RESTORE, SCRATCH, SEALED, Identity, Workspace

OTHERWISE = "undo the change, or use a new folder (a release there spends additional budget)"
"""Remedy for a workspace of another job or input."""

ONE_DAY = "2000-01-01"
"""The date of a study's runs, so that they give the same bytes on any day."""


@contextmanager
def owned(space: Workspace, identity: Identity, replay: str | Path | None, study: Key | None = None) -> Iterator[Key]:
    """Creates or reopens the workspace for a job and its input, for one run at a time; yields the run's key.

    `study` is the key of a study's run, from which its noise is drawn too.

    Raises `WorkspaceError` if the workspace belongs to another job or input, if another run uses it, if it cannot be
    written, or if the job or input differ from those of the run to replay.
    """
    replayed = _replay(replay, identity) if replay is not None else None
    today = ONE_DAY if study else datetime.now(UTC).date().isoformat()
    date = replayed[0].date if replayed else today
    _refuse_foreign_folder(space)
    try:
        space.root.mkdir(parents=True, exist_ok=True)
        space.confidential.mkdir(mode=0o700, exist_ok=True)
        space.confidential.chmod(0o700)
    except (FileExistsError, NotADirectoryError):
        raise WorkspaceError(space.place, "it is a file, or lies in one", "name a folder", 2) from None
    except OSError as error:
        remedy = f"choose a folder that user {os.getuid()} may write to, or let that user write here"
        raise WorkspaceError(space.place, f"cannot be written ({error.strerror})", remedy) from None
    with space.store.lock(space.confidential / "lock"), _removed_if_refused(space):
        with private():
            source = RunKey(replayed[1], REPEATED) if replayed else RunKey(study, KEYED) if study else None
            key = _adopt(space, identity, source, date)
            for folder in (space.records.parent, space.completions, space.evaluation):
                folder.mkdir(exist_ok=True)
            _seal(space, identity, replayed[0] if replayed else None)
            refuse_damaged_noise(space)
            _sweep(space)
        with space.noticing_removal():
            yield key


@contextmanager
def _removed_if_refused(space: Workspace) -> Iterator[None]:
    """Removes the files of a run that begins in this block, if the ledger refuses to charge it."""
    began = space.read_identity() is not None
    try:
        yield
    except BudgetRefused:
        if not began:
            names = space.store.names(space.confidential) - {Path(LEASE).name}
            space.store.delete(space.confidential / name for name in names)
            shutil.rmtree(space.confidential, ignore_errors=True)
            with suppress(OSError):  # the folder holds other files
                space.root.rmdir()
        raise


def _refuse_foreign_folder(space: Workspace) -> None:
    """Refuses a folder whose `public` or `confidential` subfolder was not made by dpdist."""
    if space.read_identity() is not None:
        return
    begun = {"lock", "key", "log", space.replay.name, Path(LEASE).name}
    there = {folder: space.store.names(folder) for folder in (space.public, space.confidential)}
    if space.completions.name in there[space.confidential]:
        raise space.damaged(space.identity, "is missing")
    foreign = {folder: {name for name in names if not name.endswith(".part")} for folder, names in there.items()}
    if set().union(*foreign.values()) - begun:
        first = next(folder.name for folder, names in foreign.items() if names - begun)
        fault = f"it contains a folder '{first}' that no run has made"
        raise WorkspaceError(space.place, fault, "choose an empty or a new folder", exit_code=2)


class RunKey(NamedTuple):
    """The key given to a run, and the mark of such a run."""

    key: Key
    mark: str


def refuse_another(space: Workspace, identity: Identity) -> None:
    """Raises `WorkspaceError` if the workspace is that of another job, input or version, and names what differs."""
    if (present := space.read_identity()) is None:
        return
    if differences := identity.differences(present):
        fault = f"it belongs to another {' and another '.join(differences)}"
        raise WorkspaceError(space.place, fault, identity.remedy(present, OTHERWISE), exit_code=2)


def _adopt(space: Workspace, identity: Identity, source: RunKey | None, date: str | None) -> Key:
    refuse_another(space, identity)
    if space.read_identity() is None:
        return _begin(space, identity, source, date)
    space.refuse_damaged([IDENTITY], RESTORE)
    key = space.read_key()
    if source is not None and source.key != key:
        fault, remedy = "it was begun under another key", "use an empty workspace"
        raise WorkspaceError(space.place, fault, remedy, exit_code=2)
    _mark_begun(space)
    return key


def _mark_begun(space: Workspace) -> None:
    space.completions.mkdir(exist_ok=True)
    if not space.store.download(mark := space.completion(IDENTITY)):
        space.mark_once(mark, [space.identity, space.key])


def _begin(space: Workspace, identity: Identity, source: RunKey | None, date: str | None) -> Key:
    if source is None and space.replayed:
        fault, remedy = (
            "a study or a replay began here and did not finish its first step",
            "use an empty folder, or empty this one",
        )
        raise WorkspaceError(space.place, fault, remedy, exit_code=2)
    new_key = Key.from_os() if source is None else source.key
    if source is not None:
        write_text(space.replay, source.mark)
        space.store.put_if_absent(space.replay)
    write_text(space.key, new_key.hex() + "\n", mode=0o600)
    space.store.put_if_absent(space.key)
    if (key := Key.read(space.key)) != new_key and source is not None:
        raise space.damaged(space.key, "is not the one that was given")
    content = {
        "format": WORKSPACE,
        "job": dict(identity.job),
        "input": identity.input,
        "version": identity.version,
        "date": date,
    }
    content["key"] = key.child("identity").hex()
    if source is not None:
        content["mark"] = source.mark
    write_json(space.identity, content)
    if not space.store.put_if_absent(space.identity):
        return _adopt(space, identity, source, date)
    _mark_begun(space)
    return key


def _seal(space: Workspace, identity: Identity, source: Workspace | None) -> None:
    if source is not None:
        _take_noise(space, source)
        _take_over(space, source, [space.receipt])
    if identity.adds_noise and not space.sealed and _has_published(space):
        space.mark_once(space.completion(SEALED), [])


def _has_published(space: Workspace) -> bool:
    """True if a release was made here. The sign is its folder, or the gathered results that are stored just before it.

    After a kill the folder may still have its temporary name.
    """
    places = (space.public, space.held_release)
    folders = [*places, *(folder.with_name(f".{folder.name}.{end}") for folder in places for end in ("old", "new"))]
    names = space.store.names(space.confidential)
    return any(MANIFEST in space.store.names(folder) for folder in folders) or "strata.parquet" in names


def _take_noise(space: Workspace, source: Workspace) -> None:
    """Copies the stored noise of another run, because no key can produce it again."""
    source.store.download_folder(source.confidential / "noise")
    for path in sorted((source.confidential / "noise").glob("*.npz")):
        _take_over(space, source, [space.completion(f"noise-{path.stem}"), space.root / path.relative_to(source.root)])


def _take_over(space: Workspace, source: Workspace, files: Iterable[Path]) -> None:
    for here in files:
        there = source.root / here.relative_to(space.root)
        here.parent.mkdir(exist_ok=True)
        if source.store.download(there) and not space.store.download(here):
            with replaced(here) as temporary:
                shutil.copyfile(there, temporary)
            space.store.put_if_absent(here)


def _sweep(space: Workspace) -> None:
    for folder in space.confidential.glob(f"{SCRATCH}*"):
        shutil.rmtree(folder)
    for partial in space.root.glob(".*.part"):
        if partial.is_file():
            partial.unlink()
    for path, _, names in os.walk(space.confidential):
        for name in names:
            if name.endswith((".part", ".partial")):
                Path(path, name).unlink()


def _replay(replay: str | Path, identity: Identity) -> tuple[Workspace, Key]:
    parent, _, name = str(replay if is_url(replay) else Path(replay).absolute()).rstrip("/").rpartition("/")
    source = Workspace.of_place(parent or "/")
    if name != "confidential" or not source.store.download(source.key) or (other := source.read_identity()) is None:
        raise WorkspaceError(
            str(replay),
            "not the confidential folder of a run",
            "give WORKSPACE/confidential of the run to replay",
            exit_code=2,
        )
    if differences := identity.differences(other):
        raise WorkspaceError(
            str(replay),
            f"a replay needs the same {' and '.join(differences)}: the same noise on other data is a differencing attack",
            identity.remedy(other, "run without --replay"),
            exit_code=2,
        )
    if identity.adds_noise and f"{GATHERED}.json" not in source.store.names(source.completions):
        raise WorkspaceError(
            str(replay),
            "its run has not finished: part of its noise is not drawn yet, and would be drawn twice",
            "finish that run, by the same command, then replay it",
            exit_code=2,
        )
    return source, source.read_key()
