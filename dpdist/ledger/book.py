"""The ledger that `cli.ledger` and runs use: charges a release before it begins, settles it afterwards, removes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection

from dpdist.core.errors import LedgerError
from dpdist.core.files import LEDGER, misfit
from dpdist.job import Limits
from dpdist.ledger.accounts import Charge, Class, refuse_correction, refuse_excess
from dpdist.ledger.database import Database, append, rows
from dpdist.ledger.entries import Entry, LedgerRow, Receipt, damage, following, stated_format, trusted

CHARGED_IN = "name the ledger that the run was charged in, or use a new workspace"
CORRECTS = "state correction.of as the run began, or use a new workspace"
DAMAGED = "find out who changed it, and restore it from a copy (dpdist ledger export makes one)"


class Ledger:
    """Entries in a database. Each write is one transaction by one writer at a time, and requires an undamaged chain."""

    def __init__(self, place: str) -> None:
        self._database = Database(place)

    @property
    def name(self) -> str:
        """The ledger's name for messages: its URL without the password."""
        return self._database.name

    @property
    def there(self) -> bool:
        """False if the ledger is a file that does not exist."""
        file = self._database.file
        return file is None or file.is_file()

    def begin(self) -> bool:
        """Creates the ledger; returns False if it exists already."""
        with self._database.writing(begin=True) as link:
            if self._rows(link):
                self._trusted(link)
                return False
            self._append(link, None, {"kind": "begin", "format": LEDGER, "ledger": uuid4().hex})
            return True

    def limit(self, dataset: str, cls: Class, limits: Limits) -> None:
        """States the limits of a dataset for one class. They replace earlier ones, which stay in the chain."""
        with self._database.writing() as link:
            policy = {"kind": "policy", "dataset": dataset, "class": cls, "limits": limits.model_dump(mode="json")}
            self._append(link, self._trusted(link)[-1], policy)

    def reserve(self, charge: Charge, stated: Limits) -> Receipt:
        """Charges a run, once however often this is called. Raises `BudgetRefused`, and then writes nothing."""
        with self._database.writing() as link:
            entries = self._trusted(link)
            if (reserved := _of_run(entries, charge.run, "reserve")) is None:
                refuse_correction(entries, charge)
                refuse_excess(entries, stated, charge)
                reserved = self._append(link, entries[-1], {"kind": "reserve", **charge.content})
            elif (earlier := Charge.of(reserved)).corrects not in ("", charge.corrects):
                raise self._other("the run was charged as a correction of another release", CORRECTS)
            elif replace(earlier, job=charge.job, corrects=charge.corrects) != charge:
                raise self._other("the run was charged another cost")
            return Receipt(str(entries[0].content["ledger"]), reserved.number, reserved.sha256)

    def settle(self, charge: Charge, noise: str) -> None:
        """Records, once, that a charged run has made its release. `noise` is the checksum of the run's stored noise.

        Raises `LedgerError` if the run was settled with other noise. Two copies of its workspace then drew noise
        separately, and one charge does not cover both.
        """
        with self._database.writing() as link:
            entries = self._trusted(link)
            reserved = _of_run(entries, charge.run, "reserve")
            if reserved is None:
                raise self._other("the run was never charged in it")
            settlement = {"kind": "settle", "run": charge.run, "dataset": charge.dataset, "period": charge.period}
            settled = _of_run(entries, charge.run, "settle")
            if settled is None:
                self._append(link, entries[-1], {**settlement, "reserve": reserved.number, "noise": noise})
            elif settled.content["noise"] != noise:
                raise self._other("another copy of this workspace has released other noise under the same charge")

    def name_release(self, run: str, release: str) -> None:
        """Records, once, the id of a charged run's release. Corrections refer to this id."""
        with self._database.writing() as link:
            entries = self._trusted(link)
            if (reserved := _of_run(entries, run, "reserve")) is None:
                raise self._other("the run was never charged in it")
            named = {"kind": "release", "made_by": run, **{name: reserved.content[name] for name in ("dataset", "period")}}
            if not any(entry.content.get("release") == release for entry in entries if entry.content.get("made_by") == run):
                self._append(link, entries[-1], {**named, "release": release})

    def refuse_other(self, receipt: Receipt) -> None:
        """Raises `LedgerError` unless this ledger has the charge of which a run holds the receipt."""
        if fault := _unlike(self.entries(), receipt):
            raise self._other(fault)

    def entries(self) -> list[Entry]:
        """All entries. Raises `LedgerError` if the chain is damaged."""
        with self._database.reading() as link:
            return self._trusted(link)

    def problems(self, receipts: Mapping[str, Receipt] | None = None) -> list[str]:
        """Sentences on damage of the chain, and on charges that `receipts` (by workspace) prove and the ledger lacks."""
        with self._database.reading() as link:
            stored = self._rows(link)
        if wrong := list(damage(stored)):
            return wrong
        entries = [trusted(row) for row in stored]
        unlike = {place: _unlike(entries, receipt) for place, receipt in (receipts or {}).items()}
        return [f"{place}: {fault}" for place, fault in unlike.items() if fault]

    def _rows(self, link: Connection) -> list[LedgerRow]:
        """All entries as they are stored. Raises `LedgerError` for entries of a format that this version does not read."""
        if (stored := rows(link)) and (wrong := misfit(stated_format(stored[0]), LEDGER)) is not None:
            raise LedgerError(self.name, f"its entries are of {wrong.fault}", wrong.remedy, 2)
        return stored

    def _trusted(self, link: Connection) -> list[Entry]:
        stored = self._rows(link)
        if wrong := next(damage(stored), None):
            raise LedgerError(self.name, f"its chain is damaged: {wrong}", DAMAGED)
        return [trusted(row) for row in stored]

    def _append(self, link: Connection, last: Entry | None, line: Mapping[str, Any]) -> Entry:
        entry = following(last, {**line, "time": datetime.now(UTC).isoformat(timespec="seconds")})
        append(link, entry)
        return entry

    def _other(self, what: str, remedy: str = CHARGED_IN) -> LedgerError:
        return LedgerError(self.name, what, remedy, 2)


def _of_run(entries: Iterable[Entry], run: str, kind: str) -> Entry | None:
    return next((entry for entry in entries if entry.kind == kind and entry.content["run"] == run), None)


def _unlike(entries: list[Entry], receipt: Receipt) -> str | None:
    """A sentence on the difference between a ledger and a run's receipt; None if they agree."""
    if entries[0].content["ledger"] != receipt.ledger:
        return "the run was charged in another ledger"
    if receipt.number >= len(entries) or entries[receipt.number].sha256 != receipt.sha256:
        return f"entry {receipt.number}, with which the run was charged, is not there"
    return None
