"""The chain: whatever is changed, moved or left out afterwards is found."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpdist.core.errors import LedgerError
from dpdist.job import Limits
from dpdist.ledger.accounts import Charge, LedgerRow, damage, following
from dpdist.ledger.book import Ledger


def chain(number: int) -> list[LedgerRow]:
    entries = [following(None, {"kind": "begin", "ledger": "l"})]
    for k in range(1, number):
        said = {"kind": "reserve", "dataset": "wages", "period": str(2000 + k), "run": f"run-{k}", "budget": "1/3"}
        entries.append(following(entries[-1], said))
    return [LedgerRow(entry.number, entry.text, entry.sha256, entry.columns) for entry in entries]


def test_a_chain_as_it_was_written_has_no_damage() -> None:
    assert list(damage(chain(1))) == []
    assert list(damage(chain(20))) == []


def test_every_changed_character_of_every_entry_is_found() -> None:
    rows, rng = chain(4), random.Random(1)
    for k, row in enumerate(rows):
        for at in range(len(row.text)):
            other = rng.choice([c for c in '0123456789abcdef{}":,' if c != row.text[at]])
            changed = replace(row, text=row.text[:at] + other + row.text[at + 1 :])
            assert any(f"entry {k}" in said for said in damage([*rows[:k], changed, *rows[k + 1 :]]))
        for at in range(64):
            other = "0" if row.sha256[at] != "0" else "1"
            changed = replace(row, sha256=row.sha256[:at] + other + row.sha256[at + 1 :])
            assert list(damage([*rows[:k], changed, *rows[k + 1 :]]))


DAMAGES: dict[str, Callable[[list[LedgerRow]], list[LedgerRow]]] = {
    "one left out": lambda rows: rows[:2] + rows[3:],
    "the first left out": lambda rows: rows[1:],
    "two exchanged": lambda rows: [rows[0], replace(rows[2], number=1), replace(rows[1], number=2), *rows[3:]],
    "one twice": lambda rows: [*rows, replace(rows[-1], number=len(rows))],
    "another period to be searched for": lambda rows: [
        *rows[:-1],
        replace(rows[-1], columns={**rows[-1].columns, "period": "1999"}),
    ],
    "one written again with its checksum": lambda rows: [rows[0], _rewritten(rows[1]), *rows[2:]],
    "all": lambda rows: [],
}


def _rewritten(row: LedgerRow) -> LedgerRow:
    """By somebody who knows how checksums are made, and leaves what follows."""
    entry = following(None, {**json.loads(row.text), "budget": "1/300"})
    said = replace(entry, content={**entry.content, "number": row.number})
    return LedgerRow(row.number, said.text, said.sha256, row.columns)


@pytest.mark.parametrize("how", DAMAGES)
def test_what_is_moved_or_left_out_is_found(how: str) -> None:
    assert list(damage(DAMAGES[how](chain(6)))) != []


@pytest.fixture
def file(tmp_path: Path, charge: Charge) -> Path:
    """A ledger of one charge in a file whose guards somebody has taken off."""
    path = tmp_path / "open.sqlite"
    ledger = Ledger(str(path))
    ledger.begin()
    ledger.reserve(charge, Limits())
    with sqlite3.connect(path) as link:
        for verb in ("update", "delete"):
            link.execute(f"DROP TRIGGER dpdist_ledger_{verb}")
    link.close()
    return path


def altered(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as link:
        link.execute(statement)
    link.close()


def test_a_budget_that_was_lowered_afterwards_is_found_and_nothing_more_is_written(file: Path, charge: Charge) -> None:
    altered(file, """UPDATE dpdist_ledger SET entry = replace(entry, '"budget":"1"', '"budget":"0"') WHERE number = 1""")
    ledger = Ledger(str(file))
    assert ledger.problems() == ["entry 1: its checksum does not match its text"]
    for act in (ledger.entries, lambda: ledger.reserve(replace(charge, run="run-2"), Limits()), ledger.begin):
        with pytest.raises(LedgerError, match="its chain is damaged: entry 1"):
            act()


def test_a_ledger_without_its_last_entries_lacks_what_a_run_has_a_receipt_of(file: Path, charge: Charge) -> None:
    """A shortened chain is whole: only those who were charged know."""
    ledger = Ledger(str(file))
    receipt = ledger.reserve(charge, Limits())
    assert ledger.problems({"here": receipt}) == [], "control"
    altered(file, "DELETE FROM dpdist_ledger WHERE number = 1")
    assert ledger.problems() == []
    assert ledger.problems({"here": receipt}) == ["here: the ledger lacks entry 1, under which this run was charged"]
