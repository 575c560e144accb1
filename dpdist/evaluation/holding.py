"""A release that is held: built aside, looked at, then approved and published under a key, or refused; reasons are kept.

Of a job with `approval: required` nothing reaches the public folder otherwise. Who looks at the evaluation first decides
by the records, which is in no ε: the statement of such a release says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import private, shared, write_json, write_text
from dpdist.core.printable import control
from dpdist.core.public_files import MANIFEST, SIGNATURE, UNFIT, read_object
from dpdist.evaluation.verifying import refuse_unverified
from dpdist.publish.folder import publishing, swap_in
from dpdist.publish.minisign import PublicKey, SecretKey, SignatureError
from dpdist.storage.workspace import Workspace

Decision = Literal["approved", "refused"]
LONGEST = 1000
"""Characters of a reason."""


def approve(workspace: str | Path, key: SecretKey, reason: str) -> str:
    """Publish a held release, signed by the key. Returns where it stands.

    Parameters
    ----------
    workspace : of a run that ended in hold.
    key : of whoever approves; `dpdist verify --key` then asks for its public half.
    reason : kept in the confidential folder, with the date and the key's name.

    Raises
    ------
    WorkspaceError : nothing is held, it is not as it was made, it repeats another run's draws, or there is no reason.
    """
    with _held(workspace, reason) as (space, said):
        comment = " ".join(f"{name}:{said[name]}" for name in ("dataset", "period", "release"))
        signature = key.sign((space.held / MANIFEST).read_bytes(), f"{comment} approved")
        own = {"key": key.public.text.splitlines()[-1], "signature": signature}
        _decide(space, said["release"], "approved", reason, **own)
        publish_approved(space)
        return space.shown(space.public) if not space.store.shared else str(space.public)


def refuse(workspace: str | Path, reason: str) -> None:
    """Keep a release held, with the reason, until somebody approves it; its budget stays spent. Errors: as of `approve`."""
    with _held(workspace, reason) as (space, said):
        _decide(space, said["release"], "refused", reason)


@contextmanager
def _held(workspace: str | Path, reason: str) -> Iterator[tuple[Workspace, dict[str, Any]]]:
    """A held release that is as it was made, to oneself, and its manifest."""
    with Workspace.opened(workspace) as space:
        if not reason.strip() or len(reason) > LONGEST or control(reason):
            found = "no reason, or none of a line"
            raise WorkspaceError(space.place, found, f"say why, in one line of at most {LONGEST} characters", 2)
        if not space.store.take(space.held / MANIFEST):
            remedy = "name the workspace of a run whose job says `approval: required`, and that nobody has approved yet"
            raise WorkspaceError(space.place, "nothing is held in it", remedy, 2)
        if space.replayed:
            found = "it repeats another run's draws, which are not for publication"
            raise WorkspaceError(space.place, found, "approve the run that it repeats", 2)
        with space.publishing(), publishing(space.held):
            refuse_unverified(space.held)
            yield space, read_object(space.held, MANIFEST)


def decisions(space: Workspace) -> list[dict[str, Any]]:
    """Every decision on releases of a workspace, in order. Raises `WorkspaceError` where they cannot be read."""
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
    with private():
        space.confidential.mkdir(exist_ok=True)
        write_json(space.decisions, [*before, said])
    space.store.keep([space.decisions])


def publish_approved(space: Workspace) -> bool:
    """Make a held release the public one if the last decision on it approved it; True if so.

    The signature that is kept with the decision must be of this very manifest: what has changed since is held again.
    """
    made = (space.held / MANIFEST).read_bytes()
    release = read_object(space.held, MANIFEST)["release"]
    own = [each for each in decisions(space) if each["release"] == release]
    if not own or own[-1]["decision"] != "approved":
        return False
    try:
        PublicKey.parse(own[-1]["key"]).check(made, own[-1]["signature"])
    except (SignatureError, KeyError, ValueError):
        raise space.damaged(space.decisions, "is damaged: its signature is not of the release") from None
    write_text(space.held / SIGNATURE, own[-1]["signature"])
    (space.held / UNFIT).unlink(missing_ok=True)
    with publishing(space.public):
        shared(space.held)
        swap_in(space.held, space.public)
    space.store.show(space.public)
    space.store.drop([space.held])
    return True
