"""Charges of runs: their cost and what the limits leave; before the first fit, settled before publication."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import rfc8785
from pydantic import ValidationError

from dpdist.core.errors import BudgetRefused, LedgerError, WorkspaceError
from dpdist.core.files import private, write_json
from dpdist.core.keys import Key
from dpdist.core.progress import Event, Listener
from dpdist.core.public_files import MANIFEST
from dpdist.job import Job, Limits, budget_text
from dpdist.ledger.accounts import (
    SYMBOL,
    Charge,
    Receipt,
    charges,
    cost,
    refuse_charge,
    remaining_budget,
    total,
)
from dpdist.privacy.guarantees import Guarantee
from dpdist.storage.workspace import MADE_AGAIN, Workspace

if TYPE_CHECKING:
    from dpdist.ledger.book import Ledger


VARIABLE = "DPDIST_LEDGER"
BESIDE = "ledger.sqlite"
"""File name of the ledger of jobs that name none. It lies beside their workspaces."""
NOT_COUNTED = (
    "no ledger is set, so the privacy losses of this dataset's releases are not added up; to use one, set `ledger` in the "
    f"job, or {VARIABLE}"
)


def place_of(job: Job) -> str | None:
    """The ledger that the job or the environment names; "" for the one beside the workspace, None for no ledger."""
    if job.ledger is not None and job.ledger.url:
        return job.ledger.url
    url = _in_file(os.environ.get(VARIABLE, ""))
    return url or (None if job.ledger is None else "")


REMEDY = f"name a file with a ledger's URL after the @ in {VARIABLE}"


def _in_file(named: str) -> str:
    """The text itself, or the content of the file that it names after an @.

    Such a file may be a mounted secret, because the URL may contain a password.
    """
    if not named.startswith("@"):
        return named
    try:
        url = Path(named[1:]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        fault = f"it cannot be read ({type(error).__name__})"
        raise LedgerError(named, fault, REMEDY, 2) from None
    if not url:
        raise LedgerError(named, "it is empty", REMEDY, 2)
    return url


def charge_of(job: Job, guarantee: Guarantee, run: str) -> Charge:
    """The cost of a run of the job. Raises `BudgetRefused` if its mechanism promises nothing."""
    cls, budget, delta = cost(guarantee, job.dataset)
    decisive = hashlib.sha256(rfc8785.dumps({name: str(value) for name, value in job.identity.items()})).hexdigest()
    exchanged = f", {job.budget.exchange}" if job.budget.adjacency == "substitution" else ""
    unit = f", {job.privacy_unit.column} of at most {job.privacy_unit.most}" if job.privacy_unit is not None else ""
    version, corrects = (1, "") if job.correction is None else (job.correction.version, job.correction.of)
    adjacency = f"{job.budget.adjacency}{exchanged}{unit}"
    return Charge(job.dataset, job.period, run, cls, adjacency, budget, delta, decisive, version, corrects)


def ledger_at(place: str | None, workspace: str | Path) -> Ledger | None:
    """The ledger that `place_of` names, for a run in this workspace; None if it names none."""
    if place is None:
        return None
    from dpdist.ledger.book import Ledger  # the database is imported only with a ledger

    return Ledger(place or default_ledger(workspace))


def default_ledger(workspace: str | Path) -> str:
    """The path of the ledger beside a workspace folder. Raises `LedgerError` for a workspace in an object store."""
    if "://" in str(workspace):
        remedy = f"state ledger: {{url: postgresql://…}} or {VARIABLE}"
        raise LedgerError(BESIDE, "a workspace in an object store needs a ledger that is named", remedy, 2)
    return str(Path(workspace).absolute().parent / BESIDE)


def others_text(before: list[Charge], charge: Charge) -> str:
    """A note that the period has charged runs already, and what this one adds; "" if it has none."""
    same_period = [charged for charged in before if charged.period == charge.period]
    if not same_period:
        return ""
    same = "the same job" if any(charged.job == charge.job for charged in same_period) else "another job"
    runs = "a run" if len(same_period) == 1 else f"{len(same_period)} runs"
    amount, same_account = (
        budget_text(charge.budget),
        [charged for charged in same_period if charged.account == charge.account],
    )
    total_then = budget_text(total(same_account) + charge.budget)
    return (
        f"the ledger has {runs} of {charge.dataset} {charge.period} already ({same}, another workspace): this run is "
        f"charged in addition, {SYMBOL[charge.cls]} = {amount}, which makes {total_then} for the period"
    )


def terms(job: Job, guarantee: Guarantee) -> Mapping[str, str]:
    """Lines of a plan on the budget: the charge, what is left, and whether the run would be refused."""
    place = place_of(job)
    if place is None:
        return {}
    if not place:
        return {"ledger": f"{BESIDE} beside the workspace"}
    from dpdist.ledger.book import Ledger  # the database is imported only with a ledger

    ledger = Ledger(place)
    entries, job_limits = ledger.entries(), job.ledger or Limits()
    try:
        charge = charge_of(job, guarantee, "")
        earlier = [charged for charged in charges(entries, job.dataset) if charged.account == charge.account]
        rest, symbol = remaining_budget(entries, job_limits, charge), SYMBOL[charge.cls]
        remains = "no total is stated" if rest is None else f"{budget_text(rest)} left"
        charges_text = (
            f"{charge.cls} {symbol} = {budget_text(total(earlier))} charged to {job.dataset} under {charge.adjacency}"
        )
        facts = {"ledger": ledger.name, "budget": f"{charges_text}; {remains}; this run takes {budget_text(charge.budget)}"}
        refuse_charge(entries, job_limits, charge)
    except BudgetRefused as refusal:
        return {"ledger": ledger.name, "budget": f"a run into a new workspace would be refused: {refusal.fault}"}
    return facts


RESTORE = (
    "restore the ledger from a copy, or name the one that has the charge. `dpdist ledger check` compares it with the "
    "workspace. Then repeat the command"
)


@dataclass(frozen=True)
class Meter:
    """What charges a run: its ledger, its cost, the limits that its job states, and the receipt in the workspace.

    `uncharged` is true for a replay, whose original run was charged, and for a study, whose data are public.
    """

    space: Workspace
    job: Job
    guarantee: Guarantee
    ledger: Ledger | None
    uncharged: bool
    is_default: bool
    """True for the ledger beside the workspaces, which the first run creates. A named ledger must exist."""

    @classmethod
    def of(cls, job: Job, guarantee: Guarantee, space: Workspace, uncharged: bool) -> Meter:
        # The environment's name is read once: it could be another one by the time of the charge.
        place = None if uncharged else place_of(job)
        return cls(space, job, guarantee, ledger_at(place, space.place), uncharged, place == "")

    @property
    def stated(self) -> Limits:
        return self.job.ledger or Limits()

    def charge(self, run: str = "") -> Charge:
        return charge_of(self.job, self.guarantee, run)

    def check(self, listener: Listener) -> None:
        """Raises `BudgetRefused` before anything is written.

        Otherwise it may report other charged runs, or a missing ledger.

        Raises `LedgerError` if the run was charged in another ledger.
        """
        if self.uncharged:
            return
        receipt = read_receipt(self.space)
        if self.ledger is None:
            if receipt is not None:
                remedy = f"name it again: ledger: {{url: …}} in the job, or {VARIABLE}"
                raise LedgerError(
                    receipt.ledger, "the run was charged in this ledger, but the job now names none", remedy, 2
                )
            listener(Event("note", "ledger", note=NOT_COUNTED))
        elif receipt is not None:
            self.ledger.refuse_other(receipt)
        elif self.space.read_identity() is None:
            charge = self.charge()
            entries = [] if self.is_default and not self.ledger.there else self.ledger.entries()
            refuse_charge(entries, self.stated, charge)
            if note := others_text(charges(entries, charge.dataset), charge):
                listener(Event("note", "ledger", note=note))

    def reserve(self, key: Key) -> bool:
        """Charges the run, once, and stores the receipt. Raises `BudgetRefused`.

        Returns whether the run is charged; for a replay, whether the original is.
        """
        if self.ledger is None:
            return read_receipt(self.space) is not None
        charge = self.charge(run_of(key))
        if self.is_default:
            self.ledger.begin()
        receipt = self.ledger.reserve(charge, self.stated)
        with private():
            write_json(self.space.receipt, receipt.line)
            self.space.store.put_if_absent(self.space.receipt)
        return True

    def settle(self, key: Key) -> None:
        """Settles the charge, after the release is made and before it is published."""
        if self.ledger is not None:
            self.ledger.settle(self.charge(run_of(key)), _kept_noise(self.space))

    def name_release(self, key: Key, listener: Listener) -> None:
        """Records the id of the published release, so that corrections can refer to it.

        The release stays charged and published in any case. If the ledger does not answer, the listener gets a note.
        Raises `LedgerError` if the ledger answers and does not show the charge.
        """
        if self.ledger is not None:
            with _noted(listener):
                self.ledger.name_release(run_of(key), _id_of(self.space))


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
            fault = f"{error.fault}; the release is complete, but that ledger does not show its charge"
            raise LedgerError(error.ledger, fault, RESTORE, error.exit_code) from None
        note = "the release is complete, but its id was not entered, so no correction can name it"
        listener(Event("note", "ledger", note=f"{note}; `dpdist publish` enters it later: {error}", always=True))


def _id_of(space: Workspace) -> str:
    return str(json.loads((space.newest / MANIFEST).read_text(encoding="utf-8"))["release"])


def run_of(key: Key) -> str:
    """A run's name in a ledger. All copies of a workspace give the same name, and it reveals nothing about the key."""
    return key.child("ledger").hex()


def read_receipt(space: Workspace) -> Receipt | None:
    """The receipt of a charged run, None if there is none. Raises `WorkspaceError` if it is damaged."""
    return space.stored(space.receipt, lambda of: Receipt(str(of["ledger"]), int(of["number"]), str(of["sha256"])))


def _kept_noise(space: Workspace) -> str:
    """Checksum of all noise that the run has stored, computed from its completion records."""
    names = sorted(name for name in space.store.names(space.completions) if name.startswith("noise-"))
    space.store.download_all(space.completions / name for name in names)
    noise = {name: json.loads((space.completions / name).read_text(encoding="utf-8")) for name in names}
    return hashlib.sha256(rfc8785.dumps(noise)).hexdigest()
