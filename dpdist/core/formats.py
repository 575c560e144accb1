"""Format numbers of job, folder, ledger and proof record, for all their readers; refuses an unknown number.

A number rises where an older dpdist would misread what a newer one writes. docs/explanation/versions.md is the policy.
A file without a number has format 1, because version 0.1.1 and earlier wrote few numbers.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

RELEASE = 1
"""The format of a public folder with its released object: `format` in manifest.json."""
STATEMENT = 1
"""The format of statement.json: its key `format`."""
PROOF = 1
"""The format of released/proof.json: its key `format`."""
JOB = 1
"""The format of a job file: its key `format`."""
LEDGER = 1
"""The format of a ledger's entries: `format` in its first entry. Its tables have another (ledger/database.py)."""
WORKSPACE = 1
"""The format of a workspace with its journal and stored noise: `format` in confidential/identity.json."""
OTHER_LIMITS = "this version of dpdist chooses other limits than those under which the noisy sums were measured"
"""What is wrong where a version cannot publish a release of another one again, though it reads all formats."""
LATER = "install a later dpdist: pip install --upgrade dpdist"
"""The remedy for a file of a later dpdist."""


@cache
def version_of(package: str) -> str:
    """The installed version of a package, read once. Every request of noise is stored with versions."""
    return version(package)


class Misfit(NamedTuple):
    """Reasons why a format cannot be read: fault, what is allowed, remedy."""

    fault: str
    allowed: str
    remedy: str


def misfit(stated: Any, newest: int) -> Misfit | None:
    """The reason why a file of this format cannot be read; None if it can. `newest` is the latest format that is known."""
    if stated is None or (isinstance(stated, int) and not isinstance(stated, bool) and 1 <= stated <= newest):
        return None
    here = version("dpdist")
    allowed = f"format {newest}" if newest == 1 else f"formats 1 to {newest}"
    if isinstance(stated, int) and not isinstance(stated, bool) and stated > newest:
        fault = f"format {str(stated)[:20]}, which a later dpdist than {here} wrote"
        return Misfit(fault, f"{allowed}, which dpdist {here} reads", LATER)
    shown = json.dumps(stated, default=str)[:40]
    return Misfit(f"format {shown}, which no dpdist writes", f"{allowed}, a whole number", "restore it from a copy")
