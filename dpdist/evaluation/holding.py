"""Handles a release that is held: opens it for inspection, then approves it under a key, or refuses it with a reason.

A job with `approval: required` publishes nothing without an approval. A person who reads the evaluation first decides by
the records. No ε covers that decision, as the statement of such a release says.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import private, shared, write_json, write_text
from dpdist.core.minisign import PublicKey, SecretKey, SignatureError
from dpdist.core.printable import control
from dpdist.core.public_files import MANIFEST, SIGNATURE, UNFIT, read_object
from dpdist.estimation.frame_table import read_job
from dpdist.evaluation.verifying import refuse_unverified
from dpdist.publish.folder import aside, publishing, swap_in
from dpdist.storage.workspace import Workspace

Decision = Literal["approved", "refused"]
LONGEST = 1000
"""Largest number of characters of a reason."""


def approve(workspace: str | Path, key: SecretKey, reason: str) -> str:
    """Publishes a held release, signed by the key. Returns the place of the public folder.

    Parameters
    ----------
    workspace : the workspace of a run whose release is held.
    key : the key of whoever approves. Its public half is what `dpdist verify --key` then takes.
    reason : stored in the confidential folder, with the date and the key's name.

    Raises
    ------
    WorkspaceError : nothing is held; the release was changed, or repeats another run's draws; there is no reason; or
        the job lists keys and this is none of them. A killed approval is completed by the same command.
    """
    name = key.public.text.splitlines()[-1]
    with _held(workspace, reason, name) as (space, said):
        if _published(space) is None:
            _refuse_unlisted(space, name)
            comment = " ".join(f"{each}:{said[each]}" for each in ("dataset", "period", "release"))
            signature = key.sign((space.held / MANIFEST).read_bytes(), f"{comment} approved")
            _decide(space, said["release"], "approved", reason, key=name, signature=signature)
        publish_approved(space)
        return space.shown(space.public) if not space.store.shared else str(space.public)


def refuse(workspace: str | Path, reason: str) -> None:
    """Leaves a release held, and stores the reason.

    It can be approved later; its budget stays spent. The errors are those of `approve`.
    """
    with _held(workspace, reason) as (space, said):
        _decide(space, said["release"], "refused", reason)


@contextmanager
def _held(workspace: str | Path, reason: str, key: str | None = None) -> Iterator[tuple[Workspace, dict[str, Any]]]:
    """Opens a held release with its manifest, after a check that it is unchanged.

    It also opens a release that is already public, if an approval under this `key` was killed after publishing it.
    """
    with Workspace.opened(workspace) as space:
        if not reason.strip() or len(reason) > LONGEST or control(reason):
            found = "no reason, or none of a line"
            raise WorkspaceError(space.place, found, f"say why, in one line of at most {LONGEST} characters", 2)
        if not space.store.take(space.held / MANIFEST) and (key is None or _published(space) != key):
            remedy = "name the workspace of a run whose job says `approval: required`, and that nobody has approved yet"
            raise WorkspaceError(space.place, "nothing is held in it", remedy, 2)
        if space.replayed:
            found = "it repeats another run's draws, which are not for publication"
            raise WorkspaceError(space.place, found, "approve the run that it repeats", 2)
        with space.publishing(replacing=True), publishing(space.held):
            made = space.public if key is not None and _published(space) == key else space.held
            refuse_unverified(made)
            yield space, read_object(made, MANIFEST)


def _published(space: Workspace) -> str | None:
    """Returns the key under which the held release is already public; None where it is not.

    A killed approval may leave the held folder, or a part of it, beside the public one. If the held folder is of another
    release, that one is not public.
    """
    own = [each for each in decisions(space) if each["decision"] == "approved"]
    files = (space.public / MANIFEST, space.public / SIGNATURE)
    if not own or not all(space.store.take(path) for path in files):
        return None
    manifest, signature = (path.read_bytes() for path in files)
    held = space.held / MANIFEST
    same = signature == str(own[-1].get("signature")).encode() and (not held.exists() or held.read_bytes() == manifest)
    return str(own[-1].get("key")) if same else None


def decisions(space: Workspace) -> list[dict[str, Any]]:
    """All decisions on releases of a workspace, in order. Raises `WorkspaceError` where their file is damaged."""
    if not space.store.take(space.decisions):
        return []
    try:
        said = json.loads(space.decisions.read_text(encoding="utf-8"))
        return [{**each, "release": str(each["release"]), "decision": str(each["decision"])} for each in said]
    except (ValueError, KeyError, TypeError):
        raise space.damaged(space.decisions, "is damaged") from None


def _decide(space: Workspace, release: str, decision: Decision, reason: str, **more: str) -> None:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    said = {"release": release, "decision": decision, "reason": reason, "date": date, **more}
    before = decisions(space)
    if before and {**before[-1], "date": date} == said:  # a killed command had stored the same decision
        return
    with private():
        space.confidential.mkdir(exist_ok=True)
        write_json(space.decisions, [*before, said])
    space.store.keep([space.decisions])


def publish_approved(space: Workspace) -> bool:
    """Publishes a held release if the last decision approved it; returns whether it did.

    The signature in the decision must be of this very manifest: a release that has changed since then stays held. The
    public folder is built aside, signed, and put in place as a whole. The held folder is deleted last.
    """
    if _published(space) is None:
        made = (space.held / MANIFEST).read_bytes()
        release = read_object(space.held, MANIFEST)["release"]
        own = [each for each in decisions(space) if each["release"] == release]
        if not own or own[-1]["decision"] != "approved":
            return False
        _refuse_unlisted(space, str(own[-1].get("key")))
        try:
            PublicKey.parse(own[-1]["key"]).check(made, own[-1]["signature"])
        except (SignatureError, KeyError, ValueError):
            raise space.damaged(space.decisions, "is damaged: its signature is not of the release") from None
        with publishing(space.public):
            _copy_in(space.held, space.public, own[-1]["signature"])
    with publishing(space.public):
        space.store.show(space.public)
    (space.held / MANIFEST).unlink(missing_ok=True)  # first, because a folder without a manifest is no held release
    space.store.drop([space.held / MANIFEST])
    shutil.rmtree(space.held, ignore_errors=True)
    space.store.drop([space.held])
    return True


def _copy_in(held: Path, public: Path, signature: str) -> None:
    """Copies the held folder, with a signature and without its mark, to the public place, readable for everybody."""
    made = aside(public)
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(held, made, ignore=shutil.ignore_patterns(UNFIT))
    write_text(made / SIGNATURE, signature)
    shared(made)
    swap_in(made, public)


def _refuse_unlisted(space: Workspace, key: str) -> None:
    """Raises `WorkspaceError` where the job lists the keys that may approve, and this key is not among them."""
    listed = read_job(space.held, "released/job.json").approvers
    if listed and key not in listed:
        names = ", ".join(PublicKey.parse(each).name for each in listed)
        found = f"its job does not list the key {PublicKey.parse(key).name} among those that may approve ({names})"
        raise WorkspaceError(space.place, found, "approve it under a listed key", 2)
