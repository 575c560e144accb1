"""Whether a public folder is what was released: every file of it, what it claims, and on request who signed it."""

from __future__ import annotations

import json
from pathlib import Path

from dpdist.core.errors import DpdistError, WorkspaceError
from dpdist.core.files import write_text
from dpdist.core.public_files import (
    MANIFEST,
    MISSING,
    SIGNATURE,
    UNFIT,
    Damaged,
    all_damage,
    printable,
    read_object,
    regular,
    unfit,
)
from dpdist.estimation.frame_table import read_job
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.claims import promised
from dpdist.publish.minisign import PublicKey, SecretKey, SignatureError
from dpdist.publish.released import REMEDY

FIGURES = ("guarantee", "adjacency", "epsilon", "epsilon_per_set", "substitution_epsilon", "delta")
"""What of a statement follows from the job alone."""
SAYING = ("statement.json", "released/promise.json")


def public_of(folder: Path) -> Path:
    """The public folder: the one that is named, or that of a workspace."""
    inside = folder / "public"
    return inside if (inside / MANIFEST).exists() and not (folder / MANIFEST).exists() else folder


def problems(public: Path, key: PublicKey | None = None) -> list[str]:
    """What is wrong, a line a file: changed, missing, added, claiming what its job does not give, not signed by the key."""
    damage = all_damage(public)
    lines = [str(error) for error in damage] or [str(error) for error in _claims(public)]
    if (why := unfit(public)) is not None:
        lines.append(f"{UNFIT}: {why}")
    if key is not None and (wrong := _unsigned(public, key)):
        lines.append(f"{SIGNATURE}: {wrong}")
    return lines


def refuse_unverified(public: Path, made_again: bool = False) -> None:
    """Raises `WorkspaceError` for a folder that is not as it was released; a replay's may be looked at.

    `made_again`: for what follows from released/ a file may be missing, since it is made again.
    """
    damage = all_damage(public) or _claims(public)
    found = [error for error in damage if not (made_again and error.found == MISSING and _derived(error.file))]
    if found:
        more = f", and {len(found) - 1} more files are not the manifest's" if len(found) > 1 else ""
        raise WorkspaceError(str(public), f"{found[0]}{more}, allowed: {found[0].allowed}", REMEDY)


def _derived(name: str) -> bool:
    return name != MANIFEST and not name.startswith("released/")


def sign(public: Path, key: SecretKey) -> None:
    """Sign a folder's manifest. Raises `WorkspaceError` for a folder that is not whole, or a replay's."""
    if wrong := problems(public):
        raise WorkspaceError(str(public), f"it is not signed: {wrong[0]}", "sign a folder that `dpdist verify` finds whole")
    said = read_object(public, MANIFEST)
    comment = " ".join(f"{name}:{said[name]}" for name in ("dataset", "period", "release"))
    write_text(public / SIGNATURE, key.sign((public / MANIFEST).read_bytes(), comment))


def _unsigned(public: Path, key: PublicKey) -> str | None:
    """Why the manifest is not signed by the key."""
    try:
        text = regular(public, SIGNATURE).read_text(encoding="utf-8")
        key.check(regular(public, MANIFEST).read_bytes(), text)
    except Damaged as error:
        return error.found
    except SignatureError as error:
        return printable(error.found)
    except ValueError:
        return "no text"
    return None


def _claims(public: Path) -> list[Damaged]:
    """Figures of a statement that do not follow from the release's job."""
    try:
        job = read_job(public, "released/job.json")
        due = promised(mechanism_of(job).promise(job), {})
        said = {name: read_object(public, name) for name in SAYING}
    except Damaged as error:
        return [error]
    except (DpdistError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        found = f"a job of which nothing can be promised ({type(error).__name__})"
        return [Damaged("released/job.json", found, "the job as it was released")]
    return [
        Damaged(name, f"{figure} {_shown(own.get(figure))}", f"{_shown(due[figure])}, which follows from its job")
        for name, own in said.items()
        for figure in FIGURES
        if own.get(figure) != due[figure]
    ]


def _shown(value: object) -> str:
    """As JSON has it, so that a number and its text are told apart."""
    return json.dumps(value, ensure_ascii=True)
