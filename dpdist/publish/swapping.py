"""Replacement of a finished folder for the old one; a killed process leaves one whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import exclusive, sync_folder, synced


@contextmanager
def publishing(public: Path) -> Iterator[None]:
    """Locks the public folder, and first repairs a swap that was killed halfway.

    Raises `WorkspaceError` if another command is publishing to the folder, or if the folder is a link.
    """
    if not public.parent.is_dir():
        yield
        return
    lock = public.with_name(f".{public.name}.lock")
    with exclusive(lock, public, "another command is publishing it", "wait for that command to end"):
        recover(public)
        yield


def swap_in(building: Path, public: Path) -> None:
    """Puts a finished folder in place. If the process is killed halfway, `recover` restores the old folder.

    The old folder is deleted only when the new one is on disk, so a power cut leaves one of them whole.
    """
    old = _old(public)
    synced(building)
    if public.exists():
        public.rename(old)
    building.rename(public)
    sync_folder(public.parent)
    if old.exists():
        shutil.rmtree(old)


def recover(public: Path) -> None:
    """Repairs a swap that was killed halfway: restores the old folder, or deletes it if the new one is in place.

    Raises `WorkspaceError` for a link, because its target does not belong to this workspace.
    """
    refuse_links(public)
    old = _old(public)
    if old.exists():
        if public.exists():
            sync_folder(public.parent)
            shutil.rmtree(old)
        else:
            old.rename(public)


def refuse_links(public: Path) -> None:
    """Raises `WorkspaceError` if the public folder is a link, or one of the two folders that a swap puts beside it."""
    for path in (public, aside(public), _old(public)):
        if path.is_symlink():
            raise WorkspaceError(str(path), "it is a link, not a folder", "remove the link; the same command resumes", 2)


def aside(public: Path) -> Path:
    """The path where a folder is built before it is put in place."""
    return public.with_name(f".{public.name}.new")


def _old(public: Path) -> Path:
    return public.with_name(f".{public.name}.old")
