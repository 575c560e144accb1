"""What a release is, in files: the mark that a replay has beside them is none of it; and its statement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpdist.core.public_files import UNFIT


def public_files(workspace: Path) -> dict[str, bytes]:
    """Every public file that the manifest names, and the manifest, by its path in the public folder."""
    return files_of(workspace / "public")


def files_of(folder: Path) -> dict[str, bytes]:
    """The same of any folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != UNFIT)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def statement_of(folder: Path) -> dict[str, Any]:
    """The statement of a workspace, or of a public folder."""
    public = folder / "public" if (folder / "public").is_dir() else folder
    read: dict[str, Any] = json.loads((public / "statement.json").read_text(encoding="utf-8"))
    return read
