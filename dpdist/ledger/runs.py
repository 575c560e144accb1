"""Charges of runs: before the first fit, settled before publication. A resumed run pays once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import rfc8785
from pydantic import ValidationError

from dpdist.core.errors import LedgerError, WorkspaceError
from dpdist.core.files import private, write_json
from dpdist.core.keys import Key
from dpdist.core.progress import Event, Listener
from dpdist.core.public_files import MANIFEST
from dpdist.job import Job
from dpdist.ledger.accounts import Receipt
from dpdist.ledger.charging import NOT_COUNTED, VARIABLE, Account, default_ledger, place_of
from dpdist.privacy.guarantees import Guarantee
from dpdist.storage.workspace import MADE_AGAIN, Workspace

RESTORE = (
    "restore the ledger from a copy, or name the one that has the charge. `dpdist ledger check` compares it with the "
    "workspace. Then repeat the command"
)


@dataclass(frozen=True)
class Meter:
    """A run's account, and its receipt in the workspace.

    `uncharged` is true for a replay, whose original run was charged, and for a study, whose data are public.
    """

    space: Workspace
    account: Account | None
    uncharged: bool

    @classmethod
    def of(cls, job: Job, guarantee: Guarantee, space: Workspace, uncharged: bool) -> Meter:
        return cls(space, None if uncharged else Account.of(job, guarantee, space.place), uncharged)

    def check(self, listener: Listener) -> None:
        """Raises `BudgetRefused` before anything is written.

        Otherwise it may report other charged runs, or a missing ledger.

        Raises `LedgerError` if the run was charged in another ledger.
        """
        if self.uncharged:
            return
        receipt = read_receipt(self.space)
        if self.account is None:
            if receipt is not None:
                remedy = f"name it again: ledger: {{url: …}} in the job, or {VARIABLE}"
                raise LedgerError(receipt.ledger, "the run was charged in this one, and now names none", remedy, 2)
            listener(Event("note", "ledger", note=NOT_COUNTED))
        elif receipt is not None:
            self.account.ledger.refuse_other(receipt)
        elif self.space.read_identity() is None and (note := self.account.refuse()):
            listener(Event("note", "ledger", note=note))

    def reserve(self, key: Key) -> bool:
        """Charges the run and stores the receipt.

        Returns whether the run is charged; for a replay, whether the original is.
        """
        if self.account is None:
            return read_receipt(self.space) is not None
        receipt = self.account.reserve(run_of(key))
        with private():
            write_json(self.space.receipt, receipt.line)
            self.space.store.put_if_absent(self.space.receipt)
        return True

    def settle(self, key: Key) -> None:
        """Settles the charge, after the release is made and before it is published."""
        if self.account is not None:
            self.account.settle(run_of(key), _kept_noise(self.space))

    def name_release(self, key: Key, listener: Listener) -> None:
        """Records the id of the published release, so that corrections can refer to it.

        The release stays charged and published in any case. If the ledger does not answer, the listener gets a note.
        Raises `LedgerError` if the ledger answers and does not show the charge.
        """
        if self.account is not None:
            with _noted(listener):
                self.account.ledger.name_release(run_of(key), _id_of(self.space))


@dataclass(frozen=True)
class ChargedRun:
    """The ledger and the name of a charged run, whose release is published again."""

    space: Workspace
    url: str
    run: str

    @classmethod
    def of(cls, space: Workspace) -> ChargedRun | None:
        """None for a run that was not charged. Raises `WorkspaceError` if its key or its job is damaged."""
        if space.replayed or not all(space.store.download(path) for path in (space.receipt, space.job, space.key)):
            return None
        key = space.read_key()
        space.refuse_damaged(["records"], MADE_AGAIN, only=space.job)
        try:
            place = place_of(Job.stored(space.job.read_bytes()))
        except ValidationError:
            raise WorkspaceError(space.place, "confidential/job.json is damaged", MADE_AGAIN, exit_code=2) from None
        return None if place is None else cls(space, place or default_ledger(space.place), run_of(key))

    def name_again(self, listener: Listener) -> None:
        """Records the release's id once more after `publish`, which may have changed it.

        If the ledger does not answer, the listener gets a note. Raises `LedgerError` if it does not show the charge.
        """
        from dpdist.ledger.book import Ledger  # the database is imported only with a ledger

        with _noted(listener):
            Ledger(self.url).name_release(self.run, _id_of(self.space))


@contextmanager
def _noted(listener: Listener) -> Iterator[None]:
    """Handles the failure to record the id of a finished release.

    A ledger that does not answer gets the id later, and the listener gets a note. Any other error is raised
    again.
    """
    try:
        yield
    except LedgerError as error:
        if not error.no_answer:
            fault = f"{error.fault}; the release stands, but that ledger does not show its charge"
            raise LedgerError(error.ledger, fault, RESTORE, error.exit_code) from None
        note = "the release stands, but this release's id is not entered, so that no correction can name it"
        listener(Event("note", "ledger", note=f"{note}; `dpdist publish` enters it later: {error}", always=True))


def _id_of(space: Workspace) -> str:
    return str(json.loads((space.newest / MANIFEST).read_text(encoding="utf-8"))["release"])


def run_of(key: Key) -> str:
    """A run's name in a ledger. All copies of a workspace give the same name, and it reveals nothing about the key."""
    return key.child("ledger").hex()


def read_receipt(space: Workspace) -> Receipt | None:
    """The receipt of a charged run, None if there is none. Raises `WorkspaceError` if it is damaged."""
    if not space.store.download(space.receipt):
        return None
    try:
        receipt = json.loads(space.receipt.read_text(encoding="utf-8"))
        return Receipt(str(receipt["ledger"]), int(receipt["number"]), str(receipt["sha256"]))
    except (ValueError, KeyError, TypeError):
        raise space.damaged(space.receipt, "is damaged") from None


def _kept_noise(space: Workspace) -> str:
    """Checksum of all noise that the run has stored, computed from its completion records."""
    names = sorted(name for name in space.store.names(space.completions) if name.startswith("noise-"))
    space.store.download_all(space.completions / name for name in names)
    noise = {name: json.loads((space.completions / name).read_text(encoding="utf-8")) for name in names}
    return hashlib.sha256(rfc8785.dumps(noise)).hexdigest()
