"""manifest.json: SHA-256 of every other public file, job, versions, date, and a name that follows from all of it.

Its bytes are canonical JSON (RFC 8785), so that a signature over the file is one over what it says.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpdist.core.files import sha256
from dpdist.core.public_files import FORMAT, canonical, release_id
from dpdist.publish.released import ReleasedObject

HASHES = ("sha256", "chain")
"""Of a reference: of its file, or of an earlier release's manifest and of those before it."""
PACKAGES = ("dpdist", "numba", "numpy", "opendp", "pandas", "pyarrow", "randomgen", "scipy")
"""What numbers pass through."""


def manifest(folder: Path, release: ReleasedObject) -> bytes:
    """The manifest of a folder that is finished but for it."""
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
        "versions": {name: version(name) for name in PACKAGES},
    }
    return canonical({**said, "release": release_id(said)})
