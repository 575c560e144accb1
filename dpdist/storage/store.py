"""Stores, which make files visible to other processes; and completion records.

All code reads and writes files in a folder, the root. If the folder is shared, nothing else is needed. With an object
store, the root is a scratch folder of this process. Files are copied from the store before reading, and to the store
when they are complete.

A unit of work is finished if its completion record (mark) exists and its files match it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from dpdist.core.files import exclusive, sha256


class Store:
    """A store for a workspace's files: a folder that all machines of a run see, whose file system shares what is written.

    Paths are paths in this process's folder. A mark (completion record) lists files relative to a root, with their SHA-256.
    Stores that copy files override all methods.
    """

    shared = True
    """True if this process sees the files of other processes at once."""

    @property
    def view(self) -> str:
        """A name for this process's view of a workspace. Views with different names do not see each other's files."""
        return ""

    def close(self) -> None:
        """Closes the store, when this process needs nothing more from it."""

    def download(self, path: Path, anew: bool = False) -> bool:
        """Copies a file to this process; False if it does not exist.

        With `anew`, a file of this process with that name is replaced.
        """
        return path.exists()

    def download_all(self, paths: Iterable[Path]) -> None:
        """Copies the given files to this process, as far as they exist."""

    def download_folder(self, folder: Path) -> None:
        """Copies all files of a folder to this process."""

    def download_files(self, files: Mapping[str, str], root: Path) -> None:
        """Copies these files to this process. Raises `WorkspaceError` if one is missing or has another checksum."""

    def download_finished(self, completions: Iterable[Path], root: Path, matches: Callable[[str], bool]) -> None:
        """Copies matching files of finished units to this process.

        A unit that turns out to be incomplete loses its mark, and `WorkspaceError` is raised.
        """

    def upload(self, paths: Iterable[Path]) -> None:
        """Makes files visible to all processes. They replace earlier ones."""

    def put_if_absent(self, path: Path) -> bool:
        """Makes a file visible to all processes, unless there is one.

        If there is one, it replaces this process's file. Returns False if the two differ.
        """
        return True

    def discard(self, paths: Iterable[Path]) -> None:
        """Removes files that this process no longer needs from its scratch folder."""

    def delete(self, paths: Iterable[Path]) -> None:
        """Removes files and folders for all processes, after this process has removed its copies of them."""

    def names(self, folder: Path) -> set[str]:
        """Names of the files in a folder."""
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()

    def intact(self, files: Mapping[str, str], root: Path) -> bool:
        """True if no file is missing or changed, as far as can be seen without copying files."""
        return all((root / name).is_file() and sha256(root / name) == digest for name, digest in files.items())

    def finished(self, completions: Iterable[Path], root: Path) -> set[Path]:
        """Marks of those units that are finished."""
        return {mark for mark in completions if (files := read_mark(mark)) is not None and self.intact(files, root)}

    def lock(self, path: Path) -> AbstractContextManager[None]:
        """Keeps other runs out during the block. Raises `WorkspaceError` if another run is at work."""
        return exclusive(path, path.parent.parent, "another run is using it", "wait for that run to end", 0o600)

    def publish(self, public: Path) -> None:
        """Publishes a public folder that this process has made, its manifest last."""


FOLDER = Store()


def read_mark(mark: Path) -> dict[str, str] | None:
    """The files that a mark names, with their checksums; None for a mark that is missing or damaged."""
    if not mark.exists():
        return None
    try:
        files = json.loads(mark.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return files if isinstance(files, dict) else None


def checksums(files: Iterable[Path], root: Path) -> dict[str, str]:
    """SHA-256 of files on the disk, by their path relative to `root`."""
    return {str(path.relative_to(root)): sha256(path) for path in sorted(files)}
