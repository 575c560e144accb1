"""Completion marks: a unit of work is done when its mark stands and every file that it names has its checksum."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from dpdist.files import sha256, write_json


def checksums(files: Iterable[Path], root: Path) -> dict[str, str]:
    """SHA-256 of files on disk, by path relative to `root`."""
    return {str(path.relative_to(root)): sha256(path) for path in sorted(files)}


def intact(files: Mapping[str, str], root: Path) -> bool:
    """True if no file is missing, truncated or changed since its checksum was taken."""
    return all((root / name).is_file() and sha256(root / name) == digest for name, digest in files.items())


def mark(marks: Path, unit: str, files: Iterable[Path], root: Path) -> None:
    """Record a finished unit, after its files are on disk."""
    write_json(marks / f"{unit}.json", checksums(files, root))


def finished(marks: Path, unit: str, root: Path) -> bool:
    """True if the unit's mark stands and no file of it is missing, truncated or changed."""
    path = marks / f"{unit}.json"
    if not path.exists():
        return False
    try:
        files = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(files, dict) and intact(files, root)
