"""What a release is, in files: the mark that a replay has beside them is none of it."""

from __future__ import annotations

from pathlib import Path

from dpdist.core.public_files import UNFIT


def public_files(workspace: Path) -> dict[str, bytes]:
    """Every public file that the manifest names, and the manifest, by its path in the public folder."""
    public = workspace / "public"
    files = sorted(path for path in public.rglob("*") if path.is_file() and path.name != UNFIT)
    return {path.relative_to(public).as_posix(): path.read_bytes() for path in files}
