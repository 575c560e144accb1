"""For `job.loading`: tables as a job writes them; one entry can stand for several that differ only by columns.

    {name: pay, by: [[state, sex], [state, age]], statistics: [count]}      → pay-state-sex, pay-state-age
    {name: pay, every_pair_of: [state, sex, age], statistics: [count]}      → pay-state-sex, pay-state-age, pay-sex-age

Shorthand is expanded when a job is read, so that all later code sees plain tables. A derived name is the entry's name
and its columns, joined by hyphens. Characters that names exclude become underscores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from math import comb
from typing import Annotated, Any, NamedTuple, Self
from unicodedata import normalize

from pydantic import BeforeValidator, Discriminator, Field, GetCoreSchemaHandler, Tag, model_validator
from pydantic_core import CoreSchema, core_schema

from dpdist.job.tables import Margins, Precision, Priority, Statistics, Table, TableUniverse
from dpdist.job.values import Frozen, TableName, adapter_of
from dpdist.job.yaml_lines import Where

MOST_TABLES = 1_000
"""Largest number of tables of a job. A larger workbook, page or folder would be of no use to a reader."""
LONGEST_NAME = 80
_NOT_IN_A_NAME = re.compile(r"[\x00-\x2d/:-@\x5b-\x5e`\x7b-\xbf\u2000-\u206f\u3000]+")
"""What `values.TABLE` excludes, and the hyphen, which joins."""
_GROUPS = {"every_pair_of": 2, "every_triple_of": 3}
"""Shorthand keys, and the number of columns of each of their tables."""


def _kind(value: Any) -> str:
    return "columns" if isinstance(value, list | tuple) else "column"


_ByItem = Annotated[
    Annotated[str, Tag("column")] | Annotated[tuple[str, ...], Tag("columns")],
    Discriminator(_kind),
]


class Listed(NamedTuple):
    """The columns of one table of an entry, and each column's place in the entry."""

    by: tuple[str, ...]
    places: tuple[Where, ...]
    place: Where
    """The place of the entry's list of columns."""


class TableEntry(Frozen):
    """A published table, or several that differ only by their columns.

    Names of several are the entry's name and their columns, joined by hyphens, as in pay-state-sex.
    """

    name: TableName = Field(description="name of the table, or beginning of the names of several")
    by: tuple[_ByItem, ...] = Field(
        default=(),
        description="columns whose combinations are the table's cells; or lists of columns, one for each "
        "table, as in [[state, sex], [state, age]]",
    )
    every_pair_of: tuple[str, ...] = Field(
        default=(), description="columns of which every two have a table, in place of by"
    )
    every_triple_of: tuple[str, ...] = Field(
        default=(), description="columns of which every three have a table, in place of by"
    )
    universe: TableUniverse = Field(default={})
    margins: Margins = True
    statistics: Statistics
    priority: Priority | None = Field(
        default=None,
        description="weight of the table's squared errors in the split of the budget; 1 if unset",
    )
    error: Precision = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = [key for key in ("by", *_GROUPS) if getattr(self, key)]
        if len(forms) > 1:
            raise ValueError(f"give only one of by, every_pair_of and every_triple_of, not {' and '.join(forms)}")
        if len({_kind(item) for item in self.by}) > 1:
            raise ValueError("by has either columns, of one table, or lists of columns, one for each table")
        for key, size in _GROUPS.items():
            columns = getattr(self, key)
            if columns and len(columns) < size:
                raise ValueError(f"{key} needs {size} columns or more")
            if (number := comb(len(columns), size)) > MOST_TABLES:
                raise ValueError(f"{key} of {len(columns)} columns is {number:,} tables: at most {MOST_TABLES:,}")
        if self.priority is not None and self.error is not None and self.priority != priority_of(self.error):
            raise ValueError("give priority or error, not both: an error of e has the priority 1/e²")
        if self.several and (long := max((self._name(listed.by) for listed in self.listed()), key=len))[LONGEST_NAME:]:
            raise ValueError(f"'{long:.40}…' would be a table's name: at most {LONGEST_NAME} characters")
        return self

    @property
    def several(self) -> bool:
        return any(getattr(self, key) for key in _GROUPS) or any(_kind(item) == "columns" for item in self.by)

    def listed(self) -> Iterator[Listed]:
        """The columns of every table, in order."""
        for key, size in _GROUPS.items():
            columns = getattr(self, key)
            for chosen in combinations(range(len(columns)), size) if columns else ():
                yield Listed(tuple(columns[k] for k in chosen), tuple((key, k) for k in chosen), (key,))
        if not self.several:
            columns = tuple(str(item) for item in self.by)
            yield Listed(columns, tuple(("by", k) for k in range(len(columns))), ("by",))
        elif self.by:
            for i, item in enumerate(self.by):
                yield Listed(tuple(item), tuple(("by", i, k) for k in range(len(item))), ("by", i))

    def tables(self) -> Iterator[Table]:
        """The plain tables of the entry."""
        priority = self.priority if self.error is None else priority_of(self.error)
        for listed in self.listed():
            name = self._name(listed.by) if self.several else self.name
            yield Table(
                name=name,
                by=listed.by,
                universe=self.universe,
                margins=self.margins,
                statistics=self.statistics,
                priority=1.0 if priority is None else priority,
                error=self.error,
            )

    def _name(self, by: Sequence[str]) -> str:
        return "-".join((self.name, *(_NOT_IN_A_NAME.sub("_", normalize("NFC", column)) for column in by)))


def priority_of(error: float) -> float:
    """The priority of a table with this target error; at all target errors, weighted squared errors are equal."""
    return error**-2


class ListedOut:
    """Annotates plain tables that are read from entries; `written` is the type in the job."""

    @property
    def written(self) -> Any:
        return Entries

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.no_info_after_validator_function(_plain, handler.generate_schema(Entries))
        return core_schema.chain_schema([written, handler(source)])


def _as_entry(value: Any) -> Any:
    return dict(value) if isinstance(value, Table) else value


Entries = Annotated[
    tuple[Annotated[TableEntry, BeforeValidator(_as_entry)], ...],
    Field(min_length=1),
]


def _plain(entries: tuple[TableEntry, ...]) -> tuple[Table, ...]:
    """The tables of all entries; if there are too many, one more than allowed, which a check refuses."""
    return tuple(islice((table for entry in entries for table in entry.tables()), MOST_TABLES + 1))


def written_place(where: Where, entries: Any) -> Where:
    """The place in a job file of a path ("tables", position, …) in the job's plain tables.
    `entries` are the valid entries as the job has them.
    """
    if where[:1] != ("tables",) or len(where) < 2 or not isinstance(where[1], int):
        return where
    places = (
        (i, listed) for i, entry in enumerate(adapter_of(Entries).validate_python(entries)) for listed in entry.listed()
    )
    i, listed = next(islice(places, where[1], None))
    rest = where[2:]
    if rest[:1] == ("by",):
        rest = listed.places[rest[1]] if len(rest) > 1 and isinstance(rest[1], int) else listed.place
    return ("tables", i, *rest)
