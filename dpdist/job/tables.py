"""What is published: tables, their statistics, totals that they meet."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from dpdist.job.names import StatisticName
from dpdist.job.values import ColumnName, Frozen, Name


class Statistic(Frozen):
    name: StatisticName = Field(description="what is published of a cell")
    variable: str | None = Field(default=None, description="the outcome that a mean or a total is of")

    @property
    def text(self) -> str:
        return self.name if self.variable is None else f"{self.name} of {self.variable}"


def statistic_of(value: Any) -> Any:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and len(value) == 1 and "name" not in value:
        ((name, variable),) = value.items()
        return {"name": name, "variable": variable}
    return value


def statistic_text(value: Statistic) -> Any:
    return value.name if value.variable is None else {value.name: value.variable}


class Table(Frozen):
    name: Name = Field(description="of the table's files")
    by: tuple[str, ...] = Field(default=(), description="columns whose levels are crossed to the table's cells")
    margins: bool = Field(default=True, description="whether sums over every column are published too, as level Total")
    statistics: tuple[Annotated[Statistic, BeforeValidator(statistic_of), PlainSerializer(statistic_text)], ...] = Field(
        min_length=1, description="count, {mean: outcome} and {total: outcome}, as many as wanted"
    )


class Microdata(Frozen):
    """What synthetic records beside reference tables hold further: columns of the reference, copied as they are."""

    columns: tuple[ColumnName, ...] = Field(
        default=(), description="columns of the reference's file, of which nothing is measured on the current one"
    )


class Rake(Frozen):
    """Public totals that synthetic weights are raked to: one a combination of levels, written "biology / male"; of all
    records, without columns, "Total"."""

    by: tuple[str, ...] = Field(default=(), description="columns whose combinations have a public total; none: all records")
    totals: dict[str, Annotated[float, Field(gt=0)]] = Field(description="the total of each combination")
