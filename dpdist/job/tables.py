"""Sections `tables` and `rake` of a job, for `publish`: cells, statistics, and public totals to be met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from dpdist.core.plugins import Refused
from dpdist.job.names import StatisticName
from dpdist.job.statistics import KINDS
from dpdist.job.statistics.kind import CONSTANTS, Kind
from dpdist.job.values import ColumnName, Frozen, PublicLevel, TableName

if TYPE_CHECKING:
    from dpdist.core.records import Cells, Crosstab


class Statistic(Frozen):
    """A figure that is published of every cell. A job writes count, {mean: pay}, {quantile: pay, at: 0.9} and so on."""

    name: StatisticName = Field(description="what is published of a cell")
    variable: str | None = Field(default=None, description="the outcome that it is of; of a ratio, the one above")
    over: str | None = Field(default=None, description="of a ratio: the outcome below")
    at: float | None = Field(default=None, gt=0, lt=1, description="of a quantile: its level, as in 0.9")
    above: float | None = Field(default=None, description="of a proportion: of values above this one")
    across: tuple[str, ...] = Field(default=(), description="of a share: the columns over whose levels it is taken")
    of: Statistic | None = Field(default=None, description="of a difference: the statistic of both cells")
    column: str | None = Field(default=None, description="of a difference: the column whose levels are compared")
    level: PublicLevel | None = Field(default=None, description="of a difference: the level that is taken off")

    @model_validator(mode="after")
    def _constants_fit(self) -> Self:
        stated = {name for name in CONSTANTS if getattr(self, name) not in (None, ())}
        if stated - self.kind.needs - self.kind.takes or self.kind.needs - stated:
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
    if len(names) != 1:
        return value
    name = names[0]
    operand, rest = value[name], {key: content for key, content in value.items() if key != name}
    try:
        constants = KINDS.named(name)().operands(operand)
    except (KeyError, Refused):  # of which the check of the name tells
        constants = {"variable": operand}
    if "of" in constants:
        constants["of"] = statistic_of(constants["of"])
    return {"name": name} | constants | _origin(rest)


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
    Field(min_length=1, description="as many as wanted: " + "; ".join(kind.written for kind in KINDS.every().values())),
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
        description="target error in direct standard errors, such as 0.5, in place of priority",
    ),
]


class Table(Frozen):
    """A published table. `dpdist.job.table_entries` has the forms in which a job may write several as one."""

    name: TableName = Field(description="of the table's files")
    by: tuple[str, ...] = Field(default=(), description="columns whose levels are crossed to the table's cells")
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

    @property
    def weighted(self) -> bool:
        return self.priority != 1.0 or self.error is not None


class Microdata(Frozen):
    """Further columns of the synthetic records beside reference tables: copied from the reference, unchanged."""

    columns: tuple[ColumnName, ...] = Field(
        default=(), description="columns to copy from the reference; nothing of them is measured on the current file"
    )


class Rake(Frozen):
    """Public totals to which synthetic weights are raked, one for each combination of levels, as in "biology / male".

    Without columns there is one total, of all records, named "Total".
    """

    by: tuple[str, ...] = Field(default=(), description="columns whose combinations have public totals; none: all records")
    totals: dict[str, Annotated[float, Field(gt=0)]] = Field(description="the total of each combination")
