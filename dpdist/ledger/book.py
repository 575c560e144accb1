"""The ledger and its database: charges a release before it begins, settles it afterwards, removes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

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
from dpdist.core.files import LATER, LEDGER, misfit, replaced
from dpdist.job import Limits
from dpdist.ledger.accounts import (
    COLUMNS,
    Charge,
    Class,
    Entry,
    LedgerRow,
    Receipt,
    damage,
    following,
    refuse_charge,
    stated_format,
    trusted,
)

SCHEMA = Table(
    "dpdist_ledger_schema",
    MetaData(),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("made_by", String(40), nullable=False),
)
"""A row for each step that was taken, with the dpdist that took it. Version 0.1.1 and earlier have no such table."""


STEPS_BY_SCHEMA = {2: SCHEMA.create}
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
        fault = f"its tables are of schema {schema}, and this account may not upgrade them to {NEWEST}"
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
                    is_new = begin and not inspect(link).has_table(ENTRIES.name)
                    if is_new:
                        self._make(link)
                    migrate(link, self.name, None if is_new else self.file)
                    yield link

    def _refuse_none(self, link: Connection) -> None:
        if not inspect(link).has_table(ENTRIES.name):
            raise self._none()

    def _make(self, link: Connection) -> None:
        _NAMES.create_all(link)
        for guard in _GUARDS[self._engine.dialect.name]:
            link.execute(text(guard))

    def _none(self) -> LedgerError:
        remedy = "create one: dpdist ledger init --ledger URL; or name the existing one"
        return LedgerError(self.name, "there is none", remedy, 2)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Replaces database errors by `LedgerError` with the kind of error, because a driver's message may contain a
        password.
        """
        try:
            yield
        except DBAPIError as error:
            fault = f"it does not answer, or refuses the connection ({type(error.orig).__name__})"
            remedy = (
                "check that the file or server exists, that you may write to it and that no other process holds it; "
                "then repeat the command"
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
    raise LedgerError(kind, "no database that can hold a ledger", f"name {allowed}", 2)


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
        raise LedgerError(name, "no driver for PostgreSQL is installed", install("psycopg"), 2) from None


def _begin(link: Connection) -> None:
    """Begins a transaction at once.

    SQLite's transactions would otherwise begin with the first write, when earlier reads may be out of date.
    """
    link.exec_driver_sql("BEGIN IMMEDIATE" if link.get_execution_options().get("dpdist_writes") else "BEGIN")


CHARGED_IN = "name the ledger that the run was charged in, or use a new workspace"
CORRECTS = "state correction.of as it was when the run began, or use a new workspace"
DAMAGED = "find out who changed it, and restore it from a copy (as made by dpdist ledger export)"


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

    def reserve(self, charge: Charge, job_limits: Limits) -> Receipt:
        """Charges a run, once however often this is called. Raises `BudgetRefused`, and then writes nothing."""
        with self._database.writing() as link:
            entries = self._trusted(link)
            if (reserved := _of_run(entries, charge.run, "reserve")) is None:
                refuse_charge(entries, job_limits, charge)
                reserved = self._append(link, entries[-1], {"kind": "reserve", **charge.content})
            elif (earlier := Charge.of(reserved)).corrects not in ("", charge.corrects):
                raise self._other("the run was charged as a correction of another release", CORRECTS)
            elif replace(earlier, job=charge.job, corrects=charge.corrects) != charge:
                raise self._other("the run was charged with a different cost")
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
        return f"the ledger lacks entry {receipt.number}, under which this run was charged"
    return None
