"""Ledgers to test: files, and databases of a PostgreSQL server of this session."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from dpdist.ledger.accounts import Charge
from dpdist.ledger.book import Ledger


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a ledger that nobody has begun."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url()


@pytest.fixture
def ledger(place: str) -> Ledger:
    """One that was begun."""
    book = Ledger(place)
    book.begin()
    return book


@pytest.fixture
def charge() -> Charge:
    """ε = 1 of a strict release."""
    return Charge("wages", "2021", "run-1", "strict", "zero_out", Fraction(1), Fraction(0), "job")
