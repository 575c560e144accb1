"""For `ledger.database`: brings tables of an earlier schema to this one, in numbered steps and one transaction.

The first writer of a later dpdist takes the steps. Both databases undo changes of tables with their transaction, so a
killed process leaves one of the two schemas whole. No step may change an entry.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, func, insert, inspect, select
from sqlalchemy.exc import ProgrammingError

from dpdist.core.errors import LedgerError
from dpdist.core.files import replaced
from dpdist.core.formats import LATER

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
