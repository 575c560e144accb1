"""Makes private scratch folders, for workers and for work on an object store; those of killed processes go later."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

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
            made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=top))
            lock = FileLock(made / _LOCK)
            with suppress(Timeout, FileNotFoundError):  # another process removed the folder meanwhile
                lock.acquire(timeout=0)
                break
        self.folder = made / "workspace"
        self.folder.mkdir()
        self.remove = weakref.finalize(self, _remove, made, lock, os.getpid())


@contextmanager
def scratch() -> Iterator[Path]:
    """A scratch folder for the length of a block."""
    made = Scratch()
    try:
        yield made.folder
    finally:
        made.remove()


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
