"""Completion marks: a unit of work is finished if its mark exists and all its files have their checksums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from dpdist.core.files import sha256, write_json
from dpdist.storage.store import FOLDER, Store


def checksums(files: Iterable[Path], root: Path) -> dict[str, str]:
    """SHA-256 of files on disk, by path relative to `root`."""
    return {str(path.relative_to(root)): sha256(path) for path in sorted(files)}


def mark(
    folder: Path,
    unit: str,
    files: Iterable[Path],
    root: Path,
    store: Store = FOLDER,
    elsewhere: Mapping[str, str] | None = None,
) -> None:
    """Records a finished unit after its files are stored. `elsewhere` are checksums of files from other processes.

    If two tasks finish the same unit, the first mark remains. Files that do not match the mark are replaced by complete
    files of the second task. The bytes of a unit are the same on machines of one type.
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
    """Records files that are already stored, unless an earlier mark exists."""
    write_json(path, checksums(files, root))
    store.put_if_absent(path)


def withdraw(folder: Path, unit: str, store: Store = FOLDER) -> None:
    """Withdraws the mark of a unit whose files are damaged, so that the unit is made again.

    In an object store the next mark replaces it.
    """
    if store.shared:
        (folder / f"{unit}.json").unlink(missing_ok=True)


def finished(folder: Path, unit: str, root: Path, store: Store = FOLDER) -> bool:
    """True if the unit has a mark and none of its files is missing, truncated or changed."""
    return bool(store.finished([folder / f"{unit}.json"], root))
