"""Writes manifest.json: SHA-256 of every other public file, job, versions, date, and a name derived from all of these.

Its bytes are canonical JSON (RFC 8785): equal content gives equal bytes, so a signature of the file signs the content.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpdist.core.files import sha256
from dpdist.core.public_files import FORMAT, canonical, release_id
from dpdist.publish.released import ReleasedObject

HASHES = ("sha256", "chain")
"""Keys of a reference's hashes: of its file; or of an earlier release's manifest and of the releases before that one."""
PACKAGES = ("dpdist", "numba", "numpy", "opendp", "pandas", "pyarrow", "randomgen", "scipy")
"""Packages that can change a published number."""


def manifest(folder: Path, release: ReleasedObject) -> bytes:
    """The manifest of a folder in which only the manifest is missing."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    reference, date = release.promise.get("reference"), release.promise.get("date")
    said: dict[str, Any] = {
        "format": FORMAT,
        "dataset": release.job.dataset,
        "period": release.job.period,
        **({"date": date} if date is not None else {}),
        "files": {path.relative_to(folder).as_posix(): sha256(path) for path in files},
        **({"reference": {name: reference[name] for name in HASHES if name in reference}} if reference else {}),
        "job": release.job.public,
        **release.job.mechanism.third_party,
        "versions": {name: version(name) for name in PACKAGES},
    }
    return canonical({**said, "release": release_id(said)})
