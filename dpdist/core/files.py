"""Atomic writes: readers see the old or the new file or folder, whole, even after power cuts. Also locks and numbers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from filelock import FileLock, Timeout

from dpdist.core.errors import WorkspaceError


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


@contextmanager
def replaced(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yields a temporary file beside `path` to write to.

    It replaces `path` if the block succeeds; otherwise it is removed.

    With `durable` it is on the disk before it is renamed: `path` is never incomplete, even if the machine stops.
    Without `durable`, a stored checksum must show whether it is complete.
    """
    # Unique among all machines that share the folder: processes in two containers may have one number.
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.part")
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def exclusive(lock: Path, where: Path, fault: str, remedy: str, mode: int = -1) -> Iterator[None]:
    """Holds the lock of a folder, `where`, made with this mode; −1 leaves it to the umask.

    Raises `WorkspaceError` at once if another process holds it.
    """
    file_lock = FileLock(lock, mode=mode)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        raise WorkspaceError(str(where), fault, remedy) from None
    try:
        yield
    finally:
        file_lock.release()


def write_text(path: Path, text: str, mode: int = 0o666, durable: bool = True) -> None:
    with replaced(path, durable) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)


def write_json(path: Path, value: Any, mode: int = 0o666, durable: bool = True) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", mode, durable)


def synced(folder: Path) -> None:
    """Writes a folder, and all below it, to the disk, the folder itself last, so that a power cut loses nothing."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(path, name))
        _sync(Path(path))


def sync_folder(folder: Path) -> None:
    """Writes a folder's list of names to the disk, so that renamed, linked and removed files stay so."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def private() -> Iterator[None]:
    """Within the block, this process makes folders with mode 0700 and files with mode 0600, whatever the umask is."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def shared(folder: Path) -> None:
    """Gives a folder that was made in a `private` block, and all below it, the modes that the umask would give.

    The folder itself comes last.
    """
    umask = os.umask(0o077)
    os.umask(umask)
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            Path(path, name).chmod(0o666 & ~umask)
        Path(path).chmod(0o777 & ~umask)


def sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


_PREFIX = "dpdist-scratch-"
_LOCK = "lock"


class Scratch:
    """A private folder (0700) in DPDIST_SCRATCH, or in the system's temporary folder.

    It is removed when this object or its process ends, or by `remove`.
    """

    def __init__(self) -> None:
        top = Path(os.environ.get("DPDIST_SCRATCH") or tempfile.gettempdir())
        sweep(top)
        while True:
            directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=top))
            lock = FileLock(directory / _LOCK)
            with suppress(Timeout, FileNotFoundError):  # another process removed the folder meanwhile
                lock.acquire(timeout=0)
                break
        self.folder = directory / "workspace"
        self.folder.mkdir()
        self.remove = weakref.finalize(self, _remove, directory, lock, os.getpid())


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Scratch()
    try:
        yield folder.folder
    finally:
        folder.remove()


def sweep(top: Path) -> None:
    """Removes the scratch folders of this user's processes that have ended."""
    for folder in top.glob(f"{_PREFIX}*"):
        with suppress(Timeout, OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or not (folder / _LOCK).exists():
                continue
            with FileLock(folder / _LOCK).acquire(timeout=0):
                shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, lock: FileLock, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


# A number rises where an older dpdist would misread what a newer one writes. docs/explanation/versions.md is the policy.
# A file without a number has format 1, because version 0.1.1 and earlier wrote few numbers.
RELEASE = 1
"""The format of a public folder with its released object: `format` in manifest.json."""
STATEMENT = 1
"""The format of statement.json: its key `format`."""
PROOF = 1
"""The format of released/proof.json: its key `format`."""
JOB = 1
"""The format of a job file: its key `format`."""
LEDGER = 1
"""The format of a ledger's entries: `format` in its first entry. Its tables have another (ledger/book.py)."""
WORKSPACE = 1
"""The format of a workspace with its journal and stored noise: `format` in confidential/identity.json."""
OTHER_LIMITS = "this version of dpdist chooses limits that differ from those under which the noisy sums were measured"
"""What is wrong where a version cannot publish a release of another one again, though it reads all formats."""
LATER = "install a later dpdist: pip install --upgrade dpdist"
"""The remedy for a file of a later dpdist."""


@cache
def version_of(package: str) -> str:
    """The installed version of a package, read once. Every request of noise is stored with versions."""
    return version(package)


class Misfit(NamedTuple):
    """Reasons why a format cannot be read: fault, what is allowed, remedy."""

    fault: str
    allowed: str
    remedy: str


def misfit(number: Any, newest: int) -> Misfit | None:
    """The reason why a file of this format cannot be read; None if it can. `newest` is the latest format that is known."""
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= newest):
        return None
    here = version("dpdist")
    allowed = f"format {newest}" if newest == 1 else f"formats 1 to {newest}"
    if isinstance(number, int) and not isinstance(number, bool) and number > newest:
        fault = f"format {str(number)[:20]}, which a dpdist later than {here} wrote"
        return Misfit(fault, f"{allowed}, which dpdist {here} reads", LATER)
    text = json.dumps(number, default=str)[:40]
    return Misfit(
        f"format {text}, which no version of dpdist writes", f"{allowed}, a whole number", "restore it from a copy"
    )
