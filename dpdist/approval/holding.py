"""Held releases: opened for inspection, then approved, or refused with a reason.

A job with `approval: required` publishes nothing without an approval under a key. A job with `publish: unless_refused`
holds its release until the evaluation is made. Afterwards it holds the release only if the verdict says "do not
publish". So the records, or a person who has read the evaluation, decide on publication. No ε covers this decision, as
the statement says.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from dpdist.core.errors import WorkspaceError, control
from dpdist.core.files import aside, private, publishing, sha256, shared, swap_in, write_json, write_text
from dpdist.core.minisign import PublicKey, SecretKey, SignatureError
from dpdist.core.public_files import MANIFEST, SIGNATURE, UNFIT, read_object
from dpdist.estimation.crosstab_table import read_job
from dpdist.opening.verifying import refuse_unverified
from dpdist.quality.report_page import material_of, overall_verdict
from dpdist.storage.workspace import Workspace

Decision = Literal["approved", "refused"]
UNSIGNED = ""
"""Stands for a key if a release held by a verdict is approved without one."""
LONGEST = 1000
"""Largest number of characters of a reason."""


def approve(workspace: str | Path, key: SecretKey | None, reason: str) -> str:
    """Publishes a held release, signed by the key if there is one. Returns the place of the public folder.

    Parameters
    ----------
    workspace : the workspace of a run whose release is held.
    key : the key of whoever approves. Its public half is what `dpdist verify --key` then takes. Only a release that a
        verdict holds can be approved without one.
    reason : stored in the confidential folder, with the date and the key's name.

    Raises
    ------
    WorkspaceError : nothing is held; the release was changed, or repeats another run's draws; there is no reason; it
        has no evaluation yet, and there is no key; or the job wants a key, or one of a list, and this is none. A killed
        approval is completed by the same command.
    """
    name = UNSIGNED if key is None else key.public.text.splitlines()[-1]
    with _held_release(workspace, reason, name) as (space, manifest):
        if _published(space) is None:
            _refuse_unlisted(space, name)
            manifest_path = space.held_release / MANIFEST
            if key is None:
                material_of(space)  # whoever approves without a key decides on the verdict: there must be one
                _store_decision(space, manifest["release"], "approved", reason, manifest=sha256(manifest_path))
            else:
                comment = " ".join(f"{name}:{manifest[name]}" for name in ("dataset", "period", "release"))
                signature = key.sign(manifest_path.read_bytes(), f"{comment} approved")
                _store_decision(space, manifest["release"], "approved", reason, key=name, signature=signature)
        publish_approved(space)
        return space.address(space.public) if not space.store.shared else str(space.public)


def refuse(workspace: str | Path, reason: str) -> None:
    """Leaves a release held, and stores the reason.

    It can be approved later; its budget stays spent. The errors are those of `approve`.
    """
    with _held_release(workspace, reason) as (space, manifest):
        _store_decision(space, manifest["release"], "refused", reason)


@contextmanager
def _held_release(workspace: str | Path, reason: str, key: str | None = None) -> Iterator[tuple[Workspace, dict[str, Any]]]:
    """Opens a held release with its manifest, after a check that it is unchanged.

    It also opens a release that an approval under this `key` made public before it was killed.
    """
    with Workspace.opened(workspace) as space:
        if not reason.strip() or len(reason) > LONGEST or control(reason):
            fault = "the reason is missing, or is not a single line"
            raise WorkspaceError(space.place, fault, f"give the reason in one line of at most {LONGEST} characters", 2)
        if not space.store.download(space.held_release / MANIFEST) and (key is None or _published(space) != key):
            remedy = "name the workspace of a held run that nobody has approved yet"
            raise WorkspaceError(space.place, "it contains no held release that waits for approval", remedy, 2)
        if space.replayed:
            fault = "it repeats another run's draws and is not for publication"
            raise WorkspaceError(space.place, fault, "approve the original run", 2)
        with space.publishing(replacing=True), publishing(space.held_release):
            folder = space.public if key is not None and _published(space) == key else space.held_release
            refuse_unverified(folder)
            yield space, read_object(folder, MANIFEST)


def _published(space: Workspace) -> str | None:
    """Returns the key under which the held release is already public, or UNSIGNED; None if it is not public.

    A killed approval may leave the held folder, or a part of it, beside the public one. If the held folder is of another
    release, that one is not public.
    """
    approvals = [decision for decision in decisions(space) if decision["decision"] == "approved"]
    if not approvals or not space.store.download(space.public / MANIFEST):
        return None
    manifest, held_path = (space.public / MANIFEST).read_bytes(), space.held_release / MANIFEST
    if held_path.exists() and held_path.read_bytes() != manifest:
        return None
    if "signature" not in approvals[-1]:
        return UNSIGNED if approvals[-1].get("manifest") == sha256(space.public / MANIFEST) else None
    signed = space.public / SIGNATURE
    same = space.store.download(signed) and signed.read_bytes() == str(approvals[-1]["signature"]).encode()
    return str(approvals[-1].get("key")) if same else None


def decisions(space: Workspace) -> list[dict[str, Any]]:
    """All decisions on releases of a workspace, in order. Raises `WorkspaceError` if their file is damaged."""

    def listed(entries: Any) -> list[dict[str, Any]]:
        return [{**entry, "release": str(entry["release"]), "decision": str(entry["decision"])} for entry in entries]

    return space.stored(space.decisions, listed) or []


def _store_decision(space: Workspace, release: str, decision: Decision, reason: str, **more: str) -> None:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"release": release, "decision": decision, "reason": reason, "date": date, **more}
    before = decisions(space)
    if before and {**before[-1], "date": date} == entry:  # a killed command had stored the same decision
        return
    with private():
        space.confidential.mkdir(exist_ok=True)
        write_json(space.decisions, [*before, entry])
    space.store.upload([space.decisions])


def publish_approved(space: Workspace) -> bool:
    """Publishes a held release if the last decision approved it; returns whether it did.

    The decision must name this manifest: a release that has changed since then stays held.
    """
    if _published(space) is not None:
        _move_to_public(space, None, resumed=True)
        return True
    last = _last_decision(space)
    if last is None or last["decision"] != "approved":
        return False
    _refuse_unlisted(space, str(last.get("key", UNSIGNED)))
    _refuse_other(space, last)
    _move_to_public(space, last.get("signature"))
    return True


def publish_unless_refused(space: Workspace) -> bool:
    """Publishes a held release unless its confidential verdict says "do not publish"; returns whether it did.

    Releases that somebody has approved or refused keep this decision.
    """
    with publishing(space.held_release):
        if not space.store.download(space.held_release / MANIFEST):
            return True
        if _last_decision(space) is not None or verdict_refuses(space):
            return False
        signature = space.public / SIGNATURE
        same = _same_manifest(space) and space.store.download(signature)
        _move_to_public(space, signature.read_text(encoding="utf-8") if same else None)
        return True


def verdict_refuses(space: Workspace) -> bool:
    """True if the confidential verdict of the workspace's evaluation says "do not publish"."""
    return overall_verdict(material_of(space)).stops


def _same_manifest(space: Workspace) -> bool:
    public, held_manifest = space.public / MANIFEST, space.held_release / MANIFEST
    return space.store.download(public) and public.read_bytes() == held_manifest.read_bytes()


def _last_decision(space: Workspace) -> dict[str, Any] | None:
    """The last decision on the held release; None if nobody has decided."""
    release = read_object(space.held_release, MANIFEST)["release"]
    return next((decision for decision in reversed(decisions(space)) if decision["release"] == release), None)


def _refuse_other(space: Workspace, decision: dict[str, Any]) -> None:
    """Raises `WorkspaceError` if a decision does not belong to the held manifest, by signature or checksum."""
    manifest_path = space.held_release / MANIFEST
    if "signature" not in decision and "key" not in decision:
        if decision.get("manifest") != sha256(manifest_path):
            raise space.damaged(space.decisions, "is damaged: its checksum does not match the release")
        return
    try:
        PublicKey.parse(decision["key"]).check(manifest_path.read_bytes(), decision["signature"])
    except (SignatureError, KeyError, ValueError):
        raise space.damaged(space.decisions, "is damaged: its signature does not match the release") from None


def _move_to_public(space: Workspace, signature: str | None, resumed: bool = False) -> None:
    """Puts the held release in the public folder's place; `resumed` if a killed approval has already done so.

    The public folder is built aside, signed, and put in place as a whole. The held folder is deleted last.
    """
    with publishing(space.public):
        if not resumed:
            _copy_in(space.held_release, space.public, signature)
        space.store.publish(space.public)
    (space.held_release / MANIFEST).unlink(missing_ok=True)  # first, because a folder without a manifest is no held release
    space.store.delete([space.held_release / MANIFEST])
    shutil.rmtree(space.held_release, ignore_errors=True)
    space.store.delete([space.held_release])


def _copy_in(release: Path, public: Path, signature: str | None) -> None:
    partial = aside(public)
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(release, partial, ignore=shutil.ignore_patterns(UNFIT))
    if signature is not None:
        write_text(partial / SIGNATURE, signature)
    shared(partial)
    swap_in(partial, public)


def _refuse_unlisted(space: Workspace, key: str) -> None:
    """Raises `WorkspaceError` if the job requires a key, or a listed key, and this is none."""
    job = read_job(space.held_release, "released/job.json")
    listed = job.approvers
    if key == UNSIGNED:
        if job.approval is not None:
            fault = "its job states `approval: required`, so the approval needs a key"
            raise WorkspaceError(space.place, fault, "approve it with --key FILE, or refuse it with --refuse", 2)
        return
    if listed and key not in listed:
        names = ", ".join(PublicKey.parse(text).name for text in listed)
        fault = f"its job does not list the key {PublicKey.parse(key).name} among those that may approve ({names})"
        raise WorkspaceError(space.place, fault, "approve it under a listed key", 2)
