"""Entries of a ledger, for all of `ledger`: each holds the SHA-256 of the previous entry's canonical JSON.

(RFC 8785.) All values are texts, whole numbers or null. Budgets are exact texts, so that no reader rounds them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import rfc8785

BEFORE_THE_FIRST = "0" * 64
"""The SHA-256 that the first entry holds in place of a previous entry's."""
COLUMNS = ("kind", "dataset", "period", "run")
"""Parts of an entry that are also stored in columns of their own, for searches."""


@dataclass(frozen=True)
class Entry:
    """One entry: its content, `text` its canonical JSON, and `sha256` that text's checksum."""

    content: Mapping[str, Any]
    text: str
    sha256: str

    @property
    def number(self) -> int:
        return int(self.content["number"])

    @property
    def kind(self) -> str:
        return str(self.content["kind"])

    @property
    def columns(self) -> dict[str, str | None]:
        return {name: self.content.get(name) for name in COLUMNS}


@dataclass(frozen=True)
class LedgerRow:
    """An entry as the database has it, before it is checked."""

    number: int
    text: str
    sha256: str
    columns: Mapping[str, str | None]


def following(last: Entry | None, line: Mapping[str, Any]) -> Entry:
    """The entry that follows `last`, with the given content."""
    number, previous = (0, BEFORE_THE_FIRST) if last is None else (last.number + 1, last.sha256)
    entry = {**line, "number": number, "previous": previous}
    text = rfc8785.dumps(entry)
    return Entry(entry, text.decode(), hashlib.sha256(text).hexdigest())


def damage(rows: Iterable[LedgerRow]) -> Iterator[str]:
    """Sentences on all wrong rows of a chain: changed, missing, moved, or not canonical."""
    previous, number = BEFORE_THE_FIRST, 0
    for row in rows:
        if row.number != number:
            yield f"entry {number}: missing"
        if wrong := _wrong(row, previous if row.number == number else None):
            yield f"entry {row.number}: {wrong}"
        previous, number = row.sha256, row.number + 1
    if number == 0:
        yield "entry 0: missing"


def _wrong(row: LedgerRow, previous: str | None) -> str | None:
    """What is wrong with a row, if anything. `previous` is None if the row before it is missing."""
    try:
        content = json.loads(row.text)
        canonical = isinstance(content, dict) and rfc8785.dumps(content).decode() == row.text
    except (ValueError, rfc8785.CanonicalizationError):
        canonical = False
    if not canonical:
        return "its text is not canonical JSON"
    if hashlib.sha256(row.text.encode()).hexdigest() != row.sha256:
        return "its text is not the one that its checksum was made of"
    if previous is not None and content.get("previous") != previous:
        return "it does not follow the entry before it"
    if content.get("number") != row.number or any(content.get(name) != row.columns[name] for name in COLUMNS):
        return "its columns are not those of its text"
    return None


def stated_format(first: LedgerRow) -> Any:
    """The format that a ledger's first entry states; None if its text is damaged: `damage` has the sentence."""
    try:
        return json.loads(first.text).get("format")
    except (ValueError, AttributeError):
        return None


def trusted(row: LedgerRow) -> Entry:
    """The entry in a row of an undamaged chain."""
    return Entry(json.loads(row.text), row.text, row.sha256)


@dataclass(frozen=True)
class Receipt:
    """A run's proof of its charge: the ledger, and the number and checksum of the entry."""

    ledger: str
    """Identity of the ledger since its creation."""
    number: int
    sha256: str

    @property
    def line(self) -> dict[str, Any]:
        return {"ledger": self.ledger, "number": self.number, "sha256": self.sha256}
