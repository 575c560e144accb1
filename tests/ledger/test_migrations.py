"""A ledger of an earlier dpdist is brought to this one's tables, whole or not at all; one of a later dpdist is refused."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from command_line import invoke
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from dpdist.core.errors import LedgerError
from dpdist.core.files import LEDGER
from dpdist.job import Limits
from dpdist.ledger import book
from dpdist.ledger.accounts import Charge, charges, following, total
from dpdist.ledger.book import Ledger

FIXTURE = Path(__file__).parents[1] / "fixtures" / "0.1.1" / "ledger.sqlite"
KILLED = """
import os, signal, sys
from sqlalchemy import Engine, event
from dpdist.job import Limits
from dpdist.ledger.accounts import Charge
from dpdist.ledger.book import Ledger
from fractions import Fraction

left = int(sys.argv[2])

@event.listens_for(Engine, "after_cursor_execute")
def count(*_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

Ledger(sys.argv[1]).limit("wages", "strict", Limits(total="9"))
"""
"""A writer that kills itself after a number of statements."""

KILLED_ANYWHERE = """
import json, os, random, signal, sys, time
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from dpdist.job import Limits
from dpdist.ledger import book
from dpdist.ledger.book import Ledger

place = sys.argv[1]
engine = create_engine(place.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
moments = random.Random(20)

def write(number, seconds=None):
    if (pid := os.fork()) == 0:
        if seconds:
            signal.setitimer(signal.ITIMER_REAL, seconds)
        Ledger(place).limit("wages", "strict", Limits(total=str(number)))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def earlier():
    with engine.begin() as link:
        link.execute(text("DROP TABLE IF EXISTS dpdist_ledger_schema"))

longest = 0.0
for number in range(3):
    begun = time.perf_counter()
    assert write(number + 1) == 0
    longest = max(longest, time.perf_counter() - begun)
    earlier()
kills, schemas, grown = 0, [], []
while kills < 50:
    before = Ledger(place).entries()
    status = write(kills + 10, moments.uniform(0.05, 1.05) * longest)
    after = Ledger(place).entries()
    assert after[: len(before)] == before
    with engine.connect() as link:
        schema = book.schema_of(link)
    assert (schema == book.NEWEST) == (len(after) > len(before)), "the step and the entry are one transaction"
    assert status in (0, -signal.SIGALRM), status
    if status:
        kills += 1
        schemas.append(schema)
    earlier()
print(json.dumps({"kills": kills, "whole": schemas.count(book.NEWEST), "problems": len(Ledger(place).problems())}))
"""
"""Writers that a timer kills anywhere, inside COMMIT too; each begins from the earlier schema."""


def _engine(place: str) -> Engine:
    return create_engine(place.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)


def run_sql(place: str, *statements: str) -> list[tuple[object, ...]]:
    """Executes statements as the database's owner; returns the rows of the last one, if it has any."""
    with _engine(place).begin() as link:
        for statement in statements:
            done = link.execute(text(statement))
        return [tuple(row) for row in done] if done.returns_rows else []


def schema(place: str) -> int:
    with _engine(place).connect() as link:
        return book.schema_of(link)


@pytest.fixture
def earlier(place: str, charge: Charge) -> str:
    """A ledger with one charge, of the schema that 0.1.1 made: the same without the table of numbers."""
    book = Ledger(place)
    book.begin()
    book.reserve(charge, Limits())
    run_sql(place, "DROP TABLE dpdist_ledger_schema")
    return place


def test_the_tables_of_0_1_1_are_those_that_the_fixture_drops_to() -> None:
    """So what stands for 0.1.1 on a server has the tables of the file that 0.1.1 made."""
    with sqlite3.connect(f"file:{FIXTURE}?mode=ro", uri=True) as link:
        names = {row[0] for row in link.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {"dpdist_ledger"}


def test_a_new_ledger_states_its_schema(place: str) -> None:
    Ledger(place).begin()
    assert run_sql(place, "SELECT version FROM dpdist_ledger_schema") == [(book.NEWEST,)]


def test_an_earlier_ledger_is_read_as_it_is_and_migrated_by_its_first_writer(earlier: str, charge: Charge) -> None:
    before = Ledger(earlier).entries()
    assert schema(earlier) == 1, "a reader changes nothing"
    Ledger(earlier).reserve(replace(charge, run="run-2"), Limits())
    assert schema(earlier) == book.NEWEST
    entries = Ledger(earlier).entries()
    assert entries[: len(before)] == before
    assert total(charges(entries, "wages")) == 2


def test_a_copy_of_a_file_is_kept_as_it_was(tmp_path: Path, charge: Charge) -> None:
    file = tmp_path / "ledger.sqlite"
    shutil.copyfile(FIXTURE, file)
    before = Ledger(str(file)).entries()
    Ledger(str(file)).reserve(charge, Limits())
    kept = tmp_path / "ledger.sqlite.schema-1"
    assert Ledger(str(kept)).entries() == before
    assert schema(f"sqlite:///{kept}") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, kept.name]
    kept.unlink()
    Ledger(str(file)).reserve(replace(charge, run="run-2"), Limits())
    assert not kept.exists(), "nothing is left to migrate"


@pytest.mark.long
def test_a_killed_migration_leaves_the_earlier_schema_or_this_one(earlier: str, charge: Charge) -> None:
    """Killed after each of its statements; the last writer is not killed, so every statement had its turn."""
    seen, statements = set[int](), 0
    while True:
        before = Ledger(earlier).entries()
        command = [sys.executable, "-c", KILLED, earlier, str(statements)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        seen.add(schema(earlier))
        assert Ledger(earlier).entries() == before
        statements += 1
    assert seen == {1}, "and not one statement was kept"
    assert statements >= 6
    assert schema(earlier) == book.NEWEST
    assert [entry.kind for entry in Ledger(earlier).entries()] == ["begin", "reserve", "policy"]


@pytest.mark.long
def test_fifty_kills_anywhere_lose_nothing(earlier: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_ANYWHERE, earlier], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert (counts["kills"], counts["problems"]) == (50, 0)
    assert schema(earlier) == 1


def test_a_ledger_of_a_later_schema_is_refused_by_name(place: str, ledger: Ledger, charge: Charge) -> None:
    """Control: the same ledger before its number is raised is written."""
    ledger.reserve(charge, Limits())
    run_sql(place, "INSERT INTO dpdist_ledger_schema VALUES (99, '9.0')")
    acts = (ledger.entries, ledger.problems, ledger.begin, lambda: ledger.reserve(replace(charge, run="2"), Limits()))
    for act in acts:
        with pytest.raises(LedgerError, match="schema 99, which a later dpdist") as refused:
            act()
        assert refused.value.exit_code == 2
        assert "install a later dpdist" in str(refused.value)
    assert run_sql(place, "SELECT count(*) FROM dpdist_ledger") == [(2,)]


def test_entries_of_a_later_format_are_refused_by_name(tmp_path: Path, charge: Charge) -> None:
    """Control: the same entry of this format is read."""
    for number, readable in ((LEDGER + 1, False), (LEDGER, True)):
        file = tmp_path / f"{number}.sqlite"
        Ledger(str(file)).begin()
        entry = following(None, {"kind": "begin", "format": number, "ledger": "x", "time": "2030-01-01"})
        with sqlite3.connect(file) as link:
            link.execute("DROP TRIGGER dpdist_ledger_update")
            link.execute("UPDATE dpdist_ledger SET entry = ?, sha256 = ?", (entry.text, entry.sha256))
        shown = invoke("ledger", "check", "--ledger", file)
        assert shown.exit_code == (0 if readable else 2)
        assert (f"format {number}, which a dpdist later" in " ".join(shown.output.split())) != readable
        if not readable:
            with pytest.raises(LedgerError, match="later dpdist"):
                Ledger(str(file)).reserve(charge, Limits())


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_an_account_without_the_right_to_change_tables_is_told_who_may(earlier: str, charge: Charge) -> None:
    run_sql(
        earlier,
        "CREATE ROLE clerk LOGIN",
        "GRANT SELECT, INSERT ON dpdist_ledger TO clerk",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    )
    clerk = Ledger(earlier.replace("dpdist:", "clerk:"))
    with pytest.raises(LedgerError, match="may not upgrade them") as refused:
        clerk.reserve(replace(charge, run="run-2"), Limits())
    assert "dpdist ledger init" in str(refused.value)
    assert schema(earlier) == 1
    Ledger(earlier).begin()
    run_sql(earlier, "GRANT SELECT ON dpdist_ledger_schema TO clerk")
    clerk.reserve(replace(charge, run="run-2"), Limits())
    assert total(charges(clerk.entries(), "wages")) == Fraction(2)
