"""What a study file asks its page to show: findings, tables beside published figures, figures."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpdist.job import Budget, Frozen

FigureKind = Literal["violins", "ecdf", "record_bounds", "weights_and_bounds", "by_size", "by_period"]


class Row(Frozen):
    """Published figures of one mechanism at one ε, by column."""

    mechanism: str
    epsilon: Budget | None = None
    values: dict[str, float | str]


class Beside(Frozen):
    """A table of published figures that the page sets beside the study's."""

    title: str
    measure: str
    case: str | None = None
    statistic: Literal["mean", "mean_sd", "median", "five_numbers", "range", "interval"] = "mean"
    columns: dict[str, str] = Field(description="key of a published column and its heading")
    rows: tuple[Row, ...] = Field(min_length=1)
    reading: str = ""


class Figure(Frozen):
    kind: FigureKind
    title: str
    measure: str | None = None
    cases: tuple[str, ...] | None = None
    mechanisms: tuple[str, ...] | None = None
    log: bool = False
    reading: str = ""


class Note(Frozen):
    """A finding that the page states near its top: what reproduces, what does not."""

    title: str
    text: str
