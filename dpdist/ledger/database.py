"""The ledger's database: one append-only table of entries in SQLite or PostgreSQL, one writer, numbered schemas."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.pool import NullPool

from dpdist.core.errors import LedgerError, install
from dpdist.core.files import LATER, replaced
from dpdist.ledger.entries import COLUMNS, Entry, LedgerRow

SCHEMA = Table(
    "dpdist_ledger_schema",
    MetaData(),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("made_by", String(40), nullable=False),
)
"""A row for each step that was taken, with the dpdist that took it. Version 0.1.1 and earlier have no such table."""


def _number_the_schema(link: Connection) -> None:
    SCHEMA.create(link)


STEPS_BY_SCHEMA = {2: _number_the_schema}
"""The steps to each schema from the previous one. Steps are only appended; a released step never changes."""
NEWEST = max(STEPS_BY_SCHEMA)


def schema_of(link: Connection) -> int:
    """The number of the schema of a ledger that was begun."""
    if not inspect(link).has_table(SCHEMA.name):
        return 1
    return int(link.execute(select(func.max(SCHEMA.c.version))).scalar() or 1)


def refuse_newer(link: Connection, name: str) -> int:
    """The number of a ledger's schema. Raises `LedgerError` for one of a later dpdist."""
    if (schema := schema_of(link)) > NEWEST:
        fault = f"its tables are of schema {schema}, which a later dpdist than {version('dpdist')} made (it knows {NEWEST})"
        raise LedgerError(name, fault, LATER, 2)
    return schema


def migrate(link: Connection, name: str, file: Path | None) -> None:
    """Takes the steps that are missing, within the transaction of a ledger's only writer.

    A copy `FILE.schema-N` of an SQLite file with entries is kept first. Raises `LedgerError`.
    """
    if (schema := refuse_newer(link, name)) == NEWEST:
        return
    if file is not None:
        keep_copy(file, schema)
    try:
        for number in range(schema + 1, NEWEST + 1):
            STEPS_BY_SCHEMA[number](link)
            link.execute(insert(SCHEMA).values(version=number, made_by=version("dpdist")))
    except ProgrammingError as error:
        fault = f"its tables are of schema {schema}, and this account may not bring them to {NEWEST}"
        remedy = "let the owner of the database do it once: dpdist ledger init --ledger URL"
        raise LedgerError(name, f"{fault} ({type(error.orig).__name__})", remedy, 2) from None


def keep_copy(file: Path, schema: int) -> None:
    """Keeps a whole copy of an SQLite ledger beside it; an earlier copy of the same schema is replaced."""
    with replaced(file.with_name(f"{file.name}.schema-{schema}")) as temporary:
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(temporary)) as copy:
            source.backup(copy)
        temporary.chmod(file.stat().st_mode)


PATIENCE = 300
"""Seconds that a writer waits for other writers."""
LOCK = 0x6470_6469_7374
"""Number of the advisory lock that a PostgreSQL ledger's writers take."""
_NAMES = MetaData()
ENTRIES = Table(
    "dpdist_ledger",
    _NAMES,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("dataset", String(80)),
    Column("period", Text),
    Column("run", String(64)),
    Column("entry", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    UniqueConstraint("run", "kind", name="dpdist_ledger_once"),
)
_GUARDS = {
    "sqlite": tuple(
        f"CREATE TRIGGER dpdist_ledger_{verb} BEFORE {verb} ON dpdist_ledger "
        "BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END"
        for verb in ("update", "delete")
    ),
    "postgresql": (
        "CREATE FUNCTION dpdist_ledger_guard() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'a ledger is append-only'; END $$",
        "CREATE TRIGGER dpdist_ledger_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dpdist_ledger "
        "FOR EACH STATEMENT EXECUTE FUNCTION dpdist_ledger_guard()",
    ),
}
"""Triggers that prevent users with rights only on this table from changing or removing entries."""


class Database:
    """The database of a ledger: an SQLite file, or a database on a PostgreSQL server."""

    def __init__(self, place: str) -> None:
        self._url = _url(place)
        self.name = self._url.render_as_string(hide_password=True)
        self._engine = _engine(self._url, self.name)

    @property
    def file(self) -> Path | None:
        return Path(str(self._url.database)) if self._url.get_backend_name() == "sqlite" else None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees the ledger in one state. Raises `LedgerError` if there is no ledger."""
        with self._telling():
            if self.file is not None and not self.file.is_file():
                raise self._none()
            with self._engine.connect() as link, link.begin():
                self._refuse_none(link)
                refuse_newer(link, self.name)
                yield link

    @contextmanager
    def writing(self, begin: bool = False) -> Iterator[Connection]:
        """A transaction of the only writer, committed at the end. With `begin`, a missing table is created.

        Tables of an earlier schema are brought to this one first.
        """
        with self._telling():
            if self.file is not None and not self.file.is_file() and not begin:
                raise self._none()
            with self._engine.connect() as link:
                if not begin:
                    with link.begin():  # not while others wait
                        self._refuse_none(link)
                        refuse_newer(link, self.name)
                with link.execution_options(dpdist_writes=True).begin():
                    if self._engine.dialect.name == "postgresql":
                        link.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
                    fresh = begin and not inspect(link).has_table(ENTRIES.name)
                    if fresh:
                        self._make(link)
                    migrate(link, self.name, None if fresh else self.file)
                    yield link

    def _refuse_none(self, link: Connection) -> None:
        if not inspect(link).has_table(ENTRIES.name):
            raise self._none()

    def _make(self, link: Connection) -> None:
        _NAMES.create_all(link)
        for guard in _GUARDS[self._engine.dialect.name]:
            link.execute(text(guard))

    def _none(self) -> LedgerError:
        remedy = "begin one: dpdist ledger init --ledger URL; or name the one that there is"
        return LedgerError(self.name, "there is none", remedy, 2)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Replaces database errors by `LedgerError` with the kind of error, because a driver's message may contain a
        password.
        """
        try:
            yield
        except DBAPIError as error:
            fault = f"it does not answer, or refuses ({type(error.orig).__name__})"
            remedy = (
                "see that the file or server is there and yours to write, and not held by another; then the same command"
            )
            away = isinstance(error, InterfaceError | OperationalError)  # others come from a database that answers
            raise LedgerError(self.name, fault, remedy, no_answer=away) from None
        except SQLAlchemyError as error:
            raise LedgerError(self.name, f"it cannot be used ({type(error).__name__})", "check its URL") from None


def rows(link: Connection) -> list[LedgerRow]:
    """All entries in order, as they are stored."""
    stored = link.execute(select(ENTRIES).order_by(ENTRIES.c.number)).mappings()
    return [LedgerRow(row["number"], row["entry"], row["sha256"], {name: row[name] for name in COLUMNS}) for row in stored]


def append(link: Connection, entry: Entry) -> None:
    values = {"number": entry.number, "entry": entry.text, "sha256": entry.sha256, **entry.columns}
    link.execute(insert(ENTRIES).values(values))


def _url(place: str) -> URL:
    """The database's URL; a plain path means an SQLite file. Raises `LedgerError` for other kinds of database."""
    allowed = "a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE"
    if "://" not in place:
        return URL.create("sqlite", database=str(Path(place).absolute()))
    try:
        url = make_url(place)
        kind = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise LedgerError(place.partition("://")[0], "no URL of a database", f"name {allowed}", 2) from None
    if kind in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if kind == "sqlite" and url.database not in (None, "", ":memory:") and not url.query:
        return URL.create("sqlite", database=str(Path(str(url.database)).absolute()))
    raise LedgerError(kind, "no database that a ledger can stand in", f"name {allowed}", 2)


def _engine(url: URL, name: str) -> Engine:
    """An engine that keeps no connections open, so that no child process inherits one.

    It uses READ COMMITTED, under which a process that waited for the lock sees all that was committed meanwhile.
    """
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": PATIENCE, "isolation_level": None})
        event.listen(engine, "begin", _begin)
        return engine
    try:
        waits = {"connect_timeout": 10, "options": f"-c lock_timeout={PATIENCE}s"}
        return create_engine(url, poolclass=NullPool, connect_args=waits, isolation_level="READ COMMITTED")
    except ImportError:
        raise LedgerError(name, "no driver of PostgreSQL", install("psycopg"), 2) from None


def _begin(link: Connection) -> None:
    """Begins a transaction at once.

    SQLite's transactions would otherwise begin with the first write, when earlier reads may be out of date.
    """
    link.exec_driver_sql("BEGIN IMMEDIATE" if link.get_execution_options().get("dpdist_writes") else "BEGIN")
