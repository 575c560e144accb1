"""The place of a workspace that other processes, other machines and later runs can reach.

All code reads and writes files below a root. In a shared folder that is all there is to do. In an object store the root
is a scratch folder of this process: files are taken from the store before they are read and kept there when they are
whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import sha256


class Store(Protocol):
    """Paths are those of this process. A mark names files relative to a root, with their SHA-256."""

    @property
    def shared(self) -> bool:
        """True if what others write is here at once."""
        ...

    @property
    def view(self) -> str:
        """Tells views of one workspace apart that do not see each other's files."""
        ...

    def close(self) -> None:
        """Nothing is needed here any more."""
        ...

    def take(self, path: Path, anew: bool = False) -> bool:
        """Bring a file here, `anew` also if one of that name is here already; False if there is none."""
        ...

    def take_all(self, paths: Iterable[Path]) -> None:
        """Bring files here that are there."""
        ...

    def take_folder(self, folder: Path) -> None:
        """Bring every file of a folder here."""
        ...

    def take_files(self, files: Mapping[str, str], root: Path) -> None:
        """Bring these files here, whole. Raises `WorkspaceError` where one is missing or another one."""
        ...

    def take_marked(self, completions: Iterable[Path], root: Path, wanted: Callable[[str], bool]) -> None:
        """Bring the wanted files of finished units here; what is not whole loses its mark, and `WorkspaceError` says so."""
        ...

    def keep(self, paths: Iterable[Path]) -> None:
        """Show files to everybody, in the place of earlier ones."""
        ...

    def put_if_absent(self, path: Path) -> bool:
        """Show a file to everybody unless there is one, which then replaces it here; False if that was another one."""
        ...

    def forget(self, paths: Iterable[Path]) -> None:
        """This process needs these files no more."""
        ...

    def drop(self, paths: Iterable[Path]) -> None:
        """Files and folders that this process has removed are removed for everybody."""
        ...

    def names(self, folder: Path) -> set[str]:
        """Names of the files in a folder."""
        ...

    def intact(self, files: Mapping[str, str], root: Path) -> bool:
        """True if no file is missing, nor another one as far as that is seen without fetching it."""
        ...

    def finished(self, completions: Iterable[Path], root: Path) -> set[Path]:
        """Marks that stand and whose files do."""
        ...

    def alone(self, lock: Path) -> AbstractContextManager[None]:
        """Keep other runs out for the block. Raises `WorkspaceError` if one is in."""
        ...

    def show(self, public: Path) -> None:
        """A public folder that was made here becomes the one that everybody sees, its manifest last."""
        ...


class Folder:
    """A folder that all machines of a run see: what is written is kept, by the file system itself."""

    shared = True
    view = ""

    def close(self) -> None:
        return None

    def take(self, path: Path, anew: bool = False) -> bool:
        return path.exists()

    def take_all(self, paths: Iterable[Path]) -> None:
        return None

    def take_folder(self, folder: Path) -> None:
        return None

    def take_files(self, files: Mapping[str, str], root: Path) -> None:
        return None

    def take_marked(self, completions: Iterable[Path], root: Path, wanted: Callable[[str], bool]) -> None:
        return None

    def keep(self, paths: Iterable[Path]) -> None:
        return None

    def put_if_absent(self, path: Path) -> bool:
        return True

    def forget(self, paths: Iterable[Path]) -> None:
        return None

    def drop(self, paths: Iterable[Path]) -> None:
        return None

    def names(self, folder: Path) -> set[str]:
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()

    def intact(self, files: Mapping[str, str], root: Path) -> bool:
        return all((root / name).is_file() and sha256(root / name) == digest for name, digest in files.items())

    def finished(self, completions: Iterable[Path], root: Path) -> set[Path]:
        return {mark for mark in completions if (files := marked(mark)) is not None and self.intact(files, root)}

    @contextmanager
    def alone(self, lock: Path) -> Iterator[None]:
        held = FileLock(lock, mode=0o600)
        try:
            held.acquire(timeout=0)
        except Timeout:
            where, remedy = str(lock.parent.parent), "wait for that run to end"
            raise WorkspaceError(where, "another run is using it", remedy) from None
        try:
            yield
        finally:
            held.release()

    def show(self, public: Path) -> None:
        return None


FOLDER = Folder()


def marked(mark: Path) -> dict[str, str] | None:
    """The files that a mark here names, with their checksums; None for one that is missing or damaged."""
    if not mark.exists():
        return None
    try:
        files = json.loads(mark.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return files if isinstance(files, dict) else None
