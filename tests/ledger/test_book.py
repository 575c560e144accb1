"""A ledger in a file or a server: charged once, settled once, never less; words that hold no password."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from postgres_server import PASSWORD, PostgresServer
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from dpdist.core.errors import BudgetRefused, LedgerError
from dpdist.job import Limits
from dpdist.ledger.accounts import Charge, charges, total
from dpdist.ledger.book import Ledger

NONE = Limits()


def spent(ledger: Ledger) -> Fraction:
    return total(charges(ledger.entries(), "wages"))


def test_a_run_is_charged_and_settled_once_however_often_it_asks(ledger: Ledger, charge: Charge) -> None:
    receipts = {ledger.reserve(charge, Limits(total="1")) for _ in range(3)}
    assert len(receipts) == 1
    assert spent(ledger) == 1
    for _ in range(3):
        ledger.settle(charge, "noise")
    assert [entry.kind for entry in ledger.entries()] == ["begin", "reserve", "settle"]


def test_another_run_of_the_same_job_is_charged_too(ledger: Ledger, charge: Charge) -> None:
    ledger.reserve(charge, NONE)
    ledger.reserve(replace(charge, run="run-2"), NONE)
    assert spent(ledger) == 2


def test_a_refused_run_leaves_no_entry(ledger: Ledger, charge: Charge) -> None:
    ledger.limit("wages", "strict", Limits(total="1"))
    ledger.reserve(charge, NONE)
    before = ledger.entries()
    with pytest.raises(BudgetRefused, match="ε = 1 would bring the sum to 2 in all"):
        ledger.reserve(replace(charge, run="run-2"), NONE)
    assert ledger.entries() == before
    ledger.reserve(charge, NONE)
    assert ledger.entries() == before, "who was charged resumes"


def test_a_run_that_was_never_charged_is_not_settled(ledger: Ledger, charge: Charge) -> None:
    with pytest.raises(LedgerError, match="never charged"):
        ledger.settle(charge, "noise")


def test_one_charge_covers_one_draw_of_noise(ledger: Ledger, charge: Charge) -> None:
    """Two copies of a workspace would draw noise each, for the same charge."""
    ledger.reserve(charge, NONE)
    ledger.settle(charge, "noise")
    with pytest.raises(LedgerError, match="other noise under the same charge"):
        ledger.settle(charge, "noise drawn anew")


def test_a_ledger_is_begun_once(ledger: Ledger, charge: Charge) -> None:
    ledger.reserve(charge, NONE)
    assert ledger.begin() is False
    assert spent(ledger) == 1


def test_a_run_is_not_charged_in_a_ledger_that_nobody_has_begun(place: str, charge: Charge) -> None:
    """A mistyped name is no new budget."""
    for act in (Ledger(place).entries, lambda: Ledger(place).reserve(charge, NONE)):
        with pytest.raises(LedgerError, match="there is none") as refused:
            act()
        assert refused.value.exit_code == 2


@pytest.mark.parametrize("verb", ["UPDATE dpdist_ledger SET period = '1999'", "DELETE FROM dpdist_ledger"])
def test_the_database_lets_nobody_change_an_entry(place: str, ledger: Ledger, charge: Charge, verb: str) -> None:
    ledger.reserve(charge, NONE)
    engine = create_engine(place.replace("postgresql:", "postgresql+psycopg:"))
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as link:
        link.execute(text(verb))
    engine.dispose()
    assert spent(ledger) == 1


def test_no_message_holds_a_password(postgres: PostgresServer, charge: Charge) -> None:
    url = postgres.url()
    said = [Ledger(url).name]
    for name in (url, url.replace(str(postgres.port), "1"), url + "-not"):
        with pytest.raises(LedgerError) as refused:
            Ledger(name).entries()
        said.append(str(refused.value))
    assert all("127.0.0.1" in each for each in said)
    assert not any(PASSWORD in each for each in said)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://a@b/c", "nonsense://x", "sqlite:///x?mode=memory"]
)
def test_what_is_no_ledger_is_refused_by_name(url: str) -> None:
    with pytest.raises(LedgerError, match=r"postgresql://USER@HOST/DATABASE"):
        Ledger(url)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("no database, but long enough to be looked at " * 100)
    with pytest.raises(LedgerError, match="refuses"):
        Ledger(str(tmp_path / "ledger.sqlite")).entries()
