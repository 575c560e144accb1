"""Writes completion records (marks): a unit of work is finished if its mark exists and its files match it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from dpdist.core.files import sha256, write_json
from dpdist.storage.store import FOLDER, Store


def checksums(files: Iterable[Path], root: Path) -> dict[str, str]:
    """SHA-256 of files on the disk, by their path relative to `root`."""
    return {str(path.relative_to(root)): sha256(path) for path in sorted(files)}


def mark(
    folder: Path,
    unit: str,
    files: Iterable[Path],
    root: Path,
    store: Store = FOLDER,
    elsewhere: Mapping[str, str] | None = None,
) -> None:
    """Marks a unit as finished, after storing its files. `elsewhere` holds checksums of files from other processes.

    If two tasks finish a unit, the first mark stays. Files that do not match it are replaced by those of the second task.
    On machines of one type, the files of a unit always have the same bytes.
    """
    own = list(files)
    said, path = checksums(own, root), folder / f"{unit}.json"
    if elsewhere:
        said = dict(sorted({**elsewhere, **said}.items()))
    store.keep(own)
    write_json(path, said)
    if not store.put_if_absent(path):
        write_json(path, said)
        store.keep(own)
        store.keep([path])


def mark_once(path: Path, files: Iterable[Path], root: Path, store: Store = FOLDER) -> None:
    """Marks files that are already stored, unless there is a mark."""
    write_json(path, checksums(files, root))
    store.put_if_absent(path)


def withdraw(folder: Path, unit: str, root: Path, store: Store = FOLDER) -> None:
    """Removes the mark of a unit whose files are damaged, so that the unit is made again.

    A worker of an earlier run may finish the unit meanwhile: a mark that its files match stays. In an object store the next
    mark replaces a damaged one.
    """
    if store.shared and not finished(folder, unit, root, store):
        (folder / f"{unit}.json").unlink(missing_ok=True)


def finished(folder: Path, unit: str, root: Path, store: Store = FOLDER) -> bool:
    """True if the unit has a mark, and all its files exist and match it."""
    return bool(store.finished([folder / f"{unit}.json"], root))
