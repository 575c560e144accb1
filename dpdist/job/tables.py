"""Sections `tables`, `rake` and `hierarchies` of a job: cells, statistics, public totals, nested columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb
from typing import Annotated, Any, NamedTuple, Self
from unicodedata import normalize

import numpy as np
from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from dpdist.core.errors import JobError
from dpdist.core.plugins import PluginRefused
from dpdist.core.records import Cells, Codes, Crosstab, Level
from dpdist.job.statistics import KINDS
from dpdist.job.statistics.kind import CONSTANTS, Kind
from dpdist.job.values import ColumnName, Frozen, Name, PublicLevel, StatisticName, TableName, adapter_of
from dpdist.job.yaml_lines import Where

UNSEEN = -1
"""The parent of a level if the job does not state it and no public record has the level."""


@dataclass(frozen=True)
class Nesting:
    """Columns of a hierarchy, the coarsest first, and the map between them.

    `parents[k]` has, for every level of `columns[k + 1]`, the position of its parent in `columns[k]`, or `UNSEEN`.
    """

    name: str
    columns: tuple[str, ...]
    parents: tuple[Codes, ...]

    def __str__(self) -> str:
        return f"{self.name}: {' > '.join(self.columns)}"


class UnnestedError(Exception):
    """A level that lies in two levels of the coarser column; `fine`, `level`, `coarse` and `both` say which."""

    def __init__(self, fine: str, level: Level, coarse: str, both: tuple[Level, Level]) -> None:
        super().__init__(f"{fine} {level}: {coarse} {both[0]} and {both[1]}")
        self.fine, self.level, self.coarse, self.both = fine, level, coarse, both


def parents_in(frames: Iterable[Crosstab], fine: str, coarse: str, declared: Codes) -> Codes:
    """The coarser level of every level of a column, from a stated map and from records of public frames.

    `declared` has `UNSEEN` for levels that the records decide. Raises `UnnestedError` if a level has two parents.
    """
    parent = declared.copy()
    for crosstab in frames:
        levels, occurs = crosstab.levels, crosstab.count > 0
        pairs = np.unique(np.column_stack([crosstab.codes[fine], crosstab.codes[coarse]])[occurs], axis=0)
        for level, within in pairs.tolist():
            if parent[level] not in (UNSEEN, within):
                both = (levels[coarse][parent[level]], levels[coarse][within])
                raise UnnestedError(fine, levels[fine][level], coarse, both)
            parent[level] = within
    return parent


def _texts(value: Any) -> Any:
    return {str(fine): str(coarse) for fine, coarse in value.items()} if isinstance(value, dict) else value


class Hierarchy(Frozen):
    """Columns, each nested in the previous one, as in [region, state, county]."""

    columns: tuple[ColumnName, ...] = Field(min_length=2, description="the columns, the coarsest first")
    within: dict[ColumnName, Annotated[dict[str, str], BeforeValidator(_texts)]] = Field(
        default={},
        description="for each column, the coarser level that contains each of its levels, as in {state: {Texas: South, "
        "Utah: West}}; unset: as levels occur together in public records",
    )

    @property
    def steps(self) -> tuple[tuple[str, str], ...]:
        """Every finer column with its coarser column."""
        return tuple(zip(self.columns[1:], self.columns, strict=False))

    def stated(self, levels: Mapping[str, Sequence[Level]], fine: str, coarse: str) -> Codes:
        """The job's map of a column, as positions of levels, (level,); `UNSEEN` for levels that it does not map."""
        if fine not in self.within:
            return np.full(len(levels[fine]), UNSEEN, dtype=np.int32)
        place = {str(level): k for k, level in enumerate(levels[coarse])}
        return np.array([place[self.within[fine][str(level)]] for level in levels[fine]], dtype=np.int32)


def _as_mapping(value: Any) -> Any:
    return {"columns": value} if isinstance(value, list | tuple) else value


Hierarchies = dict[Name, Annotated[Hierarchy, BeforeValidator(_as_mapping, json_schema_input_type=list[str] | Hierarchy)]]
"""By name; a job may write a hierarchy as a list of columns."""


def nestings(
    dataset: str, hierarchies: Mapping[str, Hierarchy], levels: Mapping[str, Sequence[Level]], frames: Iterable[Crosstab]
) -> tuple[Nesting, ...]:
    """The maps of all hierarchies, from the job and from records of public frames.

    `levels` are the levels of the columns. Raises `JobError` if a level belongs to two levels of the coarser column.
    """
    public, nested = tuple(frames), []
    for name, hierarchy in hierarchies.items():
        parents = []
        for fine, coarse in hierarchy.steps:
            holding = [crosstab for crosstab in public if {fine, coarse} <= crosstab.codes.keys()]
            try:
                parents.append(parents_in(holding, fine, coarse, hierarchy.stated(levels, fine, coarse)))
            except UnnestedError as error:
                swapped = not hierarchy.within and _nested(holding, levels, coarse, fine)
                raise _not_nested(dataset, name, error, fine in hierarchy.within, swapped) from None
        nested.append(Nesting(name, hierarchy.columns, tuple(parents)))
    return tuple(nested)


def _nested(frames: Sequence[Crosstab], levels: Mapping[str, Sequence[Level]], fine: str, coarse: str) -> bool:
    try:
        parents_in(frames, fine, coarse, np.full(len(levels[fine]), UNSEEN, dtype=np.int32))
    except UnnestedError:
        return False
    return True


def _not_nested(dataset: str, name: str, error: UnnestedError, is_declared: bool, swapped: bool) -> JobError:
    fine, coarse, (_, other) = error.fine, error.coarse, error.both
    first = f"{coarse} '{_}' by the job" if is_declared else f"{coarse} '{_}'"
    fault = f"{fine} '{error.level}' belongs to {first}, but in public records also to '{other}'"
    allowed = f"one level of {coarse} for every level of {fine}"
    remedy = "correct the map, or the records; or leave the column out of the hierarchy"
    if swapped:
        remedy = f"the coarsest column comes first: write {fine} before {coarse}"
    return JobError.of(dataset, f"hierarchies.{name}", fault, allowed, remedy)


class Statistic(Frozen):
    """A figure that is published of every cell. A job writes count, {mean: pay}, {quantile: pay, at: 0.9} and so on."""

    name: StatisticName = Field(description="the figure that is published for a cell")
    variable: str | None = Field(default=None, description="its outcome; for a ratio, the numerator")
    over: str | None = Field(default=None, description="for a ratio: the denominator")
    at: float | None = Field(default=None, gt=0, lt=1, description="for a quantile: its level, as in 0.9")
    above: float | None = Field(default=None, description="for a proportion: the value above which a value counts")
    across: tuple[str, ...] = Field(default=(), description="for a share: the columns over whose levels shares sum to 1")
    of: Statistic | None = Field(default=None, description="for a difference: the statistic of both cells")
    column: str | None = Field(default=None, description="for a difference: the column whose levels are compared")
    level: PublicLevel | None = Field(default=None, description="for a difference: the level that is subtracted")

    @model_validator(mode="after")
    def _constants_fit(self) -> Self:
        constants = {name for name in CONSTANTS if getattr(self, name) not in (None, ())}
        if constants - self.kind.needs - self.kind.takes or self.kind.needs - constants:
            raise ValueError(f"a {self.name} is written {self.kind.written}")
        if self.of is not None and self.of.of is not None:
            raise ValueError("a difference of differences is not published: write both differences")
        return self

    @property
    def kind(self) -> Kind:
        return KINDS.named(self.name)()

    @property
    def text(self) -> str:
        """The statistic with its outcome, as text."""
        if self.of is not None:
            return f"difference of {self.of.text} from {self.column} {self.level}"
        return self.label if self.about is None else f"{self.label} of {self.about}"

    @property
    def label(self) -> str:
        """The statistic's name in a published table, with its constants and without its outcome."""
        return self.kind.label(self)

    @property
    def written(self) -> Any:
        """The statistic as a job writes it."""
        return self.kind.text(self)

    @property
    def about(self) -> str | None:
        """The outcome as a published table names it; for a ratio both outcomes, as in "a / b"."""
        return self.kind.about(self)

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes that the statistic uses."""
        if self.of is not None:
            return self.of.outcomes
        return tuple(name for name in (self.variable, self.over) if name is not None)

    @property
    def level_of_quantile(self) -> float | None:
        """The level of a median or quantile, from 0 to 1; None for other statistics."""
        return self.kind.quantile(self)

    @property
    def of_shape(self) -> bool:
        """True if it follows from an outcome's distribution alone, and not from counts and totals."""
        return self.kind.of_shape(self)

    @property
    def plain(self) -> bool:
        """True if every mechanism and comparator gives it: a count, or a figure of one outcome's sums."""
        return self.kind.plain


def statistic_of(value: Any) -> Any:
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, dict) or "name" in value:
        return value
    names = [name for name in value if name not in ("from", *CONSTANTS)]
    if len(names) > 1:  # a statistic, and keys that it does not have
        names = [name for name in names if _known(name)]
    if len(names) != 1:
        return value
    name = names[0]
    operand, rest = value[name], {key: content for key, content in value.items() if key != name}
    try:
        kind = KINDS.named(name)()
    except (KeyError, PluginRefused):  # of which the check of the name tells
        constants = {"variable": operand}
    else:
        constants = _operands(kind, operand)
    if "of" in constants:
        constants["of"] = statistic_of(constants["of"])
    return {"name": name} | constants | _origin(rest)


def _known(name: Any) -> bool:
    with suppress(KeyError, PluginRefused):
        return bool(KINDS.named(name))
    return False


def _operands(kind: Kind, operand: Any) -> dict[str, Any]:
    """The constants that a job's value gives. A value that a kind cannot read is a `ValueError`."""
    try:
        return dict(kind.operands(operand))
    except ValueError:
        raise
    except Exception:  # code of others may fail in any way
        raise ValueError(f"a {kind.name} is written {kind.written}") from None


def _origin(rest: dict[str, Any]) -> dict[str, Any]:
    if "from" not in rest:
        return rest
    origin = rest["from"]
    if not (isinstance(origin, dict) and len(origin) == 1):
        raise ValueError("a difference is from one level of one column: write from: {sex: male}")
    ((column, level),) = origin.items()
    return {key: content for key, content in rest.items() if key != "from"} | {"column": column, "level": level}


def statistic_text(value: Statistic) -> Any:
    return value.written


Margins = Annotated[bool, Field(description="also publish sums over every column, as level Total")]
Statistics = Annotated[
    tuple[Annotated[Statistic, BeforeValidator(statistic_of), PlainSerializer(statistic_text)], ...],
    Field(
        min_length=1,
        description=("any number of statistics: ") + "; ".join(kind.written for kind in KINDS.with_plugins().values()),
    ),
]
TableUniverse = Annotated[
    dict[ColumnName, Annotated[tuple[PublicLevel, ...], Field(min_length=1)]],
    Field(
        exclude_if=lambda universe: not universe,
        description="columns with the levels of the records that count, as in {status: [employed]}; unset: all",
    ),
]
Priority = Annotated[float, Field(ge=1e-6, le=1e6)]
Precision = Annotated[
    Annotated[float, Field(ge=1e-3, le=1e3)] | None,
    Field(
        exclude_if=lambda error: error is None,
        description="target error in direct standard errors, such as 0.5, instead of priority",
    ),
]


class Table(Frozen):
    """A published table. `dpdist.job.tables` has the forms in which a job may write several as one."""

    name: TableName = Field(description="of the table's files")
    by: tuple[str, ...] = Field(default=(), description="columns whose combinations of levels are the table's cells")
    universe: TableUniverse = Field(default={})
    margins: Margins = True
    statistics: Statistics
    priority: Annotated[Priority, Field(exclude_if=lambda priority: priority == 1.0)] = 1.0
    """Weight of the table's mean squared error, in direct standard errors, which a mechanism minimises."""
    error: Precision = None
    """The target error, in direct standard errors, from which the priority follows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its cells and of its universe."""
        return tuple(dict.fromkeys([*self.by, *self.universe]))

    def cells(self, crosstab: Crosstab) -> Cells:
        """Its cells over a crosstab."""
        from dpdist.core.records import cross  # brings SciPy, which no reader of a job waits for

        return cross(crosstab, self.by, self.margins, self.universe)

    def labels(self, crosstab: Crosstab) -> tuple[tuple[str, ...], ...]:
        """Labels of its cells."""
        from dpdist.core.records import cross_labels

        return cross_labels(crosstab, self.by, self.margins, self.universe)

    def number_of_cells(self, crosstab: Crosstab) -> int:
        """The number of its cells."""
        from dpdist.core.records import number_of_cells

        return number_of_cells(crosstab, self.by, self.margins, self.universe)

    @property
    def weighted(self) -> bool:
        return self.priority != 1.0 or self.error is not None


class Microdata(Frozen):
    """Further columns that synthetic records of `tables` copy unchanged from the reference."""

    columns: tuple[ColumnName, ...] = Field(
        default=(), description="columns to copy from the reference; they are not measured on the current file"
    )


class Rake(Frozen):
    """Public totals to which synthetic weights are raked, one for each combination of levels, as in "biology / male".

    Without columns there is one total, of all records, named "Total".
    """

    by: tuple[str, ...] = Field(default=(), description="columns whose combinations have public totals; none: all records")
    totals: dict[str, Annotated[float, Field(gt=0)]] = Field(description="the total of each combination")


#     {name: pay, by: [[state, sex], [state, age]], statistics: [count]}      → pay-state-sex, pay-state-age
#     {name: pay, every_pair_of: [state, sex, age], statistics: [count]}      → pay-state-sex, pay-state-age, pay-sex-age
#
# Shorthand is expanded when a job is read, so that all later code sees plain tables. A derived name is the entry's name
# and its columns, joined by hyphens. Characters that names exclude become underscores.
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


class TableColumns(NamedTuple):
    """The columns of one table of an entry, and each column's place in the entry."""

    by: tuple[str, ...]
    places: tuple[Where, ...]
    place: Where
    """The place of the entry's list of columns."""


class TableEntry(Frozen):
    """A published table, or several, each named by the entry's name and its columns, as in pay-state-sex."""

    name: TableName = Field(description="name of the table, or prefix of the names of several")
    by: tuple[_ByItem, ...] = Field(
        default=(),
        description="columns whose combinations are the table's cells; or a list for each table, as in "
        "[[state, sex], [state, age]]",
    )
    every_pair_of: tuple[str, ...] = Field(default=(), description="columns, every pair of which gets a table")
    every_triple_of: tuple[str, ...] = Field(default=(), description="columns, every triple of which gets a table")
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
            raise ValueError("'by' is either a list of columns, for one table, or a list of such lists, one for each table")
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

    def listed(self) -> Iterator[TableColumns]:
        """The columns of every table, in order."""
        for key, size in _GROUPS.items():
            columns = getattr(self, key)
            for subset in combinations(range(len(columns)), size) if columns else ():
                yield TableColumns(tuple(columns[k] for k in subset), tuple((key, k) for k in subset), (key,))
        if not self.several:
            columns = tuple(str(item) for item in self.by)
            yield TableColumns(columns, tuple(("by", k) for k in range(len(columns))), ("by",))
        elif self.by:
            for i, item in enumerate(self.by):
                yield TableColumns(tuple(item), tuple(("by", i, k) for k in range(len(item))), ("by", i))

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
        schema = core_schema.no_info_after_validator_function(_plain, handler.generate_schema(Entries))
        return core_schema.chain_schema([schema, handler(source)])


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
