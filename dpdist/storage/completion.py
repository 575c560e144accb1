"""Completion marks: a unit of work is done when its mark exists and every file in it has its checksum."""

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
    """Record a finished unit, after its files are kept; `elsewhere`: those that others have kept, with their checksums.

    Of two that finish the same unit the mark of the first stands, and files that differ from it give way to what the second
    left, whole: the bytes of a unit are the same on machines of one type.
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
    """Record files that are kept already, unless somebody has: an earlier mark stands."""
    write_json(path, checksums(files, root))
    store.put_if_absent(path)


def withdraw(folder: Path, unit: str, store: Store = FOLDER) -> None:
    """Take back the mark of a unit that has to be made again: what it vouched for is not whole. In an object store the next
    mark replaces it."""
    if store.shared:
        (folder / f"{unit}.json").unlink(missing_ok=True)


def finished(folder: Path, unit: str, root: Path, store: Store = FOLDER) -> bool:
    """True if the unit's mark stands and no file of it is missing, truncated or changed."""
    return bool(store.finished([folder / f"{unit}.json"], root))
