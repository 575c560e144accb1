"""What is published: tables, their statistics, totals that they meet."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from dpdist.job.names import StatisticName
from dpdist.job.values import ColumnName, Frozen, Name


class Statistic(Frozen):
    name: StatisticName
    variable: str | None = None

    @property
    def text(self) -> str:
        return self.name if self.variable is None else f"{self.name} of {self.variable}"


def _statistic(value: Any) -> Any:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and len(value) == 1 and "name" not in value:
        ((name, variable),) = value.items()
        return {"name": name, "variable": variable}
    return value


def _statistic_text(value: Statistic) -> Any:
    return value.name if value.variable is None else {value.name: value.variable}


class Table(Frozen):
    name: Name
    by: tuple[str, ...] = ()
    margins: bool = True
    statistics: tuple[Annotated[Statistic, BeforeValidator(_statistic), PlainSerializer(_statistic_text)], ...] = Field(
        min_length=1
    )


class Microdata(Frozen):
    """What synthetic records beside reference tables hold further: columns of the reference, copied as they are."""

    columns: tuple[ColumnName, ...] = Field(
        default=(), description="columns of the reference's file, of which nothing is measured on the current one"
    )


class Rake(Frozen):
    """Public totals that synthetic weights are raked to: one a combination of levels, written "biology / male"."""

    by: tuple[str, ...] = Field(min_length=1)
    totals: dict[str, Annotated[float, Field(gt=0)]]
